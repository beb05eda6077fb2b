"""The ways to cut a network into nested segments that run in sub-batches of fragments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from znni.cost import Cost, Memory
from znni.network import Conv, Layer, Network
from znni.plans import Segment, Step
from znni.shapes import Shape5, Vec3, fragments, valid_convolution

UNDECIDED = "undecided"


def splits(
    network: Network, patch_input: Vec3, allowed: float = inf
) -> Iterator[tuple[Segment, ...]]:
    """Every division of the network at its pools, the undivided one first.

    At a pool the fragments may stay in the segment; or a new segment starts there that takes a
    few of the stored parents at a time; or one that makes a single fragment of one parent at a
    time.

    The steps have no primitive yet: they cost nothing but their input and output, which no
    primitive can do without. Divisions that take more than ``allowed`` bytes for those alone are
    left out.
    """
    start = Shape5.of(1, network.in_features, patch_input)
    return _extend((), Segment("cpu", 1, ()), network.layers, start, allowed - start.nbytes)


def _extend(
    done: tuple[Segment, ...],
    opened: Segment,
    layers: tuple[Layer, ...],
    shape: Shape5,
    free: float,
) -> Iterator[tuple[Segment, ...]]:
    """Every way to go on with the layers left.

    Args:
        done: segments closed.
        opened: the segment that the next layer may join.
        layers: those left.
        shape: of the next layer's input.
        free: bytes left beside the inputs of all these segments.
    """
    if not layers:
        yield (*done, opened)
        return
    for before, segment, step in _next_steps(done, opened, layers[0], shape):
        left = free if segment is opened else free - shape.nbytes
        viewed = 0 if segment.steps else step.shape_in.nbytes
        if step.cost.memory.working - viewed <= left:
            extended = replace(segment, steps=(*segment.steps, step))
            yield from _extend(before, extended, layers[1:], step.shape_out, left)


def _next_steps(
    done: tuple[Segment, ...], opened: Segment, layer: Layer, shape: Shape5
) -> Iterator[tuple[tuple[Segment, ...], Segment, Step]]:
    """The segments closed before a layer, the one that it is in, and its step: every choice."""
    if isinstance(layer, Conv):
        size = valid_convolution(shape.size, layer.kernel)
        if size is not None:
            yield (
                done,
                opened,
                bare_step(layer, shape, Shape5.of(shape.n, layer.out_features, size)),
            )
        return
    size = fragments(shape.size, layer.window)
    if size is None:
        return
    each = layer.window.volume
    yield done, opened, bare_step(layer, shape, Shape5.of(shape.n * each, shape.f, size))
    if each == 1:
        return
    crop = Shape5.of(1, shape.f, shape.size - layer.window + 1)
    single = bare_step(layer, crop, Shape5.of(1, shape.f, size))
    if not opened.steps:
        yield done, opened, single
        return
    closed = (*done, opened)
    for parents in (n for n in range(1, shape.n) if shape.n % n == 0):
        some = shape._replace(n=parents)
        step = bare_step(layer, some, Shape5.of(parents * each, shape.f, size))
        yield closed, Segment("cpu", parents, ()), step
    yield closed, Segment("cpu", 1, ()), single


def bare_step(layer: Layer, shape: Shape5, shape_out: Shape5) -> Step:
    """A step that asks for a layer: no primitive, no cost but its input and output."""
    least = Memory(resident=0, working=shape.nbytes + shape_out.nbytes)
    return Step(layer, UNDECIDED, shape, shape_out, Cost(0, 0, least, 1), seconds=0.0)
