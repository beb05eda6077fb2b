"""GPU primitives on small layers: their errors, and the memory that they keep.

The layers are so small that compute-sanitizer can watch every kernel: ``compute-sanitizer
--error-exitcode 1 --show-backtrace no --report-api-errors no python -m bench exercise``. For
backtraces it would hold on to Python's frames, and so to their arrays. By errors of calls, CUDA's
packages find out what a driver can do. Results are held to the float64 reference. Memory is full of
NaN before each run, so that a value that nobody wrote shows. ``--no-poison`` leaves that to
``--tool initcheck``.

``--memory`` measures what a GPU gives for good when a primitive is first used, beside what the
primitive declares: code of kernels, what they spill to, and what CUDA's libraries take for
themselves. Plans count it among ``DEVICE_BYTES``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, Any, cast, get_args

import numpy as np
import typer
from numpy.typing import NDArray

from bench import reference, session
from bench.patches import release_gpu_memory
from bench.record import Row
from znni.calibration.measure import inputs_in
from znni.calibration.shapes import Call
from znni.core.errors import RunFailed
from znni.core.option_types import OutputType
from znni.core.shapes import Shape5, Vec3, offsets
from znni.engine.backends.cuda.recombine import DeviceRecombination
from znni.engine.backends.host.recombine import recombine
from znni.engine.stages.convert import convert
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.device_arena import DeviceArena
from znni.machine.machine import Device
from znni.machine.packed_arrays import PackedArray, in_whole_groups, packed_copy
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
    SummedConv,
    SummedConvPair,
    Upsample,
    VoxelNorm,
    Weighted,
    layers_of,
)
from znni.network.weights import ConvWeights, Float32, Weights
from znni.plans.primitive import Primitive, on_device
from znni.primitives import tiled_reference
from znni.primitives.catalogue import catalogue
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR
from znni.primitives.gpu.packed.normalization import GpuPackedNormalization
from znni.primitives.reference import activation

FIRST = Conv("first", 1, 19, Vec3(2, 3, 4), "relu")
HIDDEN = Conv("hidden", 80, 80, Vec3(3, 3, 3), "relu")
LAST = Conv("last", 37, 3, Vec3(5, 7, 6), "softmax")
AFFINITIES = Conv("affinities", 20, 3, Vec3(3, 3, 3), "sigmoid")
SCORES = Conv("scores", 37, 3, Vec3(3, 2, 4), "softmax")
CUBE, SLAB = Pool("cube", Vec3(2, 2, 2)), Pool("slab", Vec3(1, 3, 2))

CUBES = Conv("cubes", 5, 6, Vec3(5, 6, 7), "relu")

# Odd extents, several images, few and many maps. The cubes are a single tile of an FFT, which one,
# two or four blocks share. A case that a primitive does not apply to is stretched.
CASES: tuple[tuple[Operation, Shape5], ...] = (
    (FIRST, Shape5(2, 1, 17, 23, 29)),
    (HIDDEN, Shape5(2, 80, 10, 11, 14)),
    (LAST, Shape5(3, 37, 11, 13, 18)),
    (AFFINITIES, Shape5(2, 20, 8, 14, 37)),
    (SCORES, Shape5(2, 37, 9, 21, 31)),
    *((CUBES, Shape5.of(1, 5, Vec3.of(extent))) for extent in (16, 24, 32)),
    (PooledConv(FIRST, CUBE), Shape5(1, 1, 17, 23, 29)),
    (PooledConv(Conv("few", 3, 8, Vec3(3, 4, 3), "elu"), SLAB), Shape5(2, 3, 13, 19, 31)),
    (CUBE, Shape5(2, 5, 11, 13, 17)),
    (SLAB, Shape5(1, 3, 7, 11, 9)),
    (replace(CUBE, reduce="average"), Shape5(2, 5, 11, 13, 17)),
    (replace(SLAB, reduce="average"), Shape5(1, 3, 7, 11, 9)),
)

# Layers of tiled networks. The shape is that of all inputs together.
ONE, TWO, CUBED = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3)
TILED: tuple[tuple[Operation, Shape5], ...] = tuple(
    (layer, Shape5(images, maps, *size))
    for images, size in ((1, Vec3(9, 12, 17)), (2, Vec3(10, 7, 19)))
    for layer, maps in (
        (Conv("strided", 16, 24, Vec3(3, 2, 3), "elu", stride=Vec3(2, 1, 2)), 16),
        (Conv("dilated", 5, 3, Vec3(2, 3, 2), "prelu", dilation=Vec3(3, 1, 2)), 5),
        (ConvTranspose("transposed", 16, 8, TWO, "relu", TWO).local, 16),
        (Conv("depthwise", 5, 10, Vec3(3, 5, 3), "gelu", groups=5), 5),
        (ConvTranspose("spread", 5, 5, Vec3(3, 3, 3), "elu", TWO, ONE, ONE, groups=5).local, 5),
        (Affine("affine", 5, "gelu"), 5),
        (Normalize("instances", 5, 5, activation="leaky_relu"), 5),
        (Normalize("groups", 6, 2, activation="elu"), 6),
        (VoxelNorm("voxels", 6, 2, activation="gelu"), 6),
        (VoxelNorm("wide_voxels", 90, 1), 90),
        (Normalize("responses", 6, 2, activation="elu", by="response"), 6),
        (GlobalPool("squeeze"), 5),
        (GlobalPool("peaks", "max"), 5),
        (Concat("concatenation"), 5),
        (Add("sum", "leaky_relu"), 6),
        (Multiply("gate", "tanh", is_gate=True), 4),
        (Maximum("maximum", "elu"), 6),
        (Upsample("nearest", Vec3(1, 2, 3)), 3),
        (Upsample("trilinear", TWO, "trilinear"), 3),
        (PadLayer("edges", NO_PADDING, "reflect"), 3),
        (Pool("average", Vec3(2, 3, 2), "average"), 3),
        (Pool("overlapping", Vec3(3, 2, 3), step=TWO), 3),
    )
)

# Layers of packed values, some of whose maps fill no group. Convolutions take and make both kinds.
PACKED: tuple[tuple[PackedLayer, Shape5], ...] = tuple(
    (PackedLayer(layer, reads, writes, parts=parts), Shape5(images, maps, *size))
    for parts in (1, 2)
    for images, size in ((1, Vec3(9, 12, 17)), (2, Vec3(10, 7, 19)))
    for layer, maps, kinds in (
        (Conv("dense", 24, 40, Vec3(3, 2, 3), "elu"), 24, ((True, True), (True, False))),
        (Conv("filled", 12, 20, TWO, "sigmoid"), 12, ((True, True), (False, True))),
        (Conv("input", 3, 12, Vec3(3, 3, 3), "relu"), 3, ((False, True),)),
        (Conv("head", 32, 3, ONE, "sigmoid"), 32, ((True, False),)),
        *(
            (layer, maps, ((True, True),))
            for layer, maps in (
                (Conv("strided", 16, 24, Vec3(3, 2, 3), "elu", stride=Vec3(2, 1, 2)), 16),
                (ConvTranspose("transposed", 16, 8, TWO, "relu", TWO).local, 16),
                (Conv("depthwise", 20, 20, Vec3(3, 5, 3), "gelu", groups=20), 20),
                (ConvTranspose("spread", 16, 16, CUBED, "elu", TWO, ONE, ONE, groups=16).local, 16),
                (Affine("affine", 20, "relu"), 20),
                (Normalize("instances", 16, 16, activation="leaky_relu"), 16),
                (Normalize("groups", 20, 2, activation="elu"), 20),
                (Concat("concatenation"), 32),
                (Add("sum", "leaky_relu"), 16),
                (Multiply("product"), 16),
                (Maximum("maximum", "elu"), 16),
                (Upsample("nearest", Vec3(1, 2, 3)), 8),
                (Upsample("trilinear", Vec3(1, 2, 3), "trilinear"), 8),
                (Pool("average", Vec3(2, 3, 2), "average"), 8),
                (Pool("overlapping", Vec3(3, 2, 3), step=TWO), 16),
            )
        ),
    )
    for reads, writes in kinds
)

# Steps of packed values that do more. A convolution adds to a value, or adds up maps for a norm, or
# applies the norm before it. A norm takes such sums, and leaves its numbers to the next layer.
BEFORE_HEAD = Normalize("before", 20, 20, activation="leaky_relu")
BEFORE_PAIR = Normalize("before", 32, 32)
WIDE, NARROW = Conv("wide", 32, 72, ONE, "gelu"), Conv("narrow", 72, 20, ONE, "identity")
TOGETHER: tuple[tuple[PackedLayer, Shape5], ...] = tuple(
    (replace(packed, parts=parts), Shape5(items, maps, 9, 12, 17))
    for parts in (1, 2)
    for items in (1, 3)
    for packed, maps in (
        (
            PackedLayer(
                SummedConv(Conv("residual", 24, 40, TWO, "identity"), Add("sum", "elu")), True, True
            ),
            24,
        ),
        (PackedLayer(Conv("dense", 24, 36, Vec3(3, 2, 3), "relu"), True, True, sums=True), 24),
        (PackedLayer(Conv("input", 2, 40, TWO, "identity"), False, True, sums=True), 2),
        (PackedLayer(Normalize("groups", 20, 4), True, True, sums=True), 20),
        (PackedLayer(Normalize("left", 24, 24), True, True, sums=True, leaves=True), 24),
        (PackedLayer(Conv("head", 20, 3, ONE, "elu"), True, False, norm=BEFORE_HEAD), 20),
        (
            PackedLayer(Conv("depthwise", 16, 16, CUBED, "elu", groups=16), True, True, sums=True),
            16,
        ),
        (PackedLayer(ConvPair(WIDE, NARROW), True, True), 32),
        (PackedLayer(SummedConvPair(WIDE, NARROW, Add("sum")), True, True, norm=BEFORE_PAIR), 32),
    )
)

# Blocks compute several places of these: all passes of each, phase by phase, or in turns.
SEVERAL_PLACES: tuple[tuple[PackedLayer, Shape5], ...] = tuple(
    (PackedLayer(layer.local, True, True, parts=parts), Shape5(1, layer.in_features, *size))
    for parts in (1, 2)
    for layer, size in (
        (ConvTranspose("transposed", 16, 24, TWO, "elu", TWO), Vec3(25, 33, 65)),
        (ConvTranspose("upsampled", 16, 24, Vec3(4, 4, 4), "elu", TWO, ONE, ONE), Vec3(25, 33, 65)),
        (Conv("few", 8, 16, Vec3(3, 3, 3), "elu"), Vec3(52, 34, 42)),
    )
)

# Layers whose reference is that of tiled networks.
LOCAL = tuple(layer for layer, _ in TILED)

# Voxels that a case's last or first axis may be longer.
STRETCH = 64


def exercise_command(
    only: session.Only = None,
    poison: Annotated[bool, typer.Option(help="Fill the memory with NaN before each run.")] = True,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory", help="Measure the GPU's memory that each primitive keeps instead."
        ),
    ] = False,
    out: session.Out = None,
) -> None:
    """Check GPU primitives on small layers.

    The layers are small enough for compute-sanitizer.
    """
    machine = session.machine_with("gpu", None)
    session.check_primitives(only or [], machine)
    found = on_device(catalogue(machine), "gpu").items()
    primitives = [primitive for name, primitive in found if not only or name in only]
    if memory:
        session.report_all("gpu-memory", [list(kept_beside(primitives))], [], out)
        return
    rows = exercise(primitives, poison=poison) + recombined()
    session.report_all("gpu-exercise", [rows], [], out)
    failed = [row["name"] for row in rows if not row["passed"]]
    if failed:
        raise RunFailed(f"not as the reference: {', '.join(failed)}; see the rows above")


def cases_for(primitive: Primitive) -> Iterator[tuple[Operation, Shape5]]:
    """Yield the cases that a primitive does, each as near to its original size as possible."""
    for layer, shape in (*CASES, *TILED, *PACKED, *TOGETHER, *SEVERAL_PLACES):
        for axis in "xz":
            extents = range(getattr(shape, axis), getattr(shape, axis) + STRETCH)
            longer = (shape._replace(**{axis: extent}) for extent in extents)
            found = next((s for s in longer if primitive.out_shape(layer, s)), None)
            if found:
                yield layer, found
                break


def exercise(primitives: Iterable[Primitive], *, poison: bool = True) -> list[Row]:
    """Run each primitive on its cases; rows have the error, and True if it is as promised.

    Args:
        primitives: for GPUs.
        poison: fill the memory with NaN before each run.
    """
    return [
        _row(primitive, layer, shape, poison)
        for primitive in primitives
        for layer, shape in cases_for(primitive)
    ]


def recombined() -> list[Row]:
    """Do the same for the code that writes fragments into outputs, in each of their types."""
    window, size = Vec3(2, 3, 2), Vec3(3, 4, 5)
    patch, at = window * size, tuple(offsets(window))
    fragments = np.random.default_rng(2).random((len(at), 3, *size), np.float32)
    expected = np.empty((3, *patch), np.float32)
    recombine(fragments, at, window, expected)
    rows = []
    for dtype in get_args(OutputType):
        dense = cupy().empty(expected.shape, dtype)
        DeviceRecombination(patch, dtype)(cupy().asarray(fragments), at, window, dense)
        same = np.array_equal(dense.get(), convert(expected, dtype))
        rows.append({"name": f"recombination to {dtype}", "passed": same})
    return rows


def relative_error(
    layer: Operation, x: Float32, weights: ConvWeights | None, y: NDArray[np.floating]
) -> float:
    """Return the largest error, relative to the largest sum or output."""
    expected: NDArray[np.floating] = x
    scale = 0.0
    if layer in LOCAL or isinstance(layer, PackedLayer):
        expected = _of_tiled_network(layer, x, weights)
        return _largest(y - expected, np.abs(expected).max())
    for part in layers_of(layer):
        if isinstance(part, Pool):
            expected = (reference.pooling_fragments if len(y) > len(x) else reference.pooling)(
                expected, part
            )
        elif weights is not None and isinstance(part, Conv):
            linear = replace(part, activation="identity")
            expected = reference.convolution(x, linear, weights)
            scale = float(np.abs(expected).max())
            expected = activation(expected, part.activation, part.slope)
    return _largest(y - expected, max(scale, np.abs(expected).max()))


def _of_tiled_network(
    layer: Operation, x: Float32, weights: ConvWeights | None
) -> NDArray[np.floating]:
    """Return the reference of a layer of a tiled network, perhaps on packed values."""
    inputs: tuple[Any, ...] = _inputs(layer, x)
    if isinstance(layer, PackedLayer):
        norm, layer = layer.norm, layer.layer
        if norm:
            weights_of_norm = _weights_of(norm, _random_weights(norm))
            inputs = tiled_reference.local(norm, weights_of_norm, inputs[:1]), *inputs[1:]
    if isinstance(layer, SummedConv):
        first, other = inputs
        linear = tiled_reference.local(layer.conv, _weights_of(layer.conv, weights), (first,))
        return activation(linear + other, layer.add.activation, layer.add.slope)
    if isinstance(layer, ConvPair | SummedConvPair):
        between = tiled_reference.local(layer.conv, _weights_of(layer.conv, weights), inputs[:1])
        later = weights and weights.after
        return sum(
            inputs[1:],
            tiled_reference.local(layer.after, _weights_of(layer.after, later), (between,)),
        )
    return tiled_reference.local(cast(Layer, layer), _weights_of(layer, weights), inputs)


def _weights_of(layer: Operation, weights: ConvWeights | None) -> Weights:
    return Weights({} if weights is None else {layer.name: weights}, "random")


def _inputs(layer: Operation, x: Float32) -> tuple[Float32, ...]:
    """Return the arrays that a layer takes. A summed convolution adds to random numbers."""
    first, *others = inputs_in(layer, x)
    if isinstance(layer, PackedLayer) and _adds(layer):
        drawn = np.random.default_rng(3)
        others = [drawn.standard_normal(it.shape, np.float32) for it in others]
    return first, *others


def _adds(layer: PackedLayer) -> bool:
    """Return whether a step adds to a value in place."""
    return isinstance(layer.layer, Fused) and layer.layer.adds_in_place


def _largest(differences: NDArray[np.floating], scale: float) -> float:
    """Return the largest error, relative to a scale; infinite if there is a NaN."""
    return float(np.nan_to_num(np.abs(differences).max() / scale, nan=np.inf))


def _row(primitive: Primitive, layer: Operation, shape: Shape5, poison: bool) -> Row:
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    conv, *_ = layers_of(layer)
    weights = _random_weights(conv) if isinstance(conv, Weighted) else None
    pair = layer.layer if isinstance(layer, PackedLayer) else layer
    if weights and isinstance(pair, ConvPair | SummedConvPair):
        weights = replace(weights, after=_random_weights(pair.after))
    error = relative_error(layer, x, weights, _run(primitive, layer, x, weights, poison))
    return {
        "name": primitive.name,
        "layer": layer.name,
        "input": str(shape),
        "error": error,
        "promised": primitive.accuracy,
        "passed": error <= primitive.accuracy,
    }


def _random_weights(layer: Weighted) -> ConvWeights:
    """Return weights that keep the scale of the input."""
    generator = np.random.default_rng(1)
    weight = generator.standard_normal(layer.weight_shape, np.float32)
    if isinstance(layer, Conv | ConvTranspose):
        weight *= np.float32(layer.fan_in**-0.5)
    bias, slope = generator.standard_normal((2, layer.out_features), np.float32)
    return ConvWeights(weight, bias, slope if layer.activation == "prelu" else None)


def _run(
    primitive: Primitive,
    layer: Operation,
    x: Float32,
    weights: ConvWeights | None,
    poison: bool,
) -> NDArray[np.float32]:
    shape = Shape5(*x.shape)
    run = primitive.build(layer, shape, weights)
    given = Call(layer, shape).given_bytes
    arena = DeviceArena(primitive.cost(layer, shape).memory.working - given)
    with arena.in_use():
        if poison:
            _fill_with_nan(arena)
        there: Any = [cupy().asarray(part) for part in _inputs(layer, x)]
        into: AbstractContextManager[None] = nullcontext()
        if isinstance(layer, PackedLayer) and layer.reads:
            there = [packed_copy(part, layer.parts) for part in there]
            there[0] = _with_all(there[0], layer, primitive.device)
            if _adds(layer):  # the sum is made in place
                records = cupy().zeros(there[1].records.shape, np.uint32)
                into = output_into(there[1]._replace(records=records))
        with into:
            y: Any = run(*there)
        return _numbers(y) if isinstance(y, PackedArray) else np.asarray(y.get())


def _with_all(x: PackedArray, layer: PackedLayer, device: Device) -> PackedArray:
    """Return a packed input with sums of its maps or a norm, if a layer takes these."""
    if isinstance(layer.layer, Normalize) and layer.sums:
        return x._replace(sums=cupy().asarray(map_sums(unpacked(x))))
    if layer.norm is None:
        return x
    numbers = FLOAT16 if layer.parts == 1 else FLOAT16_PAIR
    left = PackedLayer(layer.norm, True, True, parts=layer.parts, leaves=True)
    leave = GpuPackedNormalization(device, numbers).build(
        left, Shape5(*x.shape), _random_weights(layer.norm)
    )
    return cast(PackedArray, leave(x))


def map_sums(x: Float32) -> NDArray[np.float64]:
    """Return the sum and the sum of squares of each map of all groups, as one part of each item."""
    sums = np.zeros((len(x), 1, in_whole_groups(x.shape[1]), 2))
    for power in (1, 2):
        sums[:, 0, : x.shape[1], power - 1] = np.sum(x.astype(np.float64) ** power, (2, 3, 4))
    return sums


def _numbers(made: PackedArray) -> NDArray[np.float32]:
    """Return the numbers of a packed value, with the norm that is left. Wrong sums give NaN."""
    numbers = unpacked(made)
    if made.sums is not None:
        total = made.sums.get().sum(axis=1, keepdims=True)
        found, right = (it[:, 0, : made.features] for it in (total, map_sums(numbers)))
        if not np.allclose(found, right, rtol=1e-3, atol=1e-3 * map_sums(np.abs(numbers)).max()):
            return np.full_like(numbers, np.nan)
    if made.norm is None:
        return numbers
    scaling = made.norm.scaling.get()[:, :, : made.features, None, None, None]
    factors, shifts = np.moveaxis(scaling, 1, 0)
    return np.asarray(numbers * factors + shifts)


def unpacked(made: PackedArray) -> Float32:
    """Return the numbers of a packed array."""
    scales = np.ascontiguousarray(made.records.get()[:, 1]).view(np.float32)
    n, _, *size, together = made.voxels.shape
    parts = made.voxels.get().astype(np.float32).reshape(n, -1, made.parts, *size, together)
    values = parts.sum(axis=2) / scales[:, None, None, None, None]
    numbers: Float32 = np.moveaxis(values, -1, 2).reshape(n, -1, *size)
    return numbers[:, : made.features]


def _fill_with_nan(arena: DeviceArena) -> None:
    memory = arena.take(arena.capacity)
    cupy().ndarray((arena.capacity // 4,), np.float32, memptr=memory).fill(np.nan)


def kept_beside(primitives: Iterable[Primitive]) -> Iterator[Row]:
    """Yield the bytes that each primitive's first calls cost the GPU for good, in this order.

    Args:
        primitives: for GPUs.
    """
    recombined()  # and with it what CUDA takes to begin
    begun = release_gpu_memory()
    for primitive in primitives:
        before = release_gpu_memory()
        exercise([primitive], poison=False)
        after = release_gpu_memory()
        yield {
            "name": primitive.name,
            "kept_mib": (before - after) / 2**20,
            "so_far_mib": (begun - after) / 2**20,
        }
