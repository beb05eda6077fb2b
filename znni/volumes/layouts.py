"""Layouts of files that were opened, by which further files with the same layout are opened.

Libraries take 0.4 to 0.6 ms to find out what the bytes beside the values say. Volumes that one
program has written often have the same bytes there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from znni.core.array_like import ArrayLike
from znni.core.options import Moment
from znni.core.volume import Grid
from znni.volumes.mapped_array import MappedArray
from znni.volumes.named_axes import NamedAxes, at_time
from znni.volumes.stored import StoredVolume

# Layouts kept, and the bytes beside the values of the largest one.
MOST_LAYOUTS = 16
MOST_BYTES = 2**16

# The environment variable that tells HDF5 whether to lock files, and its values for no locks.
LOCKING = "HDF5_USE_FILE_LOCKING"
UNLOCKED = ("FALSE", "0")


class Layout(NamedTuple):
    """The place of a volume in a file, and the properties that the rest of the file gives it.

    Attributes:
        dtype: the type of the values.
        shape: the extents.
        axes: the names of the axes; empty if the file has none.
        channels: the names of the maps; empty if they have none.
        grid: the position of the voxels in space.
        attributes: how an output was made.
        inside: the name of the dataset in the file, if datasets have names.
        assumed: what is assumed of the grid.
        before: the bytes of the file before the values.
        after: those after the values.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    axes: Sequence[str]
    channels: Sequence[str]
    grid: Grid
    attributes: Mapping[str, Any]
    inside: str = ""
    assumed: str = ""
    before: bytes = b""
    after: bytes = b""

    def volume(self, descriptor: int, name: str, time: Moment | None) -> StoredVolume:
        """Open the volume in an open file with this layout. The file may be closed afterwards."""
        array = MappedArray(descriptor, self.dtype, len(self.before), self.shape)
        seen: ArrayLike
        if self.axes:
            seen = NamedAxes(array, self.axes, name, time, self.channels)
        else:
            seen = at_time(array, name, time, self.channels)
        found = StoredVolume(
            seen, name, self.grid, self.attributes, chunks=("mapped", None, array.row)
        )
        found.assumed = self.assumed
        return found


# By the format, the length of the file, and the dataset that was asked for.
_known: dict[tuple[str, int, str | None], Layout] = {}


def known_volume(
    path: Path,
    format_name: str,
    dataset: str | None,
    name: str,
    time: Moment | None = None,
    *,
    locks: bool = False,
) -> StoredVolume | None:
    """Open the volume in a file if its layout is that of a file opened before.

    It is None, too, if the file cannot be read or locked: who opens it otherwise tells why.

    Args:
        path: the file.
        format_name: the format that it is to have.
        dataset: the dataset that is asked for.
        name: the name of the volume, without that of the dataset in the file.
        time: the point in time that is asked for.
        locks: whether to lock the file as HDF5 does, as long as the volume exists. Then
            HDF5 does not open it to write.
    """
    try:
        with path.open("rb", buffering=0) as file:
            descriptor = file.fileno()
            length = os.fstat(descriptor).st_size
            found = _known.get((format_name, length, dataset))
            if found is None:
                return None
            if locks and os.environ.get(LOCKING) not in UNLOCKED:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if os.pread(descriptor, len(found.before), 0) != found.before:
                return None
            after = os.pread(descriptor, len(found.after), length - len(found.after))
            if after != found.after:
                return None
            return found.volume(
                descriptor, f"{name}:{found.inside}" if found.inside else name, time
            )
    except OSError:
        return None


def note_layout(
    descriptor: int, format_name: str, dataset: str | None, start: int, about: Layout
) -> None:
    """Keep the layout of an open file whose values begin at a place, unless it is large.

    Args:
        descriptor: the file.
        format_name: its format.
        dataset: the dataset that was asked for.
        start: the place.
        about: the layout without the bytes before and after the values.
    """
    length = os.fstat(descriptor).st_size
    nbytes = prod(about.shape) * about.dtype.itemsize
    if length - nbytes > MOST_BYTES:
        return
    if len(_known) >= MOST_LAYOUTS:
        _known.pop(next(iter(_known)), None)
    end = start + nbytes
    before, after = os.pread(descriptor, start, 0), os.pread(descriptor, length - end, end)
    _known[format_name, length, dataset] = about._replace(before=before, after=after)
