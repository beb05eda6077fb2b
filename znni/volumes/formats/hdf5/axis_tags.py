"""Axes of HDF5 datasets, as ilastik notes them in ``axistags`` and ``axis_units``.

HDF5 has no place for names of maps, so copies have them in an attribute of znni's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from znni.core.volume import Grid
from znni.core.voxel_size import UNITS_BY_SYMBOL

TAGS = "axistags"
UNITS = "axis_units"
AXES = "tczyx"
NAMES = "channel_names"


def tagged_axes(attributes: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the names of a dataset's axes in the order in which they are stored.

    Returns:
        Letters of ``AXES``; empty if it has no such attribute, or one of another meaning.
    """
    axes = tuple(str(tag.get("key", "")).lower() for tag in _tags(attributes))
    known = len(axes) == count and len(set(axes)) == count and {"y", "x"} <= set(axes)
    return axes if known and set(axes) <= set(AXES) else ()


def tagged_grid(attributes: Mapping[str, Any]) -> Grid:
    """Return the grid by the tags' resolutions; the usual grid if they have none."""
    sizes = {str(tag.get("key", "")).lower(): tag.get("resolution", 0) for tag in _tags(attributes)}
    units = _json(attributes, UNITS)
    given = units if isinstance(units, dict) else {}
    if not any(_size(sizes.get(axis)) for axis in "zyx"):
        return Grid()
    z, y, x = (_size(sizes.get(axis)) or 1.0 for axis in "zyx")
    in_z, in_y, in_x = (UNITS_BY_SYMBOL.get(str(given.get(axis, ""))) for axis in "zyx")
    return Grid((z, y, x), units=(in_z, in_y, in_x))


def named_maps(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a dataset's maps; empty if they have none."""
    try:
        names = attributes.get(NAMES, ())
        is_list = not isinstance(names, str) and all(isinstance(name, str) for name in names)
        return tuple(names) if is_list else ()
    except Exception:  # libraries raise all kinds of errors about damaged attributes
        return ()


def _size(given: object) -> float:
    """Return a resolution; 0 if it is unknown."""
    return float(given) if isinstance(given, int | float) and 0 < given < float("inf") else 0.0


def _tags(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = _json(attributes, TAGS)
    tags = found.get("axes") if isinstance(found, dict) else None
    if not isinstance(tags, list):
        return []
    return [tag for tag in tags if isinstance(tag, dict)]


def _json(attributes: Mapping[str, Any], name: str) -> Any:
    """Return the value of an attribute in JSON; None if it is absent or something else."""
    try:
        text = attributes.get(name)
        return json.loads(text) if isinstance(text, str | bytes) else None
    except Exception:  # libraries raise all kinds of errors about damaged attributes
        return None
