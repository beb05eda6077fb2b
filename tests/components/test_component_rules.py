"""Rules are checked when they are made, and grouped if their order does not matter."""

from __future__ import annotations

from typing import Any

import pytest

from znni.components.rules import KeepLargest, groups_of
from znni.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"labels": ()}, "give labels and a background from 0 to 65535"),
        ({"labels": (1, 2.0)}, "give labels and a background from 0"),
        ({"labels": (True,)}, "give labels and a background from 0"),
        ({"labels": (65536,)}, "give labels and a background from 0"),
        ({"labels": (1,), "background": -1}, "give labels and a background"),
        ({"labels": (1,), "connectivity": 8}, "give the connectivity 6, 18"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        KeepLargest(**options)


def test_rules_whose_order_does_not_matter_are_one_group() -> None:
    whole = KeepLargest((1, 2, 3))
    each = [KeepLargest((label,)) for label in (1, 2, 3)]
    assert groups_of([whole, *each]) == [(whole,), tuple(each)]
    becomes_2 = KeepLargest((1,), background=2)
    assert len(groups_of([becomes_2, KeepLargest((2,))])) == 2
    assert len(groups_of([KeepLargest((2,)), becomes_2])) == 2
    assert len(groups_of([becomes_2, KeepLargest((3,))])) == 1
    assert len(groups_of([KeepLargest((1,)), KeepLargest((2,), connectivity=6)])) == 2
    assert groups_of([]) == []
