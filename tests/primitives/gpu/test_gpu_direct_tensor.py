"""Direct convolution on tensor cores: its division of work, its layouts, and its results."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import wait
from dataclasses import replace
from threading import Event, Thread
from unittest import mock

import numpy as np
import pytest
from devices import poison, skip_if_too_new, to_gpu
from gpu_layers import AS_AMPERE, H200, assert_fits, chips, devices, needs_compiler
from hypothesis import assume, given
from hypothesis import strategies as st
from kernel_resources import resource_usage
from layers import assert_accurate, extents, random_case, random_input, random_weights, scaled

from bench import reference
from znni.core.shapes import Shape5, Vec3, valid_convolution
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.device_arena import ALIGNMENT, DeviceArena, allocate
from znni.machine.io_threads import begin_task, io_threads
from znni.machine.machine import Device
from znni.network.layers import Activation, Conv
from znni.network.weights import ConvWeights, Weights
from znni.primitives import tiled_reference
from znni.primitives.gpu.common.hardware import AMPERE, CHIPS, COMPILED, HOPPER, Chip
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR, TensorFormat
from znni.primitives.gpu.direct_tensor import primitive as direct_tensor
from znni.primitives.gpu.direct_tensor import weights as laying_out
from znni.primitives.gpu.direct_tensor.fitting import blocks_for
from znni.primitives.gpu.direct_tensor.geometry import (
    BARRIER_BYTES,
    GROUP,
    IN_MAPS,
    MOST_PLACES,
    ROWS,
    VOXEL_BYTES,
    WARPGROUPS,
    ThreadBlock,
)
from znni.primitives.gpu.direct_tensor.launch import convolution_source, image_source
from znni.primitives.gpu.direct_tensor.primitive import GpuDirectTensor
from znni.primitives.gpu.direct_tensor.strips import SMALL_COLUMNS, SMALL_SUBTILES, strips_for
from znni.primitives.gpu.direct_tensor.weights import (
    scales_of,
    sums_of,
    weights_by_stage,
)
from znni.primitives.gpu.direct_tensor.work import Pieces

formats = pytest.mark.parametrize(
    "numbers", [FLOAT16_PAIR, FLOAT16], ids=lambda numbers: numbers.name
)
kernels = pytest.mark.parametrize(
    "kernel", [Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3), Vec3(2, 1, 5)], ids=str
)
maps = pytest.mark.parametrize("maps", [(80, 80), (1, 3), (21, 170)], ids=str)

MOST_DISTANCE = (2**14 - 1) * 16  # bytes that a descriptor of a matrix can say


def layer_of(maps: tuple[int, int], kernel: Vec3, activation: Activation = "relu") -> Conv:
    return Conv("layer", *maps, kernel, activation)


def pieces_of(conv: Conv, numbers: TensorFormat, shape: Shape5, chip: Chip = HOPPER) -> Pieces:
    size = valid_convolution(shape.size, conv.kernel)
    assert size is not None
    strips = strips_for(conv, numbers, size, chip)
    assert strips
    return Pieces(shape, Shape5.of(shape.n, conv.out_features, size), conv, strips)


@formats
@kernels
@maps
@chips
def test_blocks_fit_shared_memory_and_the_registers(
    numbers: TensorFormat, kernel: Vec3, maps: tuple[int, int], chip: Chip
) -> None:
    conv = layer_of(maps, kernel)
    blocks = list(blocks_for(conv, numbers, chip))
    assert blocks
    for block in blocks:
        assert block.shared_bytes <= chip.block_shared_bytes - BARRIER_BYTES
        assert block.subtile.volume * block.columns // 2 <= 160
        assert block.columns % GROUP == 0
        assert block.passes * block.columns >= conv.out_features
        assert (block.passes - 1) * block.columns < conv.out_features
        assert block.kernel.volume % block.taps.volume == 0
        assert block.taps.volume * block.all_stages == block.chunks * kernel.volume
        assert block.seen.volume * VOXEL_BYTES <= MOST_DISTANCE
        assert block.keeps_weights or block.stages >= 2
        assert sum(block.sums) == block.chunks


@formats
@pytest.mark.parametrize("shape", [Shape5(70, 16, 40, 70, 90), Shape5(2, 16, 300, 130, 140)])
def test_costs_count_every_piece(numbers: TensorFormat, shape: Shape5) -> None:
    work = pieces_of(layer_of((16, 24), Vec3(3, 3, 3)), numbers, shape)
    pieces = list(work)
    assert len(work._kinds) <= 2 < len(pieces)
    assert work._seen_voxels == sum(piece.items * work.seen_by(piece).volume for piece in pieces)
    for strip in work.strips:
        tiles = (strip.tiles(work.out.size._replace(z=piece.planes)).volume for piece in pieces)
        each = [piece.items * n for piece, n in zip(pieces, tiles, strict=True)]
        assert work._tiles(strip) == strip.block.passes * sum(each)


@formats
@chips
def test_small_outputs_are_divided_among_all_multiprocessors(
    numbers: TensorFormat, chip: Chip
) -> None:
    layer, size = layer_of((320, 320), Vec3(3, 3, 3)), Vec3(8, 8, 8)
    (alone,) = strips_for(layer, numbers, size, chip)
    (divided,) = strips_for(layer, numbers, size, chip, 1, 132)
    assert divided.blocks(size) > 4 * alone.blocks(size)
    assert divided.to_the_end(size, 1, 132)[0] < alone.to_the_end(size, 1, 132)[0] / 3
    (together,) = strips_for(layer, numbers, size, chip, 132, 132)
    ends = [it.to_the_end(size, 132, 132)[0] for it in (together, alone, divided)]
    assert ends[0] <= min(ends)
    large = Vec3(128, 128, 128)
    assert strips_for(layer, numbers, large, chip, 1, 132) == strips_for(
        layer, numbers, large, chip
    )


@formats
def test_multiprocessors_do_not_wait_for_the_last_blocks(numbers: TensorFormat) -> None:
    layer, size = layer_of((768, 768), Vec3(3, 3, 3)), Vec3(18, 18, 18)
    divided = strips_for(layer, numbers, size, HOPPER, 1, 132)
    ends = sum(strip.to_the_end(size, 1, 132)[0] for strip in divided)
    others = strips_for(layer, numbers, size, HOPPER)
    assert ends < 0.75 * sum(strip.to_the_end(size, 1, 132)[0] for strip in others)


# The largest and the smallest of the small blocks. The largest takes 192 of 255 registers. Those
# between have fewer columns, and so fewer sums: they took 62 to 152.
SMALL_BLOCKS = [
    pytest.param(CHIPS[number], columns, id=f"{CHIPS[number].architecture}-{columns}")
    for number in COMPILED
    for columns in (max(SMALL_COLUMNS), min(SMALL_COLUMNS))
    if CHIPS[number] in (AMPERE, HOPPER) or columns == max(SMALL_COLUMNS)
]


@pytest.mark.slow
@needs_compiler
@formats
@pytest.mark.parametrize(("chip", "columns"), SMALL_BLOCKS)
def test_small_blocks_keep_their_sums_in_registers(
    numbers: TensorFormat, chip: Chip, columns: int
) -> None:
    layer = layer_of((320, 320), Vec3(3, 3, 3))
    for block in blocks_for(layer, numbers, chip, SMALL_SUBTILES, columns):
        if block.subtile in SMALL_SUBTILES:
            assert_fits(block)


def test_products_of_few_columns_have_all_taps_along_z() -> None:
    cube = Vec3(3, 3, 3)

    def block_of(maps: tuple[int, int], kernel: Vec3, chip: Chip = HOPPER) -> ThreadBlock:
        (strip, *_) = strips_for(layer_of(maps, kernel), FLOAT16, Vec3(128, 128, 128), chip)
        return strip.block

    stacked = block_of((64, 32), cube)
    assert stacked.stacks_taps
    assert stacked.taps == stacked.kernel
    assert stacked.product_cycles < replace(stacked, taps=Vec3(1, 3, 3)).product_cycles
    assert block_of((16, 24), Vec3(2, 3, 3)).stacks_taps
    for other in (
        block_of((32, 64), cube),  # the product takes longer than both sides
        block_of((32, 32), Vec3(1, 3, 3)),  # there are no further taps along z
        block_of((32, 32), cube, AMPERE),  # warps load the left side anyway
    ):
        assert not other.stacks_taps


def test_warpgroups_take_turns_if_two_outputs_have_room() -> None:
    for maps, images, turns in (((16, 16), 1, True), ((32, 32), 2, True), ((64, 32), 4, False)):
        (strip, *_) = strips_for(
            layer_of(maps, Vec3(3, 3, 3)), FLOAT16, Vec3(192, 192, 192), HOPPER
        )
        assert strip.block.images == images
        assert strip.block.takes_turns == turns
        assert strip.block.image_places == (2 * images if turns else 2)
        assert not replace(strip.block, chip=AMPERE).takes_turns


def test_strips_of_a_layer_have_the_same_layout_of_weights() -> None:
    for x in range(33, 49):
        strips = strips_for(
            layer_of((32, 32), Vec3(3, 3, 3)), FLOAT16, Vec3(48, 48, x), HOPPER, 1, 132
        )
        assert len({strip.block.stacks_taps for strip in strips}) == 1


def test_a_pointwise_layer_has_few_places() -> None:
    layer, out = layer_of((32, 16), Vec3(1, 1, 1)), Vec3(128, 64, 64)
    (strip,) = strips_for(layer, FLOAT16, out, HOPPER, 1, 132)
    assert (strip.block.columns, strip.block.subtile.volume) == (16, 4)


def test_there_is_room_for_the_barriers_of_many_stages() -> None:
    layer = layer_of((4096, 20), Vec3(1, 1, 1))
    for strip in strips_for(layer, FLOAT16, Vec3(32, 32, 32), HOPPER):
        block = strip.block
        assert block.all_stages > 100
        barriers = 2 * (block.image_places + block.stages)
        assert block.shared_bytes + 8 * barriers <= HOPPER.block_shared_bytes


@pytest.mark.parametrize(
    ("maps", "size", "places", "keeps_weights"),
    [((64, 256), 96, 8, True), ((128, 512), 48, 8, False), ((192, 192), 46, 12, False)],
)
def test_the_image_stays_for_all_passes_of_a_place(
    maps: tuple[int, int], size: int, places: int, keeps_weights: bool
) -> None:
    layer, out = layer_of(maps, Vec3(1, 1, 1)), Vec3(size, size, size)
    (strip, *_) = strips_for(layer, FLOAT16, out, HOPPER, processors=132)
    block = strip.block
    assert block.keeps_image
    assert block.image_places == places >= block.images == maps[0] // IN_MAPS
    assert block.keeps_weights == keeps_weights
    if keeps_weights:
        assert block.stages == block.passes * block.all_stages
    assert strip.blocks(out) == strip.tiles(out).volume
    assert block.image_places + block.stages <= MOST_PLACES
    assert block.shared_bytes <= HOPPER.block_shared_bytes - BARRIER_BYTES


@formats
def test_an_image_is_brought_again_where_that_is_better(numbers: TensorFormat) -> None:
    for maps, kernel, size, chip in (
        ((64, 256), Vec3(1, 1, 1), 96, AMPERE),  # its warps bring the image themselves
        ((64, 256), Vec3(3, 3, 3), 96, HOPPER),  # products take longer
        ((320, 2560), Vec3(1, 1, 1), 6, HOPPER),  # multiprocessors would have nothing to do
        ((64, 64), Vec3(1, 1, 1), 96, HOPPER),  # there is one pass
    ):
        out = Vec3(size, size, size)
        for strip in strips_for(layer_of(maps, kernel), numbers, out, chip, processors=132):
            assert not strip.block.keeps_image
            assert strip.blocks(out) == strip.block.passes * strip.tiles(out).volume


@pytest.mark.slow
@needs_compiler
@formats
def test_sums_of_blocks_that_keep_the_image_stay_in_registers(numbers: TensorFormat) -> None:
    layer = layer_of((64, 256), Vec3(1, 1, 1))
    (block,) = blocks_for(layer, numbers, HOPPER, (Vec3(4, 1, 1),), keeps_images=True)
    assert_fits(block)


def test_kernels_without_room_are_left_to_others() -> None:
    primitive = GpuDirectTensor(H200, FLOAT16)
    huge = layer_of((8, 8), Vec3(12, 12, 12))
    assert primitive.out_shape(huge, Shape5(1, 8, 20, 20, 20)) is None
    pairs, large = GpuDirectTensor(H200, FLOAT16_PAIR), layer_of((8, 8), Vec3(6, 6, 6))
    assert pairs.out_shape(large, Shape5(1, 8, 20, 20, 20)) is None
    with pytest.raises(ValueError, match="gpu_direct_tensor does not apply"):
        pairs.cost(large, Shape5(1, 8, 20, 20, 20))


def test_sums_that_would_be_inexact_are_divided() -> None:
    layer, size = layer_of((400, 8), Vec3(3, 3, 3)), Vec3(20, 20, 20)
    (one,) = {strip.block.sums for strip in strips_for(layer, FLOAT16, size, AMPERE)}
    (several,) = {strip.block.sums for strip in strips_for(layer, FLOAT16_PAIR, size, AMPERE)}
    assert one == (25,)
    assert several == (5, 5, 5, 5, 5)
    whole = GpuDirectTensor(AS_AMPERE, FLOAT16_PAIR).cost(layer, Shape5.of(1, 400, size + 2))
    written_once = GpuDirectTensor(AS_AMPERE, FLOAT16).cost(layer, Shape5.of(1, 400, size + 2))
    image = 2 * 22**3 * 25 * 32  # written and read, one more time for the low parts
    out = 4 * 8 * size.volume
    assert whole.bytes_moved == written_once.bytes_moved + image + 8 * out


def test_gpus_before_ampere_have_no_such_instructions() -> None:
    for capability in (0, 80, 86, 90, 120, 121):
        assert len(direct_tensor.primitives(replace(H200, capability=capability))) == 2
    assert direct_tensor.primitives(replace(H200, capability=75)) == ()


@given(st.integers(1, 40), extents(1, 300), st.sampled_from([FLOAT16, FLOAT16_PAIR]))
def test_pieces_are_the_whole_output_and_fit_the_workspace(
    n: int, size: Vec3, numbers: TensorFormat
) -> None:
    conv = layer_of((21, 80), Vec3(3, 2, 1))
    pieces = pieces_of(conv, numbers, Shape5.of(n, 21, size + conv.kernel - 1))
    computed = np.zeros((n, size.z), int)
    for piece in pieces:
        assert piece.items > 0
        assert piece.planes > 0
        items = slice(piece.first, piece.first + piece.items)
        computed[items, piece.first_plane : piece.first_plane + piece.planes] += 1
        image = piece.items * pieces.seen_by(piece).volume * 32 * numbers.parts * 2
        assert image <= pieces.image_bytes
    assert (computed == 1).all()


@pytest.mark.parametrize("extent", [2000, 12000])
def test_kernels_count_the_voxels_of_a_piece(extent: int) -> None:
    conv = layer_of((1, 1), Vec3(3, 3, 3))
    shape = Shape5.of(1, 1, Vec3(2**35 // extent**2, extent, extent))
    pieces = GpuDirectTensor(H200, FLOAT16).work(conv, shape)
    assert pieces is not None
    computed = 0
    for piece in pieces:
        assert pieces.seen_by(piece).volume < 2**31
        assert piece.first_plane == computed
        computed += piece.planes
    assert computed == pieces.out.z
    plane = Shape5(1, 1, 8, 30000, 40000)
    assert GpuDirectTensor(H200, FLOAT16).out_shape(conv, plane) is None


@given(extents(1, 300))
def test_strips_are_the_whole_output(size: Vec3) -> None:
    strips = strips_for(layer_of((80, 80), Vec3(3, 3, 3)), FLOAT16, size, HOPPER)
    assert [strip.first for strip in strips] == [0, *(strip.last for strip in strips[:-1])]
    assert strips[-1].last == size.x
    for strip in strips:
        assert size._replace(x=strip.last - strip.first).within(strip.tiles(size) * strip.block.out)
    for strip in strips[:-1]:
        assert (strip.last - strip.first) % strip.block.out.x == 0


@formats
@maps
def test_memory_is_the_image_and_the_weights(numbers: TensorFormat, maps: tuple[int, int]) -> None:
    conv, shape = layer_of(maps, Vec3(2, 3, 1)), Shape5(3, maps[0], 20, 31, 40)
    primitive = GpuDirectTensor(H200, numbers)
    pieces, memory = primitive.work(conv, shape), primitive.cost(conv, shape).memory
    assert pieces is not None
    assert memory.workspace == pieces.image_bytes + 4
    assert memory.working == shape.nbytes + pieces.out.nbytes + memory.workspace
    ordered = weights_by_stage(random_weights(conv).weight, ones(conv), pieces.block)
    assert memory.resident == ordered.nbytes + 2 * 4 * pieces.block.passes * pieces.block.columns


def test_weights_are_laid_out_while_all_threads_read() -> None:
    """A run makes its layers ready while its first block is read."""
    weight = np.random.default_rng(0).random((8, 4, 3, 3, 3), np.float32)
    block = next(iter(blocks_for(Conv("c", 4, 8, Vec3(3, 3, 3), "relu"), FLOAT16, HOPPER)))
    go_on, made = Event(), Event()
    reading = [begin_task(go_on.wait) for _ in range(3 * io_threads())]

    def lay_out() -> None:
        weights_by_stage(weight, scales_of(weight), block)
        sums_of(weight)
        made.set()

    laying = Thread(target=lay_out)
    laying.start()
    try:
        assert made.wait(20)
        assert not any(each.done() for each in reading)
    finally:
        go_on.set()
        wait(reading)
        laying.join()


@given(st.integers(-140, 120))
def test_weights_are_scaled_to_the_upper_range_of_float16(exponent: int) -> None:
    rng = np.random.default_rng(exponent % 7)
    weight = np.ldexp(rng.standard_normal((5, 3, 2, 1, 2), np.float32), exponent)
    weight[3] = 0
    scales = scales_of(weight)
    assert np.isfinite(scales).all()
    assert (np.frexp(scales)[0] == 0.5).all()
    largest = np.abs(weight * scales[:, None, None, None, None]).max(axis=(1, 2, 3, 4))
    assert largest[3] == 0
    if abs(exponent) < 80:
        assert ((largest[:3] >= 256) & (largest[:3] < 512)).all()
    assert (largest < 2**15).all() or exponent > 100


def ones(conv: Conv) -> np.ndarray:
    """Return scales that leave the weights as they are."""
    return np.ones(conv.out_features, np.float32)


def plainly(weight: np.ndarray, scales: np.ndarray, block: ThreadBlock) -> np.ndarray:
    """Return what ``weights_by_stage`` gives, made from whole arrays."""
    maps, features, *kernel = weight.shape
    padded = np.zeros((block.passes * block.columns, block.chunks * IN_MAPS, *kernel), np.float32)
    padded[:maps, :features] = weight * scales[:, None, None, None, None]
    parts = block.numbers.split(padded).astype(np.float16)
    split = parts.reshape(-1, block.passes, block.columns, block.chunks, 2, GROUP, *kernel)
    if block.stacks_taps:
        return split.transpose(1, 3, 7, 8, 0, 4, 6, 2, 5)
    z, y = np.array(block.rows).T
    return split.transpose(1, 3, 6, 7, 8, 0, 4, 2, 5)[:, :, z, y]


@pytest.mark.slow
@given(st.integers(1, 200), st.integers(1, 40), extents(1, 4), extents(1, 2), st.data())
def test_shares_of_weights_are_laid_out_as_the_whole(
    maps: int, features: int, kernel: Vec3, stride: Vec3, data: st.DataObject
) -> None:
    conv = replace(layer_of((features, maps), kernel), stride=stride.minimum(kernel))
    numbers, chip = data.draw(st.sampled_from([FLOAT16, FLOAT16_PAIR])), CHIPS[HOPPER.capability]
    weight = random_weights(conv).weight * np.float32(data.draw(st.sampled_from([1, 1e-6, 1e6])))
    block = next(iter(blocks_for(conv, numbers, chip)), None)
    assume(block is not None)  # large strides of some formats have none
    with mock.patch.object(laying_out, "SHARE_BYTES", data.draw(st.integers(1, weight.nbytes))):
        scales = scales_of(weight)
        found, sums = weights_by_stage(weight, scales, block), sums_of(weight)
    expected = plainly(weight, scales, block)
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16), strict=True)
    whole = np.abs(weight).astype(np.float64).sum(axis=(1, 2, 3, 4))
    np.testing.assert_array_equal(sums, whole, strict=True)


@formats
def test_threads_take_little_memory_to_lay_out_weights(numbers: TensorFormat) -> None:
    conv, share = layer_of((320, 320), Vec3(3, 3, 3)), 2**17
    block = next(iter(blocks_for(conv, numbers, HOPPER)))
    weight = random_weights(conv).weight
    tracemalloc.start()
    try:
        with mock.patch.object(laying_out, "SHARE_BYTES", share):
            made = weights_by_stage(weight, scales_of(weight), block)
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < made.nbytes + 5 * io_threads() * share


@formats
def test_sums_of_a_block_are_the_convolution(numbers: TensorFormat) -> None:
    """Repeat the kernel's work on the layouts, with its addresses, in float64."""
    conv = layer_of((21, 13), Vec3(2, 3, 2))
    small = blocks_for(conv, numbers, HOPPER, SMALL_SUBTILES)
    for block in (*blocks_for(conv, numbers, HOPPER), *small):
        weights = random_weights(conv)
        x = random_input(Shape5.of(1, 21, block.seen))
        expected = reference.convolution(
            x,
            replace(conv, activation="identity"),
            ConvWeights(weights.weight, np.zeros(13, np.float32)),
        )[0]
        laid_out = weights_by_stage(weights.weight, ones(conv), block)
        found = sums_of_block(block, image_of(x[0], block), laid_out)
        tolerance = 2e-6 if numbers is FLOAT16_PAIR else 2e-3
        np.testing.assert_allclose(found[:13], expected, atol=tolerance * np.abs(expected).max())


def image_of(x: np.ndarray, block: ThreadBlock) -> np.ndarray:
    """Return the image as ``image.cu`` writes it: (chunk, part, group of 8 maps, voxel, map)."""
    whole = np.zeros((block.chunks * IN_MAPS, *x.shape[1:]), np.float32)
    whole[: len(x)] = x
    parts = []
    for _ in range(block.numbers.parts):
        parts.append(whole.astype(np.float16))
        whole = whole - parts[-1]
    split = np.stack(parts).reshape(len(parts), block.chunks, 2, GROUP, -1)
    return split.transpose(1, 0, 2, 4, 3).astype(float)


def sums_of_block(block: ThreadBlock, image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the output (map, z, y, x) of a block, with the addresses of ``multiply_stage``."""
    k, seen, tiles = block.kernel, block.seen, block.subtile
    out = np.zeros((block.columns, *block.out))
    terms = [(0, 0), (1, 0), (0, 1)] if block.numbers is FLOAT16_PAIR else [(0, 0)]
    matrices = np.arange(ROWS)[:, None] * seen.x + np.arange(ROWS)
    for chunk, (a, b) in ((chunk, term) for chunk in range(block.chunks) for term in terms):
        laid_out = weights[0, chunk]
        if block.stacks_taps:  # taps along z come after x, part and half
            laid_out = laid_out.transpose(4, 0, 1, 2, 3, 5, 6)
        flat = laid_out.reshape(k.volume, block.numbers.parts, 2, block.columns, GROUP)
        for tap, warpgroup, tile in np.ndindex(k.volume, WARPGROUPS, tiles.volume):
            z, y, x = tap // k.x // k.y, tap // k.x % k.y, tap % k.x
            at = Vec3(
                warpgroup * tiles.z + tile // tiles.x // tiles.y,
                tile // tiles.x % tiles.y * ROWS,
                tile % tiles.x * ROWS,
            )
            first = ((z + at.z) * seen.y + y + at.y) * seen.x + x + at.x
            left = image[chunk, a, :, first + matrices.ravel()]  # row, half, map
            right = flat[tap, b]  # half, column, map
            sums = np.einsum("rhm,hcm->cr", left, right.astype(float))
            out[:, at.z, at.y : at.y + ROWS, at.x : at.x + ROWS] += sums.reshape(-1, ROWS, ROWS)
    return out


def matrices_at(memory: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return what ldmatrix gives each lane: (matrix, lane, 2).

    Args:
        memory: (row of 16 bytes, 8).
        rows: the row whose address each lane gives.
    """
    lane = np.arange(32)
    matrices = memory[rows].reshape(-1, 8, 8)
    return matrices[:, lane // 4].reshape(len(matrices), 32, 4, 2)[:, lane, lane % 4]


def product_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the sums of each lane (lane, 4) of mma.m16n8k16, from fragments (4 or 2, lane, 2)."""
    left, right, lane = np.zeros((16, 16)), np.zeros((16, 8)), np.arange(32)
    for register, (i, high) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        for half in (0, 1):
            left[lane // 4 + 8 * i, 2 * (lane % 4) + half + 8 * high] = a[register, :, half]
            right[2 * (lane % 4) + half + 8 * high, lane // 4] = b[high, :, half]
    sums = (left @ right).reshape(2, 8, 4, 2)
    return sums[:, lane // 4, lane % 4].transpose(1, 0, 2).reshape(32, 4)


@formats
def test_warps_find_their_matrices(numbers: TensorFormat) -> None:
    """Repeat ``multiply_stage`` and ``store`` of convolution_mma.cu for a chunk, lane by lane."""
    conv = layer_of((16, 24), Vec3(2, 2, 3))
    block = next(iter(blocks_for(conv, numbers, AMPERE)))
    x, weights = random_input(Shape5.of(1, 16, block.seen)), random_weights(conv)
    ordered = weights_by_stage(weights.weight, ones(conv), block)
    image = image_of(x[0], block)
    expected = sums_of_block(block, image, ordered)[:, :, :16, :16]
    k, seen, tiles, lane = block.kernel, block.seen, block.subtile, np.arange(32)
    parts, columns, matrix = numbers.parts, block.columns, np.arange(32) // 8
    image_rows, weight_rows = image.reshape(-1, 8), ordered.astype(float).reshape(-1, 8)
    found = np.full((columns, *block.out), np.nan)
    for group, warp in np.ndindex(WARPGROUPS, 4):
        first = (group * tiles.z * seen.y + 2 * warp + matrix % 2) * seen.x + lane % 8
        left = matrix // 2 * seen.volume + first
        right = matrix % 2 * columns + matrix // 2 * 8 + lane % 8
        sums = np.zeros((tiles.volume, columns // 8, 32, 4))
        terms = [(part, of) for part in range(parts) for of in range(parts - part)]
        for tap, (part, of_image) in ((tap, term) for tap in range(k.volume) for term in terms):
            z, y, x_ = tap // k.x // k.y, tap // k.x % k.y, tap % k.x
            at = right + (tap * parts + part) * 2 * columns
            eights = np.arange(0, columns // 8, 2)
            both = [matrices_at(weight_rows, (at + 8 * i) % len(weight_rows)) for i in eights]
            fragments = np.concatenate(both).reshape(-1, 2, 32, 2)[: columns // 8]
            for tile in range(tiles.volume):
                row = (z + tile // tiles.x // tiles.y) * seen.y + y
                row += tile // tiles.x % tiles.y * ROWS
                voxel = row * seen.x + x_ + tile % tiles.x * ROWS
                voxels = matrices_at(image_rows, left + voxel + of_image * 2 * seen.volume)
                for eight, fragment in enumerate(fragments):
                    sums[tile, eight] += product_of(voxels, fragment)
        for tile, eight, register in np.ndindex(tiles.volume, columns // 8, 4):
            z = group * tiles.z + tile // tiles.x // tiles.y
            y = 2 * warp + tile // tiles.x % tiles.y * ROWS + register // 2
            column = eight * 8 + 2 * (lane % 4) + register % 2
            found[column, z, y, tile % tiles.x * ROWS + lane // 4] = sums[tile, eight, :, register]
    np.testing.assert_allclose(found[:, :, :16, :16], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@needs_compiler
@formats
@chips
def test_sums_stay_in_registers(numbers: TensorFormat, chip: Chip) -> None:
    (strip,) = strips_for(layer_of((80, 80), Vec3(3, 3, 3)), numbers, Vec3(64, 64, 64), chip)
    assert_fits(strip.block)
    assert resource_usage(image_source(numbers), chip.architecture)["lay_out"].spills == 0


@pytest.mark.slow
@needs_compiler
@formats
@pytest.mark.parametrize("chip", [AMPERE, HOPPER], ids=lambda chip: chip.architecture)
@pytest.mark.parametrize("kernel", [Vec3(2, 2, 2), Vec3(3, 3, 3)], ids=str)
def test_sums_of_all_divisions_stay_in_registers(
    numbers: TensorFormat, chip: Chip, kernel: Vec3
) -> None:
    blocks = {b.subtile.x: b for b in blocks_for(layer_of((80, 80), kernel), numbers, chip)}
    # What differs is how they store, which no kernel changes.
    for block in list(blocks.values())[: 1 if kernel.x == 2 else None]:
        assert_fits(block)


@pytest.mark.slow
@needs_compiler
@formats
@pytest.mark.parametrize("chip", [AMPERE, HOPPER], ids=lambda chip: chip.architecture)
def test_any_layer_compiles(numbers: TensorFormat, chip: Chip) -> None:
    conv = layer_of((500, 170), Vec3(3, 2, 1), "tanh")
    pieces = pieces_of(conv, numbers, Shape5(1, 500, 9, 9, 9), chip)
    for number in range(len(pieces.block.sums)):
        source = convolution_source(pieces.block, "tanh", number)
        assert resource_usage(source, chip.architecture)["convolve"].spills == 0


def layers_of_all_kinds() -> list[tuple[Conv, Shape5]]:
    """Few maps and many, more than a pass takes, kernels long and short, pieces of both kinds."""
    return [
        (layer_of((80, 80), Vec3(3, 3, 3)), Shape5(1, 80, 12, 20, 37)),
        (layer_of((80, 80), Vec3(2, 2, 2), "tanh"), Shape5(2, 80, 10, 18, 33)),
        (layer_of((1, 80), Vec3(3, 3, 3), "elu"), Shape5(1, 1, 21, 17, 45)),
        (layer_of((21, 3), Vec3(3, 1, 4), "softmax"), Shape5(3, 21, 9, 31, 17)),
        (layer_of((8, 100), Vec3(1, 2, 3), "sigmoid"), Shape5(2, 8, 13, 11, 12)),
        (layer_of((96, 170), Vec3(2, 2, 1), "identity"), Shape5(1, 96, 10, 14, 13)),
        (layer_of((5, 9), Vec3(1, 1, 1), "leaky_relu"), Shape5(1, 5, 150, 150, 151)),
        (layer_of((3, 8), Vec3(2, 2, 2)), Shape5(500, 3, 9, 9, 9)),
        (layer_of((200, 24), Vec3(3, 3, 3), "elu"), Shape5(2, 200, 7, 19, 21)),
        (layer_of((17, 256), Vec3(1, 1, 1)), Shape5(2, 17, 8, 18, 19)),
    ]


@pytest.mark.gpu
@formats
@devices
@pytest.mark.parametrize(("layer", "shape"), layers_of_all_kinds())
def test_layers_of_all_kinds_are_the_reference(
    numbers: TensorFormat, device: Device, layer: Conv, shape: Shape5
) -> None:
    assert_accurate(GpuDirectTensor(device, numbers), random_case(layer, shape))


@pytest.mark.gpu
@formats
@devices
@pytest.mark.parametrize("factor", [1e-30, 1e-4, 3e4, 1e30])
def test_images_of_any_range_are_the_reference(
    numbers: TensorFormat, device: Device, factor: float
) -> None:
    layer = layer_of((20, 16), Vec3(3, 3, 3), "identity")
    case = random_case(layer, Shape5(2, 20, 9, 19, 23))
    assert_accurate(GpuDirectTensor(device, numbers), scaled(case, factor))


@pytest.mark.gpu
@pytest.mark.parametrize("device", [H200, AS_AMPERE], ids=["hopper", "ampere"])
def test_an_output_may_have_more_places_than_32_bits_count(device: Device) -> None:
    """Planes lie so far apart that the last ones begin beyond 2^31 numbers."""
    skip_if_too_new(device)
    layer, shape = layer_of((5, 3), Vec3(2, 2, 2), "identity"), Shape5(1, 5, 10, 11, 13)
    case = random_case(layer, shape)
    right = tiled_reference.local(layer, Weights({layer.name: case.weights}, "test"), case.inputs)
    apart, (_, maps, planes, rows, columns) = 2**28, right.shape
    memory = cupy().cuda.MemoryPointer(allocate(4 * planes * apart), 0)
    steps = (4 * maps * rows * columns, 4 * rows * columns, 4 * apart, 4 * columns, 4)
    view = cupy().ndarray(right.shape, np.float32, memory, steps)
    primitive = GpuDirectTensor(device, FLOAT16)
    run = primitive.build(layer, shape, case.weights)
    x = to_gpu(case.inputs[0])
    with output_into(view):
        run(x)
    np.testing.assert_allclose(
        view.get(), right, rtol=0, atol=primitive.accuracy * np.abs(right).max()
    )


@pytest.mark.gpu
@formats
@devices
def test_a_primitive_runs_at_several_steps_in_one_arena(
    numbers: TensorFormat, device: Device
) -> None:
    """Two layers of one primitive share the arena, as in a plan, twice, with the same results."""
    skip_if_too_new(device)
    shape, primitive = Shape5(1, 16, 12, 22, 37), GpuDirectTensor(device, numbers)
    first = layer_of((16, 40), Vec3(3, 3, 3))
    second = Conv("second", 40, 16, Vec3(3, 3, 3), "relu")
    x, runs, costs, right = random_input(shape), [], [], None
    for layer in (first, second):
        weights = random_weights(layer)
        runs.append(primitive.build(layer, shape, weights))
        costs.append(primitive.cost(layer, shape))
        right = tiled_reference.local(
            layer, Weights({layer.name: weights}, "test"), (x if right is None else right,)
        )
        shape = Shape5(*right.shape)
    assert right is not None
    between = costs[1].memory.working
    arena = DeviceArena(costs[0].memory.working + between, 64 * ALIGNMENT)
    results = []
    for _ in range(2):
        with arena.in_use():
            poison(arena)
            there = to_gpu(x)
            results.append(runs[1](runs[0](there)).get())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(
        results[0], right, rtol=0, atol=3 * primitive.accuracy * np.abs(right).max()
    )
