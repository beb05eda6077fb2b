"""Programs and commands that open an input and its output in other viewers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from znni.core.shapes import Vec3
from znni.core.volume import Grid

# Neuroglancer's symbols for units; other units are left out.
SI = {"meter": "m", "millimeter": "mm", "micrometer": "um", "nanometer": "nm", "angstrom": "A"}


# Neuroglancer's program for values: as on a page, large ones are orange, and small ones clear.
SHADER = (
    r"#uicontrol invlerp normalized\nvoid main() {emitRGBA(vec4(0.9, 0.5, 0.2, normalized()));}"
)


@dataclass(frozen=True)
class Opened:
    """A volume, as other viewers open it.

    Attributes:
        place: its file or URL.
        grid: place of its voxels in space.
        size: its extents.
        features: number of its maps, of those that are chosen.
        levels: number of its resolutions.
        chosen: dataset, map and point in time, as arguments of ``LazyArray``.
    """

    place: str
    grid: Grid
    size: Vec3
    features: int
    levels: int
    chosen: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def middle(self) -> list[float]:
        """Place of its middle voxel in space."""
        places = zip(self.grid.translation, self.size, self.grid.scale, strict=True)
        return [_short(start + extent // 2 * step) for start, extent, step in places]

    def array(self, **given: str | int) -> str:
        """Return the Python expression of its array."""
        named = {**self.chosen, **given}
        said = [f"{name}={_python_value(value)}" for name, value in named.items()]
        return f"LazyArray({', '.join([json.dumps(self.place), *said])})"


def napari_program(source: Opened, out: Opened, *, labels: bool) -> str:
    """Return a Python program that opens both in napari, the output over the input.

    A volume of one map gets no axis of maps: napari then shows it beside each map of the other.
    The viewer begins at the middle of the output, which may be small.

    Args:
        source: the input.
        out: its output.
        labels: whether the output holds labels.
    """
    made = f'{_layer(out)}, name="output"'
    if labels:
        shown = f"viewer.add_labels({made})"
    else:
        shown = f'viewer.add_image({made}, blending="additive", colormap="magma")'
    return _program(
        "import napari",
        "from znni.inference.viewing import LazyArray",
        "viewer = napari.Viewer()",
        f'viewer.add_image({_layer(source)}, name="input")',
        shown,
        f"viewer.dims.set_point([-3, -2, -1], {out.middle})",
        'viewer.dims.axis_labels = ["map", "z", "y", "x"][-viewer.dims.ndim:]',
        "napari.run()",
    )


def neuroglancer_program(source: Opened, out: Opened, offset: Vec3, *, labels: bool) -> str:
    """Return a Python program that serves both to Neuroglancer and prints the address.

    The viewer begins at the middle of the output.

    Args:
        source: the input.
        out: its output.
        offset: the input voxel that the output's first voxel stands for.
        labels: whether the output holds labels.
    """
    grid = source.grid
    units = [SI.get(unit or "", "") for unit in grid.units]
    middle = [start + extent // 2 for start, extent in zip(offset, out.size, strict=True)]
    kind = ', volume_type="segmentation"' if labels else ""
    layer = (
        "SegmentationLayer(source=made)"
        if labels
        else f'ImageLayer(source=made, opacity=0.7, shader="{SHADER}")'
    )
    return _program(
        "import neuroglancer as ng",
        "from znni.inference.viewing import LazyArray",
        "viewer = ng.Viewer()",
        _space(["c^", "z", "y", "x"], ["", *units], [1, *grid.scale], "space"),
        f"given = ng.LocalVolume({source.array()}, dimensions=space)",
        f"made = ng.LocalVolume({out.array()}, dimensions=space, "
        f"voxel_offset={[0, *offset]}{kind})",
        "state = ng.ViewerState()",
        # In this order, the first view has x to the right and y downwards.
        _space(["x", "y", "z"], units[::-1], list(grid.scale[::-1]), "state.dimensions"),
        f"state.position = {middle[::-1]}",
        'state.layers["input"] = ng.ImageLayer(source=given)',
        f'state.layers["output"] = ng.{layer}',
        "viewer.set_state(state)",
        'input(f"{viewer} (Enter ends it)")',
    )


def _space(names: list[str], units: list[str], scales: list[float], name: str) -> str:
    """Return the statement that gives a name to a space of Neuroglancer."""
    axes = f"names={json.dumps(names)}, units={json.dumps(units)}, scales={scales}"
    return f"{name} = ng.CoordinateSpace({axes})"


def _layer(opened: Opened) -> str:
    """Return napari's arguments for a volume and its place in space, a number for each axis."""
    alone = opened.features == 1
    array = opened.array(squeeze=True) if alone else opened.array()
    levels = ".levels, multiscale=True" if opened.levels > 1 else ""
    ahead: list[float] = [] if alone else [1.0]
    grid = opened.grid
    scale = [*ahead, *map(_short, grid.scale)]
    translate = [*(0.0 for _ in ahead), *map(_short, grid.translation)]
    said = f"{array}{levels}, scale={scale}, translate={translate}"
    if any(grid.units):
        units = [*("pixel" for _ in ahead), *(unit or "pixel" for unit in grid.units)]
        said += f", units={json.dumps(units)}"
    return said


def _python_value(value: str | int) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _short(number: float) -> float:
    """Return a number without the last digits: sums like 1.7000000000000002 are of no use."""
    return float(f"{number:.12g}")


def _program(*statements: str) -> str:
    return "; ".join(statements)


def command(program: str) -> str:
    """Return the shell command that runs a program."""
    return f"python -c {shlex.quote(program)}"
