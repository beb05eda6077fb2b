"""Values as an exported copy stores them: of another type, or labels in their place."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.text import counted
from znni.engine.labels import Labels, labels_for
from znni.network.network_file import network_from_text
from znni.volumes.array import ArrayVolume

log = logging.getLogger("znni")

TYPES = (
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)


@dataclass(frozen=True)
class ExportedValues:
    """The values of a copy.

    Attributes:
        dtype: type of the copy.
        scale: factor from a stored value of the source to the network's value.
        scales: whether the copy stores 0..1 as 0..255.
        labels: how values become labels; None: they do not.
    """

    dtype: str
    scale: float = 1.0
    scales: bool = False
    labels: Labels | None = None

    def features(self, maps: int) -> int:
        """Return the maps of the copy."""
        return self.labels.features(maps) if self.labels else maps

    def of(self, values: NDArray[Any], where: str) -> NDArray[Any]:
        """Return values (f, z, y, x) as the copy stores them.

        Args:
            values: stored values of the source.
            where: the source, for messages.

        Raises:
            InvalidInput: the type cannot hold them.
        """
        if self.labels:
            return self.labels.apply(self._true(values))
        if self.scales:
            scaled = self._true(values) * np.float32(255)
            np.rint(scaled, out=scaled)
            return scaled.clip(0, 255, out=scaled).astype(np.uint8)
        if self.scale != 1 and np.dtype(self.dtype).kind == "f":
            return self._true(values).astype(self.dtype)
        if values.dtype.kind in "ui" and np.dtype(self.dtype).kind in "ui":
            limits, low, high = np.iinfo(self.dtype), int(values.min()), int(values.max())
            if low < limits.min or high > limits.max:
                raise InvalidInput(
                    f"{where}: holds {low if low < limits.min else high}, and {self.dtype} holds "
                    f"{limits.min} to {limits.max}; give another type, such as "
                    f"{option('dtype', str(values.dtype))}"
                )
        return values.astype(self.dtype, copy=False)

    def _true(self, values: NDArray[Any]) -> NDArray[np.float32]:
        found = values.astype(np.float32)
        return found if self.scale == 1 else found * np.float32(self.scale)


def values_for(
    volume: ArrayVolume, dtype: str | None, largest: bool, threshold: float | None
) -> ExportedValues:
    """Return how a copy stores the values of a volume.

    Args:
        dtype: the type wanted; None for the volume's own.
        largest: whether voxels get the label of their largest map.
        threshold: above which a voxel gets 1; None: there is none.

    Raises:
        InvalidInput: the volume has no such labels, or the type cannot hold its values.
    """
    if dtype is not None and dtype not in TYPES:
        raise InvalidInput(f"dtype is {dtype!r}; choose one of {', '.join(TYPES)}")
    scale = _scale_of(volume)
    if labels := _labels(volume, largest, threshold):
        if dtype not in (None, labels.dtype):
            raise InvalidInput(
                f"labels are stored as {labels.dtype}; leave out {option('dtype', dtype)}"
            )
        return ExportedValues(labels.dtype, scale, labels=labels)
    kept = "uint8" if volume.dtype.kind == "b" else volume.dtype.newbyteorder("=").name
    wanted = dtype or kept
    if wanted == kept:
        return ExportedValues(kept, scale)
    are_floats = volume.dtype.kind == "f" or scale != 1
    if are_floats and np.dtype(wanted).kind in "ui":
        if wanted != "uint8":
            raise InvalidInput(
                f"{volume.name} holds {volume.dtype}, which {option('dtype', wanted)} would round; "
                f"give uint8 for 0..1 as 0..255, or labels=True (--labels) or "
                f"{option('threshold', 0.5)}"
            )
        return ExportedValues("uint8", scale, scales=True)
    if volume.dtype.kind in "ui" and scale == 1 and np.dtype(wanted).kind == "f":
        exact = 2 ** (np.finfo(wanted).nmant + 1)
        if np.iinfo(volume.dtype).max > exact:
            log.warning("%s: %s holds integers above %s only roughly", volume.name, wanted, exact)
    return ExportedValues(wanted, scale)


def _scale_of(volume: ArrayVolume) -> float:
    stored = volume.attribute("scale")
    try:
        return 1.0 if stored is None else float(stored)
    except (TypeError, ValueError):
        return 1.0  # another program's attribute of that name


def _labels(volume: ArrayVolume, largest: bool, threshold: float | None) -> Labels | None:
    if not largest and threshold is None:
        return None
    text = volume.attribute("network_file")
    if text:
        network = network_from_text(str(text), f"{volume.name}, attribute network_file")
        if network.out_features == volume.features:
            return labels_for(network, largest, threshold)
    if largest and threshold is not None:
        raise InvalidInput(
            f"labels are those of the largest map, without a threshold; leave out "
            f"{option('threshold', threshold)}, or the labels"
        )
    if not largest:
        return Labels(threshold=float(threshold or 0.0))
    if volume.features == 1:
        raise InvalidInput(
            f"{volume.name} has {counted(1, 'map')}, whose labels need a threshold; give "
            f"{option('threshold', 0.5)} instead"
        )
    return Labels(tuple(range(volume.features)))
