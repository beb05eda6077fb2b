"""Prices of calls: the offers of primitives, worked out only as far as a search needs them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from math import inf, log2
from typing import TypeAlias

from planner.bare_steps import sample_steps
from planner.cost_model import CostModel, Factors, built_in_seconds
from planner.micro_batches import Offer
from planner.priced_call import Bounded, LeastFactor, PricedCall, Sampled
from znni.core.shapes import ONE, Shape5, Vec3
from znni.network.layers import Operation, PackedLayer, unnamed
from znni.plans.primitive import Primitive, TakesTimePerItem, by_values
from znni.plans.segments import Step

# Sums in another order differ in their last digits. Bounds from known prices are smaller by this.
ROUNDED = 1 - 1e-9

# For each primitive's name, numbers of items and the seconds that it takes for them.
KnownSeconds: TypeAlias = dict[str, list[tuple[int, float]]]


# An operation and its shapes.
CallKey: TypeAlias = tuple[Operation, Shape5, Shape5]


# For an operation, its input maps and its output items for each item: all primitives.
Samples: TypeAlias = dict[tuple[Operation, int, int], list[Sampled]]


class Prices:
    """The prices of calls by some primitives, each worked out once.

    Most primitives are far too slow for most layers. A sample of shapes tells the least seconds per
    voxel of each. So a call that must take less than some seconds is priced for few primitives.
    Layers that differ only in their names share their prices. Some primitives are never faster than
    another one, or than for all items at once. Then known prices rule others out.

    Args:
        primitives: the primitives. They use no device but their own.
        model: the model that predicts their times.
        most_items: the most items of a batch.
    """

    def __init__(
        self,
        primitives: Iterable[Primitive],
        model: CostModel,
        most_items: int,
    ) -> None:
        self._primitives = tuple(primitives)
        self._of_packed, self._of_arrays = by_values(self._primitives)
        self._most_items = most_items
        self._model = model
        self._nameless: dict[Operation, Operation] = {}
        self._least = _samples(self._primitives, most_items)
        self._known: dict[CallKey, PricedCall] = {}
        self._follows = _following(self._primitives)
        self._least_factors: dict[tuple[Operation, int, int], LeastFactor] = {}
        self._known_factors: dict[frozenset[Factors], LeastFactor] = {}
        self._bounds: dict[
            tuple[Operation, int, int, LeastFactor], list[tuple[float, Sampled]]
        ] = {}
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
        self, operation: Operation, shape: Shape5, out: Shape5, cutoff: float = inf
    ) -> list[Offer]:
        """Return the offers for one call, without those that another beats in all respects.

        Args:
            operation: the operation.
            shape: the shape of the input.
            out: the shape of the output.
            cutoff: the seconds of the slowest offer wanted. The result may contain slower ones.
        """
        return self.call(operation, shape, out).offers_within(cutoff)

    def call(self, operation: Operation, shape: Shape5, out: Shape5) -> PricedCall:
        """Return the offers for one call, priced as far as they were asked for.

        Args:
            operation: the operation.
            shape: the shape of the input.
            out: the shape of the output.
        """
        key = (self.nameless(operation), shape, out)
        if key not in self._known:
            voxels, each = out.n * out.size.volume, out.n // shape.n
            factor = self._least_factor(key[0], shape.f, shape.n)
            waiting = [
                Bounded(voxels * least, it.primitive)
                for least, it in self._bounded(key[0], shape.f, each, factor)
                if it.applies or it.primitive.out_shape(key[0], shape) == out
            ]
            others = (it.seconds for it in waiting if it.primitive.name not in self._follows)
            seconds = self._seconds.setdefault((key[0], shape.size, each), {})
            self._known[key] = PricedCall(
                waiting,
                lambda primitive: self._noted(primitive, key, seconds),
                lambda primitive: (
                    factor(primitive) * self._least_known(primitive.name, shape.n, seconds)
                ),
                lambda offer: self._in_pieces(offer, factor),
                min(others, default=inf),
                lambda primitive: self._computes_one(primitive, *key),
            )
        return self._known[key]

    def _computes_one(
        self, primitive: Primitive, operation: Operation, shape: Shape5, out: Shape5
    ) -> bool:
        """Return whether a primitive computes one item of a call."""
        one = shape._replace(n=1), out._replace(n=out.n // shape.n)
        return primitive.out_shape(operation, one[0]) == one[1]

    def _least_factor(self, operation: Operation, features: int, items: int) -> LeastFactor:
        """Return the function from a primitive to its least factor for an operation.

        Args:
            operation: the operation.
            features: the number of input maps.
            items: the most items of the input.
        """
        key = (operation, features, items)
        if key not in self._least_factors:
            powers = range(round(log2(items)) + 1)
            shapes = (Shape5.of(2**it, features, ONE) for it in powers)
            factors = frozenset(self._model.factors(operation, it) for it in shapes)
            # calls whose factors are the same share the function, and what is known by it
            self._least_factors[key] = self._known_factors.setdefault(factors, _least_of(factors))
        return self._least_factors[key]

    def _in_pieces(self, offer: Offer, factor: LeastFactor) -> float | None:
        """Return a bound on the seconds of an offer's items in any pieces, as in ``PricedCall``."""
        if offer.primitive.name not in self._follows:
            return None
        return ROUNDED * factor(offer.primitive) * built_in_seconds(offer.primitive, offer.cost)

    def least_seconds(
        self, operation: Operation, shape: Shape5, out: Shape5, cutoff: float, sizes: Iterable[int]
    ) -> float:
        """Return a lower bound on the seconds for all items of a call, in any pieces.

        Args:
            operation: the operation.
            shape: the shape of the input.
            out: the shape of the output.
            cutoff: the seconds from which on the bound need not be any tighter.
            sizes: the numbers of items that a piece may have, beside all of them.
        """
        share = min((shape.n / (size * -(-shape.n // size)) for size in sizes), default=1.0)
        return self.call(operation, shape, out).least_in_pieces(cutoff, share)

    def _noted(self, primitive: Primitive, key: CallKey, seconds: KnownSeconds) -> Offer | None:
        """Return a primitive's offer for one call, and note its built-in seconds.

        Args:
            primitive: the primitive.
            key: the call.
            seconds: those known for this operation on images of this size.
        """
        offer = self.priced(primitive, *key)
        if offer and primitive.name in self._follows:
            known = seconds.setdefault(primitive.name, [])
            known.append((offer.items, built_in_seconds(primitive, offer.cost)))
        return offer

    def _least_known(self, name: str, items: int, seconds: KnownSeconds) -> float:
        """Return a bound on a primitive's built-in seconds for some items, from known ones.

        Args:
            name: the primitive's name.
            items: the number of items.
            seconds: those known for this operation on images of this size.
        """
        return max(
            (
                ROUNDED * known / -(-more // items)  # the number of calls for all of those items
                for faster in self._follows.get(name, ())
                for more, known in seconds.get(faster, ())
                if more >= items
            ),
            default=0.0,
        )

    def priced(
        self, primitive: Primitive, operation: Operation, shape: Shape5, out: Shape5
    ) -> Offer | None:
        """Return a primitive's offer for one call, if it applies."""
        if primitive.out_shape(operation, shape) != out:
            return None
        self.count += 1
        cost = primitive.cost(operation, shape)
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
        most_items: int | None = None,
    ) -> float:
        """Return the least seconds per output voxel and item; infinite if no primitive applies.

        Args:
            operation: the operation.
            features: the number of input maps.
            each: the number of output items for each item of the input.
            among: the names of the primitives that count; None: all.
            most_items: the most items of the input; None: those of any batch.
        """
        items = most_items or self._most_items
        factor = self._least_factor(self.nameless(operation), features, items)
        sampled = self._sampled(operation, features, each)
        counted = [it for it in sampled if among is None or it.primitive.name in among]
        fastest = self._fastest(counted)
        return min(
            (
                it.bound(fastest[type(it.primitive)], factor)
                for it in counted
                if type(it.primitive) in fastest  # it may apply to other shapes, as others do
            ),
            default=inf,
        )

    def _bounded(
        self, operation: Operation, features: int, each: int, factor: LeastFactor
    ) -> list[tuple[float, Sampled]]:
        """Return all primitives after their least seconds per output voxel, slowest first.

        Args:
            operation: the operation.
            features: the number of input maps.
            each: the number of output items for each item of the input.
            factor: the function that returns a primitive's least factor.
        """
        key = (operation, features, each, factor)
        if key not in self._bounds:
            sampled = self._sampled(operation, features, each)
            fastest = self._fastest(sampled)
            bounds = [
                (it.bound(fastest.get(type(it.primitive), 0.0), factor), it)
                for it in reversed(sampled)
            ]
            # Of those with the same bound, the first is priced first, because others follow it.
            self._bounds[key] = sorted(bounds, key=lambda it: -it[0])
        return self._bounds[key]

    def _fastest(self, sampled: Collection[Sampled]) -> dict[type[Primitive], float]:
        """Return the least seconds per output voxel over the sample that count for each kind.

        If a kind takes its time per item, its own primitives count. Otherwise all primitives count:
        the fastest shape of a whole image's transform is perhaps not sampled.
        """
        least_of: dict[type[Primitive], float] = {}
        for it in sampled:
            if it.applies:
                kind = type(it.primitive)
                least_of[kind] = min(it.seconds, least_of.get(kind, inf))
        of_all = min(least_of.values(), default=inf)
        others = {type(it.primitive) for it in sampled if it.primitive.name not in self._follows}
        return {kind: of_all if kind in others else least for kind, least in least_of.items()}

    def _sampled(self, operation: Operation, features: int, each: int) -> list[Sampled]:
        """Return all primitives, with their least seconds per output voxel over the sample.

        Args:
            operation: the operation.
            features: the number of input maps.
            each: the number of output items for each item of the input.
        """
        key = (self.nameless(operation), features, each)
        if key not in self._least:
            steps = self._steps(*key)
            most = max((step.shape_in.n for step in steps), default=0)
            largest = [step for step in steps if step.shape_in.n == most]
            by_name: dict[str, Sampled] = {}
            for primitive in self._able(key[0]):
                # Fewer items take no less time per item, and following primitives are never faster.
                followed = self._follows.get(primitive.name, (primitive.name,))
                known = [by_name[name].seconds for name in followed if name in by_name]
                least = Sampled(primitive, max(known, default=0.0), states_seconds=False)
                if not least.seconds and primitive.name in self._follows:
                    least = self._sample_of(primitive, largest)
                if not 0.0 < least.seconds < inf:  # it may apply to fewer items alone
                    least = self._sample_of(primitive, steps)
                by_name[primitive.name] = least
            self._least[key] = list(by_name.values())
        return self._least[key]

    def _steps(self, operation: Operation, features: int, each: int) -> list[Step]:
        """Return the sampled steps, whose arguments are those of ``_sampled``."""
        steps = sample_steps(operation, features, plain=each == 1)
        return [step for step in steps if step.shape_in.n <= self._most_items]

    def _sample_of(self, primitive: Primitive, steps: Iterable[Step]) -> Sampled:
        """Return a primitive after its least seconds per output voxel over some steps."""
        fastest = Sampled(primitive, inf, states_seconds=False)
        for step in steps:
            shape, out = step.shape_in, step.shape_out
            if primitive.out_shape(step.operation, shape) == out:
                cost = primitive.cost(step.operation, shape)
                seconds = built_in_seconds(primitive, cost) / (out.n * out.size.volume)
                if seconds < fastest.seconds:
                    fastest = Sampled(primitive, seconds, states_seconds=cost.seconds is not None)
        return fastest


def _least_of(factors: Collection[Factors]) -> LeastFactor:
    """Return the function from a primitive to the least of its factors."""
    known: dict[str, float] = {}

    def least(primitive: Primitive) -> float:
        if primitive.name not in known:
            known[primitive.name] = min(factor(primitive).times for factor in factors)
        return known[primitive.name]

    return least


def _samples(primitives: tuple[Primitive, ...], most_items: int) -> Samples:
    """Return the samples of such prices, which several searches share."""
    try:
        return _shared_samples((primitives, most_items))
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
