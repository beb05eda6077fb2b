"""Shell commands that open an input and its output in other viewers."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from znni.core.shapes import Vec3
from znni.core.volume import Grid

# Neuroglancer's symbols for units; other units are left out.
SI = {"meter": "m", "millimeter": "mm", "micrometer": "um", "nanometer": "nm", "angstrom": "A"}


@dataclass(frozen=True)
class Opened:
    """An input and its output, as other viewers open them.

    Attributes:
        source: the input.
        dataset: dataset of the input; None: it has one only.
        channel: number of the input's only map that was read; None: all were.
        time: number of the input's point in time that was read; None: it has one only.
        out: the output.
        grid: place of the input in space.
        offset: the input voxel that the output's first voxel stands for.
        labels: whether the output holds labels.
        source_levels: number of resolutions of the input.
        out_levels: number of resolutions of the output.
    """

    source: str
    dataset: str | None
    channel: int | None
    time: int | None
    out: str
    grid: Grid
    offset: Vec3
    labels: bool
    source_levels: int
    out_levels: int


def napari_line(opened: Opened) -> str:
    """Return a shell command that opens both in napari, the output over the input."""
    given = _resolutions(_input(opened), opened.source_levels)
    given += f', name="input", {_placed(opened.grid)}'
    made = _resolutions(_lazy(opened.out), opened.out_levels)
    made += f', name="output", {_placed(opened.grid.starting_at(opened.offset))}'
    if opened.labels:
        shown = f"viewer.add_labels({made})"
    else:
        shown = f'viewer.add_image({made}, blending="additive", colormap="magma")'
    return _python(
        "import napari",
        "from znni.inference.viewing import LazyArray",
        "viewer = napari.Viewer()",
        f"viewer.add_image({given})",
        shown,
        "napari.run()",
    )


def neuroglancer_line(opened: Opened) -> str:
    """Return a shell command that serves both to Neuroglancer and prints the address."""
    grid = opened.grid
    units = json.dumps(["", *(SI.get(unit or "", "") for unit in grid.units)])
    kind, layer = (
        (', volume_type="segmentation"', "SegmentationLayer")
        if opened.labels
        else ("", "ImageLayer")
    )
    return _python(
        "import neuroglancer as ng",
        "from znni.inference.viewing import LazyArray",
        "viewer = ng.Viewer()",
        f'space = ng.CoordinateSpace(names=["c^", "z", "y", "x"], units={units}, '
        f"scales={[1, *grid.scale]})",
        f"given = ng.LocalVolume({_input(opened)}, dimensions=space)",
        f"made = ng.LocalVolume({_lazy(opened.out)}, dimensions=space, "
        f"voxel_offset={[0, *opened.offset]}{kind})",
        "state = ng.ViewerState()",
        'state.layers["input"] = ng.ImageLayer(source=given)',
        f'state.layers["output"] = ng.{layer}(source=made)',
        "viewer.set_state(state)",
        'input(f"{viewer} (Enter ends it)")',
    )


def _resolutions(array: str, count: int) -> str:
    return f"{array}.levels, multiscale=True" if count > 1 else array


def _input(opened: Opened) -> str:
    chosen = {"dataset": opened.dataset, "channel": opened.channel, "time": opened.time}
    return _lazy(opened.source, **{name: at for name, at in chosen.items() if at is not None})


def _lazy(place: str, **chosen: str | int) -> str:
    given = [json.dumps(place), *(f"{name}={json.dumps(at)}" for name, at in chosen.items())]
    return f"LazyArray({', '.join(given)})"


def _placed(grid: Grid) -> str:
    """Return napari's arguments for the place of maps in space, one number for each of 4 axes."""
    numbers = {"scale": (1.0, *grid.scale), "translate": (0.0, *grid.translation)}
    # Sums like 1.7000000000000002 are of no use to anybody.
    said = [f"{name}={[float(f'{one:.12g}') for one in of]}" for name, of in numbers.items()]
    if any(grid.units):
        said.append(f"units={json.dumps(['pixel', *(unit or 'pixel' for unit in grid.units)])}")
    return ", ".join(said)


def _python(*statements: str) -> str:
    return f"python -c {shlex.quote('; '.join(statements))}"
