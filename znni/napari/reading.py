"""napari opens volumes by znni: HDF5, Zarr, NIfTI, NRRD and MetaImage, without loading them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import znni
from znni.core.shapes import Vec3
from znni.napari.layers import LayerData, layer_of
from znni.napari.messages import show_failure

# The value of a napari reader that has told the user why there is no layer.
NO_LAYER: list[tuple[Any, ...]] = [(None,)]

SEED = 2007
EXTENTS = Vec3(96, 160, 160)


def reader_for(path: str | Path | Sequence[str]) -> Callable[[Any], list[Any]] | None:
    """Return the function that opens a path; None for several files, which are no volume."""
    return partial(read, str(path)) if isinstance(path, str | Path) else None


def read(place: str, _paths: Any = None) -> list[Any]:
    """Return the layer of a volume. If it cannot be opened, napari shows why."""
    try:
        return [layer_of(place)]
    except znni.ZnniError as error:
        show_failure(error)
        return list(NO_LAYER)


def example() -> list[LayerData]:
    """Return the layer of synthetic cells, for which trained networks come with znni."""
    from znni.volumes.synthetic_cells import synthetic_cells

    return [LayerData(synthetic_cells(SEED, EXTENTS).raw, {"name": "cells"}, "image")]
