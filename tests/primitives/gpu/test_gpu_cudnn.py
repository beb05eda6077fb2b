"""cuDNN without a GPU: the pieces of a batch, their memory, and kernels that compile."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from gpu_layers import DEVICE, needs_compiler
from hypothesis import given
from hypothesis import strategies as st
from kernel_resources import resource_usage
from layers import extents

from znni.core.option_types import ACCURACIES
from znni.core.shapes import Shape5, Vec3, valid_convolution
from znni.network.layers import Activation, Conv
from znni.primitives.gpu.common.activation import EXPRESSIONS
from znni.primitives.gpu.cudnn import graph, layout, refusals
from znni.primitives.gpu.cudnn import primitive as cudnn
from znni.primitives.gpu.cudnn.formats import FORMATS, Format
from znni.primitives.gpu.cudnn.graph import REPEATS, graph_key, strides
from znni.primitives.gpu.cudnn.pieces import MOST_ELEMENTS, PIECE_BYTES, pieces
from znni.primitives.gpu.cudnn.primitive import LITTLE_WORKSPACE, GpuCudnn

formats = pytest.mark.parametrize("number", FORMATS, ids=lambda number: number.name)


@given(
    n=st.integers(1, 500),
    maps=st.tuples(st.integers(1, 80), st.integers(1, 80)),
    size=extents(9, 200),
    kernel=extents(1, 9),
    number_bytes=st.sampled_from([2, 4]),
)
def test_pieces_cover_the_batch_and_keep_to_their_bytes(
    n: int, maps: tuple[int, int], size: Vec3, kernel: Vec3, number_bytes: int
) -> None:
    conv = Conv("conv", *maps, kernel, "relu")
    shape = Shape5.of(n, maps[0], size)
    voxels = valid_convolution(size, kernel)
    assert voxels is not None
    out = Shape5.of(n, maps[1], voxels)
    found = pieces(conv, shape, out, number_bytes)
    assert found is not None
    assert found.shape.z == found.out.z + kernel.z - 1
    covered = np.zeros((n, out.z), bool)
    for image, plane in found:
        assert image + found.out.n <= n
        assert plane + found.out.z <= out.z
        covered[image : image + found.out.n, plane : plane + found.out.z] = True
    assert covered.all()
    taken = (found.shape.elements + found.out.elements) * number_bytes
    assert taken <= PIECE_BYTES or (found.out.n, found.out.z) == (1, 1)
    images = -(-n // found.out.n)
    assert len(list(found)) == images * -(-out.z // found.out.z)


def test_a_plane_that_cudnn_cannot_count_is_declined() -> None:
    conv = Conv("conv", 1, 80, Vec3(1, 1, 1), "relu")
    shape = Shape5(1, 1, 2, 6000, 6000)
    assert shape.y * shape.x * 80 > MOST_ELEMENTS
    assert GpuCudnn(DEVICE, FORMATS[0], reorders=False).out_shape(conv, shape) is None


@formats
@pytest.mark.parametrize("reorders", [False, True])
def test_memory_is_a_piece_twice_at_most_and_little_more(number: Format, reorders: bool) -> None:
    conv, shape = Conv("conv", 80, 80, Vec3(3, 3, 3), "relu"), Shape5(64, 80, 34, 34, 34)
    primitive = GpuCudnn(DEVICE, number, reorders)
    out = primitive.out_shape(conv, shape)
    assert out == (64, 80, 32, 32, 32)
    memory = primitive.cost(conv, shape).memory
    assert memory.working == shape.nbytes + out.nbytes + memory.workspace
    piece = memory.workspace - LITTLE_WORKSPACE
    assert 0 < piece // (1 + reorders) <= PIECE_BYTES
    assert memory.resident == 80 * (80 * 27 * number.nbytes + 4)


@formats
def test_strides_are_of_a_whole_array_in_its_layout(number: Format) -> None:
    shape = Shape5(2, 3, 4, 5, 6)
    order = (0, 2, 3, 4, 1) if number.channels_last else (0, 1, 2, 3, 4)
    laid_out = np.empty([shape[axis] for axis in order], np.int8)
    assert strides(shape, number) == list(laid_out.transpose(np.argsort(order)).strides)


@pytest.mark.slow_cases
@needs_compiler
@pytest.mark.parametrize(
    ("activation", "number"), list(zip(sorted(EXPRESSIONS), cycle(FORMATS), strict=False))
)
def test_packing_compiles(number: Format, activation: Activation) -> None:
    """Another test compiles all formats with one activation."""
    usage = resource_usage(layout.source(number, activation))
    assert set(usage) == {"pack", "unpack", "fill"}
    assert not any(kernel.spills for kernel in usage.values())


@pytest.mark.parametrize(
    ("first", "best", "runs"),
    [
        (0.3, math.inf, 1 + REPEATS),
        (0.3, 0.11, 1 + REPEATS),
        (0.3, 0.09, 1),
        (0.09, 1e-3, 1 + REPEATS),
    ],
)
def test_an_engine_that_is_slow_runs_once(
    monkeypatch: pytest.MonkeyPatch, first: float, best: float, runs: int
) -> None:
    taken = iter([first, 0.02, 0.01, 0.05])
    monkeypatch.setattr(graph, "seconds_on_device", lambda run: run())
    seconds = graph.engine_seconds(lambda: next(taken), best)
    assert seconds == (first if runs == 1 else 0.02)
    assert len(list(taken)) == 1 + REPEATS - runs


def test_each_format_is_there_with_and_without_workspace() -> None:
    installed = replace(DEVICE, cudnn=True)
    found = {primitive.name: primitive for primitive in cudnn.primitives(installed)}
    assert set(found) == {f"gpu_cudnn_{f.name}{w}" for f in FORMATS for w in ("", "_workspace")}
    assert found["gpu_cudnn_float32"].accuracy == ACCURACIES["float32"]
    for name in ("tf32", "float16"):
        assert ACCURACIES["float32"] < found[f"gpu_cudnn_{name}"].accuracy <= ACCURACIES["tf32"]
    assert cudnn.primitives(DEVICE) == ()


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (52, {"float32"}),
        (70, {"float32", "float16"}),
        (0, {f.name for f in FORMATS}),
        (90, {f.name for f in FORMATS}),
    ],
)
def test_a_gpu_has_the_formats_that_it_multiplies(capability: int, expected: set[str]) -> None:
    device = replace(DEVICE, capability=capability, cudnn=True)
    assert {primitive.numbers.name for primitive in cudnn.primitives(device)} == expected


def test_what_cudnn_refused_is_left_out_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    refusals.refused.cache_clear()
    primitive = GpuCudnn(DEVICE, FORMATS[0], reorders=False)
    conv, shape = Conv("conv", 80, 80, Vec3(3, 3, 3), "relu"), Shape5(1, 80, 34, 34, 34)
    out = primitive.out_shape(conv, shape)
    assert out is not None
    piece = pieces(conv, shape, out, 4)
    assert piece is not None
    refusals.refuse(DEVICE.name, graph_key(conv, piece, FORMATS[0], LITTLE_WORKSPACE))
    for _ in range(2):
        assert primitive.out_shape(conv, shape) is None
        assert primitive.out_shape(replace(conv, name="of another network"), shape) is None
        assert GpuCudnn(DEVICE, FORMATS[0], reorders=True).out_shape(conv, shape) == out
        assert primitive.out_shape(conv, shape._replace(n=2)) is not None
        refusals.refused.cache_clear()  # as in a process that comes later
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    refusals.refuse("another", "key")  # cannot be kept, and is no reason to fail
    refusals.refused.cache_clear()
