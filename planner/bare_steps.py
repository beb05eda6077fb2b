"""Bare steps: an operation and its shapes, without a primitive.

The search makes bare steps and then looks for primitives that compute them. A sample of bare steps
shows how fast an operation can be, before any patch is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from znni.core.shapes import ZERO, Box, Shape5, Vec3
from znni.network.layers import (
    Concat,
    Conv,
    Fused,
    FusedOperation,
    GlobalPool,
    Join,
    Model,
    Multiply,
    Operation,
    PackedLayer,
    Pool,
    layers_of,
)
from znni.plans.cost import Cost, Memory
from znni.plans.segments import Step

UNDECIDED = "undecided"

EXTENTS = (8, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256, 512, 720, 2048, 5040)
BATCHES = (1, 3, 6, 8, 64, 512)

# The extents of thin inputs. A convolution in large tiles takes small ones for them, which may be
# faster. They fill one tile, and the axes beside them are long.
THIN = (16, 24)
LONG = 5040


def bare_step(
    operation: Operation, shape: Shape5, shape_out: Shape5, takes: tuple[str, ...] = ()
) -> Step:
    """Return a bare step: it costs nothing but its input and output."""
    arrays = Memory.beside(shape.nbytes + shape_out.nbytes, workspace=0)
    least = Cost(0, 0, arrays, 1, writes_views=True)
    return Step(operation, UNDECIDED, shape, shape_out, least, seconds=0.0, error=0.0, takes=takes)


def sample_steps(operation: Operation, features: int, *, plain: bool = False) -> Iterator[Step]:
    """Yield bare steps of an operation for outputs and batches of many sizes.

    Outputs are cubes. Outputs of convolutions are also boxes that are thin along some axes. Several
    layers as one operation, and layers of packed values, are sampled only for single items: plans
    use them only there.

    Args:
        operation: the operation to compute.
        features: the number of input maps.
        plain: whether a pooling gives one fragment, not all of them.
    """
    batches = (1,) if isinstance(operation, Fused | PackedLayer) else BATCHES
    for batch, size in product(batches, [*map(Vec3.of, EXTENTS), *_thin(operation, features)]):
        yield _step(operation, features, batch, size, plain=plain)


def _thin(operation: Operation, features: int) -> Iterator[Vec3]:
    """Yield thin outputs of an operation that begins with a convolution; none of another."""
    if not isinstance(layers_of(operation)[0], Conv):
        return
    one, two = (_step(operation, features, 1, Vec3.of(n)).shape_in.size for n in (1, 2))
    for extent in THIN:
        z, y, x = (Vec3.of(extent) - one) // (two - one) + 1
        sizes = (z, y, LONG), (z, LONG, x), (z, LONG, LONG), (LONG, LONG, x)
        yield from (Vec3(*size) for size in sizes if min(size) > 0)
    yield Vec3(LONG, LONG, 1)


def _step(
    operation: Operation, features: int, batch: int, size: Vec3, *, plain: bool = False
) -> Step:
    """Return a bare step for a batch of inputs whose outputs have ``size`` voxels."""
    match operation:
        case Pool() if operation.is_dense and not plain:
            shape = Shape5.of(batch, features, (size + 1) * operation.window - 1)
            out = Shape5.of(batch * operation.window.volume, features, size)
        case PackedLayer(layer):
            unpacked = _step(layer, features, batch, size, plain=True)
            return bare_step(operation, unpacked.shape_in, unpacked.shape_out)
        case _ if isinstance(operation, Fused):
            return _fused(operation, features, batch, size)
        case _ if isinstance(operation, Join):
            return _join(operation, features, batch, size)
        case Model(window=Vec3() as window):
            shape = Shape5.of(1, features, window)
            out = Shape5.of(1, operation.features, window)
        case GlobalPool():
            shape = Shape5.of(batch, features, size)
            out = Shape5.of(batch, features, operation.local_size(size))
        case _:
            rounded = operation.rounded(Box(ZERO, size))
            shape = Shape5.of(batch, features, operation.reads(rounded).size)
            out = Shape5.of(batch, operation.maps_from(features), rounded.size)
    return bare_step(operation, shape, out)


def _fused(operation: FusedOperation, features: int, batch: int, size: Vec3) -> Step:
    """Return the bare step of several layers as one operation."""
    first, *others = operation.layers
    read = size
    for layer in reversed(others):
        read = layer.reads(Box(ZERO, read)).size
    convolved = _step(first, features, batch, read)
    maps = convolved.shape_out.f
    for layer in others:
        maps = layer.out_features if isinstance(layer, Conv) else maps
    out = Shape5.of(batch, maps, size)
    return bare_step(operation, convolved.shape_in, out)


def _join(operation: Join, features: int, batch: int, size: Vec3) -> Step:
    """Return the bare step of a join; ``features`` are the maps of all its inputs."""
    match operation:
        case Concat():
            maps = features
        case Multiply(is_gate=True):
            maps = features - 1
        case _:
            maps = features // 2
    shape = Shape5.of(batch, features, size)
    return bare_step(operation, shape, Shape5.of(batch, maps, size))
