"""The files of a folder of slices, in natural order."""

from __future__ import annotations

import re
from pathlib import Path

from znni.core.errors import InvalidInput
from znni.volumes.stored import is_url

PNG = ".png"
SUFFIXES = (".tif", ".tiff", PNG)
VOLUMES = (".h5", ".nii", ".gz", ".npy")  # endings of volumes, for an example


def is_slice(name: str) -> bool:
    """Return whether a file may be a slice, by its name. Hidden files are not slices."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def slice_files(place: str) -> list[Path]:
    """Return the slices of a folder, so that ``slice2`` comes before ``slice10``.

    Raises:
        InvalidInput: there is no such folder, it has no slices, or they are of two kinds.
    """
    if is_url(place):
        raise InvalidInput(f"{place}: folders of slices are read from this machine only")
    folder = Path(place)
    names = [path.name for path in folder.iterdir()]
    files = [folder / name for name in sorted(filter(is_slice, names), key=natural)]
    if not files:
        raise InvalidInput(
            f"{place}: is a folder without slices ({', '.join(SUFFIXES)}); {_instead(place, names)}"
        )
    if len({path.suffix.lower() == PNG for path in files}) > 1:
        raise InvalidInput(
            f"{place}: has slices in TIFF and in PNG; put those of one volume in a folder of their "
            f"own"
        )
    return files


def natural(name: str) -> tuple[list[str | int], str]:
    """Return the key by which names are sorted: numbers in them count by their values."""
    parts: list[str | int] = list(re.split(r"(\d+)", name.lower()))
    parts[1::2] = map(int, parts[1::2])
    return parts, name


def _instead(place: str, names: list[str]) -> str:
    """Return what to give instead of a folder without slices."""
    endings = sorted({Path(name).suffix for name in names}.intersection(VOLUMES))
    if endings:
        return f"to run over each volume in it, give {place.rstrip('/')}/*{endings[0]}"
    return "give a file, a folder with one image for each plane, or a Zarr whose name ends in .zarr"
