"""Labels instead of values: which map is the largest, or which values lie above a threshold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.text import counted
from znni.network.network import Network

LabelType: TypeAlias = Literal["uint8", "uint16"]

# The share of a block's voxels whose labels may differ by another plan of the same class. Their two
# largest values, or their value and the threshold, are equal except for rounding.
LABELS_APART = 1e-3


@dataclass(frozen=True)
class Labels:
    """The rule by which an output's values become labels.

    Attributes:
        of_maps: the label of each map. A voxel gets the label of its largest map. If several maps
            are equally large, the first one counts. Empty: the threshold decides.
        threshold: a voxel of a map gets 1 if its value is above this number, and else 0.
        regions: whether maps are of regions. Then a voxel gets the label of the last map whose
            value is above the threshold, or 0.
    """

    of_maps: tuple[int, ...] = ()
    threshold: float = 0.0
    regions: bool = False

    def __str__(self) -> str:
        """Return the labels, or the threshold, in words."""
        if self.regions:
            return f"{', '.join(map(str, self.of_maps))} of regions above {self.threshold:g}"
        return ", ".join(map(str, self.of_maps)) or f"above {self.threshold:g}"

    @property
    def dtype(self) -> LabelType:
        """The type that holds all labels."""
        return "uint16" if max(self.of_maps, default=1) > np.iinfo(np.uint8).max else "uint8"

    def features(self, maps: int) -> int:
        """Return the maps of the output: one of labels, or one for each of the network's."""
        return 1 if self.of_maps else maps

    def apply(self, values: NDArray[np.floating]) -> NDArray[Any]:
        """Return the labels (1 or f, z, y, x) of values (f, z, y, x)."""
        if not self.of_maps:
            return (values > self.threshold).astype(self.dtype)
        known = np.array(self.of_maps, self.dtype)
        if self.regions:
            result = np.zeros((1, *values.shape[1:]), self.dtype)
            for label, region in zip(known, values, strict=True):
                result[0][region > self.threshold] = label
            return result
        result = np.empty((1, *values.shape[1:]), self.dtype)
        for z in range(values.shape[1]):  # indices of a whole block would take eight bytes each
            result[0, z] = known[values[:, z].argmax(axis=0)]
        return result

    def misfit(self, stored: NDArray[Any], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return by how much values would have to change to give the stored labels.

        Args:
            stored: labels (voxels, 1 or f).
            values: the network's values (voxels, f).

        Returns:
            As many numbers as there are labels: 0 where they are right, infinite for a label that
            no map has.
        """
        if not self.of_maps:
            wrong = stored != (values > self.threshold)
            apart = np.where(wrong, np.abs(values - self.threshold), 0.0)
            return np.where(stored > 1, np.inf, apart)
        if self.regions:
            return self._misfit_of_regions(stored, values)
        largest = values.max(axis=1, keepdims=True)
        has_label = np.array(self.of_maps) == stored
        kept = np.where(has_label, values, -np.inf)
        return np.asarray(largest - kept.max(axis=1, keepdims=True))

    def _misfit_of_regions(
        self, stored: NDArray[Any], values: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return by how much the values of regions would have to change, as ``misfit`` does."""
        above = values - self.threshold
        last = np.full(stored.shape, np.inf)
        # The change for each label: its region is above the threshold, and no later region is.
        for place, label in enumerate((0, *self.of_maps)):
            later = above[:, place:].max(axis=1, initial=0.0)
            own = -above[:, place - 1].clip(max=0.0) if place else np.zeros(len(values))
            change = np.maximum(later, own)[:, np.newaxis]
            last = np.where(stored == label, np.minimum(last, change), last)
        return last

    def attributes(self, network: Network) -> dict[str, str]:
        """Return how an output stores this: labels by name as JSON, and the threshold."""
        names = json.dumps(dict(label_names(network))) if self.of_maps else ""
        above = "" if self.of_maps and not self.regions else repr(self.threshold)
        return {"labels": names, "threshold": above}


def label_names(network: Network) -> tuple[tuple[str, int], ...]:
    """Return the label of each output map by its name; without names the map's number."""
    return network.labels or tuple((f"map {n}", n) for n in range(network.out_features))


def labels_for(network: Network, largest: bool, threshold: float | None) -> Labels | None:
    """Return how values become labels; None if they are stored as they are.

    Args:
        network: has the labels of its maps.
        largest: whether voxels get the label of their largest map.
        threshold: the least value that does not count as 1; None: there is none.

    Raises:
        InvalidInput: both are asked for, there is one map only, or the threshold is not finite.
    """
    if not largest:
        if threshold is None:
            return None
        if not np.isfinite(threshold):
            raise InvalidInput(f"{option('threshold', threshold)}: give a finite number")
        return Labels(threshold=float(threshold))
    if threshold is not None:
        raise InvalidInput(
            f"labels are those of the largest map, without a threshold; leave out "
            f"{option('threshold', threshold)}, or the labels"
        )
    if network.out_features == 1 and not network.has_regions:
        raise InvalidInput(
            f"network {network.name} gives {counted(1, 'map')}, whose labels need a threshold; "
            f"give {option('threshold', 0.5)} instead"
        )
    names = tuple(label for _, label in label_names(network))
    if not network.has_regions:
        return Labels(names)
    return Labels(names, 0.5 if network.last_activation == "sigmoid" else 0.0, regions=True)


def labels_from(labels: str, threshold: str) -> Labels | None:
    """Return what an output's attributes say, as ``Labels.attributes`` gives them.

    Raises:
        ValueError: they are not from there.
    """
    if labels:
        known = tuple(int(label) for label in json.loads(labels).values())
        return Labels(known, float(threshold or 0), regions=bool(threshold))
    return Labels(threshold=float(threshold)) if threshold else None
