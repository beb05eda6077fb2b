"""Writing bytes to a place in a file, all of them."""

from __future__ import annotations

import os
from typing import Any


def write_all(descriptor: int, data: Any, place: int) -> None:
    """Write all bytes of ``data`` to a place in a file.

    Raises:
        OSError: they do not all fit.
    """
    view = memoryview(data).cast("B")
    written = 0
    while written < len(view):
        written += os.pwrite(descriptor, view[written:], place + written)
