"""CRC-32 checksums of blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from znni.machine.io_threads import begin_task


def checksum_of(values: NDArray[Any]) -> str:
    """Return the CRC-32 of a block's values (f', z, y, x) as they are stored, in C order."""
    if values.flags.c_contiguous:
        return f"{crc32(values.data):08x}"
    checksum = 0
    for plane in (plane for image in values for plane in image):
        checksum = crc32(np.ascontiguousarray(plane).data, checksum)
    return f"{checksum:08x}"


def begin_checksum(values: NDArray[Any]) -> Callable[[], str]:
    """Begin to compute a checksum, as ``checksum_of``, in one of the threads that write.

    One thread reads 3.6 GB/s on a server, where two write 2.1 GB/s to an HDF5 file in memory.

    Returns:
        A function that waits for it.
    """
    return begin_task(partial(checksum_of, values), "writing").result
