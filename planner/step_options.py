"""The options for a step: every useful primitive, or list of pieces, with its price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import replace
from math import inf
from typing import TypeAlias

from planner.choices import bytes_on_gpu, peak_bytes
from planner.cost_model import CostModel
from planner.micro_batches import NO_LIMIT, Limit, Offer, listings, piece_sizes, undominated_offers
from planner.pareto import GpuFronts
from planner.priced_call import PricedCall
from planner.prices import CallKey, Prices
from planner.side_by_side import shared_offer
from znni.core.option_types import Division
from znni.core.shapes import Shape5
from znni.network.layers import Operation
from znni.plans.cost import Cost, Memory
from znni.plans.micro_batches import cost_of_pieces
from znni.plans.primitive import Primitive, UsesGpu
from znni.plans.segments import Step
from znni.plans.step_primitive import composition_of

HOLDS_NOTHING = Limit([])

# The parts of a bare step on which its options depend, whether its output already has its place,
# and the bytes that it takes if it makes its output elsewhere.
StepKey: TypeAlias = tuple[Operation, tuple[str, ...], Shape5, Shape5, bool, int]


class StepOptions:
    """The options for a bare step, none of which another equals or beats in all respects.

    Args:
        primitives: the primitives to choose from.
        model: the model that predicts their times.
        division: the sizes of the pieces that a batch may be computed in.
        most_items: the most items that a batch may have.

    Attributes:
        prices: the prices of the primitives that do not use a GPU for the host.
        divides: whether a batch may be computed in pieces.
    """

    def __init__(
        self,
        primitives: Iterable[Primitive],
        model: CostModel,
        division: Division = "power-of-two",
        most_items: int = 512,
    ) -> None:
        without_gpu, self._using_gpu = list[Primitive](), list[Primitive]()
        for primitive in primitives:
            (self._using_gpu if isinstance(primitive, UsesGpu) else without_gpu).append(primitive)
        self.prices = Prices(without_gpu, model, most_items)
        self._division: Division = division
        self.divides = division != "none"
        self._known: dict[StepKey, tuple[Limit, tuple[Step, ...]]] = {}
        self._known_whole: dict[StepKey, tuple[float, tuple[Step, ...]]] = {}
        self._relaxed: dict[StepKey, tuple[float, tuple[Step, ...]]] = {}
        self._offers: dict[CallKey, list[Offer]] = {}

    def __call__(
        self, step: Step, *, in_place: bool = False, copied_bytes: int = 0, limit: Limit = NO_LIMIT
    ) -> tuple[Step, ...]:
        """Return steps on the Pareto front of seconds and bytes, fastest first.

        Args:
            step: the bare step.
            in_place: whether its output already has its place, as for ``Step.taken``.
            copied_bytes: the bytes that a step takes if it makes its output elsewhere, and copies
                it.
            limit: the limit of the steps wanted. The result may contain others too.
        """
        if not self.divides:
            return self.whole(step, in_place=in_place, copied_bytes=copied_bytes)
        key = _step_key(step, in_place, copied_bytes)
        known_limit, known = self._known.get(key, (HOLDS_NOTHING, ()))
        if not known_limit.covers(limit):
            both = limit.or_within(known_limit)
            whole = self.whole(
                step, in_place=in_place, copied_bytes=copied_bytes, cutoff=both.most_seconds
            )
            steps = [*whole, *self._divided(step, both)]
            known = _pareto(steps, in_place, copied_bytes)
            self._known[key] = both, known
        return known

    def dividing(self, division: Division) -> StepOptions:
        """Return options with pieces of other sizes, with the calls that were priced."""
        other = copy(self)
        other._division, other.divides = division, division != "none"
        other._known, other._relaxed = {}, {}
        return other

    def least_seconds(
        self, operation: Operation, shape: Shape5, out: Shape5, cutoff: float
    ) -> float:
        """Return a lower bound on the seconds for all items of a call, in any pieces.

        Args:
            operation: the operation.
            shape: the shape of the input.
            out: the shape of the output.
            cutoff: the seconds from which on the bound need not be any tighter.
        """
        if self._using_gpu:
            return 0.0
        sizes = [size for size in range(1, shape.n) if shape.n % size == 0]
        sizes += piece_sizes(shape.n, self._division)
        return self.prices.least_seconds(operation, shape, out, cutoff, sizes)

    def computes(self, operation: Operation, features: int) -> bool:
        """Return whether some primitive computes an operation.

        Args:
            operation: the operation.
            features: the number of input maps.
        """
        return self.prices.least_seconds_per_voxel(operation, features) < inf

    def fastest(self, step: Step, room: float, cutoff: float, *, in_place: bool = False) -> float:
        """Return the seconds of the fastest relaxed option within some bytes, from few prices.

        If they are known to reach ``cutoff``, the result may be any lower bound that reaches it.

        Args:
            step: the bare step.
            room: the bytes for the step, with its input, its output and what it keeps.
            cutoff: the seconds from which on the bound need not be any tighter.
            in_place: whether its output already has its place.
        """
        if self._using_gpu:
            return min((it.seconds for it in self.relaxed(step, in_place=in_place)), default=inf)
        batch, arrays = step.shape_in.n, step.shape_in.nbytes + step.shape_out.nbytes
        calls = [
            (batch / items, self._call(step, items), in_place or items < batch)
            for items in (batch, *piece_sizes(batch, self._division))
        ]
        best = inf
        for times, call, beside in calls:
            best = min(best, times * call.fastest(room, arrays, beside=beside))
        while True:
            least, times, call, beside = min(
                (
                    (times * call.least_waiting, times, call, beside)
                    for times, call, beside in calls
                ),
                key=lambda it: it[0],
            )
            if min(least, best) >= cutoff or best <= least:
                return min(least, best)
            best = min(best, times * call.next_seconds(room, arrays, beside=beside))

    def relaxed(
        self, step: Step, *, in_place: bool = False, copied_bytes: int = 0, cutoff: float = inf
    ) -> tuple[Step, ...]:
        """Return relaxed steps: for each real option, one of them is as good or better.

        Each list of pieces has a piece with the least time per item. A relaxed step computes the
        whole batch at the speed of such a piece. It takes no more time, workspace or resident
        memory than the list. Relaxed steps may not exist as primitives. They are few, and need no
        lists. It takes the same arguments as ``whole``.
        """
        if not self.divides:
            return self.whole(step, in_place=in_place, copied_bytes=copied_bytes, cutoff=cutoff)
        key = _step_key(step, in_place, copied_bytes)
        known, options = self._relaxed.get(key, (0.0, ()))
        if known < cutoff:
            batch, arrays = step.shape_in.n, step.shape_in.nbytes + step.shape_out.nbytes
            pieces = [
                replace(
                    step,
                    cost=Cost(0, 0, Memory.beside(arrays, memory.workspace, memory.resident), 1),
                    seconds=batch * (offer.seconds / offer.items),
                )
                for items in piece_sizes(batch, self._division)
                for offer in self._piece_offers(step, items, cutoff * items / batch)
                for memory in (offer.cost.memory,)
            ]
            whole = self.whole(step, in_place=in_place, copied_bytes=copied_bytes, cutoff=cutoff)
            options = _pareto([*whole, *pieces], in_place, copied_bytes)
            self._relaxed[key] = cutoff, options
        return options

    def whole(
        self, step: Step, *, in_place: bool = False, copied_bytes: int = 0, cutoff: float = inf
    ) -> tuple[Step, ...]:
        """Return the Pareto front of the options that compute the batch whole.

        Args:
            step: the bare step.
            in_place: whether its output already has its place.
            copied_bytes: the bytes that a step takes if it makes its output elsewhere, and copies
                it.
            cutoff: the seconds of the slowest option wanted. The result may contain slower ones.
        """
        key = _step_key(step, in_place, copied_bytes)
        known, options = self._known_whole.get(key, (0.0, ()))
        if known < cutoff:
            options = _pareto(list(self._undivided(step, cutoff)), in_place, copied_bytes)
            self._known_whole[key] = cutoff, options
        return options

    def __len__(self) -> int:
        """Return the number of prices worked out so far. Pricing dominates a search's time."""
        return self.prices.count

    def _undivided(self, step: Step, cutoff: float) -> Iterator[Step]:
        """Yield steps by one primitive for all items at once."""
        for offer in self._offered(step.operation, step.shape_in, step.shape_out, cutoff):
            chosen, seconds = composition_of(offer.primitive), offer.seconds
            yield replace(
                step, primitive=chosen, cost=offer.cost, seconds=seconds, error=offer.error
            )

    def _divided(self, step: Step, limit: Limit) -> Iterator[Step]:
        """Yield steps in pieces within a limit."""
        shape, out, cutoff = step.shape_in, step.shape_out, limit.most_seconds
        whole = self._offered(step.operation, shape, out, cutoff)
        pieces = [
            offer
            for items in piece_sizes(shape.n, self._division)
            for offer in self._piece_offers(step, items, cutoff)
        ]
        for listing in listings(shape.n, whole, pieces, limit):
            costs = ((times, offer.cost) for times, offer in listing.taken)
            yield replace(
                step,
                primitive=listing.primitive.composition,
                cost=cost_of_pieces(costs, shape.nbytes + out.nbytes),
                seconds=listing.seconds,
                error=listing.error,
            )

    def _piece_offers(self, step: Step, items: int, cutoff: float) -> list[Offer]:
        """Return the offers for fewer items, without primitives that cut the batch themselves."""
        return self._call(step, items).offers_within(cutoff)

    def _call(self, step: Step, items: int) -> PricedCall:
        """Return the offers for some items of a step's batch, as far as they are priced."""
        shape, out = step.shape_in, step.shape_out
        if items == shape.n:
            return self.prices.call(step.operation, shape, out)
        each = out.n // shape.n
        some, made = shape._replace(n=items), out._replace(n=items * each)
        return self.prices.call(step.operation, some, made)

    def _offered(
        self, operation: Operation, shape: Shape5, out: Shape5, cutoff: float
    ) -> list[Offer]:
        """Return the offers for one call, without those that another beats in all respects.

        If primitives use the GPU, all offers are returned, whatever they take.
        """
        if not self._using_gpu:
            return self.prices.offers(operation, shape, out, cutoff)
        key = (operation, shape, out)
        if key not in self._offers:
            alone = self.prices.offers(operation, shape, out)
            each = out.n // shape.n

            def priced(primitive: Primitive, items: int) -> Offer | None:
                some = shape._replace(n=items)
                return self.prices.priced(primitive, operation, some, out._replace(n=items * each))

            using = [o for p in self._using_gpu if (o := priced(p, shape.n))]
            using = undominated_offers(using)
            shared = (shared_offer(operation, shape, alone, it, priced) for it in using)
            self._offers[key] = undominated_offers([*alone, *using, *filter(None, shared)])
        return self._offers[key]


def _step_key(step: Step, in_place: bool, copied_bytes: int) -> StepKey:
    return step.operation, step.takes, step.shape_in, step.shape_out, in_place, copied_bytes


def _pareto(steps: list[Step], in_place: bool, copied_bytes: int) -> tuple[Step, ...]:
    fronts = GpuFronts()
    with_bytes = (
        (step, peak_bytes(step, in_place=in_place, copied_bytes=copied_bytes)) for step in steps
    )
    by_time = sorted(with_bytes, key=lambda it: (it[0].seconds, it[1]))
    return tuple(
        step
        for step, working in by_time
        if fronts.admits(step.cost.memory.resident, working, bytes_on_gpu([step]))
    )
