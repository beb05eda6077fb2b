"""The ways to cut a network into nested segments that run in sub-batches of fragments."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf

from planner.layers import Options, bare_step
from planner.samples import sample_steps
from znni.machine import DeviceKind
from znni.network import Conv, Layer, Network, Operation, Pool, PooledConv
from znni.plans import Segment, Step
from znni.shapes import Shape5, Vec3, fragments, valid_convolution


def pooled_convolutions(network: Network) -> Iterator[PooledConv]:
    """Each convolution that is pooled at once, with that pooling."""
    for layer, following in pairwise(network.layers):
        if isinstance(layer, Conv) and isinstance(following, Pool) and following.window.volume > 1:
            yield PooledConv(layer, following)


def fusible_convolutions(network: Network, options: Options) -> tuple[PooledConv, ...]:
    """The pooled convolutions that some primitive computes as one step."""
    return tuple(
        pair
        for pair in pooled_convolutions(network)
        if any(options.whole(asked) for asked in sample_steps(pair, pair.conv.in_features))
    )


def splits(
    network: Network,
    patch_input: Vec3,
    allowed: float = inf,
    fusible: Collection[PooledConv] = (),
    device: DeviceKind = "cpu",
) -> Iterator[tuple[Segment, ...]]:
    """Every division of the network at its pools, the undivided one first.

    At a pool the fragments may stay in the segment; or a new segment starts there that takes a
    few of the stored parents at a time; or one that makes a single fragment of one parent at a
    time. The last may start at the convolution before the pool, with both as one step.

    The steps have no primitive yet: they cost nothing but their input and output, which no
    primitive can do without. Divisions that take more than ``allowed`` bytes for those alone are
    left out.

    Args:
        network: what to divide.
        patch_input: extents of its input.
        allowed: bytes.
        fusible: the ``pooled_convolutions`` that may be one step.
        device: where all segments run.
    """
    start = Shape5.of(1, network.in_features, patch_input)
    opened = Segment(device, 1, ())
    return _extend((), opened, network.layers, start, allowed - start.nbytes, fusible)


def _extend(
    done: tuple[Segment, ...],
    opened: Segment,
    layers: tuple[Layer, ...],
    shape: Shape5,
    free: float,
    fusible: Collection[PooledConv],
) -> Iterator[tuple[Segment, ...]]:
    """Every way to go on with the layers left.

    Args:
        done: segments closed.
        opened: the segment that the next layer may join.
        layers: those left.
        shape: of the next layer's input.
        free: bytes left beside the inputs of all these segments.
        fusible: what may be one step.
    """
    if not layers:
        yield (*done, opened)
        return
    for before, segment, step in _next_steps(done, opened, layers, shape, fusible):
        left = free if segment is opened else free - shape.nbytes
        viewed = 0 if segment.steps else step.shape_in.nbytes
        if step.cost.memory.working - viewed <= left:
            extended = replace(segment, steps=(*segment.steps, step))
            rest = layers[len(step.layers) :]
            yield from _extend(before, extended, rest, step.shape_out, left, fusible)


def _next_steps(
    done: tuple[Segment, ...],
    opened: Segment,
    layers: tuple[Layer, ...],
    shape: Shape5,
    fusible: Collection[PooledConv],
) -> Iterator[tuple[tuple[Segment, ...], Segment, Step]]:
    """The segments closed before a step, the one that it is in, and the step: every choice."""
    layer = layers[0]
    if isinstance(layer, Conv):
        size = valid_convolution(shape.size, layer.kernel)
        if size is None:
            return
        convolved = Shape5.of(shape.n, layer.out_features, size)
        yield done, opened, bare_step(layer, shape, convolved)
        following = layers[1] if len(layers) > 1 else None
        if isinstance(following, Pool) and (pair := PooledConv(layer, following)) in fusible:
            pooled = fragments(size, following.window)
            if pooled:
                single = _single(pair, following.window, shape, Shape5.of(1, convolved.f, pooled))
                yield *_starting(done, opened), single
        return
    size = fragments(shape.size, layer.window)
    if size is None:
        return
    each = layer.window.volume
    yield done, opened, bare_step(layer, shape, Shape5.of(shape.n * each, shape.f, size))
    if each == 1:
        return
    if opened.steps:
        for parents in (n for n in range(1, shape.n) if shape.n % n == 0):
            some = shape._replace(n=parents)
            step = bare_step(layer, some, Shape5.of(parents * each, shape.f, size))
            yield (*done, opened), Segment(opened.device, parents, ()), step
    yield *_starting(done, opened), _single(layer, layer.window, shape, Shape5.of(1, shape.f, size))


def _starting(done: tuple[Segment, ...], opened: Segment) -> tuple[tuple[Segment, ...], Segment]:
    """The segments closed before a step that starts one for single items, and that segment."""
    return ((*done, opened), Segment(opened.device, 1, ())) if opened.steps else (done, opened)


def _single(operation: Operation, window: Vec3, shape: Shape5, shape_out: Shape5) -> Step:
    """A step that makes one fragment of one item, of an input that may start at any offset."""
    return bare_step(operation, Shape5.of(1, shape.f, shape.size - window + 1), shape_out)
