"""The ways to cut a network into nested segments that run in sub-batches of fragments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from znni.cost import Cost, Memory
from znni.network import Conv, Layer, Network, Pool
from znni.plans import Segment, Step
from znni.shapes import Shape5, Vec3, fragments, valid_convolution

UNDECIDED = "undecided"


def splits(network: Network, patch_input: Vec3) -> Iterator[tuple[Segment, ...]]:
    """Every division of the network at its pools, the undivided one first.

    At a pool the fragments may stay in the segment; or a new segment starts there that takes a
    few of the stored parents at a time; or one that makes a single fragment of one parent at a
    time.

    The steps have no primitive yet: they cost nothing but their input and output, which no
    primitive can do without.
    """
    start = Shape5.of(1, network.in_features, patch_input)
    return _extend((), Segment("cpu", 1, ()), network.layers, start)


def _extend(
    done: tuple[Segment, ...], opened: Segment, layers: tuple[Layer, ...], shape: Shape5
) -> Iterator[tuple[Segment, ...]]:
    """Every way to go on with the layers left, from segments done and one still open."""
    if not layers:
        yield (*done, opened)
        return
    layer, rest = layers[0], layers[1:]
    if isinstance(layer, Conv):
        size = valid_convolution(shape.size, layer.kernel)
        if size is not None:
            step = bare_step(layer, shape, Shape5.of(shape.n, layer.out_features, size))
            yield from _extend(done, _then(opened, step), rest, step.shape_out)
        return
    for before, segment, step in _pool_steps(done, opened, layer, shape):
        yield from _extend(before, _then(segment, step), rest, step.shape_out)


def _pool_steps(
    done: tuple[Segment, ...], opened: Segment, pool: Pool, shape: Shape5
) -> Iterator[tuple[tuple[Segment, ...], Segment, Step]]:
    """The segments closed before a pool, the one that it is in, and its step, for every choice."""
    size = fragments(shape.size, pool.window)
    if size is None:
        return
    each = pool.window.volume
    yield done, opened, bare_step(pool, shape, Shape5.of(shape.n * each, shape.f, size))
    if each == 1:
        return
    closed = (*done, opened) if opened.steps else done
    if opened.steps:
        for parents in (n for n in range(1, shape.n) if shape.n % n == 0):
            some = bare_step(
                pool, shape._replace(n=parents), Shape5.of(parents * each, shape.f, size)
            )
            yield closed, Segment("cpu", parents, ()), some
    crop = Shape5.of(1, shape.f, shape.size - pool.window + 1)
    yield closed, Segment("cpu", 1, ()), bare_step(pool, crop, Shape5.of(1, shape.f, size))


def bare_step(layer: Layer, shape: Shape5, shape_out: Shape5) -> Step:
    """A step that asks for a layer: no primitive, no cost but its input and output."""
    least = Memory(resident=0, working=shape.nbytes + shape_out.nbytes)
    return Step(layer, UNDECIDED, shape, shape_out, Cost(0, 0, least), seconds=0.0)


def _then(segment: Segment, step: Step) -> Segment:
    return replace(segment, steps=(*segment.steps, step))
