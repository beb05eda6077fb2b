"""OME-NGFF metadata: the arrays of a Zarr that are an image, their axes and their grids.

Versions 0.1 to 0.5 are read (https://ngff.openmicroscopy.org), 0.5 is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from znni.core.errors import InvalidInput
from znni.core.options import Coarsening
from znni.core.volume import Grid, Point

WRITTEN_VERSION = "0.5"
OLDEST_AXES = ("t", "c", "z", "y", "x")  # of versions 0.1 and 0.2, which do not name them
LEVEL = "0"  # path of the array with an output's finest resolution
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
        channels: names of its channels; empty if they have none.
    """

    path: str
    axes: tuple[str, ...]
    grid: Grid
    channels: tuple[str, ...] = ()


def levels(attributes: Mapping[str, Any], where: str) -> list[Level]:
    """Return the resolutions of a group's first image, finest first; none if it is no image.

    Args:
        attributes: attributes of the group.
        where: name of the group, for messages.

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
        found = ome["multiscales"]
        if not isinstance(found, list) or not found:
            raise InvalidInput(f"{where}: its OME metadata lists no image; write it again")
        image = _Multiscale.model_validate(found[0])
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
    return [
        Level(
            dataset.path.strip("/"),
            letters,
            _grid([*dataset.transformations, *image.transformations], letters, units, where),
            _channels(ome),
        )
        for dataset in image.datasets
    ]


def _channels(ome: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the channels; none if one of them has no name."""
    try:
        names = tuple(str(channel["label"]) for channel in ome["omero"]["channels"])
    except (KeyError, TypeError):
        return ()
    return names if all(names) else ()


def _grid(
    transformations: Sequence[_Transformation],
    letters: Sequence[str],
    units: Mapping[str, str | None],
    where: str,
) -> Grid:
    """Return the grid that transformations, applied in order, make of the axes of space."""
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
    return Grid(
        _of_space(scale, 1.0),
        _of_space(translation, 0.0),
        (units.get("z"), units.get("y"), units.get("x")),
    )


def _of_space(numbers: Mapping[str, float], absent: float) -> Point:
    return numbers.get("z", absent), numbers.get("y", absent), numbers.get("x", absent)


def dataset(path: str, grid: Grid, other_axes: int) -> dict[str, Any]:
    """Return the entry of one resolution.

    Args:
        path: path of its array.
        grid: position of its voxels in space.
        other_axes: number of axes before z, such as time and channel.
    """
    transformations = [
        {"type": "scale", "scale": [*(1.0,) * other_axes, *grid.scale]},
        {"type": "translation", "translation": [*(0.0,) * other_axes, *grid.translation]},
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
        "datasets": [dataset(path, one, 1) for path, one in zip(paths, grids, strict=True)],
    }
    if len(paths) > 1:
        image["type"] = coarsening
    return {"ome": {"version": WRITTEN_VERSION, "multiscales": [image]}}
