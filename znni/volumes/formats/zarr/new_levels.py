"""Coarser resolutions for an OME-Zarr that exists already."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from znni.core.errors import InvalidInput, RunFailed, option
from znni.core.option_types import Coarsening
from znni.volumes.formats import library
from znni.volumes.formats.zarr.ome_metadata import Level, levels
from znni.volumes.formats.zarr.pyramid import write_levels
from znni.volumes.label_values import holds_labels
from znni.volumes.stored import errors_as, is_url, reason

TORN = f"[z.]*.{'[0-9a-f]' * 32}.partial"  # zarr's name of such a file: its own and a UUID
LAST = ("z", "y", "x")


def add_levels(
    place: str, coarsening: Coarsening, *, overwrite: bool
) -> tuple[Coarsening, list[tuple[int, ...]]]:
    """Write coarser resolutions of an image, each made of the one before.

    The metadata names them when all are written. So if writing stops, the image is as it was, and
    the same call starts again.

    Args:
        place: path or URL of the image, a group of a Zarr.
        coarsening: how voxels become one; empty: as the values suggest.
        overwrite: replace coarser resolutions that there are.

    Returns:
        How voxels became one, and the shapes of all resolutions.

    Raises:
        InvalidInput: there is no such image, or it has coarser resolutions already.
        RunFailed: writing failed.
    """
    zarr = library("zarr", "zarr")
    if Path(place).is_file():
        raise InvalidInput(
            f"{place}: is a file, and no OME-Zarr; make one with znni export {place} OUT.zarr"
        )
    with errors_as(partial(_failed, place)):
        try:
            group = zarr.open(place, mode="r+")
        except (FileNotFoundError, zarr.errors.NodeNotFoundError):
            raise InvalidInput(
                f"{place}: there is no Zarr; give the folder or the URL of an OME-Zarr"
            ) from None
        if not hasattr(group, "members"):
            raise InvalidInput(f"{place}: is an array, and no group with an image; give the group")
        image = levels(group.attrs, place)
        array = _finest(group, image, place)
        if len(image) > 1:
            if not overwrite:
                raise InvalidInput(
                    f"{place}: has {len(image)} resolutions already; give "
                    f"{option('overwrite', True)} to make the coarser ones again"
                )
            _take_away(group, image)
        _remove_torn(place)
        suggested: Coarsening = "mode" if holds_labels(array.attrs, array.dtype) else "mean"
        chosen = coarsening or suggested
        made = list(write_levels(group, array, image[0].grid, chosen))
        entries = [image[0].coarser_entry(path, factor) for path, factor in made]
        _change(group, lambda found: found[:1] + entries, chosen)
        return chosen, [array.shape, *(group[path].shape for path, _ in made)]


def _remove_torn(place: str) -> None:
    """Delete metadata that a killed run was writing. Zarr renames it when it is whole."""
    if not is_url(place):
        for left in Path(place).glob(TORN):
            left.unlink(missing_ok=True)


def _finest(group: Any, image: list[Level], place: str) -> Any:
    if not image:
        raise InvalidInput(
            f"{place}: has no OME metadata of an image; make one with znni export IN OUT.zarr"
        )
    axes = image[0].axes
    if axes[-len(LAST) :] != LAST:
        raise InvalidInput(
            f"{place}: has axes ({', '.join(axes)}), and coarser resolutions need z, y and x last; "
            f"copy it with znni export IN OUT.zarr"
        )
    return group[image[0].path]


def _take_away(group: Any, image: list[Level]) -> None:
    """Delete the coarser resolutions, after the metadata no longer name them."""
    _change(group, lambda found: found[:1], "")
    for level in image[1:]:
        del group[level.path]


def _change(group: Any, change: Any, coarsening: Coarsening) -> None:
    """Replace the list of resolutions in a group's metadata."""
    attributes = group.attrs.asdict()
    ome = attributes.get("ome", attributes)
    ome["multiscales"][0]["datasets"] = change(ome["multiscales"][0]["datasets"])
    ome["multiscales"][0].pop("type", None)
    if coarsening:
        ome["multiscales"][0]["type"] = coarsening
    group.update_attributes(attributes)


def _failed(place: str, error: Exception) -> RunFailed:
    return RunFailed(
        f"{place}: cannot be given coarser resolutions: {reason(error)}; check that it is whole, "
        f"and that you may write there"
    )
