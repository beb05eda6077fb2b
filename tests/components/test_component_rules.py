"""Rules are checked when they are made, and grouped if their order does not matter."""

from __future__ import annotations

from typing import Any

import pytest

from znni.components.rules import KeepLargest, RemoveSmall, Rule, groups_of
from znni.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("kind", "options", "problem"),
    [
        (KeepLargest, {"labels": ()}, "give labels and a background from 0 to 65535"),
        (KeepLargest, {"labels": (1, 2.0)}, "give labels and a background from 0"),
        (KeepLargest, {"labels": (True,)}, "give labels and a background from 0"),
        (KeepLargest, {"labels": (65536,)}, "give labels and a background from 0"),
        (KeepLargest, {"labels": (1,), "background": -1}, "give labels and a background"),
        (KeepLargest, {"labels": (1,), "connectivity": 8}, "give the connectivity 6, 18"),
        (RemoveSmall, {"labels": (1,)}, "give one of voxels and volume"),
        (RemoveSmall, {"labels": (1,), "voxels": 2, "volume": 2}, "give one of voxels and"),
        (RemoveSmall, {"labels": (1,), "voxels": 1.5}, "give voxels as an integer"),
        (RemoveSmall, {"labels": (1,), "volume": "2"}, "volume as a number"),
        (RemoveSmall, {"labels": (1,), "voxels": -1}, "give voxels or volume above 0"),
        (RemoveSmall, {"labels": (1,), "volume": float("nan")}, "give voxels or volume abo"),
    ],
)
def test_numbers_out_of_range_are_refused(
    kind: type[Rule], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        kind(**options)


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
