"""The CUDA sources compile, for the oldest and the newest GPUs that are supported, and fit."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from gpu_layers import H200, chips, most_spills, needs_compiler
from hypothesis import given
from hypothesis import strategies as st
from kernel_resources import resource_usage
from layers import extents

from znni.core.option_types import OutputType
from znni.core.shapes import Shape5, Vec3
from znni.engine.backends.cuda import recombine as device_recombine
from znni.machine.nvrtc import compile_offline
from znni.network.layers import Conv, Pool, VoxelNorm
from znni.primitives.gpu.common.activation import softmax_source
from znni.primitives.gpu.common.hardware import (
    AMPERE,
    CHIPS,
    HOPPER,
    REGISTERS,
    RESERVED_SHARED,
    Chip,
)
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR, FLOAT16, TensorFormat
from znni.primitives.gpu.cudnn import layout
from znni.primitives.gpu.cudnn.formats import FORMATS
from znni.primitives.gpu.direct import launch as direct
from znni.primitives.gpu.direct.geometry import tile_for
from znni.primitives.gpu.fft_pruned import launch as fft_pruned
from znni.primitives.gpu.fft_tiled.geometry import LENGTHS
from znni.primitives.gpu.fft_tiled.primitive import FASTEST
from znni.primitives.gpu.fft_tiled.product import product_shape
from znni.primitives.gpu.fft_tiled.spectrum_formats import SPECTRA
from znni.primitives.gpu.fft_tiled.transform import transform_shape
from znni.primitives.gpu.max_pooling import primitive as pooling
from znni.primitives.gpu.voxel_norm import primitive as voxel_norm

pytestmark = needs_compiler

ROOT = Path(__file__).parents[3]

ONE = Vec3(1, 1, 1)

# Bytes that a thread may spill of its line, with today's NVRTC and with older ones. This costs less
# than a block of fewer threads.
FEW_BYTES, OLDER_BYTES = 32, 64

formats = pytest.mark.parametrize(
    "numbers", [BFLOAT16_PAIR, FLOAT16], ids=lambda numbers: numbers.name
)


def test_no_lambda_is_generic() -> None:
    """The compiler of CUDA 13.0 takes the call of a generic lambda for a function of the host."""
    sources = [*(ROOT / "znni").rglob("*.cu"), *(ROOT / "znni").rglob("*.cuh")]
    assert len(sources) > 50
    generic = re.compile(r"\[[&=\w, ]*\]\s*\([^)]*\bauto\b")
    assert [path.name for path in sources if generic.search(path.read_text())] == []


@pytest.mark.parametrize("architecture", ["sm_75", "sm_90a"])
@pytest.mark.parametrize("maps", [6, 70])
def test_layer_norm_compiles(maps: int, architecture: str) -> None:
    norm = VoxelNorm("norm", maps, groups=1)
    source = voxel_norm.source("relu")
    assert compile_offline(source, architecture, voxel_norm.options(norm))


@pytest.mark.slow_cases
@pytest.mark.parametrize("window", [Vec3(2, 2, 2), Vec3(3, 3, 3), Vec3(4, 4, 4), Vec3(1, 2, 2)])
@pytest.mark.parametrize("fragments", [False, True], ids=["plain", "fragments"])
def test_pooling_keeps_its_maxima_in_registers(window: Vec3, fragments: bool) -> None:
    pooled_at = window if fragments else Vec3(1, 1, 1)
    options = pooling.constants(window, pooled_at)
    usage = resource_usage(pooling.source(), options=options)["max_pooling"]
    assert usage.spills == 0
    assert usage.registers * pooling.most_threads(window, pooled_at) <= REGISTERS
    assert compile_offline(pooling.source(), "sm_75", options)


@given(st.integers(1, 64), st.sampled_from([1, 3, 80]), extents(1, 300), extents(1, 4))
def test_pooling_is_divided_among_blocks_without_rest(
    n: int, maps: int, size: Vec3, window: Vec3
) -> None:
    shape, out = Shape5.of(n, maps, size * window), Shape5.of(n, maps, size)
    threads, blocks, planes = pooling.division(shape, out, window, 512)
    columns, rest = divmod(blocks, n * maps * -(-size.z // planes))
    assert rest == 0
    assert threads % 32 == 0
    assert threads <= 512
    assert (columns - 1) * threads < size.y * size.x <= columns * threads


def test_pooling_declines_planes_beyond_what_kernels_count() -> None:
    pool = Pool("pool", Vec3(2, 2, 2))
    for primitive in pooling.primitives(H200):
        assert primitive.out_shape(pool, Shape5(1, 1, 5, 80_001, 80_001))
        assert primitive.out_shape(pool, Shape5(1, 1, 5, 100_001, 100_001)) is None


@pytest.mark.parametrize("dtype", get_args(OutputType))
def test_recombination_compiles_for_each_type(dtype: OutputType) -> None:
    usage = resource_usage(device_recombine.source(), options=(device_recombine.stored_as(dtype),))[
        "recombine"
    ]
    assert usage.spills == 0


@pytest.mark.slow
@chips
def test_kernels_that_are_the_same_for_all_chips_fit_each(chip: Chip) -> None:
    """Other tests compile them for Hopper, in more variants."""
    window = Vec3(2, 2, 2)
    conv = Conv("first", 1, 80, Vec3(3, 3, 3), "relu")
    tiles = (tile_for(conv, it, Shape5.of(1, 80, Vec3.of(64))) for it in (ONE, window))
    for source, options in (
        *((direct.source("elu"), tile.options) for tile in tiles if tile),
        *((pooling.source(), pooling.constants(window, offsets)) for offsets in (ONE, window)),
        *((layout.source(numbers, "elu"), ()) for numbers in FORMATS),
        (fft_pruned.source("elu"), ()),
        (softmax_source(), ()),
        (device_recombine.source(), (device_recombine.stored_as("uint8"),)),
        (device_recombine.source(), (device_recombine.stored_as("float16"),)),
    ):
        for usage in resource_usage(source, chip.architecture, options).values():
            assert usage.spills == 0


@pytest.mark.slow
@formats
@pytest.mark.parametrize("tile", [*map(Vec3.of, LENGTHS), FASTEST], ids=str)
def test_transforms_of_tiles_keep_their_lines_in_registers(
    tile: Vec3, numbers: TensorFormat
) -> None:
    assert_transforms_fit(tile, numbers, HOPPER)


@pytest.mark.slow
@formats
@chips
def test_transforms_fit_every_chip(numbers: TensorFormat, chip: Chip) -> None:
    assert_transforms_fit(Vec3(16, 16, 16), numbers, chip)
    if not chip.has_clusters:
        assert_transforms_fit(Vec3(24, 24, 24), numbers, chip)


@cache  # two tests ask for some of the same kernels
def assert_transforms_fit(tile: Vec3, numbers: TensorFormat, chip: Chip) -> None:
    kernel = Vec3(3, 3, 3)
    for inverse in (False, True):
        shape = transform_shape(tile, kernel, SPECTRA[numbers], chip, inverse=inverse)
        assert shape is not None
        (usage,) = resource_usage(shape.source("relu"), chip.architecture).values()
        assert usage.spills <= most_spills(FEW_BYTES, OLDER_BYTES)
        assert usage.registers * shape.threads * shape.blocks <= REGISTERS
        assert shape.blocks * (shape.shared_bytes + RESERVED_SHARED) <= chip.shared_bytes
    kernels = resource_usage(shape.kernel_spectra_source(), chip.architecture)
    assert kernels["transform_kernels"].spills == 0


@pytest.mark.slow_cases
@formats
@pytest.mark.parametrize("maps", [(1, 80), (80, 80), (80, 3), (200, 80)])
def test_products_of_spectra_keep_their_sums_in_registers(
    maps: tuple[int, int], numbers: TensorFormat
) -> None:
    assert_products_fit(maps, numbers, HOPPER)


@pytest.mark.slow_cases
@formats
@chips
def test_products_fit_every_chip(numbers: TensorFormat, chip: Chip) -> None:
    assert_products_fit((80, 80), numbers, chip)


@cache  # two tests ask for some of the same kernels
def assert_products_fit(maps: tuple[int, int], numbers: TensorFormat, chip: Chip) -> None:
    exponent_maps = 8 if chip.has_clusters else 1
    shape = product_shape(*maps, SPECTRA[numbers], chip, exponent_maps)
    assert shape is not None
    usage = resource_usage(shape.source(), chip.architecture)["multiply_spectra"]
    assert usage.spills == 0
    assert usage.registers * shape.threads <= REGISTERS
    assert usage.shared + shape.shared_bytes <= chip.block_shared_bytes


def machine_code(cubin: bytes) -> dict[bytes, bytes]:
    """Return the instructions of each kernel of a compiled module, which is a file in ELF."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + size * i) for i in range(count)]
    found = {}
    for name_at, _, _, _, begin, length in headers:
        name = cubin[headers[names][4] + name_at :].partition(b"\0")[0]
        if name.startswith(b".text."):
            found[name] = cubin[begin : begin + length]
    return found


@pytest.mark.slow
def test_capability_8_9_has_the_limits_and_the_machine_code_of_8_6() -> None:
    """So kernels that fit 8.6 fit 8.9, which ``COMPILED`` leaves out."""
    chip, later = CHIPS[86], CHIPS[89]
    assert replace(later, capability=86) == chip
    transform = transform_shape(Vec3.of(16), Vec3.of(3), SPECTRA[FLOAT16], chip, inverse=True)
    product = product_shape(80, 80, SPECTRA[BFLOAT16_PAIR], chip, 1)
    assert transform is not None
    assert product is not None
    for source in (transform.source("relu"), product.source()):
        oldest, ours, other = (
            machine_code(compile_offline(source, each.architecture))
            for each in (AMPERE, chip, later)
        )
        assert ours == other
        assert ours != oldest
