"""The ways to cut a network into nested segments that run in sub-batches of fragments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from znni.network import Conv, Layer, Network, Pool
from znni.shapes import Shape5, Vec3, fragments, valid_convolution


@dataclass(frozen=True)
class Call:
    """A layer's shapes in a plan: one call's input and its output's batch."""

    layer: Layer
    shape_in: Shape5
    n_out: int


@dataclass(frozen=True)
class Part:
    """The calls of one segment, and the sub-batch that they run on."""

    sub_batch: int
    calls: tuple[Call, ...]

    def then(self, call: Call) -> Part:
        """This part with one more call."""
        return Part(self.sub_batch, (*self.calls, call))


def splits(network: Network, patch_input: Vec3) -> Iterator[tuple[Part, ...]]:
    """Every division of the network at its pools, the undivided one first.

    At a pool the fragments may stay in the segment; or a new segment starts there that takes a
    few of the stored parents at a time; or one that makes a single fragment of one parent at a
    time.
    """
    start = Shape5.of(1, network.in_features, patch_input)
    return _extend((), Part(1, ()), network.layers, start)


def _extend(
    done: tuple[Part, ...], part: Part, layers: tuple[Layer, ...], shape: Shape5
) -> Iterator[tuple[Part, ...]]:
    if not layers:
        yield (*done, part)
        return
    layer, rest = layers[0], layers[1:]
    if isinstance(layer, Conv):
        size = valid_convolution(shape.size, layer.kernel)
        if size is None:
            return
        after = Shape5.of(shape.n, layer.out_features, size)
        yield from _extend(done, part.then(Call(layer, shape, shape.n)), rest, after)
        return
    size = fragments(shape.size, layer.window)
    if size is None:
        return
    for before, opened, call in _pool_calls(done, part, layer, shape):
        after = Shape5.of(call.n_out, shape.f, size)
        yield from _extend(before, opened.then(call), rest, after)


def _pool_calls(
    done: tuple[Part, ...], part: Part, pool: Pool, shape: Shape5
) -> Iterator[tuple[tuple[Part, ...], Part, Call]]:
    """The parts closed before a pool, the part that it is in, and its call, for every choice."""
    per_parent = pool.window.volume
    yield done, part, Call(pool, shape, shape.n * per_parent)
    if per_parent == 1:
        return
    closed = (*done, part) if part.calls else done
    if part.calls:
        for parents in range(1, shape.n):
            if shape.n % parents == 0:
                some = shape._replace(n=parents)
                yield closed, Part(parents, ()), Call(pool, some, parents * per_parent)
    crop = Shape5.of(1, shape.f, shape.size - pool.window + 1)
    yield closed, Part(1, ()), Call(pool, crop, 1)
