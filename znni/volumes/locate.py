"""From what a user names to a volume, or to an output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from znni.errors import InvalidInput, option
from znni.options import OutputType
from znni.shapes import Vec3
from znni.volume import Output, Volume
from znni.volumes.array import ArrayLike, ArrayOutput, ArrayVolume


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
        raise InvalidInput(
            f"{source} names one dataset and {option('dataset', dataset)} another; give one"
        )
    return open_hdf5(path, inside or dataset)


def open_output(
    out: str | Path | Any,
    source: str | Path | ArrayLike,
    features: int,
    size: Vec3,
    dtype: OutputType,
    *,
    overwrite: bool,
) -> Output:
    """Open the output of a run over a volume.

    Args:
        out: an HDF5 file to make, or an array (f', z, y, x).
        source: what the volume was opened from, which the output must not overwrite.
        features: maps f' of the output.
        size: voxels per axis of the output.
        dtype: of the values.
        overwrite: replace an existing file.

    Raises:
        InvalidInput: the output is the input, is there already, or cannot hold such values.
    """
    if not isinstance(out, str | Path):
        if isinstance(source, np.ndarray) and np.may_share_memory(source, out):
            raise InvalidInput("the output array shares memory with the input; give another")
        return ArrayOutput(out, features, size, dtype)
    from znni.volumes.hdf5 import Hdf5Output

    out = Path(out)
    if isinstance(source, str | Path) and _same_file(out, split_dataset(str(source))[0]):
        raise InvalidInput(f"{out}: is the input; name another output")
    return Hdf5Output(out, features, size, dtype, overwrite=overwrite)


def split_dataset(source: str) -> tuple[Path, str | None]:
    """``file.h5:/raw`` as the file and the dataset; a colon in a file's own name stays."""
    file, colon, inside = source.rpartition(":")
    if colon and file and not Path(source).exists():
        return Path(file), inside
    return Path(source), None


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # there is none yet
        return False
