"""Rules by which components of labels are removed, as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from znni.components.runs import LABELS, Connectivity
from znni.core.errors import InvalidInput


@dataclass(frozen=True)
class KeepLargest:
    """A rule that removes all but the largest component. If several are equally large, all stay.

    Attributes:
        labels: the labels whose voxels form components together.
        background: the label that removed voxels get.
        connectivity: the neighbours of each voxel: 6, 18 or 26.
    """

    labels: tuple[int, ...]
    background: int = 0
    connectivity: Connectivity = 26

    def __post_init__(self) -> None:
        if not self.labels or not all(map(_is_label, (*self.labels, self.background))):
            raise InvalidInput(f"{self}: give labels and a background from 0 to {LABELS - 1}")
        if self.connectivity not in get_args(Connectivity):
            raise InvalidInput(f"{self}: give the connectivity 6, 18 or 26")


def groups_of(rules: Iterable[KeepLargest]) -> list[tuple[KeepLargest, ...]]:
    """Return rules in groups. Within a group, the order of rules does not matter.

    A rule joins the last group if it and the group's rules never change a voxel that the other
    reads. So one pass finds the components for a whole group.
    """
    groups: list[tuple[KeepLargest, ...]] = []
    for rule in rules:
        if groups and all(_apart(rule, other) for other in groups[-1]):
            groups[-1] += (rule,)
        else:
            groups.append((rule,))
    return groups


def _apart(one: KeepLargest, other: KeepLargest) -> bool:
    return (
        one.connectivity == other.connectivity
        and not {*one.labels, one.background} & set(other.labels)
        and other.background not in one.labels
    )


def _is_label(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LABELS
