"""Lists of pieces: all lists that no other beats, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
from fakes import Fake
from hypothesis import given
from hypothesis import strategies as st

from planner.micro_batches import Limit, Offer, listings, piece_sizes
from znni.core.option_types import Division
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import convolved

Figures = tuple[float, int, int]

PRIMITIVES = [Fake(f"fake{number}", convolved) for number in range(3)]


@st.composite
def offers(draw: st.DrawFn, sizes: list[int], most: int) -> list[Offer]:
    numbers = st.integers(0, 5)
    chosen = draw(
        st.lists(
            st.tuples(st.sampled_from(PRIMITIVES), st.sampled_from(sizes)),
            unique=True,
            min_size=1,
            max_size=most,
        )
    )
    return [
        Offer(
            primitive,
            items,
            Cost(1.0, 0.0, Memory.beside(0, draw(numbers), draw(numbers)), 1.0),
            float(draw(st.integers(1, 12))),
            0.1,
        )
        for primitive, items in chosen
    ]


def every_list(batch: int, parts: list[Offer]) -> Iterator[tuple[tuple[int, Offer], ...]]:
    """Yield every way to make up a batch of pieces, in any order."""
    if batch == 0:
        yield ()
    elif parts and batch > 0:
        first, *rest = parts
        for times in range(batch // first.items + 1):
            taken = ((times, first),) if times else ()
            for others in every_list(batch - times * first.items, rest):
                yield (*taken, *others)


def figures(taken: tuple[tuple[int, Offer], ...]) -> Figures:
    memories = [offer.cost.memory for _, offer in taken]
    return (
        sum(times * offer.seconds for times, offer in taken),
        max(memory.workspace for memory in memories),
        sum(memory.resident for memory in memories),
    )


def is_beaten(one: Figures, others: list[Figures]) -> bool:
    return any(all(a <= b for a, b in zip(other, one, strict=True)) for other in others)


@pytest.mark.parametrize("division", ["power-of-two", "all"])
@given(data=st.data(), batch=st.integers(2, 13))
def test_lists_are_the_best_of_all_there_are(
    division: Division, data: st.DataObject, batch: int
) -> None:
    parts = data.draw(offers(piece_sizes(batch, division), 5))
    whole = data.draw(offers([batch], 2) | st.just([]))
    found = listings(batch, whole, parts)
    known = [
        (offer.seconds, offer.cost.memory.workspace, offer.cost.memory.resident) for offer in whole
    ]
    for listing in found:
        assert sum(times * offer.items for times, offer in listing.taken) == batch
        assert figures(listing.taken) == (listing.seconds, listing.workspace, listing.resident)
        known.append(figures(listing.taken))
    for taken in every_list(batch, parts):
        assert is_beaten(figures(taken), known)


@given(data=st.data(), batch=st.integers(2, 13))
def test_a_limit_leaves_out_only_what_is_beyond_it(data: st.DataObject, batch: int) -> None:
    parts = data.draw(offers(piece_sizes(batch, "all"), 5))
    whole = data.draw(offers([batch], 2) | st.just([]))
    pairs = st.tuples(st.integers(1, 40), st.integers(0, 12))
    limit = Limit(data.draw(st.lists(pairs, max_size=3)))
    within = [
        it
        for it in listings(batch, whole, parts)
        if any(
            it.seconds < seconds and it.workspace + it.resident <= memory
            for seconds, memory in limit.pairs
        )
    ]
    assert listings(batch, whole, parts, limit) == within


@given(data=st.data(), batch=st.sampled_from([6, 8, 12]))
def test_under_each_limit_the_fastest_list_is_there(data: st.DataObject, batch: int) -> None:
    """Workspace reuse asks for the least time within a limit of workspace."""
    parts = data.draw(offers(piece_sizes(batch, "all"), 4))
    found = listings(batch, [], parts)
    for limit in range(6):
        best = min(
            (figures(t)[0] for t in every_list(batch, parts) if figures(t)[1] <= limit), default=inf
        )
        assert min((it.seconds for it in found if it.workspace <= limit), default=inf) == best


def test_sizes_of_pieces() -> None:
    assert piece_sizes(8, "none") == []
    assert piece_sizes(8, "power-of-two") == [1, 2, 4]
    assert piece_sizes(9, "power-of-two") == [1, 2, 4, 8]
    assert piece_sizes(4, "all") == [1, 2, 3]
    assert piece_sizes(1, "all") == piece_sizes(1, "power-of-two") == []


def test_what_is_beaten_by_a_primitive_for_the_whole_batch_is_not_listed() -> None:
    cost = Cost(1.0, 0.0, Memory.beside(0, workspace=7), 1.0)
    whole = Offer(PRIMITIVES[0], 4, cost, 4.0, 0.1)
    part = Offer(PRIMITIVES[0], 1, cost, 1.0, 0.1)
    assert listings(4, [whole], [part]) == []
    (listing,) = listings(4, [], [part])
    assert listing.primitive.name == "4x1 fake0"
    assert listing.error == pytest.approx(0.1)
