"""The layer of a run's output, while it is written and when it is complete."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import znni
from znni.napari.layers import PLACE, LayerData, layer_of

# Reading a plane again may take long, and meanwhile the window waits. So it waits at most this
# share of the time, and at least a second goes by.
SHARE_OF_TIME = 0.05
LEAST_SECONDS = 1.0

# The choices of a user that the complete output keeps.
ALWAYS_KEPT = ("name", "visible", "opacity", "blending")
IMAGES_KEPT = ("colormap", "contrast_limits")


class OutputLayer:
    """The layer of an output. Zarr is shown while unfinished, other formats when complete.

    If the viewer shows the output of an earlier run, the layer takes its place.
    """

    def __init__(self, viewer: Any, out: str, over: Any) -> None:
        self._viewer = viewer
        self._out = out
        self._partial = f"{out}.partial"
        self._over = over
        self._next = 0.0

    def update(self) -> Any:
        """Show the blocks that are written by now, unless they were shown a moment ago.

        Returns:
            the layer, if it is a new one; else None.
        """
        if (begun := monotonic()) < self._next:
            return None
        self._next = begun + LEAST_SECONDS
        shown = self._shown()
        if shown is not None and shown.metadata[PLACE] == self._partial:
            shown.refresh()
            self._next += (monotonic() - begun) / SHARE_OF_TIME
        elif Path(self._partial).is_dir():
            with suppress(znni.ZnniError):  # its first files are being made
                return self._show(self._partial)
        return None

    def complete(self) -> Any:
        """Show the complete output, and return its layer."""
        return self._show(self._out)

    def _shown(self) -> Any:
        """Return the layer of this output, unfinished or complete; None if there is none."""
        places = self._partial, self._out
        layers = self._viewer.layers
        return next((one for one in layers if one.metadata.get(PLACE) in places), None)

    def _show(self, place: str) -> Any:
        """Show the output at a place, and return its layer."""
        layers, old = self._viewer.layers, self._shown()
        over = self._over if self._over in layers else None  # the user may have removed it
        made = layer_of(place, Path(self._out).name, over)
        kept: dict[str, Any] = {}
        at = len(layers)
        if old is not None:
            both_images = made.kind == "image" and hasattr(old, "contrast_limits")
            names = ALWAYS_KEPT + IMAGES_KEPT * both_images
            kept = {name: getattr(old, name) for name in names}
            at = layers.index(old)
            layers.remove(old)
        layer = added(self._viewer, made)
        for name, value in kept.items():
            setattr(layer, name, value)
        layers.move(layers.index(layer), at)
        return layer


def added(viewer: Any, made: LayerData) -> Any:
    """Add a layer to a viewer, and return it."""
    add = viewer.add_labels if made.kind == "labels" else viewer.add_image
    return add(made.data, **made.settings)
