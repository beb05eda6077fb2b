"""Run a command that opens napari, without a window, and print what napari would show.

The Python that runs this has napari, and the libraries of znni's formats. The program of the
command is the only argument. Prints one line of JSON for each layer. ``shown`` has the values that
the layer shows where the viewer stands: first as it opens, then at each step of the first axis.
"""

from __future__ import annotations

import json
import sys

import napari
import numpy as np
from napari.components import ViewerModel
from npe2 import PluginManager

viewer = ViewerModel()
napari.Viewer = lambda: viewer
napari.run = lambda: None
PluginManager.instance().discover()  # a window would have done it
exec(sys.argv[1], {})
shown: dict[str, list[list[list[float]]]] = {layer.name: [] for layer in viewer.layers}


def look() -> None:
    """Keep the values of the plane that each layer shows; those of no plane are empty."""
    for layer in viewer.layers:
        layer._slice_dims(viewer.dims)
        raw = np.asarray(layer._slice.image.raw if not layer._slice.empty else [[]])
        shown[layer.name].append(raw.tolist())


look()
for step in range(viewer.dims.nsteps[0]):
    viewer.dims.set_current_step(0, step)
    look()
for layer in viewer.layers:
    levels = list(layer.data) if layer.multiscale else [layer.data]
    print(
        json.dumps(
            {
                "kind": type(layer).__name__,
                "name": layer.name,
                "shown": shown[layer.name],
                "scale": layer.scale.tolist(),
                "translate": layer.translate.tolist(),
                "units": [str(unit) for unit in layer.units],
                "shapes": [list(level.shape) for level in levels],
                "sums": [float(np.asarray(level).sum(dtype=np.float64)) for level in levels],
                # The place of the first and the last voxel in space.
                "extent": layer.extent.world.tolist(),
            }
        )
    )
