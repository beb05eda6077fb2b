"""Direct convolution on tensor cores: its division of work, its layouts, and its results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_layers import H200, needs_compiler
from hypothesis import given
from hypothesis import strategies as st
from layers import assert_accurate, extents, random_case, random_input, random_weights, scaled

from znni.core.shapes import Shape5, Vec3, valid_convolution
from znni.machine.cuda_kernels import resource_usage
from znni.network.layers import Activation, Conv
from znni.network.weights import ConvWeights
from znni.primitives import reference
from znni.primitives.gpu.common.hardware import HOPPER
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR, TensorFormat
from znni.primitives.gpu.direct_tensor import primitive as direct_tensor
from znni.primitives.gpu.direct_tensor.geometry import (
    GROUP,
    IN_MAPS,
    ROWS,
    SHARED_BYTES,
    VOXEL_BYTES,
    WARPGROUPS,
    Block,
    blocks_for,
    strips_for,
)
from znni.primitives.gpu.direct_tensor.launch import convolution_source, image_source
from znni.primitives.gpu.direct_tensor.primitive import GpuDirectTensor
from znni.primitives.gpu.direct_tensor.weights import scales_of, weights_by_stage
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


def pieces_of(conv: Conv, numbers: TensorFormat, shape: Shape5) -> Pieces:
    size = valid_convolution(shape.size, conv.kernel)
    assert size is not None
    strips = strips_for(conv, numbers, size)
    assert strips
    return Pieces(shape, Shape5.of(shape.n, conv.out_features, size), conv, strips)


@formats
@kernels
@maps
def test_blocks_fit_shared_memory_and_the_registers(
    numbers: TensorFormat, kernel: Vec3, maps: tuple[int, int]
) -> None:
    conv = layer_of(maps, kernel)
    blocks = list(blocks_for(conv, numbers))
    assert blocks
    for block in blocks:
        assert block.shared_bytes <= SHARED_BYTES
        assert block.subtile.volume * block.columns // 2 <= 160
        assert block.columns % GROUP == 0
        assert block.passes * block.columns >= conv.out_features
        assert (block.passes - 1) * block.columns < conv.out_features
        assert block.kernel.volume % block.taps.volume == 0
        assert block.taps.volume * block.all_stages == block.chunks * kernel.volume
        assert block.seen.volume * VOXEL_BYTES <= MOST_DISTANCE
        assert block.stages >= min(2, block.all_stages)


def test_there_is_room_for_the_barriers_of_many_stages() -> None:
    layer = layer_of((4096, 20), Vec3(1, 1, 1))
    for strip in strips_for(layer, FLOAT16, Vec3(32, 32, 32)):
        block = strip.block
        assert block.all_stages > 100
        assert block.shared_bytes + 8 * (4 + 2 * block.stages) <= HOPPER.block_shared_bytes


def test_kernels_without_room_are_left_to_others() -> None:
    primitive = GpuDirectTensor(H200, FLOAT16)
    assert primitive.out_shape(layer_of((8, 8), Vec3(9, 9, 9)), Shape5(1, 8, 20, 20, 20)) is None
    many = layer_of((400, 8), Vec3(3, 3, 3))
    assert GpuDirectTensor(H200, FLOAT16_PAIR).out_shape(many, Shape5(1, 400, 9, 9, 9)) is None
    assert primitive.out_shape(many, Shape5(1, 400, 9, 9, 9)) == Shape5(1, 8, 7, 7, 7)
    with pytest.raises(ValueError, match="gpu_direct_tensor does not apply"):
        GpuDirectTensor(H200, FLOAT16_PAIR).cost(many, Shape5(1, 400, 9, 9, 9))


def test_older_gpus_have_no_such_instructions() -> None:
    assert len(direct_tensor.primitives(H200)) == 2
    assert direct_tensor.primitives(replace(H200, capability=80)) == ()


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
        image = piece.items * pieces.seen(piece).volume * 32 * numbers.parts * 2
        assert image <= pieces.image_bytes
    assert (computed == 1).all()


@given(extents(1, 300))
def test_strips_are_the_whole_output(size: Vec3) -> None:
    strips = strips_for(layer_of((80, 80), Vec3(3, 3, 3)), FLOAT16, size)
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
    pieces = pieces_of(conv, numbers, shape)
    memory = GpuDirectTensor(H200, numbers).cost(conv, shape).memory
    assert memory.workspace == pieces.image_bytes + 4
    assert memory.working == shape.nbytes + pieces.out.nbytes + memory.workspace
    ordered = weights_by_stage(random_weights(conv).weight, pieces.block)
    assert memory.resident == ordered.nbytes + 2 * 4 * pieces.block.passes * pieces.block.columns


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


@formats
def test_sums_of_a_block_are_the_convolution(numbers: TensorFormat) -> None:
    """Repeat the kernel's work on the layouts, with its addresses, in float64."""
    conv = layer_of((21, 13), Vec3(2, 3, 2))
    for block in blocks_for(conv, numbers):
        weights = random_weights(conv)
        x = random_input(Shape5.of(1, 21, block.seen))
        expected = reference.convolution(
            x,
            replace(conv, activation="identity"),
            ConvWeights(weights.weight, np.zeros(13, np.float32)),
        )[0]
        found = sums_of(block, image_of(x[0], block), weights_by_stage(weights.weight, block))
        tolerance = 2e-6 if numbers is FLOAT16_PAIR else 2e-3
        np.testing.assert_allclose(found[:13], expected, atol=tolerance * np.abs(expected).max())


def image_of(x: np.ndarray, block: Block) -> np.ndarray:
    """Return the image as ``image.cu`` writes it: (chunk, part, group of 8 maps, voxel, map)."""
    whole = np.zeros((block.chunks * IN_MAPS, *x.shape[1:]), np.float32)
    whole[: len(x)] = x
    parts = []
    for _ in range(block.numbers.parts):
        parts.append(whole.astype(np.float16))
        whole = whole - parts[-1]
    split = np.stack(parts).reshape(len(parts), block.chunks, 2, GROUP, -1)
    return split.transpose(1, 0, 2, 4, 3).astype(float)


def sums_of(block: Block, image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the output (map, z, y, x) of a block, with the addresses of ``multiply_stage``."""
    k, seen, tiles = block.kernel, block.seen, block.subtile
    out = np.zeros((block.columns, *block.out))
    terms = [(0, 0), (1, 0), (0, 1)] if block.numbers is FLOAT16_PAIR else [(0, 0)]
    matrices = np.arange(ROWS)[:, None] * seen.x + np.arange(ROWS)
    for chunk, (a, b) in ((chunk, term) for chunk in range(block.chunks) for term in terms):
        flat = weights[0, chunk].reshape(k.volume, block.numbers.parts, 2, block.columns, GROUP)
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


@needs_compiler
@formats
def test_sums_stay_in_registers(numbers: TensorFormat) -> None:
    blocks = {b.subtile.x: b for b in blocks_for(layer_of((80, 80), Vec3(3, 3, 3)), numbers)}
    for block in blocks.values():  # what differs is how they store
        assert resource_usage(convolution_source(block, "relu"))["convolve"].spills == 0
    assert resource_usage(image_source(numbers))["lay_out"].spills == 0


@needs_compiler
@formats
def test_any_layer_compiles(numbers: TensorFormat) -> None:
    pieces = pieces_of(layer_of((5, 170), Vec3(3, 2, 1), "tanh"), numbers, Shape5(1, 5, 9, 9, 9))
    assert "convolve" in resource_usage(convolution_source(pieces.block, "tanh"))


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
    ]


@pytest.mark.gpu
@formats
@pytest.mark.parametrize(("layer", "shape"), layers_of_all_kinds())
def test_layers_of_all_kinds_are_the_reference(
    numbers: TensorFormat, layer: Conv, shape: Shape5
) -> None:
    assert_accurate(GpuDirectTensor(H200, numbers), random_case(layer, shape))


@pytest.mark.gpu
@formats
@pytest.mark.parametrize("factor", [1e-30, 1e-4, 3e4, 1e30])
def test_images_of_any_range_are_the_reference(numbers: TensorFormat, factor: float) -> None:
    layer = layer_of((20, 16), Vec3(3, 3, 3), "identity")
    case = random_case(layer, Shape5(2, 20, 9, 19, 23))
    assert_accurate(GpuDirectTensor(H200, numbers), scaled(case, factor))
