"""A sample of shapes, to learn what primitives make of an operation before a patch is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from znni.core.shapes import Shape5, Vec3
from znni.network.network import Conv, Operation, Pool, PooledConv
from znni.plans.cost import Cost, Memory
from znni.plans.segments import Step

UNDECIDED = "undecided"

EXTENTS = (8, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256, 512, 2048)
BATCHES = (1, 8, 64, 512)


def bare_step(
    operation: Operation, shape: Shape5, shape_out: Shape5, takes: tuple[str, ...] = ()
) -> Step:
    """Return a step that asks for an operation: no primitive, no cost but its input and output."""
    least = Cost(0, 0, Memory.beside(shape.nbytes + shape_out.nbytes, workspace=0), 1)
    return Step(operation, UNDECIDED, shape, shape_out, least, seconds=0.0, error=0.0, takes=takes)


def sample_steps(operation: Operation, features: int) -> Iterator[Step]:
    """Steps that ask for an operation, with outputs and batches of many sizes.

    A pooled convolution is only asked for single items, as which it is planned.

    Args:
        operation: what to compute.
        features: its input maps.
    """
    batches = (1,) if isinstance(operation, PooledConv) else BATCHES
    for batch, extent in product(batches, EXTENTS):
        yield _step(operation, features, batch, Vec3.of(extent))


def _step(operation: Operation, features: int, batch: int, size: Vec3) -> Step:
    """A step that asks for an output of ``size`` voxels for a batch of inputs."""
    match operation:
        case Conv():
            shape = Shape5.of(batch, features, size + operation.kernel - 1)
            out = Shape5.of(batch, operation.out_features, size)
        case Pool():
            shape = Shape5.of(batch, features, (size + 1) * operation.window - 1)
            out = Shape5.of(batch * operation.window.volume, features, size)
        case PooledConv():
            whole = size * operation.pool.window + operation.conv.kernel - 1
            shape = Shape5.of(batch, features, whole)
            out = Shape5.of(batch, operation.conv.out_features, size)
    return bare_step(operation, shape, out)
