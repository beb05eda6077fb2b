"""Segmentations: the divisions of a network into nested segments that run in sub-batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from math import inf, prod
from typing import NamedTuple

from planner.bare_steps import bare_step
from znni.core.processors import HOST, DeviceKind
from znni.core.shapes import Axis, Shape5, extended, fragments, resized, valid_convolution
from znni.network.layers import Conv, Layer, Pool
from znni.network.node import Node
from znni.plans.rewrites.fusion import Fusion
from znni.plans.segments import Segment, Step
from znni.plans.swept import Swept, planes_kept

# The runs of layers at the start of a sweep, if there is none.
NOT_SWEPT: Mapping[str, float] = {}


class SecondsLimit(NamedTuple):
    """A limit for the seconds of segmentations, with bounds that rule them out.

    Attributes:
        seconds: the seconds that all runs of all steps may take.
        layers: lower bounds on the seconds of each layer for a patch, in any segments, by name.
        of_step: the function that returns a lower bound on the seconds of one call of a bare step.
        least_runs: how often a sweep computes each layer at least for a patch, by name.
    """

    seconds: float
    layers: Mapping[str, float]
    of_step: Callable[[Step], float]
    least_runs: Mapping[str, float] = NOT_SWEPT

    def of_runs(self, step: Step, runs: float) -> float:
        """Return a lower bound on the seconds of all runs of a bare step."""
        return max(runs * self.of_step(step), self._of_layers(step))

    def _of_layers(self, step: Step) -> float:
        return sum(self.layers.get(layer.name, 0.0) for layer in step.layers)

    def without(self, steps: Iterable[Step], runs: int) -> SecondsLimit:
        """Return the limit for the other layers. The steps take more than their layers at least.

        Args:
            steps: the steps.
            runs: the runs of each step for a patch, without those at the start of a sweep.
        """
        more = 0.0
        for step in steps:
            again = self.least_runs.get(step.layers[-1].name, 1.0)
            more += self.of_runs(step, runs * again) - self._of_layers(step)
        return self._replace(seconds=self.seconds - more)


# The limit that every segmentation keeps.
NO_SECONDS_LIMIT = SecondsLimit(inf, {}, lambda _: 0.0)


def segmentations(
    nodes: tuple[Node, ...],
    shape_in: Shape5,
    allowed: float = inf,
    fusible: Collection[Fusion] = (),
    device: DeviceKind = HOST,
    *,
    in_place: bool = False,
    runs: int = 1,
    limit: SecondsLimit = NO_SECONDS_LIMIT,
    swept: Swept | None = None,
) -> Iterator[tuple[Segment, ...]]:
    """Yield every division of some nodes into segments, the undivided one first.

    Segments are cut only where a single value is alive.

    There are three choices at a pool. The fragments stay in the segment. Or a new segment starts
    that takes a few of the stored parents at a time. Or a new segment starts that makes a single
    fragment of one parent at a time. The last kind may also start at any convolution before the
    pool. It then computes these convolutions again for each fragment, and does not store their
    output. The layers of a fusion that ends with the pool may be one step.

    The steps are bare. They have no primitive, and cost nothing but their input and output. Every
    primitive needs at least those. Divisions that take more than ``allowed`` bytes for them alone
    are left out. So are divisions that cannot keep the limit of seconds.

    Args:
        nodes: the nodes to divide. The first takes the given input; the last gives the result.
        shape_in: the shape that the first segment takes at a time.
        allowed: the bytes for inputs and outputs.
        fusible: the fusions that may be one step.
        device: the device of all segments.
        in_place: whether the last step's output already has its place, and takes no more bytes.
        runs: how often the first segment takes its input for a patch.
        limit: the limit of seconds for a patch.
        swept: the planes of a sweep, if there is one.
    """
    opened = Segment(device, shape_in.n, ())
    new = resized(shape_in, swept.axis, swept.new) if swept else shape_in
    alive, axis = {nodes[0].inputs[0]: new}, swept and swept.axis
    least = sum(limit.layers.get(node.name, 0.0) for node in nodes)
    left = limit._replace(seconds=limit.seconds - least)
    free = allowed - shape_in.nbytes
    return _extend((), opened, nodes, alive, free, fusible, in_place, runs, left, axis)


def _extend(
    done: tuple[Segment, ...],
    opened: Segment,
    nodes: tuple[Node, ...],
    alive: Mapping[str, Shape5],
    free: float,
    fusible: Collection[Fusion],
    in_place: bool,
    runs: int,
    limit: SecondsLimit,
    axis: Axis | None,
) -> Iterator[tuple[Segment, ...]]:
    """Yield every continuation with the nodes left.

    Args:
        done: the closed segments.
        opened: the segment that the next node may join.
        nodes: the nodes left.
        alive: the shapes of the values that they take, by name. In a sweep, they are new planes.
        free: the bytes left beside the inputs of all these segments.
        fusible: the fusions that may be one step.
        in_place: whether the last step's output takes no more bytes.
        runs: the runs of the open segment for a patch.
        limit: the limit of the seconds that all steps take beyond their layers' bounds.
        axis: the axis of a sweep. Along it, planes that steps keep lie before the new ones.
    """
    if not nodes:
        yield (*done, opened)
        return
    for before, segment, steps in _next_steps(done, opened, nodes, alive, fusible, axis):
        left, again = free, runs
        if segment is not opened:  # a single value is alive, and stored for the new segment
            (stored,) = alive.values()
            left -= stored.nbytes
            again *= stored.n // segment.sub_batch
        again *= prod(it.pool.window.volume for it in steps if it.pool and it.pools_plainly)
        beyond = limit.without(steps, again)
        if not beyond.seconds > 0:
            continue
        rest = nodes[sum(len(step.layers) for step in steps) :]
        viewed = [0] * len(steps)  # the bytes of each step that are counted already
        viewed[0] += 0 if segment.steps else steps[0].shape_in.nbytes
        viewed[-1] += steps[-1].shape_out.nbytes if in_place and not rest else 0
        beside = sum(shape.nbytes for name, shape in alive.items() if name not in steps[0].takes)
        if all(
            step.peak_bytes() + beside - seen <= left
            for step, seen in zip(steps, viewed, strict=True)
        ):
            longer = Segment(segment.device, segment.sub_batch, (*segment.steps, *steps))
            needed = {name for node in rest for name in node.inputs}
            still_alive = {**alive, steps[-1].gives: steps[-1].shape_out}
            still = {name: shape for name, shape in still_alive.items() if name in needed}
            yield from _extend(
                before, longer, rest, still, left, fusible, in_place, again, beyond, axis
            )


def _next_steps(
    done: tuple[Segment, ...],
    opened: Segment,
    nodes: tuple[Node, ...],
    alive: Mapping[str, Shape5],
    fusible: Collection[Fusion],
    axis: Axis | None,
) -> Iterator[tuple[tuple[Segment, ...], Segment, tuple[Step, ...]]]:
    """Yield the choices for the next steps: closed segments, open segment, and the steps."""
    node = nodes[0]
    new = alive[node.inputs[0]]
    shape = with_kept(new, (node,), axis) if axis else new
    out = _output(node.layer, shape)
    if out is None:
        return
    yield done, opened, (bare_step(node.layer, shape, out, node.inputs),)
    if len(alive) > 1:
        return
    if opened.steps and out.n > shape.n:
        each = out.n // shape.n
        for parents in (n for n in range(1, shape.n) if shape.n % n == 0):
            some, made = shape._replace(n=parents), out._replace(n=parents * each)
            step = bare_step(node.layer, some, made, node.inputs)
            yield (*done, opened), Segment(opened.device, parents, ()), (step,)
    before, segment = done, opened
    if opened.steps:
        before, segment = (*done, opened), Segment(opened.device, 1, ())
    elif opened.sub_batch > 1:
        return  # the segment that begins here takes several items
    for steps in _single_fragment(nodes, new, fusible, axis):
        yield before, segment, steps


def _output(layer: Layer, shape: Shape5) -> Shape5 | None:
    """Return a layer's output shape for a whole input, with all fragments; None if it cannot be."""
    if isinstance(layer, Conv):
        size = valid_convolution(shape.size, layer.kernel)
        return size and Shape5.of(shape.n, layer.out_features, size)
    if not isinstance(layer, Pool):
        return None
    size = fragments(shape.size, layer.window)
    return size and Shape5.of(shape.n * layer.window.volume, shape.f, size)


def with_kept(new: Shape5, nodes: Iterable[Node], axis: Axis) -> Shape5:
    """Return the shape of the new planes of a value, with those that a sweep keeps for nodes.

    Args:
        new: the shape of the new planes.
        nodes: the nodes that compute a part of each plane at a time, or a single node.
        axis: the axis of the sweep.
    """
    return extended(new, axis, sum(planes_kept(node.layer, axis) for node in nodes))


def _single_fragment(
    nodes: tuple[Node, ...], shape: Shape5, fusible: Collection[Fusion], axis: Axis | None
) -> Iterator[tuple[Step, ...]]:
    """Yield all choices of steps up to the next pool that make one fragment of one item.

    The input starts at any offset of the pool's window. The convolutions before the pool are
    repeated for each offset. Each of them takes the value before it. Fusions that end with the
    pooling may be one step.
    """
    head: list[Node] = []
    for node in nodes:
        if not isinstance(node.layer, Conv) or (head and node.inputs != (head[-1].name,)):
            break
        head.append(node)
    if len(head) == len(nodes):
        return
    last, pool = nodes[len(head)], nodes[len(head)].layer
    if not isinstance(pool, Pool) or pool.window.volume == 1:
        return
    if head and last.inputs != (head[-1].name,):
        return
    if axis:
        shape = with_kept(shape, (*head, last), axis)
    shapes = [Shape5.of(1, shape.f, shape.size - pool.window + 1)]
    for node in head:
        convolved = _output(node.layer, shapes[-1])
        if convolved is None:
            return
        shapes.append(convolved)
    pooled = fragments(shapes[-1].size + pool.window - 1, pool.window)
    if pooled is None:
        return
    out = shapes[-1]
    fragment = Shape5.of(1, out.f, pooled)
    steps = (*_steps(head, shapes), bare_step(pool, out, fragment, last.inputs))
    yield steps
    for it in fusible:
        if (*head, last)[-len(it.nodes) :] == it.nodes:
            before, first = steps[: -len(it.nodes)], steps[-len(it.nodes)]
            yield (*before, bare_step(it.operation, first.shape_in, fragment, it.takes))


def _steps(nodes: list[Node], shapes: list[Shape5]) -> Iterator[Step]:
    """Yield the bare steps of nodes that each take the value before it."""
    for node, (shape, out) in zip(nodes, pairwise(shapes), strict=True):
        yield bare_step(node.layer, shape, out, node.inputs)
