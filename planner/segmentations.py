"""Segmentations: the divisions of a network into nested segments that run in sub-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from math import inf, prod
from types import MappingProxyType
from typing import Any, NamedTuple

from planner.bare_steps import bare_step
from planner.step_options import StepOptions
from znni.core.shapes import Shape5, fragments, valid_convolution
from znni.machine.machine import DeviceKind
from znni.network.layers import Conv, Layer, PackedLayer, Pool, PooledConv
from znni.network.network import Network, Node
from znni.plans.block_storage import BlockStorage
from znni.plans.packed import left_norms, packed_operations, summing_norms
from znni.plans.segments import Segment, Step
from znni.plans.summed import SummedNodes, summed_convolutions


def pooled_convolutions(network: Network) -> Iterator[PooledConv]:
    """Yield each convolution whose output only a pooling takes, with that pooling."""
    made_by = {node.name: node.layer for node in network.nodes}
    uses = Counter([network.output, *(name for node in network.nodes for name in node.inputs)])
    for node in network.nodes:
        if isinstance(node.layer, Pool) and node.layer.window.volume > 1:
            (taken,) = node.inputs
            conv = made_by.get(taken)
            if isinstance(conv, Conv) and uses[taken] == 1:
                yield PooledConv(conv, node.layer)


def fusible_convolutions(network: Network, options: StepOptions) -> tuple[PooledConv, ...]:
    """Return the pooled convolutions that some primitive computes as one step."""
    return tuple(
        pair
        for pair in pooled_convolutions(network)
        if options.computes(pair, pair.conv.in_features)
    )


def fusible_sums(
    network: Network, options: StepOptions, *, parts: int = 0
) -> tuple[SummedNodes, ...]:
    """Return the summed convolutions that some primitive computes as one step.

    Args:
        network: the network.
        options: the steps to choose from.
        parts: the parts of a packed number; 0 if no values are packed.
    """
    return tuple(
        nodes
        for nodes in summed_convolutions(network).values()
        if options.computes(
            nodes.packed(parts) if parts else nodes.operation, nodes.operation.conv.in_features
        )
    )


NOT_PACKED: Mapping[str, PackedLayer] = MappingProxyType({})


def exact_segments(
    nodes: tuple[Node, ...],
    storage: BlockStorage,
    summed: Collection[SummedNodes],
    options: StepOptions,
    device: DeviceKind = "cpu",
    *,
    parts: int = 0,
    packed_summed: Collection[SummedNodes] = (),
) -> Iterator[Segment]:
    """Yield the segments of an exact network's block that may be fastest, whose steps are bare.

    A convolution and its sum are one step or two, whatever the other steps are. In the first
    segment each pair is one step if that is faster. In the second all pairs are one step, and in
    the third none is. These two are not faster, but may take less memory.

    In the last segment as many values as possible are packed, if any can be. There, each sum is one
    step with its convolution if that is faster, because it never takes more memory. Convolutions
    add up maps for the norms after them, and heads apply the norms before them, if that is faster.

    Args:
        nodes: the nodes of the network.
        storage: the arrays of the block.
        summed: the summed convolutions that may be one step.
        options: the source of the steps' times.
        device: the device of all steps.
        parts: the parts of a packed number; 0 if no values may be packed between the layers.
        packed_summed: the summed convolutions that may be one step if values are packed.
    """
    possible = {it.add.name: it for it in summed if storage.sums_in_place(it)}
    faster = {name: it for name, it in possible.items() if _is_faster(it, storage, options)}
    choices: list[Mapping[str, SummedNodes]] = []
    for choice in (faster, possible, dict[str, SummedNodes]()):
        if choice not in choices:
            choices.append(choice)
            yield exact_segment(nodes, storage, choice, device)
    if parts and (packed := packed_operations(nodes, storage, options.applies, parts)):
        packed = with_norms(packed, nodes, storage, options)
        able = (it for it in packed_summed if it.add.name in packed and packed[it.conv.name].reads)
        in_place = {it.add.name: it for it in able if storage.sums_in_place(it)}
        faster = {
            name: it for name, it in in_place.items() if _is_faster(it, storage, options, packed)
        }
        yield exact_segment(nodes, storage, faster, device, packed)


def exact_segment(
    nodes: tuple[Node, ...],
    storage: BlockStorage,
    summed: Mapping[str, SummedNodes],
    device: DeviceKind = "cpu",
    packed: Mapping[str, PackedLayer] = NOT_PACKED,
) -> Segment:
    """Return the segment of an exact network's block, whose steps are bare.

    Args:
        nodes: the nodes of the network.
        storage: the arrays of the block.
        summed: the convolutions that are one step with their sum, by the sum's name.
        device: the device of all steps.
        packed: the steps that read or write packed values, by name.
    """
    convolutions = {it.conv.name for it in summed.values()}
    steps = []
    for node in storage.steps_of(nodes):
        if node.name in summed:
            steps.append(_summed_step(summed[node.name], storage, packed))
        elif node.name not in convolutions:
            steps.append(_block_step(node, storage, packed.get(node.name)))
    return Segment(device, storage.items, tuple(steps), is_exact=True)


def _block_step(node: Node, storage: BlockStorage, packed: PackedLayer | None = None) -> Step:
    """Return the bare step of one layer of a block, whose values may be packed."""
    shape = storage.shape_taken(node.name, node.inputs)
    operation = packed or node.layer.local
    return bare_step(operation, shape, storage.shape_made(node.name), node.inputs)


def _summed_step(
    nodes: SummedNodes, storage: BlockStorage, packed: Mapping[str, PackedLayer] = NOT_PACKED
) -> Step:
    """Return the bare step of a convolution with its sum, whose values may be packed."""
    shape = storage.shape_taken(nodes.conv.name, nodes.conv.inputs)
    add = packed.get(nodes.add.name)
    operation = nodes.packed(add.parts) if add else nodes.operation
    return bare_step(operation, shape, storage.shape_made(nodes.add.name), nodes.takes)


def with_norms(
    packed: Mapping[str, PackedLayer],
    nodes: tuple[Node, ...],
    storage: BlockStorage,
    options: StepOptions,
) -> Mapping[str, PackedLayer]:
    """Return packed steps in which layers before and after norms do a part of these.

    Convolutions add up maps, and layers apply norms to what they load, wherever that is faster.

    Args:
        packed: the steps, by name.
        nodes: the nodes of the network.
        storage: the arrays of the block.
        options: the source of the steps' times.
    """
    known = {node.name: node for node in nodes}

    def seconds(operations: Mapping[str, PackedLayer]) -> float:
        found = (
            options.whole(_block_step(known[name], storage, operation), in_place=True)
            for name, operation in operations.items()
        )
        return sum(steps[0].seconds if steps else inf for steps in found)

    changes: list[dict[str, dict[str, Any]]] = []
    for norm, conv in summing_norms(packed, storage, nodes):
        changes.append({conv: {"sums": True}, norm.name: {"sums": True}})
    for norm, after in left_norms(packed, storage, nodes):
        changes.append({norm.name: {"leaves": True}, after.name: {"norm": norm.layer}})
    found = dict(packed)
    for change in changes:
        then = {name: replace(found[name], **values) for name, values in change.items()}
        if seconds(then) < seconds({name: found[name] for name in change}):
            found.update(then)
    return found


def _is_faster(
    nodes: SummedNodes,
    storage: BlockStorage,
    options: StepOptions,
    packed: Mapping[str, PackedLayer] = NOT_PACKED,
) -> bool:
    """Return whether a convolution and its sum are faster as one step than as two."""
    parts = (_block_step(it, storage, packed.get(it.name)) for it in (nodes.conv, nodes.add))
    one, *two = (
        options.whole(step, in_place=True)
        for step in (_summed_step(nodes, storage, packed), *parts)
    )
    if not one or not all(two):
        return bool(one)
    return one[0].seconds < sum(found[0].seconds for found in two)


class SecondsLimit(NamedTuple):
    """A limit for the seconds of segmentations, with bounds that rule them out.

    Attributes:
        seconds: the seconds that all runs of all steps may take.
        layers: lower bounds on the seconds of each layer for a patch, in any segments, by name.
        of_step: the function that returns a lower bound on the seconds of one call of a bare step.
    """

    seconds: float
    layers: Mapping[str, float]
    of_step: Callable[[Step], float]

    def of_runs(self, step: Step, runs: int) -> float:
        """Return a lower bound on the seconds of all runs of a bare step."""
        return max(runs * self.of_step(step), self._of_layers(step))

    def _of_layers(self, step: Step) -> float:
        return sum(self.layers.get(layer.name, 0.0) for layer in step.layers)

    def without(self, steps: Iterable[Step], runs: int) -> SecondsLimit:
        """Return the limit for the other layers. The steps take more than their layers at least."""
        more = sum(self.of_runs(step, runs) - self._of_layers(step) for step in steps)
        return self._replace(seconds=self.seconds - more)


# The limit that every segmentation keeps.
NO_SECONDS_LIMIT = SecondsLimit(inf, {}, lambda _: 0.0)


def segmentations(
    nodes: tuple[Node, ...],
    given: Shape5,
    allowed: float = inf,
    fusible: Collection[PooledConv] = (),
    device: DeviceKind = "cpu",
    *,
    in_place: bool = False,
    runs: int = 1,
    limit: SecondsLimit = NO_SECONDS_LIMIT,
) -> Iterator[tuple[Segment, ...]]:
    """Yield every division of some nodes into segments, the undivided one first.

    Segments are cut only where a single value is alive.

    There are three choices at a pool. The fragments stay in the segment. Or a new segment starts
    that takes a few of the stored parents at a time. Or a new segment starts that makes a single
    fragment of one parent at a time. The last kind may also start at any convolution before the
    pool. It then computes these convolutions again for each fragment, and does not store their
    output. The convolution next to the pool may be one step with it.

    The steps are bare. They have no primitive, and cost nothing but their input and output. Every
    primitive needs at least those. Divisions that take more than ``allowed`` bytes for them alone
    are left out. So are divisions that cannot keep the limit of seconds.

    Args:
        nodes: the nodes to divide. The first takes the given input; the last gives the result.
        given: the shape that the first segment takes at a time.
        allowed: the bytes for inputs and outputs.
        fusible: the ``pooled_convolutions`` that may be one step.
        device: the device of all segments.
        in_place: whether the last step's output already has its place, and takes no more bytes.
        runs: how often the first segment takes its input for a patch.
        limit: the limit of seconds for a patch.
    """
    opened = Segment(device, given.n, ())
    alive = {nodes[0].inputs[0]: given}
    least = sum(limit.layers.get(node.name, 0.0) for node in nodes)
    left = limit._replace(seconds=limit.seconds - least)
    return _extend((), opened, nodes, alive, allowed - given.nbytes, fusible, in_place, runs, left)


def _extend(
    done: tuple[Segment, ...],
    opened: Segment,
    nodes: tuple[Node, ...],
    alive: Mapping[str, Shape5],
    free: float,
    fusible: Collection[PooledConv],
    in_place: bool,
    runs: int,
    limit: SecondsLimit,
) -> Iterator[tuple[Segment, ...]]:
    """Yield every continuation with the nodes left.

    Args:
        done: the closed segments.
        opened: the segment that the next node may join.
        nodes: the nodes left.
        alive: the shapes of the values that they take, by name.
        free: the bytes left beside the inputs of all these segments.
        fusible: the pooled convolutions that may be one step.
        in_place: whether the last step's output takes no more bytes.
        runs: the runs of the open segment for a patch.
        limit: the limit of the seconds that all steps take beyond their layers' bounds.
    """
    if not nodes:
        yield (*done, opened)
        return
    for before, segment, steps in _next_steps(done, opened, nodes, alive, fusible):
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
            step.taken() + beside - seen <= left for step, seen in zip(steps, viewed, strict=True)
        ):
            extended = Segment(segment.device, segment.sub_batch, (*segment.steps, *steps))
            needed = {name for node in rest for name in node.inputs}
            made = {**alive, steps[-1].gives: steps[-1].shape_out}
            still = {name: shape for name, shape in made.items() if name in needed}
            yield from _extend(
                before, extended, rest, still, left, fusible, in_place, again, beyond
            )


def _next_steps(
    done: tuple[Segment, ...],
    opened: Segment,
    nodes: tuple[Node, ...],
    alive: Mapping[str, Shape5],
    fusible: Collection[PooledConv],
) -> Iterator[tuple[tuple[Segment, ...], Segment, tuple[Step, ...]]]:
    """Yield the choices for the next steps: closed segments, open segment, and the steps."""
    node = nodes[0]
    shape = alive[node.inputs[0]]
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
    for steps in _single_fragment(nodes, shape, fusible):
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


def _single_fragment(
    nodes: tuple[Node, ...], shape: Shape5, fusible: Collection[PooledConv]
) -> Iterator[tuple[Step, ...]]:
    """Yield all choices of steps up to the next pool that make one fragment of one item.

    The input starts at any offset of the pool's window. The convolutions before the pool are
    repeated for each offset. Each of them takes the value before it.
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
    shapes = [Shape5.of(1, shape.f, shape.size - pool.window + 1)]
    for node in head:
        convolved = _output(node.layer, shapes[-1])
        if convolved is None:
            return
        shapes.append(convolved)
    pooled = fragments(shapes[-1].size + pool.window - 1, pool.window)
    if pooled is None:
        return
    steps, out = tuple(_steps(head, shapes)), shapes[-1]
    fragment = Shape5.of(1, out.f, pooled)
    yield (*steps, bare_step(pool, out, fragment, last.inputs))
    pair = next((pair for pair in fusible if pair.pool == pool), None)
    if head and pair and pair.conv == head[-1].layer:
        yield (*steps[:-1], bare_step(pair, shapes[-2], fragment, head[-1].inputs))


def _steps(nodes: list[Node], shapes: list[Shape5]) -> Iterator[Step]:
    """Yield the bare steps of nodes that each take the value before it."""
    for node, (taken, given) in zip(nodes, pairwise(shapes), strict=True):
        yield bare_step(node.layer, taken, given, node.inputs)
