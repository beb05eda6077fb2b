"""Grey pictures as PNG files (ISO/IEC 15948)."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
UP = 2  # the filter that stores each byte minus the one above it


def grey_png(picture: NDArray[np.uint8]) -> bytes:
    """Return a picture (rows, columns) as the bytes of a PNG file."""
    rows, columns = picture.shape
    above = np.vstack([np.zeros((1, columns), np.uint8), picture[:-1]])
    lines = np.empty((rows, columns + 1), np.uint8)
    lines[:, 0] = UP
    np.subtract(picture, above, out=lines[:, 1:])  # modulo 256
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)  # 8 bits of grey
    content = _chunk(b"IDAT", zlib.compress(lines.tobytes(), 6))
    return SIGNATURE + _chunk(b"IHDR", header) + content + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
