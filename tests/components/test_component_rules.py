"""Rules are checked when they are made, and grouped if their order does not matter."""

from __future__ import annotations

from typing import Any

import pytest

from znni.components.rules import KeepLargest, RemoveSmall, Rule, groups_of, rules_from
from znni.core.errors import InvalidInput


def test_rules_of_a_file() -> None:
    entries = [
        {"keep_largest": {"labels": [1, 2], "connectivity": 6}},
        {"remove_small": {"labels": [3], "volume": 2.5, "background": 4}},
    ]
    assert rules_from(entries) == (
        KeepLargest((1, 2), connectivity=6),
        RemoveSmall((3,), volume=2.5, background=4),
    )
    assert rules_from([]) == ()


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"keep_largest": {"labels": [1]}}, "give a list of them"),
        (["keep_largest"], "give keep_largest: {labels: "),
        ([{"keep_largest": {"background": 0}}], "give keep_largest: {labels: "),
        ([{"keep_largest": {"labels": 1}}], "give keep_largest: {labels: "),
        ([{"keep_largest": {"labels": [1]}, "voxels": 2}], "give keep_largest: {labels: "),
        ([{"keep_largest": {"labels": [1], "voxels": 2}}], "has voxels; give background, conn"),
        ([{"remove_small": {"labels": [1], 3: 4}}], "has 3; give background, "),
        ([{"keep_largest": {"labels": []}}], "give labels and a background from 0 to 65535"),
        ([{"keep_largest": {"labels": [1, 2.0]}}], "give labels and a background from 0"),
        ([{"keep_largest": {"labels": [True]}}], "give labels and a background from 0"),
        ([{"keep_largest": {"labels": [65536]}}], "give labels and a background from 0"),
        ([{"keep_largest": {"labels": [1], "background": -1}}], "give labels and a background"),
        ([{"keep_largest": {"labels": [1], "connectivity": 8}}], "give the connectivity 6, 18"),
        ([{"remove_small": {"labels": [1]}}], "give one of voxels and volume"),
        ([{"remove_small": {"labels": [1], "voxels": 2, "volume": 2}}], "give one of voxels and"),
        ([{"remove_small": {"labels": [1], "voxels": 1.5}}], "give voxels as an integer"),
        ([{"remove_small": {"labels": [1], "volume": "2"}}], "volume as a number"),
        ([{"remove_small": {"labels": [1], "voxels": -1}}], "give voxels or volume above 0"),
        ([{"remove_small": {"labels": [1], "volume": float("nan")}}], "give voxels or volume abo"),
    ],
)
def test_what_is_no_rule_is_refused(entries: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        rules_from(entries)


def test_rules_whose_order_does_not_matter_are_one_group() -> None:
    whole = KeepLargest((1, 2, 3))
    each: list[Rule] = [KeepLargest((1,)), RemoveSmall((2,), voxels=5), KeepLargest((3,))]
    assert groups_of([whole, *each]) == [(whole,), tuple(each)]
    becomes_2 = KeepLargest((1,), background=2)
    assert len(groups_of([becomes_2, KeepLargest((2,))])) == 2
    assert len(groups_of([KeepLargest((2,)), becomes_2])) == 2
    assert len(groups_of([becomes_2, KeepLargest((3,))])) == 1
    assert len(groups_of([KeepLargest((1,)), KeepLargest((2,), connectivity=6)])) == 2
    assert groups_of([]) == []
