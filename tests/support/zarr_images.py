"""OME-Zarr images of both versions, with axes in any order, as other programs write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from znni.core.shapes import Box, Vec3

SIZE = (5, 6, 7)
BOX = Box(Vec3(1, 2, 0), Vec3(4, 3, 7))
VALUES = np.random.default_rng(0).integers(0, 250, (3, *SIZE))
AXES = [
    {"name": "t", "type": "time"},
    {"name": "c", "type": "channel"},
    {"name": "z", "type": "space", "unit": "nanometer"},
    {"name": "y", "type": "space", "unit": "micrometer"},
    {"name": "x", "type": "space", "unit": "micrometer"},
]
SCALE = {"t": 9.0, "c": 1.0, "z": 40.0, "y": 0.5, "x": 0.25}


def axes_of(letters: str) -> list[dict[str, str]]:
    return [axis for letter in letters for axis in AXES if axis["name"] == letter]


def write_image(
    place: str,
    letters: str = "tczyx",
    version: str = "0.5",
    levels: tuple[str, ...] = ("0", "1"),
    **options: Any,
) -> None:
    """Write VALUES as an image with the given axes; each level halves the resolution."""
    datasets = []
    root = zarr.create_group(place, zarr_format=3 if version == "0.5" else 2)
    for index, path in enumerate(levels):
        step = 2**index
        values = np.expand_dims(VALUES[:, ::step, ::step, ::step].astype("uint16"), 0)
        present = values[tuple(slice(None) if a in letters else 0 for a in "tczyx")]
        ordered = [letter for letter in "tczyx" if letter in letters]
        present = present.transpose([ordered.index(letter) for letter in letters])
        settings = {"chunks": (2,) * present.ndim, **options}
        array = root.create_array(path, shape=present.shape, dtype="uint16", **settings)
        array[...] = present
        scale = [SCALE[a] * (step if a in "zyx" else 1) for a in letters]
        shift = [(step - 1) * SCALE[a] / 2 if a in "zyx" else 0.0 for a in letters]
        transformations = [
            {"type": "scale", "scale": scale},
            {"type": "translation", "translation": shift},
        ]
        datasets.append({"path": path, "coordinateTransformations": transformations})
    image = {"axes": axes_of(letters), "datasets": datasets, "name": "cells"}
    if version == "0.5":
        root.attrs["ome"] = {"version": version, "multiscales": [image]}
    else:
        root.attrs["multiscales"] = [{"version": version, **image}]


def change_metadata(place: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = Path(place) / "zarr.json"
    everything = json.loads(path.read_text())
    change(everything["attributes"]["ome"]["multiscales"][0])
    path.write_text(json.dumps(everything))
