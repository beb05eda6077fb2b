"""The ways to compute each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from typing import TypeAlias

from planner.cost_model import CostModel
from planner.gpu_budget import NO_ROOM, GpuRoom
from planner.micro_batches import (
    NO_LIMIT,
    Limit,
    Offer,
    listings,
    piece_sizes,
    undominated_offers,
)
from planner.pareto import Front
from planner.sharing import shared_offer
from znni.core.options import Division
from znni.core.shapes import Shape5
from znni.network.network import Operation
from znni.plans.cost import Cost, Memory
from znni.plans.micro_batches import chosen_by, cost_of_pieces
from znni.plans.primitive import Primitive, UsesGpu
from znni.plans.segments import Step

UNDECIDED = "undecided"
NOTHING_WITHIN = Limit([])

# What a step asks for, and whether the output has its place already.
Asked: TypeAlias = tuple[Operation, tuple[str, ...], Shape5, Shape5, bool]

# An operation and its shapes.
Call: TypeAlias = tuple[Operation, Shape5, Shape5]


def bare_step(
    operation: Operation, shape: Shape5, shape_out: Shape5, takes: tuple[str, ...] = ()
) -> Step:
    """Return a step that asks for an operation: no primitive, no cost but its input and output."""
    least = Cost(0, 0, Memory.beside(shape.nbytes + shape_out.nbytes, workspace=0), 1)
    return Step(operation, UNDECIDED, shape, shape_out, least, seconds=0.0, error=0.0, takes=takes)


class Options:
    """All steps that do what a step without a primitive asks, none worse than another in all.

    Args:
        primitives: to choose from.
        model: of their times.
        division: the sizes of the pieces that a batch may be computed in.
        gpu_room: what primitives of the host may take of a GPU.
    """

    def __init__(
        self,
        primitives: Iterable[Primitive],
        model: CostModel,
        division: Division = "power-of-two",
        gpu_room: GpuRoom = NO_ROOM,
    ) -> None:
        self._alone, self._using_gpu = list[Primitive](), list[Primitive]()
        for primitive in primitives:
            (self._using_gpu if isinstance(primitive, UsesGpu) else self._alone).append(primitive)
        self._model = model
        self._gpu_room = gpu_room
        self._division: Division = division
        self.divides = division != "none"
        self._known: dict[Asked, tuple[Limit, tuple[Step, ...]]] = {}
        self._known_whole: dict[Asked, tuple[Step, ...]] = {}
        self._parts: dict[Call, list[Offer]] = {}
        self._relaxed: dict[Asked, tuple[Step, ...]] = {}
        self._offers: dict[Call, list[Offer]] = {}
        self._offers_alone: dict[Call, list[Offer]] = {}

    def __call__(
        self, step: Step, *, in_place: bool = False, limit: Limit = NO_LIMIT
    ) -> tuple[Step, ...]:
        """Steps on the Pareto front of seconds, resident and working memory, fastest first.

        Args:
            step: its operation and shapes are what is asked.
            in_place: its output has its place already, as of ``Step.taken``.
            limit: of the steps that are wanted. Others may be among those returned.
        """
        if not self.divides:
            return self.whole(step, in_place=in_place)
        key = _asked(step, in_place)
        within, known = self._known.get(key, (NOTHING_WITHIN, ()))
        if not within.covers(limit):
            both = limit.or_within(within)
            steps = [*self.whole(step, in_place=in_place), *self._divided(step, both)]
            known = _pareto(steps, in_place)
            self._known[key] = both, known
        return known

    def dividing(self, division: Division) -> Options:
        """The same in pieces of other sizes, with the calls that were priced."""
        other = copy(self)
        other._division, other.divides = division, division != "none"
        other._known, other._parts, other._relaxed = {}, {}, {}
        return other

    def relaxed(self, step: Step, *, in_place: bool = False) -> tuple[Step, ...]:
        """Steps, not all of which there are, one of which equals or beats each that there is.

        Each list of pieces has one that takes the least time for an item. If the whole batch took
        that, it would take no more than the list, in time, workspace or resident memory. These are
        few, and known without any list.

        Args:
            step: its operation and shapes are what is asked.
            in_place: as of a call.
        """
        if not self.divides:
            return self.whole(step, in_place=in_place)
        key = _asked(step, in_place)
        if key not in self._relaxed:
            batch, arrays = step.shape_in.n, step.shape_in.nbytes + step.shape_out.nbytes
            pieces = [
                replace(
                    step,
                    cost=Cost(0, 0, Memory.beside(arrays, memory.workspace, memory.resident), 1),
                    seconds=batch * (offer.seconds / offer.items),
                )
                for offer in self._pieces(step)
                for memory in (offer.cost.memory,)
            ]
            self._relaxed[key] = _pareto([*self.whole(step, in_place=in_place), *pieces], in_place)
        return self._relaxed[key]

    def whole(self, step: Step, *, in_place: bool = False) -> tuple[Step, ...]:
        """Of these, with the batch whole, the Pareto front.

        Args:
            step: its operation and shapes are what is asked.
            in_place: as of a call.
        """
        key = _asked(step, in_place)
        if key not in self._known_whole:
            self._known_whole[key] = _pareto(list(self._undivided(step)), in_place)
        return self._known_whole[key]

    def __len__(self) -> int:
        """How many different calls were priced, which is what a search spends its time on."""
        return len(self._offers_alone)

    def _undivided(self, asked: Step) -> Iterator[Step]:
        """Steps by one primitive for all items at once."""
        for offer in self._offered(asked.operation, asked.shape_in, asked.shape_out):
            chosen, seconds = chosen_by(offer.primitive), offer.seconds
            yield replace(
                asked, primitive=chosen, cost=offer.cost, seconds=seconds, error=offer.error
            )

    def _divided(self, asked: Step, limit: Limit) -> Iterator[Step]:
        """Steps in pieces within a limit."""
        shape, out = asked.shape_in, asked.shape_out
        whole = self._offered(asked.operation, shape, out)
        for found in listings(shape.n, whole, self._pieces(asked), limit):
            costs = ((times, offer.cost) for times, offer in found.taken)
            yield replace(
                asked,
                primitive=found.primitive.chosen,
                cost=cost_of_pieces(costs, shape.nbytes + out.nbytes),
                seconds=found.seconds,
                error=found.error,
            )

    def _pieces(self, asked: Step) -> list[Offer]:
        """What the primitives ask for fewer items, but for those that cut the batch themselves."""
        operation, shape, out = key = (asked.operation, asked.shape_in, asked.shape_out)
        if key not in self._parts:
            each = out.n // shape.n
            self._parts[key] = [
                offer
                for items in piece_sizes(shape.n, self._division)
                for offer in self._offered_alone(
                    operation, shape._replace(n=items), out._replace(n=items * each)
                )
            ]
        return self._parts[key]

    def _offered(self, operation: Operation, shape: Shape5, out: Shape5) -> list[Offer]:
        """What the primitives ask for one call; those that another beats in all are left out."""
        alone = self._offered_alone(operation, shape, out)
        if not self._using_gpu:
            return alone
        key = (operation, shape, out)
        if key not in self._offers:
            each = out.n // shape.n

            def priced(primitive: Primitive, items: int) -> Offer | None:
                some = shape._replace(n=items)
                return self._priced(primitive, operation, some, out._replace(n=items * each))

            using = [o for p in self._using_gpu if (o := priced(p, shape.n))]
            shared = shared_offer(operation, shape, alone, using, priced)
            both = [shared] if shared else []
            self._offers[key] = undominated_offers([*alone, *using, *both])
        return self._offers[key]

    def _offered_alone(self, operation: Operation, shape: Shape5, out: Shape5) -> list[Offer]:
        """Of these, by primitives that use no other device than their own."""
        key = (operation, shape, out)
        if key not in self._offers_alone:
            priced = (self._priced(p, operation, shape, out) for p in self._alone)
            self._offers_alone[key] = undominated_offers(o for o in priced if o)
        return self._offers_alone[key]

    def _priced(
        self, primitive: Primitive, operation: Operation, shape: Shape5, out: Shape5
    ) -> Offer | None:
        """What one asks for one call, if it applies and a GPU has the room for it."""
        if primitive.out_shape(operation, shape) != out:
            return None
        cost = primitive.cost(operation, shape)
        if not self._gpu_room.holds(cost.memory):
            return None
        estimate = self._model.estimate(primitive, operation, shape, cost)
        return Offer(primitive, shape.n, cost, *estimate)


def _asked(step: Step, in_place: bool) -> Asked:
    return step.operation, step.takes, step.shape_in, step.shape_out, in_place


def _pareto(steps: list[Step], in_place: bool) -> tuple[Step, ...]:
    front = Front()
    taken = ((step, step.taken(in_place=in_place)) for step in steps)
    by_time = sorted(taken, key=lambda it: (it[0].seconds, it[1]))
    return tuple(s for s, working in by_time if front.admits(working, s.cost.memory.resident))
