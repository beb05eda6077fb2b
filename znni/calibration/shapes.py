"""Calls to measure: like those of networks, and short."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from math import exp, log
from random import Random
from typing import NamedTuple

from planner.cost_model import built_in_seconds
from znni.calibration.effort import Effort
from znni.core.shapes import ZERO, Box, Shape5, Vec3
from znni.machine.packed_arrays import GROUP, packed_bytes
from znni.network.layers import (
    NO_PADDING,
    Add,
    Affine,
    Concat,
    Conv,
    ConvPair,
    ConvTranspose,
    Fused,
    GlobalPool,
    Layer,
    Maximum,
    Multiply,
    Normalize,
    Operation,
    PackedLayer,
    PadLayer,
    Pool,
    PooledConv,
    Upsample,
    VoxelNorm,
)
from znni.plans.primitive import Primitive, TakesPacked

# Each value is drawn as often as others of its list. Common values appear several times.

# Extents of the cubic kernels of convolutions.
KERNELS = range(1, 10)

# Windows of poolings.
WINDOWS = (Vec3(2, 2, 2), Vec3(2, 2, 2), Vec3(1, 2, 2), Vec3(3, 3, 3))

# Maps (in, out) of convolutions.
MAPS = ((1, 24), (1, 80), (24, 24), (80, 80), (80, 80), (80, 80), (80, 3))

# Maps (in, out) of convolutions with the pooling after them.
POOLED_MAPS = ((1, 24), (1, 80), (3, 24))

# Fragments of a convolution's input: those after no, one and two pools.
BATCHES = (1, 8, 64)

# Extents of the kernels of strided and transposed convolutions in U-Nets.
STRIDED_KERNELS = (2, 3, 3)

# Maps (fine, coarse) of these convolutions.
STRIDED_MAPS = ((24, 24), (32, 64), (64, 128), (128, 256))

# Output maps of the last layer of a U-Net.
HEAD_MAPS = 3

# The share of draws of U-Net layers that have a strided convolution.
STRIDED = 0.3

# The least extent of an image.
LEAST_EXTENT = 4

# The largest deviation of an extent from the mean one, in factors of two.
UNEVEN = 0.5

# The most calls that are drawn to find enough suitable ones.
MOST_DRAWN = 40_000


class Call(NamedTuple):
    """An operation and the shape that a primitive is measured on."""

    operation: Operation
    shape: Shape5

    @property
    def is_packed(self) -> bool:
        """True for a layer of packed values."""
        return isinstance(self.operation, PackedLayer)

    @property
    def given_bytes(self) -> int:
        """Bytes of the input."""
        operation = self.operation
        if isinstance(operation, PackedLayer) and operation.reads:
            return packed_bytes(self.shape, operation.parts)
        return self.shape.nbytes

    def packed(self, parts: int) -> Call:
        """Return the call with packed values wherever maps are whole groups.

        Args:
            parts: the parts of a packed number.
        """
        layer, maps = self.operation, self.shape.f
        if isinstance(layer, ConvPair):
            return Call(PackedLayer(layer, True, True, parts=parts), self.shape)
        if isinstance(layer, Fused | PackedLayer):
            return self
        reads = writes = maps % GROUP == 0
        if isinstance(layer, Conv):
            writes = layer.out_features % GROUP == 0
        return Call(PackedLayer(layer, reads, writes, parts=parts), self.shape)


def designed_calls(primitive: Primitive, effort: Effort, allowed: int) -> list[Call]:
    """Return random calls, so that the first ones are a fair sample, however many are used.

    They differ between primitives, and are always the same for one primitive.

    Args:
        primitive: primitive to measure.
        effort: limits of the measurements.
        allowed: bytes for measuring: one third each for inputs, for the memory that calls take
            besides them, and for what is kept between calls.
    """
    calls: list[Call] = []
    drawn = chain.from_iterable(
        zip(
            random_calls(Random(primitive.name), effort.extents),
            local_calls(Random(f"exact {primitive.name}"), effort.extents),
            strict=False,
        )
    )
    parts = primitive.packed_parts if isinstance(primitive, TakesPacked) else 0
    for each in islice(chain.from_iterable(drawn), MOST_DRAWN):
        call = each.packed(parts) if parts else each
        if call not in calls and _suits(primitive, call, effort, allowed):
            calls.append(call)
        if len(calls) == effort.calls:
            break
    return calls


def random_calls(random: Random, extents: tuple[int, int]) -> Iterator[list[Call]]:
    """Yield layers of sliding networks endlessly, on images between two mean extents."""

    def extents_of(images: int) -> Vec3:
        return random_extents(random, extents, images)

    while True:
        kernel, window = Vec3.of(random.choice(KERNELS)), random.choice(WINDOWS)
        features, out_features = random.choice(MAPS)
        batch = random.choice(BATCHES) if features > 1 else 1  # a first layer's input is whole
        convolution = _convolution(kernel, features, out_features, batch, extents_of(batch))
        # Fragments need extents of a multiple of the window, less one voxel.
        size = window * (extents_of(batch * window.volume) + 1) - 1
        shape = Shape5.of(batch, out_features, size)
        poolings = [Call(Pool("pool", window, reduce), shape) for reduce in ("max", "average")]
        features, out_features = random.choice(POOLED_MAPS)
        pooled = _pooled(kernel, window, features, out_features, extents_of(window.volume))
        yield [convolution, *poolings, pooled]


def local_calls(random: Random, extents: tuple[int, int]) -> Iterator[list[Call]]:
    """Yield layers that only tiled networks have, on one image each, endlessly."""
    while True:
        size = random_extents(random, extents, 1)
        kernel, factor = Vec3.of(random.choice(STRIDED_KERNELS)), random.choice(WINDOWS[:3])
        fine, coarse = random.choice(STRIDED_MAPS)
        transposed = ConvTranspose("conv_transpose", coarse, fine, kernel, "identity", factor)
        layers: list[tuple[Layer, int]] = [
            (transposed.local, coarse),
            (Pool("pool", kernel, "average", factor), fine),
            (Pool("pool", Vec3.of(3), "max", factor), fine),
            (Upsample("upsample", factor), coarse),
            (Upsample("upsample", factor, "trilinear"), coarse),
            (PadLayer("pad", NO_PADDING, "edge"), fine),
            (Affine("affine", fine, "relu"), fine),
            (Normalize("normalize", fine, fine, activation="relu"), fine),
            (VoxelNorm("layer_norm", fine, 1), fine),
            (Normalize("normalize", fine, 1, by="response"), fine),
            (Concat("concat"), 2 * fine),
            (Add("add", "relu"), 2 * fine),
            (Multiply("multiply"), 2 * fine),
            (Maximum("maximum"), 2 * fine),
            (GlobalPool("global_pool"), fine),
            (Conv("conv", fine, HEAD_MAPS, Vec3.of(1), "identity"), fine),
            (Conv("conv", fine, fine, Vec3.of(3), "identity", groups=fine), fine),
        ]
        if random.random() < STRIDED:
            layers.append((Conv("conv", fine, coarse, kernel, "relu", factor), fine))
        wide = Conv("conv", fine, 2 * fine, Vec3.of(1), "gelu")
        pair = ConvPair(wide, Conv("after", 2 * fine, fine, Vec3.of(1), "identity"))
        yield [
            *(
                Call(layer, Shape5.of(1, maps, layer.reads(layer.rounded(Box(ZERO, size))).size))
                for layer, maps in layers
            ),
            Call(pair, Shape5.of(1, fine, size)),
        ]


def random_extents(random: Random, extents: tuple[int, int], images: int) -> Vec3:
    """Return the extents of one of several images that are together as large as one."""
    mean = exp(random.uniform(*map(log, extents))) / images ** (1 / 3)
    return Vec3(
        *(max(LEAST_EXTENT, round(mean * 2 ** random.uniform(-UNEVEN, UNEVEN))) for _ in "zyx")
    )


def _convolution(kernel: Vec3, features: int, out_features: int, batch: int, out: Vec3) -> Call:
    conv = Conv("conv", features, out_features, kernel, "relu")
    return Call(conv, Shape5.of(batch, features, out + kernel - 1))


def _pooled(kernel: Vec3, window: Vec3, features: int, out_features: int, out: Vec3) -> Call:
    conv = Conv("conv", features, out_features, kernel, "relu")
    size = window * out + kernel - 1
    return Call(PooledConv(conv, Pool("pool", window)), Shape5.of(1, features, size))


def _suits(primitive: Primitive, call: Call, effort: Effort, allowed: int) -> bool:
    """Return whether the primitive supports a call that is within the limits."""
    if primitive.out_shape(*call) is None:
        return False
    cost = primitive.cost(*call)
    seconds = built_in_seconds(primitive, cost)
    memory, third = cost.memory, allowed // 3
    # All calls share the noise that they take. A packed input is made of it, and lies beside it.
    beside = memory.working - (0 if call.is_packed else call.shape.nbytes)
    return (
        effort.shortest <= seconds <= effort.longest
        and memory.resident <= min(effort.resident, third)
        and max(call.shape.nbytes, beside) <= third
    )
