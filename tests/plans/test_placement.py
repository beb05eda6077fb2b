"""Placement: each value has memory of its own while it is alive, in the smallest arena."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from random_networks import networks
from random_plans import any_plan

from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.plans.cost import Cost, Memory
from znni.plans.device_partition import DevicePart
from znni.plans.placement import ArrayUses, Use
from znni.plans.segments import Segment, Step


class PlacedArray(NamedTuple):
    """Bytes that are taken from one step to another, both included."""

    start: int
    stop: int
    first: int
    last: int

    def overlaps(self, other: PlacedArray) -> bool:
        at_once = self.first <= other.last and other.first <= self.last
        return at_once and self.start < other.stop and other.start < self.stop


def blocks(part: DevicePart, alignment: int) -> Iterator[PlacedArray]:
    """Yield the blocks and their lifetimes from the steps alone: each value up to its last use."""
    placed, uses = part.placement(alignment), part.array_uses(alignment).uses
    ends = {segment.steps[-1].gives for segment in part.segments[:-1]}
    steps = part.steps
    for index, (step, use) in enumerate(zip(steps, uses, strict=True)):
        start, stop = placed.room[index]
        assert 0 <= start <= stop <= placed.size
        output, nbytes = placed.starts.get(step.gives), step.shape_out.nbytes
        if use.late:
            if output == start:
                start += -(-nbytes // alignment) * alignment
            else:
                assert output is not None
                assert output + nbytes <= stop < output + alignment + nbytes
                stop = output
        assert stop - start >= use.workspace
        if step.cost.memory.workspace:
            yield PlacedArray(start, stop, index, index)
        if output is None:
            continue
        reads = [
            at
            for at, (later, _) in enumerate(zip(steps, uses, strict=True))
            if step.gives in later.takes
        ]
        last = len(steps) - 1 if step.gives in ends else max(reads, default=index)
        assert output % alignment == 0
        assert 0 <= output <= output + nbytes <= placed.size
        yield PlacedArray(output, output + nbytes, index, last)


def no_two_overlap(found: list[PlacedArray]) -> bool:
    return not any(one.overlaps(other) for at, one in enumerate(found) for other in found[at + 1 :])


@given(st.data(), networks())
def test_nested_segments_take_what_is_alive_and_no_more(
    data: st.DataObject, network: Network
) -> None:
    pooling = network.total_pooling
    plan = any_plan(data.draw, network, pooling, pooling, "auto")
    for part in plan.parts:
        assert no_two_overlap(list(blocks(part, 1)))
        peak = max(taken for _, taken in part.peaks())
        beside = part.first_input.nbytes + (part.output_shape.nbytes if part.hands_on else 0)
        assert part.placement().size == peak - beside


@given(st.data(), networks(), st.sampled_from([2, 64, 512]))
def test_alignment_takes_no_more_than_the_arrays_it_pads(
    data: st.DataObject, network: Network, alignment: int
) -> None:
    pooling = network.total_pooling
    plan = any_plan(data.draw, network, pooling, pooling, "auto")
    for part in plan.parts:
        assert no_two_overlap(list(blocks(part, alignment)))
        arrays = 2 * len(part.steps)
        assert part.placement(alignment).size < part.placement().size + arrays * alignment


def step(name: str, takes: tuple[str, ...], out: int, workspace: int) -> Step:
    """Return a step whose output takes ``4 * out`` bytes."""
    shape, made = Shape5(1, 1, 1, 1, 1), Shape5(1, 1, 1, 1, out)
    cost = Cost(1, 1, Memory.beside(shape.nbytes + made.nbytes, workspace), 1)
    conv = Conv(name, 1, 1, Vec3(1, 1, 1), "relu")
    return Step(conv, "any", shape, made, cost, 1.0, 0.0, takes)


def test_skips_lie_below_what_ends_before_them() -> None:
    """In a U, the step that takes a skip mirrors the step that gave it."""
    down = [step(f"down{n}", (f"down{n - 1}" if n else "",), 100 - 20 * n, 5) for n in range(4)]
    up = [
        step(f"up{n}", (f"down{n}", f"up{n + 1}" if n < 2 else "down3"), 100 - 20 * n, 5)
        for n in (2, 1, 0)
    ]
    part = DevicePart((Segment("cpu", 1, (*down, *up)),), Shape5(1, 1, 1, 1, 1))
    found = list(blocks(part, 1))
    assert no_two_overlap(found)
    alive = max(
        sum(it.stop - it.start for it in found if it.first <= at <= it.last and it.last > it.first)
        for at in range(len(part.steps))
    )
    assert part.placement().size <= alive + 4 * 100 + 5


def test_a_step_that_writes_in_place_takes_nothing_of_the_arena() -> None:
    pool = Pool("pool", Vec3(1, 1, 1))
    shape = Shape5(1, 1, 4, 4, 4)
    cost = Cost(1, 1, Memory.beside(2 * shape.nbytes, 0), 1)
    only = Step(pool, "any", shape, shape, cost, 1.0, 0.0, ("",))
    part = DevicePart((Segment("cpu", 1, (only,)),), shape, hands_on=True)
    assert part.placement().size == 0
    assert not part.placement().starts


def test_an_output_that_is_made_late_takes_no_more_than_is_declared() -> None:
    """As of the FFTs of whole images: some of their workspace is free again by then."""
    shape = Shape5(1, 1, 4, 4, 4)
    cost = Cost(1, 1, Memory(0, 2 * shape.nbytes + 10, workspace=100), 1)
    steps = tuple(
        Step(Conv(name, 1, 1, Vec3(1, 1, 1), "relu"), "any", shape, shape, cost, 1.0, 0.0, takes)
        for name, takes in (("a", ("",)), ("b", ("a",)))
    )
    part = DevicePart((Segment("cpu", 1, steps),), shape)
    peak, _ = part.working_peak()
    assert peak == shape.nbytes + cost.memory.working
    assert part.placement().size == peak - shape.nbytes


@st.composite
def any_arrays(draw: st.DrawFn) -> ArrayUses:
    """Return arrays of a graph: each operation reads some of the arrays before it."""
    count = draw(st.integers(1, 8))
    uses, names = [], [""]
    for index in range(count):
        reads = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        names.append(draw(st.sampled_from([f"a{index}", *names[1:]])))
        uses.append(Use(tuple(reads), names[-1], draw(st.integers(0, 9))))
    sizes = {name: draw(st.integers(1, 9)) for name in sorted(set(names[1:]))}
    kept = draw(st.sets(st.sampled_from(sorted(sizes)), max_size=2))
    return ArrayUses(sizes, uses, frozenset({*kept, names[-1]}))


@given(any_arrays())
def test_arrays_of_any_graph_are_apart_while_they_are_alive(arrays: ArrayUses) -> None:
    placed, lives = arrays.placement(), arrays.lives()
    found = [
        PlacedArray(placed.starts[name], placed.starts[name] + arrays.sizes[name], *life)
        for name, life in lives.items()
    ]
    found += [PlacedArray(*room, index, index) for index, room in enumerate(placed.room)]
    assert no_two_overlap(found)
    assert all(0 <= block.start <= block.stop <= placed.size for block in found)
    assert all(
        stop - start >= use.workspace
        for use, (start, stop) in zip(arrays.uses, placed.room, strict=True)
    )
    bound = max(
        alive + use.workspace for alive, use in zip(arrays.alive(), arrays.uses, strict=True)
    )
    assert (
        bound <= placed.size <= sum(arrays.sizes.values()) + max(u.workspace for u in arrays.uses)
    )


def test_the_rule_that_needs_fewer_bytes_counts() -> None:
    """The largest of a chain of three lies above its neighbours, if it is placed first at 0."""
    chain = ArrayUses(
        {"a": 10, "b": 5, "c": 9, "d": 8},
        [Use(("",), "a", 0), Use(("a",), "b", 0), Use(("b",), "c", 0), Use(("c",), "d", 0)],
        frozenset({"d"}),
    )
    assert chain.placement().size == 17  # c and d
    skip = ArrayUses(
        {"a": 2, "b": 8, "c": 2, "d": 8},
        [Use(("",), "a", 0), Use(("a",), "b", 0), Use(("b",), "c", 0), Use(("a", "c"), "d", 0)],
        frozenset({"d"}),
    )
    assert skip.placement().size == 12  # a, b and c, then a, c and d
