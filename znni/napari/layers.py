"""Volumes as layers of napari, and layers as inputs of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import znni
from znni.core.errors import InvalidInput
from znni.core.volume import Grid
from znni.core.voxel_size import LENGTHS
from znni.napari.arrays import with_coarse_levels
from znni.network.activations import TRAITS
from znni.network.network_file import network_from_text
from znni.volumes.array import ArrayVolume
from znni.volumes.label_values import holds_labels

PLACE = "znni_place"  # the entry in a layer's metadata that names its file
SEEN = 256  # voxels around the middle whose values choose the limits of contrast

# The file of a scan's first channel, as nnU-Net names it.
FIRST_CHANNEL = re.compile(r"(?P<name>.+)_0000(?P<ending>(\.\w+)+)")


class LayerData(NamedTuple):
    """A layer as a reader of napari returns it.

    Attributes:
        data: an array, or a list of them, the finest first.
        settings: keyword arguments of the layer.
        kind: ``image`` or ``labels``.
    """

    data: Any
    settings: dict[str, Any]
    kind: str


def layer_of(place: str, name: str = "", over: Any = None) -> LayerData:
    """Return the layer of a volume. Its values are read when napari shows them.

    Args:
        place: file or URL of the volume. It may be the unfinished output of a run, a Zarr.
        name: the name of the layer; empty: the file's name.
        over: the layer of the input that the volume was computed from. The new layer lies over it,
            wherever napari shows that. None: the file says where it lies.

    Raises:
        InvalidInput: there is no such volume.
    """
    volume = znni.open_volume(place)
    array = znni.LazyArray(volume, squeeze=True)
    stored = array.levels
    levels = stored if len(stored) > 1 else with_coarse_levels(array)
    attributes = volume.attributes()
    settings: dict[str, Any] = {
        "name": name or Path(place).name,
        "multiscale": len(levels) > 1,
        "metadata": {PLACE: place},
    }
    maps = levels[0].ndim - 3
    settings |= _placed(volume.grid, maps) if over is None else _placed_over(over, volume, maps)
    data = list(levels) if len(levels) > 1 else levels[0]
    if holds_labels(attributes, volume.dtype):
        return LayerData(data, settings | _named_labels(attributes), "labels")
    settings |= _colours(attributes, volume.dtype)
    if len(levels) > len(stored) and volume.dtype != np.uint8:
        settings.setdefault("contrast_limits", _limits(array))
    return LayerData(data, settings, "image")


def source_of(layer: Any) -> Any:
    """Return what a run reads for a layer: the name of its file, or its array.

    Raises:
        InvalidInput: it is a picture in colours.
    """
    if getattr(layer, "rgb", False):
        raise InvalidInput(
            f"layer {layer.name} is a picture in colours; split it into channels, and choose one"
        )
    if place := layer.metadata.get(PLACE):
        return place
    data = layer.data[0] if layer.multiscale else layer.data
    if type(data).__module__.startswith("h5py"):  # another process opens the file again
        return f"{data.file.filename}:{data.name}"
    return data


def voxel_size_of(layer: Any) -> str | None:
    """Return the extents of a layer's voxels as ``znni.infer`` takes them; None if not set."""
    extents = [float(step) for step in layer.scale[-3:]]
    units = {str(unit) for unit in layer.units[-3:]}
    text = ",".join(f"{extent:.12g}" for extent in extents)
    if len(units) == 1 and (unit := units.pop()) in LENGTHS:
        return f"{text}{unit}"
    return text if extents != [1.0] * 3 else None


def scan_files(layer: Any) -> tuple[str, ...]:
    """Return the files of the scan whose first channel a layer shows.

    If the file's name ends with ``_0000``, its neighbours ``_0001`` and so on are the other
    channels, as for nnU-Net.

    Raises:
        InvalidInput: the layer comes from no file.
    """
    place = layer.metadata.get(PLACE) or layer.source.path
    if not place:
        raise InvalidInput(
            f"layer {layer.name} is of no file, and this network takes the files of a whole scan; "
            f"open the scan's file"
        )
    path = Path(place)
    if named := FIRST_CHANNEL.fullmatch(path.name):
        pattern = f"{named['name']}_[0-9][0-9][0-9][0-9]{named['ending']}"
        return tuple(map(str, sorted(path.parent.glob(pattern))))
    return (str(place),)


def _limits(array: Any) -> tuple[float, float]:
    """Return the least and the largest value in the middle of a volume.

    napari would read all of a coarse copy for them.
    """
    middle = [slice(max(0, extent // 2 - SEEN), extent // 2 + SEEN) for extent in array.shape[-2:]]
    values = array[(..., slice(array.shape[-3] // 2, array.shape[-3] // 2 + 1), *middle)]
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    return low, high if high > low else low + 1


def _placed(grid: Grid, maps: int) -> dict[str, Any]:
    """Return the place of a layer, as its file has it."""
    placed: dict[str, Any] = {
        "scale": (*[1.0] * maps, *grid.scale),
        "translate": (*[0.0] * maps, *grid.translation),
    }
    if any(grid.units):
        units = (unit or "pixel" for unit in grid.units)
        placed["units"] = (*["pixel"] * maps, *units)
    return placed


def _placed_over(layer: Any, volume: ArrayVolume, maps: int) -> dict[str, Any]:
    """Return the place of a layer over the layer of its input, wherever that is shown."""
    offset, noted = np.zeros(layer.ndim), volume.attribute("voxel_offset")
    offset[-3:] = 0 if noted is None else noted
    moved = np.subtract(layer.data_to_world(offset), layer.data_to_world(np.zeros(layer.ndim)))
    turned = np.asarray(layer.affine.affine_matrix)
    # napari turns a layer by its affine after it is moved.
    moved = np.linalg.solve(turned[:-1, :-1], moved)
    whole = np.eye(maps + 4)
    whole[maps:, maps:] = turned[-4:, -4:]
    rotation = np.eye(maps + 3)
    rotation[maps:, maps:] = np.asarray(layer.rotate)[-3:, -3:]
    return {
        "scale": (*[1.0] * maps, *layer.scale[-3:]),
        "translate": (*[0.0] * maps, *(layer.translate + moved)[-3:]),
        "rotate": rotation,
        "affine": whole,
        "units": (*["pixel"] * maps, *layer.units[-3:]),
    }


def _named_labels(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of labels, which napari shows under the pointer."""
    known = json.loads(attributes.get("labels") or "{}")
    if not known:
        return {}
    names = {int(number): name for name, number in known.items()}
    numbers = range(max(names) + 1)
    return {"properties": {"label": [names.get(number, "") for number in numbers]}}


def _colours(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the colours of values. napari chooses colours for files of other programs."""
    if "network_file" not in attributes:
        return {}
    colours: dict[str, Any] = {"colormap": "magma", "blending": "additive"}
    network = network_from_text(str(attributes["network_file"]), "the output's network")
    if dtype.kind == "u":
        colours["contrast_limits"] = (0, int(np.iinfo(dtype).max))
    elif TRAITS[network.last_activation].is_share:
        colours["contrast_limits"] = (0.0, 1.0)
    return colours


def offer_layers(box: Any, layers: dict[str, Any], chosen: Any) -> None:
    """Offer layers in a combo box, by their names, without a signal."""
    names = {id(layer): name for name, layer in layers.items()}
    box.blockSignals(True)
    box.clear()
    box.addItems(list(layers))
    box.setCurrentText(names.get(id(chosen), next(iter(layers), "")))
    box.blockSignals(False)
