"""Tiled FFT convolution: codelets, geometry, kernels on disk, and complete layers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layers import assert_accurate, random_case
from numpy.typing import NDArray
from tiled_convolutions import tiled_convolutions

from bench import reference
from znni.core.shapes import Shape5, Vec3
from znni.machine.detect import detect_machine
from znni.network.layers import Conv, Pool, PooledConv
from znni.plans.primitive import convolved_and_pooled
from znni.primitives.common.codelets import Codelet
from znni.primitives.common.dft_codelets import complex_dft, inverse_real_dft, real_dft
from znni.primitives.cpu.common import kernel_cache, machine_code
from znni.primitives.cpu.common.simd import LANES
from znni.primitives.cpu.fft_tiled import tile_transform
from znni.primitives.cpu.fft_tiled.overlap_save import (
    LENGTHS,
    inner_extents,
    tile_count,
    tile_extents,
    tiles_of,
)
from znni.primitives.cpu.fft_tiled.primitive import FftTiled, primitives
from znni.primitives.cpu.fft_tiled_pooled.tiles import PooledTiles

Numbers = NDArray[np.float64]

DEVICE = detect_machine(threads=2).host
lengths = pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 7, 10, 15, *LENGTHS])


class Floats:
    """Arithmetic of float64 numbers that counts its operations."""

    def __init__(self) -> None:
        self.operations = 0

    def _counted(self, value: float) -> float:
        self.operations += 1
        return value

    def constant(self, value: float) -> float:
        return value

    def add(self, left: float, right: float) -> float:
        return self._counted(left + right)

    def subtract(self, left: float, right: float) -> float:
        return self._counted(left - right)

    def scale(self, value: float, factor: float) -> float:
        return self._counted(value * factor)

    def negate(self, value: float) -> float:
        return -value


def evaluated(codelet: Codelet, inputs: Numbers) -> Numbers:
    """Return the codelet's outputs, and check that it does as many operations as it declares."""
    arithmetic, outputs = Floats(), np.full(len(codelet.outputs), np.nan)
    codelet.evaluate(arithmetic, inputs.__getitem__, outputs.__setitem__)
    assert arithmetic.operations == codelet.flops
    return outputs


def complex_transform(length: int, sign: Any) -> Callable[[NDArray[np.complex128]], Any]:
    return lambda x: evaluated(complex_dft(length, sign), x.view(np.float64)).view(np.complex128)


def random_complex(length: int) -> NDArray[np.complex128]:
    rng = np.random.default_rng(length)
    return rng.standard_normal(length) + 1j * rng.standard_normal(length)


@lengths
def test_complex_codelets_are_the_transform(length: int) -> None:
    x = random_complex(length)
    np.testing.assert_allclose(complex_transform(length, -1)(x), np.fft.fft(x), atol=1e-12)
    backward = complex_transform(length, 1)(x)
    np.testing.assert_allclose(backward, length * np.fft.ifft(x), atol=1e-12)


@lengths
def test_real_codelets_are_the_transform_and_its_inverse(length: int) -> None:
    x = np.random.default_rng(length).standard_normal(length)
    spectrum = evaluated(real_dft(length), x)
    np.testing.assert_allclose(spectrum.view(np.complex128), np.fft.rfft(x), atol=1e-12)
    back = evaluated(inverse_real_dft(length), spectrum)
    np.testing.assert_allclose(back, length * x, atol=1e-11)


@lengths
def test_codelets_are_linear(length: int) -> None:
    transform, x = complex_transform(length, -1), random_complex(length)
    y = x[::-1].copy()
    combined = transform(2 * x + 3j * y)
    np.testing.assert_allclose(combined, 2 * transform(x) + 3j * transform(y), atol=1e-11)


@lengths
def test_an_impulse_becomes_one_wave_and_a_shift_turns_it(length: int) -> None:
    waves = [complex_transform(length, -1)(row) for row in np.eye(length, dtype=np.complex128)]
    np.testing.assert_allclose(waves[0], np.ones(length), atol=1e-14)
    turn = np.exp(-2j * np.pi * np.arange(length) / length)
    for wave, shifted in pairwise(waves):
        np.testing.assert_allclose(shifted, wave * turn, atol=1e-12)


def test_codelets_need_few_operations() -> None:
    # Split radix takes 168 and 456 real operations; the real transform about half of them.
    assert complex_dft(16, -1).flops <= 1.05 * 168
    assert complex_dft(32, -1).flops <= 1.1 * 456
    assert real_dft(16).flops <= 0.5 * complex_dft(16, -1).flops


triples = st.builds(Vec3, *[st.integers(1, 9)] * 3)


@given(
    largest=st.builds(Vec3, *[st.sampled_from(LENGTHS)] * 3),
    smaller=st.sampled_from((0, *LENGTHS)),
    size=st.builds(Vec3, *[st.integers(1, 60)] * 3),
    kernel=triples,
    window=st.just(Vec3(1, 1, 1)) | triples,
)
def test_tiles_write_every_output_once_and_stay_inside(
    largest: Vec3, smaller: int, size: Vec3, kernel: Vec3, window: Vec3
) -> None:
    voxels = size.maximum(kernel + window - 1)
    tile = tile_extents(largest, Vec3.of(smaller), voxels, kernel, window)
    if tile is None:
        return
    assert smaller < max(tile)
    assert tile.within(largest)
    read, written = inner_extents(tile, voxels, kernel, window)
    assert read.within(tile)
    places = tiles_of(tile, voxels, kernel, window)
    assert len(places) == tile_count(tile, voxels, kernel, window)
    times_written = np.zeros((voxels - kernel + 1) // window, int)
    for place in places.tolist():
        corner, skip = (Vec3(*axes) for axes in place)
        assert (corner * window + read).within(voxels)
        start, stop = corner + skip, corner + written
        times_written[tuple(map(slice, start, stop))] += 1
    assert (times_written == 1).all()


def test_an_axis_takes_the_extent_whose_tiles_have_the_fewest_voxels() -> None:
    # 28 outputs take two tiles of 16. 18 outputs take two of 12, not two of 16.
    assert tile_extents(Vec3.of(16), Vec3.of(12), Vec3(30, 20, 30), Vec3(3, 3, 3)) == Vec3(
        16, 12, 16
    )
    # 53 outputs of 5 taps take two tiles of 32 (64 voxels), not three of 24 (72).
    assert tile_extents(Vec3.of(32), Vec3.of(0), Vec3(57, 57, 57), Vec3(5, 5, 5)) == Vec3(
        32, 32, 32
    )
    assert tile_extents(Vec3.of(16), Vec3.of(12), Vec3(30, 30, 30), Vec3(1, 3, 3)) == Vec3(
        1, 16, 16
    )
    # 8 outputs take one tile of 10, which a largest extent of 12 finds too.
    assert tile_extents(Vec3.of(16), Vec3.of(12), Vec3(10, 10, 10), Vec3(3, 3, 3)) is None
    assert tile_extents(Vec3.of(8), Vec3.of(0), Vec3(30, 30, 30), Vec3(3, 9, 3)) is None


@pytest.mark.slow_cases
@tiled_convolutions
@pytest.mark.parametrize("resident", [True, False])
def test_convolution(tile: int, layer: Conv, shape: Shape5, resident: bool) -> None:
    assert_accurate(FftTiled(DEVICE, tile, resident), random_case(layer, shape))


def test_many_maps_stay_accurate() -> None:
    layer = Conv("layer", 80, 80, Vec3(5, 5, 5), "identity")
    case = random_case(layer, Shape5(1, 80, 16, 16, 18))
    y = case.run(FftTiled(DEVICE, 16, resident=True))
    expected = reference.convolution(case.x, layer, case.weights)
    assert abs(y - expected).max() <= 2e-6 * abs(expected).max()


def test_several_batches_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    primitive = FftTiled(DEVICE, 8, resident=True)
    case = random_case(Conv("layer", 3, 4, Vec3(3, 3, 3), "relu"), Shape5(2, 3, 15, 16, 17))
    whole = case.run(primitive)
    monkeypatch.setattr("znni.primitives.cpu.fft_tiled.tile_batches.BATCH_TILES", 5)
    np.testing.assert_allclose(case.run(primitive), whole, rtol=1e-5, atol=1e-5)


def test_one_catalogue_entry_for_every_extent_that_differs() -> None:
    layer, shape = Conv("layer", 4, 4, Vec3(3, 3, 3), "relu"), Shape5(1, 4, 10, 10, 10)
    exact = replace(DEVICE, bfloat16=False)
    applicable = [p.name for p in primitives(exact) if p.out_shape(layer, shape)]
    assert applicable == [
        "fft_tiled_8",
        "fft_tiled_8_transient",
        "fft_tiled_12",
        "fft_tiled_12_transient",
    ]
    pointwise = Conv("layer", 4, 4, Vec3(1, 1, 1), "relu")
    assert not any(p.out_shape(pointwise, shape) for p in primitives(DEVICE))


def test_few_output_maps_cost_few_operations() -> None:
    primitive, shape = FftTiled(DEVICE, 16, resident=True), Shape5(1, 80, 58, 58, 58)
    few, many = (
        primitive.cost(Conv("layer", 80, maps, Vec3(3, 3, 3), "relu"), shape) for maps in (3, 80)
    )
    assert few.flops < 0.3 * many.flops
    assert few.memory.resident < 0.3 * many.memory.resident


def test_pooled_tiles_pay_for_the_lines_that_they_pool() -> None:
    """Windows of two use 10 of 11 valid voxels. The codelets have 12 outputs, as for 12 of 12."""
    tile = Vec3(16, 16, 16)

    def flops_of_a_group(kernel: int) -> float:
        """Return the operations of a tile for 16 more output maps."""

        def flops(maps: int) -> float:
            conv = Conv("conv", 1, maps, Vec3.of(kernel), "relu")
            layer, shape = PooledConv(conv, Pool("pool", Vec3(2, 2, 2))), Shape5(1, 1, 90, 90, 90)
            out = convolved_and_pooled(layer, shape)
            assert out is not None
            tiles = PooledTiles(layer, shape, out, tile)
            return tiles.flops / tiles.tiling.count

        return flops(32) - flops(16)

    rows, planes, voxels = 12**2 - 10**2, 12 - 10, 12**3 - 10**3
    row = tile_transform.inverse_row_codelet(tile.x, 12).flops
    column = tile_transform.column_codelet(tile.y, 1, 12).flops
    left_out = rows * row + planes * tile_transform.half(tile.x) * column + voxels
    assert flops_of_a_group(5) - flops_of_a_group(6) == LANES * left_out


SCRIPT = """
from znni.primitives.cpu.common import machine_code
from znni.primitives.cpu.common.simd import Emitter
from znni.primitives.cpu.fft_tiled.tile_transform import forward_rows
compiled = []
original = machine_code._compile
machine_code._compile = lambda source: compiled.append(source) or original(source)
emitted = []
written = Emitter.compile
Emitter.compile = lambda emitter: emitted.append(emitter) or written(emitter)
kernel = forward_rows(8)
assert kernel.address and kernel is forward_rows(8)
print(len(emitted), len(compiled), *kernel.arguments)
"""


def emitted_in_a_new_process(cache: Path) -> tuple[int, int]:
    """Return how many kernels a process that needs one emits and compiles."""
    environment = {"XDG_CACHE_HOME": str(cache), "HOME": str(cache), "LOCALAPPDATA": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    emitted, compiled, *arguments = done.stdout.split()
    assert tuple(arguments) == tile_transform.forward_rows(8).arguments
    return int(emitted), int(compiled)


@pytest.mark.slow
def test_kernels_on_disk_are_used_by_the_next_process_unless_damaged(tmp_path: Path) -> None:
    assert emitted_in_a_new_process(tmp_path) == (1, 1)
    assert emitted_in_a_new_process(tmp_path) == (0, 0)
    (file,) = tmp_path.rglob("*.o")
    file.write_bytes(file.read_bytes()[:-1])
    assert emitted_in_a_new_process(tmp_path) == (1, 1)
    (entry,) = (path for path in tmp_path.rglob("kernels/*") if path != file)
    entry.write_bytes(entry.read_bytes()[:-1])
    assert emitted_in_a_new_process(tmp_path) == (1, 0)
    assert emitted_in_a_new_process(tmp_path) == (0, 0)


def test_each_kernel_is_kept_under_a_name_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of arguments, code or processor has another name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    emit = tile_transform.forward_rows.__wrapped__
    emit(4), emit(8), emit(length=8)
    monkeypatch.setattr(kernel_cache, "_SOURCE", "other code")
    emit(8)
    monkeypatch.setattr(machine_code, "environment", lambda: "another processor")
    emit(8)
    files = [path.suffix for path in tmp_path.rglob("kernels/*")]
    assert files.count("") == 5
    with pytest.raises(TypeError, match="need a repr"):
        emit(object())


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("not a directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(occupied))
    kernel = tile_transform.forward_rows.__wrapped__(4)
    assert kernel.address
