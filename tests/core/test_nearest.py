"""The known name that a mistyped one was meant to be."""

from __future__ import annotations

import pytest

from znni.core.nearest import nearest

MACHINES = ["a100-40", "rtx3090", "rtx4090", "rtx5090", "titanx-e7"]


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("n377", ["n337", "n537", "n726"], "n337"),
        ("n377", ["n537", "n337", "n726"], "n337"),
        ("N377", ["n537", "n337"], "n337"),
        ("RTX4090", MACHINES, "rtx4090"),
        ("rtx409", MACHINES, "rtx4090"),
        ("titanx", MACHINES, "titanx-e7"),
        ("relu", ["ReLU"], "ReLU"),
        ("mirror", ["valid", "same"], None),
        ("", ["valid"], None),
        ("valid", [], None),
    ],
)
def test_the_nearest_name_has_the_fewest_changes(
    name: str, known: list[str], found: str | None
) -> None:
    assert nearest(name, known) == found
