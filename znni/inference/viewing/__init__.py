"""HTML page that shows sections of an output over its input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.argument_types import checks_types
from znni.core.errors import InvalidInput
from znni.core.option_types import Viewer
from znni.core.run_options import InputOptions
from znni.core.shapes import ZERO, Box, Region, Vec3
from znni.core.text import counted
from znni.core.volume import Point
from znni.inference.viewing.lazy import LazyArray
from znni.inference.viewing.pair import Pair
from znni.inference.viewing.pictures import (
    Picture,
    grid_columns,
    picture_of,
    picture_of_labels,
    range_of,
)
from znni.inference.viewing.region import names_input, quick_steps, shown_box
from znni.inference.viewing.resolutions import Resolutions
from znni.inference.viewing.viewers import command
from znni.volumes.array import ArrayVolume
from znni.volumes.locate import split_dataset, stem
from znni.volumes.output_place import check_replaceable
from znni.volumes.stored import is_url

__all__ = ["LazyArray", "Page", "view", "viewer_program"]

MOST_MAPS = 4  # maps of an output on a page
UNKNOWN_INPUT = (
    "does not say what it was computed from (labels of whole cases never do); make sure that it "
    "belongs to this input"
)


@dataclass(frozen=True)
class Page:
    """Page made for an output.

    Attributes:
        path: the HTML file.
        region: the input voxels that the page shows.
        stride: step between the voxels shown, along each axis (z, y, x).
        programs: Python programs that open input and output in other viewers, by viewer.
        notes: assumptions about input and output.
    """

    path: Path
    region: Box
    stride: Vec3
    programs: Mapping[Viewer, str]
    notes: tuple[str, ...] = ()

    @property
    def napari(self) -> str:
        """Shell command that opens input and output in napari."""
        return command(self.programs["napari"])

    @property
    def neuroglancer(self) -> str:
        """Shell command that opens them in Neuroglancer."""
        return command(self.programs["neuroglancer"])

    def __str__(self) -> str:
        """Return the page's place and the notes."""
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([f"{self.path}: {_of_input(self.region, self.stride)}", *notes])


@checks_types
def view(
    source: str | Path,
    out: str | Path,
    page: str | Path | None = None,
    *,
    dataset: str | None = None,
    voxel_size: str | None = None,
    region: Region | None = None,
    stride: int | None = None,
    labels: bool | None = None,
    overwrite: bool = False,
) -> Page:
    """Write a page that shows an output over its input, complete in one HTML file.

    If coarser resolutions of an OME-Zarr are fine enough, they are read. So a page can show all of
    a huge volume.

    Args:
        source: the input, a file or a URL as in ``znni.infer``. Map and point in time are those
            that the output was computed from. So are dataset and voxel size, if the next arguments
            do not say otherwise.
        out: the output of that input. An output of another program is shown with a note. It has
            the input's extents, or an origin that tells where it lies.
        page: the HTML file to write; by default the output's name and ``.html``, beside the output,
            as ``cells.zarr.html``. For an output at a URL, it lies in this folder.
        dataset: dataset of the input, if its file has several.
        voxel_size: extents of the input's voxels, as ``0.5,0.1,0.1um``, if the files have none or
            wrong ones.
        region: input voxels to show, such as ``numpy.s_[10:20, :, 5:]``. By default all that have
            output if they can be read quickly, otherwise as many from their middle as a page holds.
        stride: step between voxels shown; by default the smallest that fits a page, for each axis.
        labels: True to show values as labels, each in a colour; False to show them as values. By
            default as the output says; integers of 32 and 64 bits are labels.
        overwrite: replace an existing page.

    Raises:
        InvalidInput: a volume cannot be opened, input and output do not belong together, or the
            region has no output. Or the page exists already or cannot be written.
        RunFailed: a volume cannot be read.
    """
    both = Pair.opened(source, out, dataset, voxel_size)
    read, volume, output, offset = both.read, both.volume, both.output, both.offset
    inputs, outputs = both.input_resolutions, both.output_resolutions

    def apart(box: Box) -> Box:
        return box.shifted(ZERO - offset)

    def quick(box: Box, least: int) -> Vec3 | None:
        factors = inputs.factors + outputs.factors
        return quick_steps(
            box,
            least,
            factors,
            lambda box, step: max(inputs.cost(box, step), outputs.cost(apart(box), step)),
        )

    whole = Box(offset, offset + output.size)
    box, step = shown_box(whole, region, stride, quick)
    path = Path(page) if page else _beside(out)
    check_replaceable(path, overwrite=overwrite, what="page")
    size = box.size.ceil_div(step)
    seen = _input(inputs, box, step)
    shown_labels = both.holds_labels if labels is None else labels
    maps = _maps(outputs, apart(box), step, labels=shown_labels)
    content = {
        "title": f"{_name(out)} over {_name(source)}",
        "subtitle": _subtitle(volume, read, box, step),
        "size": size,
        "start": box.start,
        "stride": step,
        "voxel": _relative(volume.grid.scale, step),
        "columns": grid_columns(size),
        "input": seen.description,
        "maps": [picture.description for picture in maps],
    }
    _write(path, content, [seen, *maps])
    notes = []
    for place, volumes, part in ((source, inputs, whole), (out, outputs, apart(whole))):
        if (coarse := volumes.at(step)).volume is not volumes.volume:
            notes.append(f"{place}: shown from its resolution of {coarse.volume.size} voxels")
        large = quick_steps(part, 1, volumes.factors, volumes.cost) is None
        if region is None and box != whole and large:
            notes.append(f"to see all of it at once, run {_to_see_all(str(place))}")
    if str(out).rstrip("/").endswith(".partial"):
        notes.append(f"{out} is not finished: blocks that are missing are shown as 0")
    if both.by_origin:
        notes.append(f"{out} is placed by its origin: its first voxel is {offset} of the input")
    if not names_input(output):
        notes.append(f"{out} {UNKNOWN_INPUT}")
    return Page(path, box, step, both.programs(labels), tuple(notes))


def viewer_program(
    viewer: Viewer,
    source: str | Path,
    out: str | Path,
    *,
    dataset: str | None = None,
    voxel_size: str | None = None,
    labels: bool | None = None,
) -> str:
    """Return the Python program that opens an output over its input in a viewer.

    The arguments are those of ``view``.

    Raises:
        InvalidInput: a volume cannot be opened, or input and output do not belong together.
    """
    return Pair.opened(source, out, dataset, voxel_size).programs(labels)[viewer]


def _to_see_all(place: str) -> str:
    """Return the command after which a page shows all of a volume."""
    return (
        f"znni pyramid {place}" if ".zarr" in place else f"znni export {place} {stem(place)}.zarr"
    )


def _relative(scale: Point, step: Vec3) -> list[float]:
    """Return the extents of what a pixel shows, relative to the smallest one."""
    extents = [extent * count for extent, count in zip(scale, step, strict=True)]
    return [extent / min(extents) for extent in extents]


def _input(volumes: Resolutions, box: Box, step: Vec3) -> Picture:
    values = volumes.sampled(0, box, step)
    low, high = range_of(values.astype(np.float32), output=False)
    # A picture has 256 shades, so it can tell so many integers apart.
    whole = values.dtype.kind in "bui" and high - low <= 255
    return picture_of("input", values.astype(np.float32), low, high, whole=whole)


def _maps(volumes: Resolutions, box: Box, step: Vec3, *, labels: bool) -> list[Picture]:
    output = volumes.volume
    stored = output.attribute("scale")
    try:
        scale = 1.0 if stored is None else float(stored)  # factor to the network's values
    except (TypeError, ValueError):
        raise InvalidInput(
            f"the output's attribute 'scale' is {stored!r}; give an output of znni infer"
        ) from None
    names = _names(output) if labels else {}
    pictures = []
    for feature in range(min(output.features, MOST_MAPS)):
        values = volumes.sampled(feature, box, step)
        name = f"map {feature} of {output.features}"
        if labels:
            _check_labels(output.name, values)
            pictures.append(picture_of_labels(name, values, names))
        else:
            scaled = values.astype(np.float32) * np.float32(scale)
            pictures.append(picture_of(name, scaled, *range_of(scaled, output=True)))
    return pictures


def _name(place: str | Path) -> str:
    """Return the name of a volume's file, and its dataset, as a part of other names."""
    path, inside = split_dataset(str(place))
    name = PurePosixPath(path).name
    return f"{name}-{inside.strip('/').replace('/', '-')}" if inside else name


def _beside(out: str | Path) -> Path:
    """Return the page's path if none is given: beside a local output."""
    place = split_dataset(str(out))[0]
    folder = Path() if is_url(place) else Path(place).parent
    return folder / f"{_name(out)}.html"


def _check_labels(name: str, values: NDArray[Any]) -> None:
    """Refuse values that cannot be labels."""
    wrong = ~np.isfinite(values) | (values != np.rint(values))
    if wrong.any():
        raise InvalidInput(
            f"{name}: holds {values[wrong][0]}, and labels are whole numbers; show it as values"
        )


def _names(output: ArrayVolume) -> dict[int, str]:
    """Return the names of labels, as an output notes them; empty if it does not."""
    noted = output.attribute("labels")
    try:
        return {int(label): str(name) for name, label in json.loads(noted or "{}").items()}
    except (TypeError, ValueError, AttributeError):
        raise InvalidInput(
            f"the output's attribute 'labels' is {noted!r}; give an output of znni infer"
        ) from None


def _of_input(region: Box, step: Vec3) -> str:
    every = f", one in {step.z} along each axis" if len(set(step)) == 1 else f", one in {step}"
    return f"{counted(region.size.volume, 'input voxel')}, {region}{every * (max(step) > 1)}"


def _subtitle(volume: ArrayVolume, read: InputOptions, box: Box, step: Vec3) -> str:
    """Return what a page shows, and how large voxels are."""
    said = [_of_input(box, step)]
    if volume.grid.scale != (1, 1, 1) or any(volume.grid.units):
        extents = " x ".join(f"{extent:g}" for extent in volume.grid.scale)
        units = list(dict.fromkeys(unit or "" for unit in volume.grid.units))
        said.append(f"voxels of {extents} {', '.join(units)}".rstrip())
    if read.channel is not None:
        named = f" ({volume.maps[0]})" if volume.maps else ""
        said.append(f"channel {read.channel}{named}")
    if read.time is not None:
        said.append(f"point in time {read.time}")
    return "; ".join(said)


def _write(path: Path, content: Mapping[str, Any], pictures: Sequence[Picture]) -> None:
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    text = json.dumps(content).replace("<", "\\u003c")  # no HTML tag can end inside the data
    tags = "\n".join(f'<img hidden alt="" src="{picture.address}">' for picture in pictures)
    page = template.replace("/*DATA*/null", text).replace("<!--PICTURES-->", tags)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}; name another") from None
