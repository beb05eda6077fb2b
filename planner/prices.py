"""Prices of calls: the offers of primitives, worked out only as far as a search needs them."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Container, Iterable
from functools import lru_cache
from math import inf, isfinite
from typing import NamedTuple, TypeAlias

from planner.bare_steps import sample_steps
from planner.cost_model import CostModel
from planner.gpu_budget import GpuBudget
from planner.micro_batches import Offer, undominated_offers
from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Operation, PackedLayer, unnamed
from znni.plans.primitive import Primitive, TakesTimePerItem, by_values
from znni.plans.segments import Step

# Bounds on speed come from a sample of shapes. A shape outside the sample may be a little faster
# per voxel. Bounds are multiplied by these factors before they rule something out. The first is for
# a layer's fastest primitive: over random shapes of the layers in networks/, none was faster than
# 0.965 of the sample's fastest. The second is for one primitive. Tiles of any size fill the
# sample's largest extents almost without waste.
FASTEST_SLACK = 0.95
BOUND_SLACK = 0.9

# The samples are cubes. If an output is thinner than this along an axis, a primitive of large tiles
# may take small ones. It may then be faster per voxel by another factor.
THIN_BELOW = 96
THIN_SLACK = 0.7

# Sums in another order differ in their last digits. Bounds from known prices are smaller by this.
ROUNDED = 1 - 1e-9

# For each primitive's name, numbers of items and the seconds that it takes for them.
KnownSeconds: TypeAlias = dict[str, list[tuple[int, float]]]

# For an operation, its input maps and its output items for each item: all primitives with their
# least seconds per output voxel.
Samples: TypeAlias = dict[tuple[Operation, int, int], list[tuple[float, Primitive]]]

# An operation and its shapes.
CallKey: TypeAlias = tuple[Operation, Shape5, Shape5]


class Bounded(NamedTuple):
    """A primitive after a lower bound on its seconds for a call, or for a voxel."""

    seconds: float
    name: str
    primitive: Primitive


class Sampled(NamedTuple):
    """The primitives that may compute an operation, by their least seconds per output voxel.

    Attributes:
        known: the primitives that apply to some of the sampled shapes, slowest first.
        unknown: the others, of which the sample tells nothing.
        least_of_others: the least seconds of primitives that may be faster for fewer items.
    """

    known: list[Bounded]
    unknown: list[Bounded]
    least_of_others: float


class PricedCall:
    """The offers for one call, priced as far as they were asked for.

    Args:
        waiting: the primitives without a price yet, slowest first.
        price: the function that returns a primitive's offer, if it applies.
        least: the function that returns a bound on the seconds of a primitive, given by its name,
            from prices that are known by now.
        per_item: the names of the primitives that are never faster per item for fewer items.
        least_of_others: the least seconds of the other primitives.
    """

    def __init__(
        self,
        waiting: list[Bounded],
        price: Callable[[Primitive], Offer | None],
        least: Callable[[str], float],
        per_item: Container[str],
        least_of_others: float,
    ) -> None:
        self._waiting = waiting
        self._per_item = per_item
        self._least_of_others = least_of_others
        self._price = price
        self._least = least
        self._found: list[Offer] = []
        self._undominated: list[Offer] | None = []

    @property
    def least_waiting(self) -> float:
        """The least seconds of the offers that are not priced yet."""
        while self._waiting:
            bound, name, primitive = self._waiting[-1]
            least = self._least(name)
            if least <= bound:
                return bound
            self._waiting.pop()
            insort(self._waiting, Bounded(least, name, primitive), key=_falling)
        return inf

    @property
    def offers(self) -> list[Offer]:
        """The offers that are priced, without those that another beats in all respects."""
        if self._undominated is None:
            self._found = self._undominated = undominated_offers(self._found)
        return self._undominated

    def offers_within(self, seconds: float) -> list[Offer]:
        """Return the offers of less than some seconds, and perhaps some slower ones.

        Offers that another beats in all respects are left out.
        """
        while self.least_waiting < seconds:
            self.price_next()
        return self.offers

    def fastest(self, room: float, arrays: int, *, beside: bool) -> float:
        """Return the seconds of the fastest offer within some bytes, of those that are priced.

        Args:
            room: the bytes, with input, output, workspace and what is kept.
            arrays: the bytes of input and output.
            beside: whether input and output exist throughout the call.
        """
        return min(
            (it.seconds for it in self._found if _fits(it, room, arrays, beside=beside)),
            default=inf,
        )

    def least_in_pieces(self, enough: float, share: float) -> float:
        """Return a lower bound on the seconds of all items, in any pieces.

        Args:
            enough: the seconds above which it does not matter how many they are.
            share: the items, as a share of those that whole pieces of any size cover.
        """
        together = (it.seconds for it in self._found if it.primitive.name in self._per_item)
        least = ROUNDED * share * min(together, default=inf)
        while self.least_waiting < min(least, enough, self._least_of_others):
            offer = self.price_next()
            if offer and offer.primitive.name in self._per_item:
                least = min(least, ROUNDED * share * offer.seconds)
        return min(least, share * self.least_waiting, self._least_of_others)

    def price_next(self) -> Offer | None:
        """Price the offer that may be fastest of those that are not priced yet, and return it."""
        *_, primitive = self._waiting.pop()
        offer = self._price(primitive)
        if offer:
            self._found = [*self._found, offer]
            self._undominated = None
        return offer

    def next_seconds(self, room: float, arrays: int, *, beside: bool) -> float:
        """Return the seconds of the offer priced next, if it applies and fits; else infinity.

        Arguments are those of ``fastest``.
        """
        offer = self.price_next()
        return offer.seconds if offer and _fits(offer, room, arrays, beside=beside) else inf


def _fits(offer: Offer, room: float, arrays: int, *, beside: bool) -> bool:
    """Return whether an offer takes no more than some bytes, as in ``PricedCall.fastest``."""
    memory = offer.cost.memory
    return (arrays + memory.workspace if beside else memory.working) + memory.resident <= room


def _falling(waiting: Bounded) -> float:
    return -waiting.seconds


class Prices:
    """The prices of calls by some primitives, each worked out once.

    Most primitives are far too slow for most layers. A sample of shapes tells the least seconds per
    voxel of each. So a call that must take less than some seconds is priced for few primitives.
    Layers that differ only in their names share their prices. Some primitives are never faster than
    another one, or than for all items at once. Then known prices rule others out.

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
        self._of_packed, self._of_arrays = by_values(self._primitives)
        self._most_items = most_items
        self._model = model
        self._gpu_budget = gpu_budget
        self._nameless: dict[Operation, Operation] = {}
        self._least = _samples(self._primitives, model, gpu_budget, most_items)
        self._sorted: dict[tuple[Operation, int, int], Sampled] = {}
        self._known: dict[CallKey, PricedCall] = {}
        self._follows = _following(self._primitives) if model.follows_costs else {}
        self._seconds: dict[tuple[Operation, Vec3, int], KnownSeconds] = {}
        self.count = 0

    def applies(self, operation: Operation, shape: Shape5) -> bool:
        """Return whether some primitive computes an operation on an input of a shape."""
        alike = self.nameless(operation)  # so that primitives that remember it are asked once
        return any(it.out_shape(alike, shape) is not None for it in self._able(alike))

    def _able(self, operation: Operation) -> tuple[Primitive, ...]:
        """Return the primitives of such values as an operation has: packed ones or others."""
        return self._of_packed if isinstance(operation, PackedLayer) else self._of_arrays

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
            sampled = self._by_speed(key[0], shape.f, out.n // shape.n)
            voxels = BOUND_SLACK * out.n * out.size.volume
            if min(out.size) < THIN_BELOW:
                voxels *= THIN_SLACK
            waiting = [
                Bounded(voxels * least, name, primitive) for least, name, primitive in sampled.known
            ]
            unknown = [it for it in sampled.unknown if it.primitive.out_shape(key[0], shape) == out]
            others = any(it.name not in self._follows for it in unknown)
            seconds = self._seconds.setdefault((key[0], shape.size, out.n // shape.n), {})
            self._known[key] = PricedCall(
                [*waiting, *unknown],
                lambda primitive: self._noted(primitive, key, seconds),
                lambda name: self._least_known(name, shape.n, seconds),
                self._follows,
                0.0 if others else voxels * sampled.least_of_others,
            )
        return self._known[key]

    def _by_speed(self, operation: Operation, features: int, each: int) -> Sampled:
        """Return all primitives by their least seconds per output voxel, preferred ones last.

        Arguments are those of ``_sampled``.
        """
        key = (operation, features, each)
        if key not in self._sorted:
            found = [
                Bounded(least, primitive.name, primitive)
                for least, primitive in reversed(self._sampled(operation, features, each))
            ]
            known = sorted((it for it in found if isfinite(it.seconds)), key=lambda it: -it.seconds)
            others = (it.seconds for it in known if it.name not in self._follows)
            unknown = [it._replace(seconds=0.0) for it in found if not isfinite(it.seconds)]
            self._sorted[key] = Sampled(known, unknown, min(others, default=inf))
        return self._sorted[key]

    def least_seconds(
        self, operation: Operation, shape: Shape5, out: Shape5, enough: float, sizes: Iterable[int]
    ) -> float:
        """Return a lower bound on the seconds for all items of a call, in any pieces.

        Args:
            operation: the operation.
            shape: the shape of the input.
            out: the shape of the output.
            enough: the seconds above which it does not matter how many they are.
            sizes: the numbers of items that a piece may have, beside all of them.
        """
        share = min((shape.n / (size * -(-shape.n // size)) for size in sizes), default=1.0)
        return self.call(operation, shape, out).least_in_pieces(enough, share)

    def _noted(self, primitive: Primitive, key: CallKey, seconds: KnownSeconds) -> Offer | None:
        """Return a primitive's offer for one call, and note its seconds.

        Args:
            primitive: the primitive.
            key: the call.
            seconds: the known seconds for this operation on images of this size.
        """
        offer = self.priced(primitive, *key)
        if offer and self._follows:
            seconds.setdefault(primitive.name, []).append((offer.items, offer.seconds))
        return offer

    def _least_known(self, name: str, items: int, seconds: KnownSeconds) -> float:
        """Return a bound on a primitive's seconds for some items, from known prices.

        Args:
            name: the primitive's name.
            items: the number of items.
            seconds: the known seconds for this operation on images of this size.
        """
        return max(
            (
                ROUNDED * found / -(-more // items)  # the number of calls for all of those items
                for faster in self._follows.get(name, ())
                for more, found in seconds.get(faster, ())
                if more >= items
            ),
            default=0.0,
        )

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

    def least_seconds_per_voxel(
        self,
        operation: Operation,
        features: int,
        each: int = 1,
        among: Collection[str] | None = None,
    ) -> float:
        """Return the least seconds per output voxel and item; infinite if no primitive applies.

        Args:
            operation: the operation.
            features: the number of input maps.
            each: the number of output items for each item of the input.
            among: the names of the primitives that count; None: all.
        """
        slack = FASTEST_SLACK if self._model.follows_costs else BOUND_SLACK
        return slack * min(
            (
                least
                for least, primitive in self._sampled(operation, features, each)
                if among is None or primitive.name in among
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
            most = max((step.shape_in.n for step in steps), default=0)
            largest = [step for step in steps if step.shape_in.n == most]
            found: dict[str, float] = {}
            able = self._able(key[0])
            for primitive in able:
                # Fewer items take no less time per item, and following primitives are never faster.
                followed = self._follows.get(primitive.name, (primitive.name,))
                known = [found[name] for name in followed if name in found]
                least = max(known, default=0.0)
                if not least and primitive.name in self._follows:
                    least = self._least_seconds(primitive, largest)
                if not 0.0 < least < inf:  # it may apply to fewer items alone
                    least = self._least_seconds(primitive, steps)
                found[primitive.name] = least
            self._least[key] = [(found[it.name], it) for it in able]
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


def _samples(
    primitives: tuple[Primitive, ...], model: CostModel, gpu_budget: GpuBudget, most_items: int
) -> Samples:
    """Return the samples of such prices, which several searches share."""
    try:
        return _shared_samples((primitives, model, gpu_budget, most_items))
    except TypeError:  # one of them has no hash
        return {}


@lru_cache(maxsize=8)
def _shared_samples(_alike: tuple[object, ...]) -> Samples:
    """Return the same dictionary, which callers fill, for the same arguments."""
    return {}


def _following(primitives: Iterable[Primitive]) -> dict[str, set[str]]:
    """Return the names of the primitives whose seconds bound those of a primitive from below.

    Primitives that may be faster for fewer items are left out.
    """
    bounded = [it for it in primitives if isinstance(it, TakesTimePerItem)]
    return {one.name: {one.name, one.bounded_by} for one in bounded}
