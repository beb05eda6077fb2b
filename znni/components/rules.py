"""Rules by which components of labels are removed, as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

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
        _check(self)

    def removed(self, voxels: NDArray[np.int64], voxel_volume: float | None) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return whether each component is removed."""
        return np.asarray(voxels < voxels.max(initial=0))


@dataclass(frozen=True)
class RemoveSmall:
    """A rule that removes components smaller than a number of voxels, or than a volume.

    Attributes:
        labels: the labels whose voxels form components together.
        voxels: the least voxels of a component that stays.
        volume: the least volume of such a component instead, in cubic millimetres.
        background: the label that removed voxels get.
        connectivity: the neighbours of each voxel: 6, 18 or 26.

    Raises:
        InvalidInput: a number is out of range, or not exactly one of voxels and volume is given.
    """

    labels: tuple[int, ...]
    voxels: int = 0
    volume: float = 0.0
    background: int = 0
    connectivity: Connectivity = 26

    def __post_init__(self) -> None:
        _check(self)
        if not _is_integer(self.voxels) or not isinstance(self.volume, int | float):
            raise InvalidInput(f"{self}: give voxels as an integer, or volume as a number")
        if not (self.voxels >= 0 and self.volume >= 0 and isfinite(self.volume)):
            raise InvalidInput(f"{self}: give voxels or volume above 0")
        if (self.voxels > 0) == (self.volume > 0):
            raise InvalidInput(f"{self}: give one of voxels and volume (in mm^3), above 0")

    def removed(self, voxels: NDArray[np.int64], voxel_volume: float | None) -> NDArray[np.bool_]:
        """Return whether each component is removed.

        Raises:
            InvalidInput: the rule has a volume, and the volume of a voxel is not known.
        """
        if not self.volume:
            return np.asarray(voxels < self.voxels)
        if voxel_volume is None:
            raise InvalidInput(
                f"{self} needs the volume of a voxel, which is not known; give voxels instead"
            )
        return np.asarray(voxels * voxel_volume < self.volume)


Rule: TypeAlias = KeepLargest | RemoveSmall


def groups_of(rules: Iterable[Rule]) -> list[tuple[Rule, ...]]:
    """Return rules in groups. Within a group, the order of rules does not matter.

    A rule joins the last group if it and the group's rules never change a voxel that the other
    reads. So one pass finds the components for a whole group.
    """
    groups: list[tuple[Rule, ...]] = []
    for rule in rules:
        if groups and all(_apart(rule, other) for other in groups[-1]):
            groups[-1] += (rule,)
        else:
            groups.append((rule,))
    return groups


def _apart(one: Rule, other: Rule) -> bool:
    return (
        one.connectivity == other.connectivity
        and not {*one.labels, one.background} & set(other.labels)
        and other.background not in one.labels
    )


def _check(rule: Rule) -> None:
    if not rule.labels or not all(map(_is_label, (*rule.labels, rule.background))):
        raise InvalidInput(f"{rule}: give labels and a background from 0 to {LABELS - 1}")
    if rule.connectivity not in get_args(Connectivity):
        raise InvalidInput(f"{rule}: give the connectivity 6, 18 or 26")


def _is_label(value: object) -> bool:
    return _is_integer(value) and 0 <= value < LABELS  # type: ignore[operator]


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
