"""The price of one call: the offers of all primitives for it, the cheapest first."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from math import inf, isfinite
from typing import NamedTuple, TypeAlias

from planner.micro_batches import Offer, undominated_offers
from znni.plans.primitive import Primitive

# Bounds on speed come from a sample of shapes. A shape outside the sample may be a little faster
# per voxel. Bounds are multiplied by these factors before they rule something out. The first is for
# the fastest primitive of a kind, or of all kinds. The second is for one primitive. Over random
# shapes of convolutions with kernels up to 9^3, the least ratios were 0.95 and 0.866.
FASTEST_SLACK = 0.94
BOUND_SLACK = 0.85

# Returns the least factor of a primitive for a call, and for calls of fewer items.
LeastFactor: TypeAlias = Callable[[Primitive], float]


class Bounded(NamedTuple):
    """A primitive after a lower bound on its seconds for a call, or for a voxel."""

    seconds: float
    primitive: Primitive


class Sampled(NamedTuple):
    """A primitive, and its least time for an operation over a sample of shapes.

    Attributes:
        seconds: its least built-in seconds per output voxel; infinite if it applies to no shape of
            the sample.
        states_seconds: whether its costs say their own seconds, so that no factor changes them.
    """

    primitive: Primitive
    seconds: float
    states_seconds: bool

    @property
    def applies(self) -> bool:
        """True if it applies to some shape of the sample."""
        return isfinite(self.seconds)

    def bound(self, fastest: float, factor: LeastFactor) -> float:
        """Return its least seconds per output voxel for any shape.

        Args:
            fastest: the sample's least seconds of primitives like it.
            factor: the function that returns its least factor.
        """
        own = BOUND_SLACK * self.seconds if self.applies else 0.0
        return max(own, FASTEST_SLACK * fastest) * (
            1.0 if self.states_seconds else factor(self.primitive)
        )


class PricedCall:
    """The offers for one call, priced as far as they were asked for.

    Args:
        waiting: the primitives without a price yet, slowest first.
        price: the function that returns a primitive's offer, if it applies.
        least: the function that returns a bound on the seconds of a primitive, from prices that are
            known by now.
        in_pieces: the function that returns a bound on the seconds of an offer's items, computed
            in any pieces; None if its primitive may be faster per item for fewer items.
        least_of_others: the least seconds of such primitives.
        computes_fewer: whether a primitive without an offer for all items has one for fewer.
    """

    def __init__(
        self,
        waiting: list[Bounded],
        price: Callable[[Primitive], Offer | None],
        least: Callable[[Primitive], float],
        in_pieces: Callable[[Offer], float | None],
        least_of_others: float,
        computes_fewer: Callable[[Primitive], bool],
    ) -> None:
        self._waiting = waiting
        self._computes_fewer = computes_fewer
        self._without_offer: list[Bounded] = []
        self._in_pieces = in_pieces
        self._least_of_others = least_of_others
        self._price = price
        self._least = least
        self._priced: list[Offer] = []
        self._undominated: list[Offer] | None = []

    @property
    def least_waiting(self) -> float:
        """The least seconds of the offers that are not priced yet."""
        while self._waiting:
            bound, primitive = self._waiting[-1]
            least = self._least(primitive)
            if least <= bound:
                return bound
            self._waiting.pop()
            insort(self._waiting, Bounded(least, primitive), key=lambda it: -it.seconds)
        return inf

    @property
    def offers(self) -> list[Offer]:
        """The offers that are priced, without those that another beats in all respects."""
        if self._undominated is None:
            self._priced = self._undominated = undominated_offers(self._priced)
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
            (it.seconds for it in self._priced if _fits(it, room, arrays, beside=beside)),
            default=inf,
        )

    def least_in_pieces(self, cutoff: float, share: float) -> float:
        """Return a lower bound on the seconds of all items, in any pieces.

        Args:
            cutoff: the seconds from which on the bound need not be any tighter.
            share: the items, as a share of those that whole pieces of any size cover.
        """
        known = (self._in_pieces(it) for it in self._priced)
        least = share * min((it for it in known if it is not None), default=inf)
        while self.least_waiting < min(least, cutoff, self._least_of_others):
            offer = self.price_next()
            if offer and (seconds := self._in_pieces(offer)) is not None:
                least = min(least, share * seconds)
        self._without_offer = [
            it for it in self._without_offer if self._computes_fewer(it.primitive)
        ]
        fewer = min((it.seconds for it in self._without_offer), default=inf)
        return min(least, share * min(self.least_waiting, fewer), self._least_of_others)

    def price_next(self) -> Offer | None:
        """Price the offer that may be fastest of those that are not priced yet, and return it."""
        bound, primitive = self._waiting.pop()
        offer = self._price(primitive)
        if offer:
            self._priced = [*self._priced, offer]
            self._undominated = None
        else:
            self._without_offer.append(Bounded(bound, primitive))
        return offer

    def next_seconds(self, room: float, arrays: int, *, beside: bool) -> float:
        """Return the seconds of the offer priced next, if it applies and fits; else infinity.

        It takes the same arguments as ``fastest``.
        """
        offer = self.price_next()
        return offer.seconds if offer and _fits(offer, room, arrays, beside=beside) else inf


def _fits(offer: Offer, room: float, arrays: int, *, beside: bool) -> bool:
    """Return whether an offer takes no more than some bytes, as in ``PricedCall.fastest``."""
    memory = offer.cost.memory
    return (arrays + memory.workspace if beside else memory.working) + memory.resident <= room
