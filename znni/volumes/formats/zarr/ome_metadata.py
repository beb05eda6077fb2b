"""OME-NGFF metadata: the arrays of a Zarr that are an image, their axes and their grids.

Versions 0.1 to 0.5 are read (https://ngff.openmicroscopy.org), 0.5 is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from znni.core.errors import InvalidInput
from znni.core.option_types import Coarsening
from znni.core.shapes import Vec3
from znni.core.volume import Grid, Point

WRITTEN_VERSION = "0.5"
OLDEST_AXES = ("t", "c", "z", "y", "x")  # of versions 0.1 and 0.2, which do not name them
LEVEL = "0"  # path of the array with an output's finest resolution
COLOURS = ("00FF00", "FF00FF", "00FFFF", "FFFF00", "FF0000", "0000FF")  # of several channels
LETTERS = {"time": "t", "channel": "c"}  # letters of axes with a known type, whatever their names


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Axis(_Entry):
    name: str
    type: str | None = None
    unit: str | None = None

    @property
    def letter(self) -> str:
        return LETTERS.get(self.type or "", self.name.lower())


class _Transformation(_Entry):
    type: str
    scale: list[float] | None = None
    translation: list[float] | None = None


class _Dataset(_Entry):
    path: str
    transformations: list[_Transformation] = Field([], alias="coordinateTransformations")


class _Multiscale(_Entry):
    axes: list[_Axis | str] | None = None
    datasets: list[_Dataset] = Field(min_length=1)
    transformations: list[_Transformation] = Field([], alias="coordinateTransformations")

    @property
    def named_axes(self) -> list[_Axis]:
        axes = self.axes if self.axes is not None else OLDEST_AXES
        return [_Axis(name=axis) if isinstance(axis, str) else axis for axis in axes]


@dataclass(frozen=True)
class Level:
    """One resolution of an image.

    Attributes:
        path: path of its array within the group that has the metadata.
        axes: names of its axes; those of a volume as letters.
        grid: position of its voxels in space.
        scale: factor of each axis in its own entry. The image may have others for all resolutions.
        translation: what its own entry adds along each axis.
        channels: names of its channels; empty if they have none.
    """

    path: str
    axes: tuple[str, ...]
    grid: Grid
    scale: tuple[float, ...]
    translation: tuple[float, ...]
    channels: tuple[str, ...] = ()

    def coarser_entry(self, path: str, factor: Vec3) -> dict[str, Any]:
        """Return the entry of a resolution whose voxels are made of ``factor`` voxels of this one.

        The last axes are z, y and x. All others stay as they are.
        """
        axes = list(zip(self.scale[-3:], self.translation[-3:], factor, strict=True))
        scale = [extent * times for extent, _, times in axes]
        translation = [at + (times - 1) / 2 * extent for extent, at, times in axes]
        return dataset(path, (*self.scale[:-3], *scale), (*self.translation[:-3], *translation))


def levels(attributes: Mapping[str, Any], where: str) -> list[Level]:
    """Return the resolutions of a group's first image, finest first; none if it is no image.

    Raises:
        InvalidInput: the metadata do not follow any version known here.
    """
    ome = attributes.get("ome", attributes)
    if not isinstance(ome, Mapping):
        kind = type(ome).__name__
        raise InvalidInput(f"{where}: its OME metadata is no mapping but a {kind}; write it again")
    if "multiscales" not in ome:
        return []
    try:
        images = ome["multiscales"]
        if not isinstance(images, list) or not images:
            raise InvalidInput(f"{where}: its OME metadata lists no image; write it again")
        image = _Multiscale.model_validate(images[0])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidInput(
            f"{where}: its OME metadata is not as NGFF 0.1 to 0.5 has it: multiscales.0.{place}: "
            f"{first['msg']}; write it again"
        ) from None
    axes = image.named_axes
    letters = tuple(axis.letter for axis in axes)
    units = {axis.letter: axis.unit for axis in axes}

    def level(one: _Dataset) -> Level:
        scale, translation = _composed(one.transformations, letters, where)
        whole = _composed([*one.transformations, *image.transformations], letters, where)
        return Level(
            one.path.strip("/"),
            letters,
            _grid(*whole, units),
            tuple(scale.values()),
            tuple(translation.values()),
            _channels(ome),
        )

    return [level(one) for one in image.datasets]


def _channels(ome: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the channels; none if one of them has no name."""
    try:
        names = tuple(str(channel["label"]) for channel in ome["omero"]["channels"])
    except (KeyError, TypeError):
        return ()
    return names if all(names) else ()


def _composed(
    transformations: Sequence[_Transformation], letters: Sequence[str], where: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Return scale and translation of each axis after transformations that are applied in order."""
    scale, translation = dict.fromkeys(letters, 1.0), dict.fromkeys(letters, 0.0)
    for step in transformations:
        numbers = {"scale": step.scale, "translation": step.translation}.get(step.type)
        if step.type == "identity":
            continue
        if numbers is None or len(numbers) != len(letters):
            raise InvalidInput(
                f"{where}: its OME metadata has a coordinate transformation {step.type!r} without "
                f"a number for each of its axes ({', '.join(letters)}); write it as scale and "
                f"translation"
            )
        for letter, number in zip(letters, numbers, strict=True):
            if step.type == "scale":
                scale[letter] *= number
                translation[letter] *= number
            else:
                translation[letter] += number
    return scale, translation


def _grid(
    scale: Mapping[str, float], translation: Mapping[str, float], units: Mapping[str, str | None]
) -> Grid:
    """Return the grid of the axes of space."""
    return Grid(
        _of_space(scale, 1.0),
        _of_space(translation, 0.0),
        (units.get("z"), units.get("y"), units.get("x")),
    )


def _of_space(numbers: Mapping[str, float], absent: float) -> Point:
    return numbers.get("z", absent), numbers.get("y", absent), numbers.get("x", absent)


def dataset(path: str, scale: Sequence[float], translation: Sequence[float]) -> dict[str, Any]:
    """Return the entry of one resolution."""
    transformations = [
        {"type": "scale", "scale": list(scale)},
        {"type": "translation", "translation": list(translation)},
    ]
    return {"path": path, "coordinateTransformations": transformations}


def image_metadata(
    name: str, paths: Sequence[str], grids: Sequence[Grid], coarsening: Coarsening = ""
) -> dict[str, Any]:
    """Return the attributes of a group that holds an image (c, z, y, x).

    Args:
        name: name of the image.
        paths: paths of its arrays within the group, the finest resolution first.
        grids: position of their voxels in space.
        coarsening: how the coarser ones were made.
    """
    grid = grids[0]
    axes: list[dict[str, str]] = [{"name": "c", "type": "channel"}]
    for letter, unit in zip("zyx", grid.units, strict=True):
        axes.append({"name": letter, "type": "space"} | ({"unit": unit} if unit else {}))
    image = {
        "name": name,
        "axes": axes,
        "datasets": [
            dataset(path, (1.0, *one.scale), (0.0, *one.translation))
            for path, one in zip(paths, grids, strict=True)
        ],
    }
    if len(paths) > 1:
        image["type"] = coarsening
    return {"ome": {"version": WRITTEN_VERSION, "multiscales": [image]}}


def channel_metadata(
    names: Sequence[str], ranges: Sequence[tuple[float, float]]
) -> dict[str, dict[str, Any]]:
    """Return the entry of an image's metadata that names its channels.

    NGFF wants a colour and a range of values for each channel with a name.

    Args:
        names: names of the channels.
        ranges: the values that viewers show as dark and as bright, for each channel.
    """
    colours = COLOURS if len(names) > 1 else ("FFFFFF",)
    channels = [
        {
            "label": name,
            "color": colours[number % len(colours)],
            "active": True,
            "window": {"start": low, "end": high, "min": low, "max": high},
        }
        for number, (name, (low, high)) in enumerate(zip(names, ranges, strict=True))
    ]
    return {"omero": {"channels": channels}}
