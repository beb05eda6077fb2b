"""Batches in pieces: the fastest lists of pieces for every amount of memory.

The dynamic program of micro-cuDNN's workspace reuse (Oyama et al., 2018, section III-B), for all
limits at once: where that asks for the fastest list under one limit, this keeps every list that no
other beats in time, workspace and resident memory together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from planner.pareto import Front
from znni.core.options import Division
from znni.plans.cost import Cost
from znni.plans.micro_batches import MicroBatches, Piece
from znni.plans.primitive import Primitive


@dataclass(frozen=True)
class Offer:
    """A primitive for some items of a batch, and what one call takes."""

    primitive: Primitive
    items: int
    cost: Cost
    seconds: float
    error: float

    @property
    def kept(self) -> int:
        """Bytes of workspace and resident memory."""
        return self.cost.memory.workspace + self.cost.memory.resident

    def is_as_good_for_all(self, other: Offer, batch: int) -> bool:
        """Whether doing a batch of ``batch`` items is no worse than any list of the other's pieces.

        In time for each of its items, workspace and resident memory.
        """
        mine, theirs = self.cost.memory, other.cost.memory
        return (
            self.seconds * other.items <= other.seconds * batch
            and mine.workspace <= theirs.workspace
            and mine.resident <= theirs.resident
        )


@dataclass(frozen=True)
class Listing:
    """Pieces for some items of a batch: how often each offer is taken."""

    seconds: float
    workspace: int
    resident: int
    taken: tuple[tuple[int, Offer], ...]

    def and_more(self, times: int, offer: Offer) -> Listing:
        """With an offer that it has not yet."""
        memory = offer.cost.memory
        return Listing(
            self.seconds + times * offer.seconds,
            max(self.workspace, memory.workspace),
            self.resident + memory.resident,
            (*self.taken, (times, offer)),
        )

    @property
    def primitive(self) -> MicroBatches:
        """What computes the batch so."""
        return MicroBatches(
            tuple(Piece(times, offer.items, offer.primitive) for times, offer in self.taken)
        )

    @property
    def error(self) -> float:
        """Of the predicted time, as a share of it; as of a plan's steps."""
        off = sum(times * offer.seconds * offer.error for times, offer in self.taken)
        return off / self.seconds


NOTHING = Listing(0.0, 0, 0, ())


class Limit:
    """What is wanted of lists of pieces: less than some seconds within some bytes of memory.

    Args:
        pairs: of seconds, and bytes of workspace and resident memory together; what is within any
            of them is wanted.
    """

    def __init__(self, pairs: Iterable[tuple[float, float]]) -> None:
        self._seconds: list[float] = []  # rising
        self._memory: list[float] = []  # of the same pairs: falling
        for seconds, memory in sorted(pairs):
            while self._memory and self._memory[-1] <= memory:
                self._seconds.pop()
                self._memory.pop()
            self._seconds.append(seconds)
            self._memory.append(memory)

    def holds(self, seconds: float, memory: float) -> bool:
        """Whether so much is within it."""
        index = bisect_right(self._seconds, seconds)
        return index < len(self._seconds) and memory <= self._memory[index]

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Those that no other one covers."""
        return list(zip(self._seconds, self._memory, strict=True))

    def covers(self, other: Limit) -> bool:
        """Whether all that is within the other is within this."""
        return all(
            any(seconds <= s and memory <= m for s, m in self.pairs)
            for seconds, memory in other.pairs
        )

    def or_within(self, other: Limit) -> Limit:
        """The least limit that covers both."""
        return Limit([*self.pairs, *other.pairs])


NO_LIMIT = Limit([(inf, inf)])


def piece_sizes(batch: int, division: Division) -> list[int]:
    """Items that a piece of a batch may have, less than all of them, in rising order."""
    if division == "none":
        return []
    if division == "all":
        return list(range(1, batch))
    return [2**power for power in range(batch.bit_length()) if 2**power < batch]


def listings(
    batch: int, whole: Sequence[Offer], parts: Iterable[Offer], limit: Limit = NO_LIMIT
) -> list[Listing]:
    """Every list of pieces for a batch that none beats in seconds, workspace and resident memory.

    Args:
        batch: items.
        whole: offers for all of them at once; they are not listed, but what they beat is left out.
        parts: offers for fewer.
        limit: of the lists that are wanted.
    """
    offers = _affordable(batch, parts, limit)
    # Of a list's pieces, the one that takes the least time for an item names the offer for all
    # that beats it.
    if all(any(one.is_as_good_for_all(part, batch) for one in whole) for part in offers):
        return []
    least = offers[0].seconds / offers[0].items

    def best(items: int, known: list[Listing], more: Iterable[Listing]) -> list[Listing]:
        """Of the lists for so many of the items, those that are to be gone on with."""
        others = (batch - items) * least
        added = [it for it in more if limit.holds(it.seconds + others, it.workspace + it.resident)]
        return undominated([*known, *added]) if added else known

    leading = _leading(offers)
    found: list[Listing] = []
    rests = {0: [NOTHING]}  # the best lists by the offers after one, for each number of items
    for one, wanted in zip(reversed(leading), reversed(_wanted(batch, leading)), strict=True):
        found = best(batch, found, one.lists(batch, rests))
        more = {n: best(n, rests.get(n, []), one.lists(n, rests)) for n in wanted}
        rests = {0: [NOTHING]} | more
    return found


def _affordable(batch: int, parts: Iterable[Offer], limit: Limit) -> list[Offer]:
    """The offers that a list within the limit may have, those of the least time an item first.

    With one of an offer's pieces, all other items take the least time that any offer has for one.
    """
    fitting = [offer for offer in parts if limit.holds(offer.seconds, offer.kept)]
    offers = sorted(fitting, key=lambda offer: offer.seconds / offer.items)
    if not offers:
        return []
    least = offers[0].seconds / offers[0].items
    return [o for o in offers if limit.holds(o.seconds + (batch - o.items) * least, o.kept)]


@dataclass(frozen=True)
class _Leading:
    """An offer of which the other pieces of a list take no less time for an item.

    Attributes:
        offer: that one.
        is_chained: whether all others' items divide its items or are a multiple of them.
    """

    offer: Offer
    is_chained: bool

    def times(self, items: int) -> range:
        """How often it may be taken, if it is, in a list that none beats.

        Other pieces that make up a multiple of its items would be done by it instead, in no more
        time or memory. If its items divide all, the others together are such a multiple; and if
        they are chained, some of the others are, whenever they add up to as many.
        """
        most, left = divmod(items, self.offer.items)
        if left == 0 or self.is_chained:
            return range(max(most, 1), most + 1)
        return range(1, most + 1)

    def lists(self, items: int, rests: Mapping[int, list[Listing]]) -> list[Listing]:
        """With it, for so many items; the other pieces as ``rests`` lists them."""
        return [
            rest.and_more(times, self.offer)
            for times in self.times(items)
            for rest in rests.get(items - times * self.offer.items, [])
        ]


def _leading(offers: Sequence[Offer]) -> list[_Leading]:
    """Each offer before those that take more time for an item, which come after it."""
    found, others = [], set[int]()
    for offer in reversed(offers):
        mine = offer.items
        found.append(_Leading(offer, all(mine % n == 0 or n % mine == 0 for n in others)))
        others.add(mine)
    return found[::-1]


def _wanted(batch: int, leading: Sequence[_Leading]) -> list[set[int]]:
    """The numbers of items that those before each leave to it and those after it."""
    wanted = [set[int]()]
    for one in leading[:-1]:
        left = {
            items - times * one.offer.items
            for items in {batch, *wanted[-1]}
            for times in one.times(items)
        }
        wanted.append(wanted[-1] | left - {0})
    return wanted


def undominated(found: Iterable[Listing]) -> list[Listing]:
    """Those that no other equals or beats in all three, fastest first."""
    front = Front()
    return [
        one
        for one in sorted(found, key=lambda it: (it.seconds, it.workspace, it.resident))
        if front.admits(one.workspace, one.resident)
    ]


def undominated_offers(offers: Iterable[Offer]) -> list[Offer]:
    """Offers for the same items that no other equals or beats in time and all memory."""
    kept: list[Offer] = []
    for one in sorted(offers, key=lambda offer: offer.seconds):
        memory = one.cost.memory
        if not any(
            k.cost.memory.workspace <= memory.workspace
            and k.cost.memory.working <= memory.working
            and k.cost.memory.resident <= memory.resident
            for k in kept
        ):
            kept.append(one)
    return kept
