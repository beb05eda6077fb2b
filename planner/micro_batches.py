"""Batches in pieces: the fastest lists of pieces for every amount of memory.

This is the dynamic program of micro-cuDNN's workspace reuse (Oyama et al., 2018, section III-B),
for all limits at once. Micro-cuDNN asks for the fastest list under one limit. This module keeps
every list that no other list beats in time, workspace and resident memory together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from planner.pareto import Front
from znni.core.option_types import Division
from znni.plans.composed import Piece
from znni.plans.cost import Cost
from znni.plans.micro_batches import MicroBatches
from znni.plans.primitive import Primitive


@dataclass(frozen=True)
class Offer:
    """A primitive for some items of a batch, with the price of one call."""

    primitive: Primitive
    items: int
    cost: Cost
    seconds: float
    error: float

    @property
    def memory_bytes(self) -> int:
        """The bytes of workspace and resident memory."""
        return self.cost.memory.workspace + self.cost.memory.resident

    def is_as_good_for_all(self, other: Offer, batch: int) -> bool:
        """Return whether this offer's primitive beats or equals any list of the other's pieces.

        The comparison is for a batch of ``batch`` items that this offer computes. It covers the
        time per item, the workspace, the resident memory, and what both take on a GPU.
        """
        mine, theirs = self.cost.memory, other.cost.memory
        return (
            self.seconds * other.items <= other.seconds * batch
            and mine.workspace <= theirs.workspace
            and mine.resident <= theirs.resident
            and mine.gpu_working <= theirs.gpu_working
            and mine.gpu_resident <= theirs.gpu_resident
        )


@dataclass(frozen=True)
class Listing:
    """A list of pieces for some items of a batch: how often each offer is taken."""

    seconds: float
    workspace: int
    resident: int
    taken: tuple[tuple[int, Offer], ...]

    def extended_by(self, times: int, offer: Offer) -> Listing:
        """Return the listing with a further offer, which it does not contain yet."""
        memory = offer.cost.memory
        return Listing(
            self.seconds + times * offer.seconds,
            max(self.workspace, memory.workspace),
            self.resident + memory.resident,
            (*self.taken, (times, offer)),
        )

    @property
    def primitive(self) -> MicroBatches:
        """The primitive that computes the batch in these pieces."""
        return MicroBatches(
            tuple(Piece(times, offer.items, offer.primitive) for times, offer in self.taken)
        )

    @property
    def error(self) -> float:
        """The expected error of the predicted time, as a share of it."""
        off = sum(times * offer.seconds * offer.error for times, offer in self.taken)
        return off / self.seconds


NOTHING = Listing(0.0, 0, 0, ())


class Limit:
    """A limit on lists of pieces: less than some seconds, within some bytes of memory.

    Args:
        pairs: pairs of seconds and bytes. The bytes are workspace and resident memory together. A
            list is within the limit if it is within any of the pairs.
    """

    def __init__(self, pairs: Iterable[tuple[float, float]]) -> None:
        self._seconds: list[float] = []  # rising
        self._memory: list[float] = []  # the bytes of the same pairs, falling
        for seconds, memory in sorted(pairs):
            while self._memory and self._memory[-1] <= memory:
                self._seconds.pop()
                self._memory.pop()
            self._seconds.append(seconds)
            self._memory.append(memory)

    def holds(self, seconds: float, memory: float) -> bool:
        """Return whether these seconds and bytes are within the limit."""
        index = bisect_right(self._seconds, seconds)
        return index < len(self._seconds) and memory <= self._memory[index]

    @property
    def most_seconds(self) -> float:
        """The seconds below which everything within the limit is; 0 if nothing is within it."""
        return self._seconds[-1] if self._seconds else 0.0

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """The pairs that no other pair covers."""
        return list(zip(self._seconds, self._memory, strict=True))

    def covers(self, other: Limit) -> bool:
        """Return whether everything within the other limit is within this one."""
        return all(
            any(seconds <= s and memory <= m for s, m in self.pairs)
            for seconds, memory in other.pairs
        )

    def or_within(self, other: Limit) -> Limit:
        """Return the least limit that covers both."""
        return Limit([*self.pairs, *other.pairs])


NO_LIMIT = Limit([(inf, inf)])


def piece_sizes(batch: int, division: Division) -> list[int]:
    """Return the numbers of items that a piece of the batch may have, in rising order."""
    if division == "none":
        return []
    if division == "all":
        return list(range(1, batch))
    return [2**power for power in range(batch.bit_length()) if 2**power < batch]


def listings(
    batch: int, whole: Sequence[Offer], parts: Iterable[Offer], limit: Limit = NO_LIMIT
) -> list[Listing]:
    """Return every list of pieces that none beats in seconds, workspace and resident memory.

    Args:
        batch: the number of items.
        whole: the offers for the whole batch. They are not listed, but lists that they beat are
            left out.
        parts: the offers for fewer items.
        limit: the limit that the lists must be within.
    """
    offers = _affordable(batch, parts, limit)
    # Each list has a piece with the least time per item. An offer for the whole batch that beats
    # this piece beats the whole list.
    if all(any(one.is_as_good_for_all(part, batch) for one in whole) for part in offers):
        return []
    least = offers[0].seconds / offers[0].items

    def best(items: int, known: list[Listing], more: Iterable[Listing]) -> list[Listing]:
        """Return the best lists for some of the items, among those known and some more."""
        others = (batch - items) * least
        added = [it for it in more if limit.holds(it.seconds + others, it.workspace + it.resident)]
        return undominated([*known, *added]) if added else known

    leading = _leading(offers)
    fronts: list[Listing] = []
    rests = {0: [NOTHING]}  # for each number of items, the best lists from the later offers
    for one, wanted in zip(reversed(leading), reversed(_wanted(batch, leading)), strict=True):
        fronts = best(batch, fronts, one.lists(batch, rests))
        more = {n: best(n, rests.get(n, []), one.lists(n, rests)) for n in wanted}
        rests = {0: [NOTHING]} | more
    return fronts


def _affordable(batch: int, parts: Iterable[Offer], limit: Limit) -> list[Offer]:
    """Return the offers that a list within the limit may contain, least time per item first.

    A list contains at least one piece of such an offer. All other items take at least the least
    time per item of any offer.
    """
    fitting = [offer for offer in parts if limit.holds(offer.seconds, offer.memory_bytes)]
    offers = sorted(fitting, key=lambda offer: offer.seconds / offer.items)
    if not offers:
        return []
    least = offers[0].seconds / offers[0].items
    return [o for o in offers if limit.holds(o.seconds + (batch - o.items) * least, o.memory_bytes)]


@dataclass(frozen=True)
class _Leading:
    """An offer that is the fastest per item among the pieces of a list.

    Attributes:
        is_chained: whether its items divide, or are a multiple of, those of every slower offer.
    """

    offer: Offer
    is_chained: bool

    def times(self, items: int) -> range:
        """Return how often a list that none beats may take the offer, if it takes it.

        Some of the other pieces may add up to a multiple of the offer's items. Then the offer would
        compute those items instead, in no more time or memory. If the offer's items divide all
        items, the other pieces add up to such a multiple. If the offers are chained, some of the
        other pieces do, as soon as they have enough items.
        """
        most, left = divmod(items, self.offer.items)
        if left == 0 or self.is_chained:
            return range(max(most, 1), most + 1)
        return range(1, most + 1)

    def lists(self, items: int, rests: Mapping[int, list[Listing]]) -> list[Listing]:
        """Return lists for some items that take this offer; ``rests`` has their other pieces."""
        return [
            rest.extended_by(times, self.offer)
            for times in self.times(items)
            for rest in rests.get(items - times * self.offer.items, [])
        ]


def _leading(offers: Sequence[Offer]) -> list[_Leading]:
    """Return the offers as leading ones, each before the offers that take more time per item."""
    leading, others = [], set[int]()
    for offer in reversed(offers):
        mine = offer.items
        leading.append(_Leading(offer, all(mine % n == 0 or n % mine == 0 for n in others)))
        others.add(mine)
    return leading[::-1]


def _wanted(batch: int, leading: Sequence[_Leading]) -> list[set[int]]:
    """Return for each offer the numbers of items that the offers before it may leave."""
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
    """Return the lists that no other equals or beats in all three values, fastest first."""
    front = Front()
    return [
        one
        for one in sorted(found, key=lambda it: (it.seconds, it.workspace, it.resident))
        if front.admits(one.workspace, one.resident)
    ]


def undominated_offers(offers: Iterable[Offer]) -> list[Offer]:
    """Return the offers for the same items that no other equals or beats in all respects.

    These are the time, all memory, and whether the output may be a view with gaps.
    """
    undominated: list[Offer] = []
    for one in sorted(offers, key=lambda offer: offer.seconds):
        memory = one.cost.memory
        if not any(
            k.cost.memory.workspace <= memory.workspace
            and k.cost.memory.working <= memory.working
            and k.cost.memory.resident <= memory.resident
            and k.cost.memory.gpu_working <= memory.gpu_working
            and k.cost.memory.gpu_resident <= memory.gpu_resident
            and k.cost.writes_views >= one.cost.writes_views
            for k in undominated
        ):
            undominated.append(one)
    return undominated
