"""HTML page that shows sections of an output over its input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Box, Vec3
from znni.core.text import counted
from znni.core.volume import Volume
from znni.inference.viewing.lazy import LazyArray
from znni.inference.viewing.pictures import Picture, grid_columns, picture_of, range_of, sampled
from znni.inference.viewing.region import names_input, offset_of, shown
from znni.inference.viewing.viewers import napari_line, neuroglancer_line
from znni.volumes.locate import open_volume, stem
from znni.volumes.stored import StoredVolume

__all__ = ["LazyArray", "Page", "view"]

MOST_MAPS = 4  # maps of an output on a page
UNKNOWN_INPUT = (
    "does not say what it was computed from, as outputs of znni infer do; it may belong to another "
    "input"
)


@dataclass(frozen=True)
class Page:
    """Page made for an output.

    Attributes:
        path: the HTML file.
        region: the input voxels that the page shows.
        stride: step between the voxels shown, along each axis.
        napari: shell command that opens input and output in napari.
        neuroglancer: shell command that opens them in Neuroglancer.
        notes: assumptions about input and output.
    """

    path: Path
    region: Box
    stride: int
    napari: str
    neuroglancer: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the page's place, the notes and the commands."""
        notes = "".join(f"note: {note}\n" for note in self.notes)
        return (
            f"{self.path}: {_of_input(self.region, self.stride)}\n{notes}"
            f"napari:\n  {self.napari}\nNeuroglancer:\n  {self.neuroglancer}"
        )


def view(
    source: str | Path,
    out: str | Path,
    page: str | Path | None = None,
    *,
    dataset: str | None = None,
    region: tuple[slice, slice, slice] | None = None,
    stride: int | None = None,
    overwrite: bool = False,
) -> Page:
    """Write a page that shows an output over its input, complete in one HTML file.

    Args:
        source: the input, a file or a URL as in ``znni.infer``.
        out: the output of that input. The output of another program is shown with a note, if its
            extents are the input's.
        page: the HTML file to write; by default the output's name with ``.html``, in this folder.
        dataset: dataset of the input, if its file has several.
        region: input voxels to show, such as ``numpy.s_[10:20, :, 5:]``. By default all that have
            output if they can be read quickly, otherwise as many from their middle as a page holds.
        stride: step between voxels shown; by default the smallest that fits a page.
        overwrite: replace an existing page.

    Raises:
        InvalidInput: a volume cannot be opened, input and output do not belong together, or the
            region has no output. Or the page exists already or cannot be written.
        RunFailed: a volume cannot be read.
    """
    path = Path(page) if page else Path(f"{stem(str(out))}.html")
    if path.exists() and not overwrite:
        raise InvalidInput(f"{path}: exists; give {option('overwrite', True)} to replace it")
    volume, output = open_volume(source, dataset), open_volume(out)
    offset = offset_of(output, volume)
    box, step = shown(Box(offset, offset + output.size), region, stride)
    size = box.size.ceil_div(step)
    seen = _input(volume, box, step)
    maps = _maps(output, box.shifted(Vec3(0, 0, 0) - offset), step)
    content = {
        "title": f"{stem(str(out))} over {stem(str(source))}",
        "subtitle": _of_input(box, step),
        "size": size,
        "start": box.start,
        "stride": step,
        "voxel": [extent / min(volume.grid.scale) for extent in volume.grid.scale],
        "columns": grid_columns(size),
        "input": seen.shades,
        "maps": [picture.shades for picture in maps],
    }
    _write(path, content, [seen, *maps])
    given = str(source), dataset, str(out), volume.grid, offset
    notes = () if names_input(output) else (f"{out} {UNKNOWN_INPUT}",)
    return Page(path, box, step, napari_line(*given), neuroglancer_line(*given), notes)


def _input(volume: Volume, box: Box, stride: int) -> Picture:
    values = sampled(volume, 0, box, stride)
    return picture_of("input", values, *range_of(values, output=False))


def _maps(output: Volume, box: Box, stride: int) -> list[Picture]:
    stored = output.attribute("scale") if isinstance(output, StoredVolume) else None
    try:
        scale = 1.0 if stored is None else float(stored)  # factor to the network's values
    except (TypeError, ValueError):
        raise InvalidInput(
            f"the output's attribute 'scale' is {stored!r}; give an output of znni infer"
        ) from None
    pictures = []
    for feature in range(min(output.features, MOST_MAPS)):
        values = sampled(output, feature, box, stride) * scale
        name = f"map {feature} of {output.features}"
        pictures.append(picture_of(name, values, *range_of(values, output=True)))
    return pictures


def _of_input(region: Box, stride: int) -> str:
    every = f", one in {stride} along each axis" * (stride > 1)
    return f"{counted(region.size.volume, 'input voxel')}, {region}{every}"


def _write(path: Path, content: Mapping[str, Any], pictures: Sequence[Picture]) -> None:
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    text = json.dumps(content).replace("<", "\\u003c")  # no HTML tag can end inside the data
    tags = "\n".join(f'<img hidden alt="" src="{picture.address}">' for picture in pictures)
    page = template.replace("/*DATA*/null", text).replace("<!--PICTURES-->", tags)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}; name another") from None
