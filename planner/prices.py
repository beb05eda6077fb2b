"""Prices of calls: the offers of primitives, worked out only as far as a search needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf, isfinite
from operator import itemgetter
from typing import TypeAlias

from planner.bare_steps import sample_steps
from planner.cost_model import CostModel
from planner.gpu_budget import GpuBudget
from planner.micro_batches import Offer, undominated_offers
from znni.core.shapes import Shape5
from znni.network.layers import Operation, Pool, unnamed
from znni.plans.primitive import Primitive
from znni.plans.segments import Step

# The bound on a primitive's speed comes from a sample of shapes. A shape outside the sample may be
# a little faster per voxel. So the bound is multiplied by this factor before it rules a primitive
# or a patch out. Tiles of any size fill the sample's largest extent almost without waste.
BOUND_SLACK = 0.9

# The samples are cubes. Where an output is thinner than this along an axis, a primitive of large
# tiles may take small ones, and be faster per voxel by another factor.
THIN_BELOW = 96
THIN_SLACK = 0.7

# An operation and its shapes.
CallKey: TypeAlias = tuple[Operation, Shape5, Shape5]


class PricedCall:
    """The offers for one call, priced as far as they were asked for.

    Args:
        waiting: the primitives without a price yet, each after its least seconds, falling.
        price: the function that returns a primitive's offer, if it applies.
    """

    def __init__(
        self,
        waiting: list[tuple[float, Primitive]],
        price: Callable[[Primitive], Offer | None],
    ) -> None:
        self._waiting = waiting
        self._price = price
        self.offers: list[Offer] = []

    @property
    def least_waiting(self) -> float:
        """The least seconds of the offers that are not priced yet."""
        return self._waiting[-1][0] if self._waiting else inf

    def offers_within(self, seconds: float) -> list[Offer]:
        """Return the offers of less than some seconds, and perhaps some slower ones.

        Offers that another beats in all respects are left out.
        """
        found = []
        while self.least_waiting < seconds:
            _, primitive = self._waiting.pop()
            if offer := self._price(primitive):
                found.append(offer)
        if found:
            self.offers = undominated_offers([*self.offers, *found])
        return self.offers

    def fastest(self, room: float, arrays: int, *, beside: bool) -> float:
        """Return the seconds of the fastest offer within some bytes, of those that are priced.

        Args:
            room: the bytes, with input, output, workspace and what is kept.
            arrays: the bytes of input and output.
            beside: whether input and output exist throughout the call.
        """
        return min(
            (
                offer.seconds
                for offer in self.offers
                for memory in (offer.cost.memory,)
                if (arrays + memory.workspace if beside else memory.working) + memory.resident
                <= room
            ),
            default=inf,
        )

    def price_next(self) -> None:
        """Price the offer that may be fastest of those that are not priced yet."""
        _, primitive = self._waiting.pop()
        if offer := self._price(primitive):
            self.offers = undominated_offers([*self.offers, offer])


class Prices:
    """The prices of calls by some primitives, each worked out once.

    Most primitives are far too slow for most layers. A sample of shapes tells the least seconds per
    voxel of each. So a call that must take less than some seconds is priced for few primitives.
    Layers that differ only in their names share their prices.

    Args:
        primitives: the primitives. They use no device but their own.
        model: the model that predicts their times.
        gpu_budget: the GPU memory that primitives of the host may take.
        most_items: the most items of a batch.
    """

    def __init__(
        self,
        primitives: Iterable[Primitive],
        model: CostModel,
        gpu_budget: GpuBudget,
        most_items: int,
    ) -> None:
        self._primitives = tuple(primitives)
        self._most_items = most_items
        self._model = model
        self._gpu_budget = gpu_budget
        self._nameless: dict[Operation, Operation] = {}
        self._least: dict[tuple[Operation, int, int], list[tuple[float, Primitive]]] = {}
        self._known: dict[CallKey, PricedCall] = {}
        self.count = 0

    def offers(
        self, operation: Operation, shape: Shape5, out: Shape5, within: float = inf
    ) -> list[Offer]:
        """Return the offers for one call, without those that another beats in all respects.

        Args:
            operation: the operation.
            shape: the shape of the input.
            out: the shape of the output.
            within: the seconds of the slowest offer wanted. The result may contain slower ones.
        """
        return self.call(operation, shape, out).offers_within(within)

    def call(self, operation: Operation, shape: Shape5, out: Shape5) -> PricedCall:
        """Return the offers for one call, priced as far as they were asked for.

        Args:
            operation: the operation.
            shape: the shape of the input.
            out: the shape of the output.
        """
        key = (self.nameless(operation), shape, out)
        if key not in self._known:
            voxels = float(out.n * out.size.volume)
            if min(out.size) < THIN_BELOW:
                voxels *= THIN_SLACK
            waiting = [
                # The sample tells nothing of a primitive that it has no shape for.
                (voxels * least if isfinite(least) else 0.0, primitive)
                for least, primitive in self._sampled(operation, shape.f, out.n // shape.n)
            ]
            waiting.sort(key=itemgetter(0), reverse=True)
            self._known[key] = PricedCall(waiting, lambda primitive: self.priced(primitive, *key))
        return self._known[key]

    def priced(
        self, primitive: Primitive, operation: Operation, shape: Shape5, out: Shape5
    ) -> Offer | None:
        """Return a primitive's offer for one call, if it applies and fits into the GPU budget."""
        if primitive.out_shape(operation, shape) != out:
            return None
        self.count += 1
        cost = primitive.cost(operation, shape)
        if not self._gpu_budget.holds(cost.memory):
            return None
        estimate = self._model.estimate(primitive, operation, shape, cost)
        return Offer(primitive, shape.n, cost, *estimate)

    def nameless(self, operation: Operation) -> Operation:
        """Return an operation without the names of its layers, on which no price depends."""
        if operation not in self._nameless:
            self._nameless[operation] = unnamed(operation)
        return self._nameless[operation]

    def least_seconds_per_voxel(self, operation: Operation, features: int) -> float:
        """Return the least seconds per output voxel and item; infinite if no primitive applies.

        Args:
            operation: the operation.
            features: the number of input maps.
        """
        fragments = operation.window.volume if isinstance(operation, Pool) else 1
        return min(
            (
                least
                for each in {1, fragments}
                for least, _ in self._sampled(operation, features, each)
            ),
            default=inf,
        )

    def _sampled(
        self, operation: Operation, features: int, each: int
    ) -> list[tuple[float, Primitive]]:
        """Return all primitives, with their least seconds per output voxel over the sample.

        They are infinite for a primitive that applies to none of the sampled shapes.

        Args:
            operation: the operation.
            features: the number of input maps.
            each: the number of output items for each item of the input.
        """
        key = (self.nameless(operation), features, each)
        if key not in self._least:
            count = self.count
            steps = [
                step
                for step in sample_steps(key[0], features, plain=each == 1)
                if step.shape_in.n <= self._most_items
            ]
            self._least[key] = [
                (BOUND_SLACK * self._least_seconds(primitive, steps), primitive)
                for primitive in self._primitives
            ]
            self.count = count  # samples are few, and do not grow with the volume
        return self._least[key]

    def _least_seconds(self, primitive: Primitive, steps: Iterable[Step]) -> float:
        """Return a primitive's least seconds per output voxel over some steps."""
        return min(
            (
                offer.seconds / (out.n * out.size.volume)
                for step in steps
                for out in (step.shape_out,)
                if (offer := self.priced(primitive, step.operation, step.shape_in, out))
            ),
            default=inf,
        )
