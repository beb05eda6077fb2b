"""The options for a step: every useful primitive, or list of pieces, with its price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from typing import TypeAlias

from planner.cost_model import CostModel
from planner.gpu_budget import NO_GPU_BUDGET, GpuBudget
from planner.micro_batches import (
    NO_LIMIT,
    Limit,
    Offer,
    listings,
    piece_sizes,
    undominated_offers,
)
from planner.pareto import Front
from planner.side_by_side import shared_offer
from znni.core.options import Division
from znni.core.shapes import Shape5
from znni.network.layers import Operation
from znni.plans.cost import Cost, Memory
from znni.plans.micro_batches import chosen_by, cost_of_pieces
from znni.plans.primitive import Primitive, UsesGpu
from znni.plans.segments import Step

HOLDS_NOTHING = Limit([])

# The parts of a bare step on which its options depend, and whether its output already has its
# place.
StepKey: TypeAlias = tuple[Operation, tuple[str, ...], Shape5, Shape5, bool]

# An operation and its shapes.
CallKey: TypeAlias = tuple[Operation, Shape5, Shape5]


class StepOptions:
    """The options for a bare step, none of which another equals or beats in all respects.

    Args:
        primitives: the primitives to choose from.
        model: the model that predicts their times.
        division: the sizes of the pieces that a batch may be computed in.
        gpu_budget: the GPU memory that primitives of the host may take.
    """

    def __init__(
        self,
        primitives: Iterable[Primitive],
        model: CostModel,
        division: Division = "power-of-two",
        gpu_budget: GpuBudget = NO_GPU_BUDGET,
    ) -> None:
        self._without_gpu, self._using_gpu = list[Primitive](), list[Primitive]()
        for primitive in primitives:
            (self._using_gpu if isinstance(primitive, UsesGpu) else self._without_gpu).append(
                primitive
            )
        self._model = model
        self._gpu_budget = gpu_budget
        self._division: Division = division
        self.divides = division != "none"
        self._known: dict[StepKey, tuple[Limit, tuple[Step, ...]]] = {}
        self._known_whole: dict[StepKey, tuple[Step, ...]] = {}
        self._pieces: dict[CallKey, list[Offer]] = {}
        self._relaxed: dict[StepKey, tuple[Step, ...]] = {}
        self._offers: dict[CallKey, list[Offer]] = {}
        self._offers_without_gpu: dict[CallKey, list[Offer]] = {}

    def __call__(
        self, step: Step, *, in_place: bool = False, limit: Limit = NO_LIMIT
    ) -> tuple[Step, ...]:
        """Return steps on the Pareto front of seconds, resident and working memory, fastest first.

        Args:
            step: the bare step.
            in_place: whether its output already has its place, as for ``Step.taken``.
            limit: the limit of the steps wanted. The result may contain others too.
        """
        if not self.divides:
            return self.whole(step, in_place=in_place)
        key = _step_key(step, in_place)
        within, known = self._known.get(key, (HOLDS_NOTHING, ()))
        if not within.covers(limit):
            both = limit.or_within(within)
            steps = [*self.whole(step, in_place=in_place), *self._divided(step, both)]
            known = _pareto(steps, in_place)
            self._known[key] = both, known
        return known

    def dividing(self, division: Division) -> StepOptions:
        """Return options with pieces of other sizes, with the calls that were priced."""
        other = copy(self)
        other._division, other.divides = division, division != "none"
        other._known, other._pieces, other._relaxed = {}, {}, {}
        return other

    def relaxed(self, step: Step, *, in_place: bool = False) -> tuple[Step, ...]:
        """Return relaxed steps: for each real option, one of them is as good or better.

        Each list of pieces has a piece with the least time per item. A relaxed step computes the
        whole batch at the speed of such a piece. It takes no more time, workspace or resident
        memory than the list. Relaxed steps may not exist as primitives. They are few, and need no
        lists.

        Args:
            step: the bare step.
            in_place: whether its output already has its place.
        """
        if not self.divides:
            return self.whole(step, in_place=in_place)
        key = _step_key(step, in_place)
        if key not in self._relaxed:
            batch, arrays = step.shape_in.n, step.shape_in.nbytes + step.shape_out.nbytes
            pieces = [
                replace(
                    step,
                    cost=Cost(0, 0, Memory.beside(arrays, memory.workspace, memory.resident), 1),
                    seconds=batch * (offer.seconds / offer.items),
                )
                for offer in self._piece_offers(step)
                for memory in (offer.cost.memory,)
            ]
            self._relaxed[key] = _pareto([*self.whole(step, in_place=in_place), *pieces], in_place)
        return self._relaxed[key]

    def whole(self, step: Step, *, in_place: bool = False) -> tuple[Step, ...]:
        """Return the Pareto front of the options that compute the batch whole.

        Args:
            step: the bare step.
            in_place: whether its output already has its place.
        """
        key = _step_key(step, in_place)
        if key not in self._known_whole:
            self._known_whole[key] = _pareto(list(self._undivided(step)), in_place)
        return self._known_whole[key]

    def __len__(self) -> int:
        """Return the number of different calls priced so far. Pricing dominates a search's time."""
        return len(self._offers_without_gpu)

    def _undivided(self, step: Step) -> Iterator[Step]:
        """Yield steps by one primitive for all items at once."""
        for offer in self._offered(step.operation, step.shape_in, step.shape_out):
            chosen, seconds = chosen_by(offer.primitive), offer.seconds
            yield replace(
                step, primitive=chosen, cost=offer.cost, seconds=seconds, error=offer.error
            )

    def _divided(self, step: Step, limit: Limit) -> Iterator[Step]:
        """Yield steps in pieces within a limit."""
        shape, out = step.shape_in, step.shape_out
        whole = self._offered(step.operation, shape, out)
        for found in listings(shape.n, whole, self._piece_offers(step), limit):
            costs = ((times, offer.cost) for times, offer in found.taken)
            yield replace(
                step,
                primitive=found.primitive.chosen,
                cost=cost_of_pieces(costs, shape.nbytes + out.nbytes),
                seconds=found.seconds,
                error=found.error,
            )

    def _piece_offers(self, step: Step) -> list[Offer]:
        """Return the offers for fewer items, without primitives that cut the batch themselves."""
        operation, shape, out = key = (step.operation, step.shape_in, step.shape_out)
        if key not in self._pieces:
            each = out.n // shape.n
            self._pieces[key] = [
                offer
                for items in piece_sizes(shape.n, self._division)
                for offer in self._offered_without_gpu(
                    operation, shape._replace(n=items), out._replace(n=items * each)
                )
            ]
        return self._pieces[key]

    def _offered(self, operation: Operation, shape: Shape5, out: Shape5) -> list[Offer]:
        """Return the offers for one call, without those that another beats in all respects."""
        alone = self._offered_without_gpu(operation, shape, out)
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

    def _offered_without_gpu(self, operation: Operation, shape: Shape5, out: Shape5) -> list[Offer]:
        """Return the offers of primitives that use no device but their own."""
        key = (operation, shape, out)
        if key not in self._offers_without_gpu:
            priced = (self._priced(p, operation, shape, out) for p in self._without_gpu)
            self._offers_without_gpu[key] = undominated_offers(o for o in priced if o)
        return self._offers_without_gpu[key]

    def _priced(
        self, primitive: Primitive, operation: Operation, shape: Shape5, out: Shape5
    ) -> Offer | None:
        """Return a primitive's offer for one call, if it applies and fits into the GPU budget."""
        if primitive.out_shape(operation, shape) != out:
            return None
        cost = primitive.cost(operation, shape)
        if not self._gpu_budget.holds(cost.memory):
            return None
        estimate = self._model.estimate(primitive, operation, shape, cost)
        return Offer(primitive, shape.n, cost, *estimate)


def _step_key(step: Step, in_place: bool) -> StepKey:
    return step.operation, step.takes, step.shape_in, step.shape_out, in_place


def _pareto(steps: list[Step], in_place: bool) -> tuple[Step, ...]:
    front = Front()
    taken = ((step, step.taken(in_place=in_place)) for step in steps)
    by_time = sorted(taken, key=lambda it: (it[0].seconds, it[1]))
    return tuple(s for s, working in by_time if front.admits(working, s.cost.memory.resident))
