"""Blocks of a column go to one taker, in order, and all takers end at about the same time."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from znni.core.shapes import Vec3
from znni.engine.shares import Shares
from znni.engine.tiles import Remaining, make_job
from znni.network.layers import Conv
from znni.network.network import Network

NETWORK = Network.chain("one", 1, (Conv("conv", 1, 1, Vec3(3, 3, 3), "identity"),))


@given(
    st.lists(st.integers(1, 9), max_size=8), st.lists(st.integers(0, 3), min_size=80, max_size=80)
)
def test_each_block_is_taken_once_by_takers_of_any_pace(
    columns: list[int], paces: list[int]
) -> None:
    blocks = [[(column, at) for at in range(length)] for column, length in enumerate(columns)]
    shares = Shares[int, tuple[int, int]](blocks)
    taken = defaultdict[int, list[tuple[int, int]]](list)
    for taker in [*paces, *range(4)]:
        if (block := shares.next_for(taker)) is not None:
            taken[taker].append(block)
    assert sorted(chain(*taken.values())) == list(chain(*blocks))


def test_a_column_goes_to_one_taker_and_the_last_ones_are_divided() -> None:
    shares = Shares[str, int]([range(8), range(10, 18), range(20, 28)])
    assert [shares.next_for(taker) for taker in "abab"] == [0, 10, 1, 11]
    assert [shares.next_for("c") for _ in range(8)] == [*range(20, 28)]
    assert [shares.next_for("c") for _ in range(3)] == [5, 6, 7], "half of six blocks"
    shares.leave("b")
    assert [shares.next_for("a") for _ in range(10)] == [2, 3, 4, *range(12, 18), None]


def test_without_a_sweep_all_take_the_next_block() -> None:
    job = make_job(NETWORK, Vec3(6, 6, 6), "valid", None, None)
    tiles = list(Remaining(job).tiles(Vec3(2, 2, 4)))
    columns = list(Remaining(job).columns(Vec3(2, 2, 4)))
    assert columns == [[tile] for tile in tiles]
    shares = Shares(columns)
    assert [shares.next_for(taker) for taker in range(len(tiles))] == tiles
    along_y = list(Remaining(job).columns(Vec3(2, 2, 4), swept="y"))
    assert along_y == [[tiles[0], tiles[1]], [tiles[2], tiles[3]]]
