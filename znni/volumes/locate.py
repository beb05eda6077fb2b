"""From what a user names to a volume."""

from __future__ import annotations

from pathlib import Path

from znni.errors import InvalidInput
from znni.volume import Volume
from znni.volumes.array import ArrayLike, ArrayVolume


def open_volume(source: str | Path | ArrayLike, dataset: str | None = None) -> Volume:
    """Open a volume.

    Args:
        source: an HDF5 file, ``file.h5:/path/of/dataset``, or an array.
        dataset: of a file with several volumes; the same as a path after the colon.

    Raises:
        InvalidInput: nothing there that is a volume.
    """
    if not isinstance(source, str | Path):
        return ArrayVolume(source)
    from znni.volumes.hdf5 import open_hdf5

    path, inside = split_dataset(str(source))
    if inside and dataset and inside.strip("/") != dataset.strip("/"):
        raise InvalidInput(f"{source} names one dataset and --dataset {dataset} another; give one")
    return open_hdf5(path, inside or dataset)


def split_dataset(source: str) -> tuple[Path, str | None]:
    """``file.h5:/raw`` as the file and the dataset; a colon in a file's own name stays."""
    file, colon, inside = source.rpartition(":")
    if colon and file and not Path(source).exists():
        return Path(file), inside
    return Path(source), None
