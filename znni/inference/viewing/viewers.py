"""Shell commands that open an input and its output in other viewers."""

from __future__ import annotations

import json
import shlex

from znni.core.shapes import Vec3
from znni.core.volume import Grid

# Neuroglancer's symbols for units; other units are left out.
SI = {"meter": "m", "millimeter": "mm", "micrometer": "um", "nanometer": "nm", "angstrom": "A"}


def napari_line(source: str, dataset: str | None, out: str, grid: Grid, offset: Vec3) -> str:
    """Return a shell command that opens both in napari, the output over the input.

    Args:
        source: the input.
        dataset: dataset of the input.
        out: the output.
        grid: place of the input in space.
        offset: the input voxel that the output's first voxel stands for.
    """
    origin = tuple(at * step for at, step in zip(offset, grid.scale, strict=True))
    return _python(
        "import napari",
        "from znni.inference.viewing import LazyArray",
        "viewer = napari.Viewer()",
        f'viewer.add_image({_lazy(source, dataset)}, name="input", scale={grid.scale})',
        f'viewer.add_image({_lazy(out, None)}, name="output", scale={grid.scale}, '
        f'translate={origin}, blending="additive", colormap="magma")',
        "napari.run()",
    )


def neuroglancer_line(source: str, dataset: str | None, out: str, grid: Grid, offset: Vec3) -> str:
    """Return a shell command that serves both to Neuroglancer and prints the address.

    The arguments are those of ``napari_line``.
    """
    units = json.dumps(["", *(SI.get(unit or "", "") for unit in grid.units)])
    return _python(
        "import neuroglancer as ng",
        "from znni.inference.viewing import LazyArray",
        "viewer = ng.Viewer()",
        f'space = ng.CoordinateSpace(names=["c^", "z", "y", "x"], units={units}, '
        f"scales={[1, *grid.scale]})",
        f"given = ng.LocalVolume({_lazy(source, dataset)}, dimensions=space)",
        f"made = ng.LocalVolume({_lazy(out, None)}, dimensions=space, voxel_offset={[0, *offset]})",
        "state = ng.ViewerState()",
        'state.layers["input"] = ng.ImageLayer(source=given)',
        'state.layers["output"] = ng.ImageLayer(source=made)',
        "viewer.set_state(state)",
        'input(f"{viewer} (Enter ends it)")',
    )


def _lazy(place: str, dataset: str | None) -> str:
    return f"LazyArray({', '.join(json.dumps(given) for given in (place, dataset) if given)})"


def _python(*statements: str) -> str:
    return f"python -c {shlex.quote('; '.join(statements))}"
