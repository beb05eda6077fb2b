"""Composed arrays: any part of them is that of the array in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from znni.cases.arrays import OneHot, Overlaid, Pasted, Renumbered, Stacked, Turn, Turned
from znni.core.shapes import Vec3


def part_of(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return slices of a part that is not empty."""
    starts = [draw(st.integers(0, extent - 1)) for extent in shape]
    return tuple(
        slice(start, draw(st.integers(start + 1, extent)))
        for start, extent in zip(starts, shape, strict=True)
    )


def numbered(*shape: int) -> NDArray[np.int32]:
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


@given(st.data())
def test_turned(data: st.DataObject) -> None:
    axes = data.draw(st.permutations([0, 1, 2]))
    signs = data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    whole = numbered(2, 3, 4, 5)
    turn = Turn((axes[0], axes[1], axes[2]), signs)
    turned = Turned(whole, turn)
    back = [axis + 1 for axis, is_reversed in enumerate(signs) if is_reversed]
    expected = np.flip(whole.transpose(0, *(axis + 1 for axis in axes)), tuple(back))
    assert turned.shape == expected.shape
    key = part_of(data.draw, turned.shape)
    np.testing.assert_array_equal(turned[key], expected[key])
    again = Turned(turned, turn.inverse)
    np.testing.assert_array_equal(again[*(slice(None),) * 4], whole)


@given(st.data())
def test_pasted(data: st.DataObject) -> None:
    start = Vec3(*(data.draw(st.integers(0, 2)) for _ in "zyx"))
    inner, size = 1 + numbered(1, 2, 3, 4), Vec3(5, 5, 6)
    expected = np.zeros((1, *size), np.int32)
    expected[0, start.z : start.z + 2, start.y : start.y + 3, start.x : start.x + 4] = inner[0]
    around = data.draw(st.sampled_from([None, (9,)]))
    expected[expected == 0] = around[0] if around else 0
    pasted = Pasted(inner, size, start, around)
    key = part_of(data.draw, pasted.shape)
    np.testing.assert_array_equal(pasted[key], expected[key])


@given(st.data())
def test_one_hot(data: st.DataObject) -> None:
    labels = numbered(1, 3, 4, 5) % 4
    maps = OneHot(labels, (3, 1, 7))
    expected = np.stack([labels[0] == label for label in (3, 1, 7)])
    assert maps.shape == expected.shape
    key = part_of(data.draw, maps.shape)
    assert maps[key].dtype == np.float32
    np.testing.assert_array_equal(maps[key], expected[key])


@given(st.data())
def test_stacked(data: st.DataObject) -> None:
    parts = [numbered(maps, 2, 3, 2) + 1000 * maps for maps in (1, 2, 1)]
    stacked, expected = Stacked(parts), np.concatenate(parts)
    assert stacked.shape == expected.shape
    key = part_of(data.draw, stacked.shape)
    np.testing.assert_array_equal(stacked[key], expected[key])


@given(st.data())
def test_overlaid_and_renumbered(data: st.DataObject) -> None:
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    below, above = generator.integers(0, 3, (2, 1, 3, 4, 5))
    numbers = np.array([0, 7, 300], np.uint16)
    labels = Overlaid([Renumbered(below, numbers), Renumbered(above, numbers)])
    expected = np.where(above > 0, numbers[above], numbers[below])
    key = part_of(data.draw, labels.shape)
    np.testing.assert_array_equal(labels[key], expected[key])
    assert labels.dtype == np.uint16


def test_a_stack_has_a_type_for_all() -> None:
    assert Stacked([np.zeros((1, 2, 2, 2), np.uint8), np.zeros((1, 2, 2, 2), np.int16)]).dtype == (
        np.dtype(np.int16)
    )
