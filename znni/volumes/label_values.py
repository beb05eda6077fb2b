"""Volumes whose values are labels, so that no mean of them means anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from znni.volumes.formats.zarr.pyramid import PYRAMID

OF_LABELS = 4  # bytes: integers of this size or more are most likely labels


def holds_labels(attributes: Mapping[str, Any], dtype: DTypeLike) -> bool:
    """Return whether values are labels, as their attributes say or their type suggests."""
    noted = attributes.get(PYRAMID)
    if noted in ("mean", "mode"):
        return bool(noted == "mode")
    if attributes.get("labels") or attributes.get("threshold"):
        return True
    held = np.dtype(dtype)
    return held.kind == "b" or (held.kind in "ui" and held.itemsize >= OF_LABELS)
