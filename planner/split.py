"""The ways to cut a network into nested segments that run in sub-batches of fragments."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf

from planner.layers import Options, bare_step
from planner.shape_samples import sample_steps
from znni.core.shapes import Shape5, fragments, valid_convolution
from znni.machine.machine import DeviceKind
from znni.network.network import Conv, Layer, Network, Pool, PooledConv
from znni.plans.segments import Segment, Step


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
    layers: tuple[Layer, ...],
    given: Shape5,
    allowed: float = inf,
    fusible: Collection[PooledConv] = (),
    device: DeviceKind = "cpu",
    *,
    in_place: bool = False,
) -> Iterator[tuple[Segment, ...]]:
    """Every division of some layers into segments, the undivided one first.

    At a pool the fragments may stay in the segment; or a new segment starts there that takes a
    few of the stored parents at a time; or one that makes a single fragment of one parent at a
    time. The last may start at any of the convolutions before the pool, which are then computed
    again for each fragment instead of storing what they give; the one next to the pool may be one
    step with it.

    The steps have no primitive yet: they cost nothing but their input and output, which no
    primitive can do without. Divisions that take more than ``allowed`` bytes for those alone are
    left out.

    Args:
        layers: what to divide.
        given: what the first segment takes at a time.
        allowed: bytes.
        fusible: the ``pooled_convolutions`` that may be one step.
        device: where all segments run.
        in_place: the last step's output has its place already, and takes no more.
    """
    opened = Segment(device, given.n, ())
    return _extend((), opened, layers, given, allowed - given.nbytes, fusible, in_place)


def _extend(
    done: tuple[Segment, ...],
    opened: Segment,
    layers: tuple[Layer, ...],
    shape: Shape5,
    free: float,
    fusible: Collection[PooledConv],
    in_place: bool,
) -> Iterator[tuple[Segment, ...]]:
    """Every way to go on with the layers left.

    Args:
        done: segments closed.
        opened: the segment that the next layer may join.
        layers: those left.
        shape: of the next layer's input.
        free: bytes left beside the inputs of all these segments.
        fusible: what may be one step.
        in_place: whether the last step's output takes no more.
    """
    if not layers:
        yield (*done, opened)
        return
    for before, segment, steps in _next_steps(done, opened, layers, shape, fusible):
        left = free if segment is opened else free - shape.nbytes
        rest = layers[sum(len(step.layers) for step in steps) :]
        viewed = [0] * len(steps)  # of each step, the bytes that are counted already
        viewed[0] += 0 if segment.steps else steps[0].shape_in.nbytes
        viewed[-1] += steps[-1].shape_out.nbytes if in_place and not rest else 0
        if all(step.taken() - seen <= left for step, seen in zip(steps, viewed, strict=True)):
            extended = replace(segment, steps=(*segment.steps, *steps))
            last = steps[-1].shape_out
            yield from _extend(before, extended, rest, last, left, fusible, in_place)


def _next_steps(
    done: tuple[Segment, ...],
    opened: Segment,
    layers: tuple[Layer, ...],
    shape: Shape5,
    fusible: Collection[PooledConv],
) -> Iterator[tuple[tuple[Segment, ...], Segment, tuple[Step, ...]]]:
    """The segments closed before the next steps, the one these are in, and they: every choice."""
    layer = layers[0]
    out = _output(layer, shape)
    if out is None:
        return
    yield done, opened, (bare_step(layer, shape, out),)
    if opened.steps and out.n > shape.n:
        each = out.n // shape.n
        for parents in (n for n in range(1, shape.n) if shape.n % n == 0):
            step = bare_step(layer, shape._replace(n=parents), out._replace(n=parents * each))
            yield (*done, opened), Segment(opened.device, parents, ()), (step,)
    before, segment = done, opened
    if opened.steps:
        before, segment = (*done, opened), Segment(opened.device, 1, ())
    elif opened.sub_batch > 1:
        return  # the segment that begins here takes several items
    for steps in _single_fragment(layers, shape, fusible):
        yield before, segment, steps


def _output(layer: Layer, shape: Shape5) -> Shape5 | None:
    """What a layer makes of a whole input, with all fragments of a pool; None if it cannot."""
    if isinstance(layer, Conv):
        size = valid_convolution(shape.size, layer.kernel)
        return size and Shape5.of(shape.n, layer.out_features, size)
    size = fragments(shape.size, layer.window)
    return size and Shape5.of(shape.n * layer.window.volume, shape.f, size)


def _single_fragment(
    layers: tuple[Layer, ...], shape: Shape5, fusible: Collection[PooledConv]
) -> Iterator[tuple[Step, ...]]:
    """Steps to the next pool, of an input that may start at any offset of its window: all choices.

    They make one fragment of one item; the convolutions before the pool are repeated for each.
    """
    pool = next((layer for layer in layers if isinstance(layer, Pool)), None)
    if pool is None or pool.window.volume == 1:
        return
    head = [layer for layer in layers[: layers.index(pool)] if isinstance(layer, Conv)]
    shapes = [Shape5.of(1, shape.f, shape.size - pool.window + 1)]
    for conv in head:
        convolved = _output(conv, shapes[-1])
        if convolved is None:
            return
        shapes.append(convolved)
    pooled = fragments(shapes[-1].size + pool.window - 1, pool.window)
    if pooled is None:
        return
    steps, out = tuple(map(bare_step, head, shapes, shapes[1:])), shapes[-1]
    fragment = Shape5.of(1, out.f, pooled)
    yield (*steps, bare_step(pool, out, fragment))
    if head and (pair := PooledConv(head[-1], pool)) in fusible:
        yield (*steps[:-1], bare_step(pair, shapes[-2], fragment))
