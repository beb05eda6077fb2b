"""Coarser resolutions of OME-Zarrs that exist already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from znni.core.argument_types import checks_types
from znni.core.errors import InvalidInput
from znni.core.option_types import Coarsening


@dataclass(frozen=True)
class Pyramid:
    """The resolutions of an image.

    Attributes:
        path: the image.
        coarsening: how voxels became one: ``mean`` or ``mode``.
        shapes: shapes of the arrays, the finest first.
    """

    path: str
    coarsening: Coarsening
    shapes: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        """Return this in words."""
        shapes = ", ".join("x".join(map(str, shape)) for shape in self.shapes)
        how = {"mean": "by means", "mode": "by the most frequent label"}[self.coarsening]
        return f"{self.path}: {len(self.shapes)} resolutions {how}: {shapes}"


@checks_types
def build_pyramid(
    image: str | Path, *, labels: bool | None = None, overwrite: bool = False
) -> Pyramid:
    """Give an OME-Zarr coarser resolutions, so that viewers show all of it at once.

    Args:
        image: path or URL of an OME-Zarr with one resolution.
        labels: True if values are labels, of which the most frequent one is taken; False for means.
            By default integers of 32 and 64 bits are labels, and outputs are as they say.
        overwrite: replace coarser resolutions that there are.

    Raises:
        InvalidInput: there is no such image, or it has coarser resolutions already.
        RunFailed: writing failed.
    """
    from znni.volumes.formats.zarr.new_levels import add_levels

    place = str(image).rstrip("/")
    if not place:
        raise InvalidInput("the image has no name; give the path or URL of an OME-Zarr")
    wanted: Coarsening = "" if labels is None else "mode" if labels else "mean"
    chosen, shapes = add_levels(place, wanted, overwrite=overwrite)
    return Pyramid(place, chosen, tuple(shapes))
