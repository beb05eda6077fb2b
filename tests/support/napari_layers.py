"""Run a command that opens napari, without a window, and print what napari would show.

The Python that runs this has napari, and the libraries of znni's formats. The program of the
command is the only argument. Prints one line of JSON for each layer.
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
for layer in viewer.layers:
    levels = list(layer.data) if layer.multiscale else [layer.data]
    print(
        json.dumps(
            {
                "kind": type(layer).__name__,
                "name": layer.name,
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
