"""Pictures as PNG files (ISO/IEC 15948)."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, TRUE_COLOUR = 0, 2  # types of pictures
COLOURED = 3  # axes of a picture with colours
UP = 2  # the filter that stores each byte minus the one above it


def png(picture: NDArray[np.uint8]) -> bytes:
    """Return a picture as the bytes of a PNG file.

    Args:
        picture: shades of grey (rows, columns), or red, green and blue (rows, columns, 3).
    """
    rows, columns = picture.shape[:2]
    coloured = picture.ndim == COLOURED
    flat = picture.reshape(rows, -1)
    above = np.vstack([np.zeros((1, flat.shape[1]), np.uint8), flat[:-1]])
    lines = np.empty((rows, flat.shape[1] + 1), np.uint8)
    lines[:, 0] = UP
    np.subtract(flat, above, out=lines[:, 1:])  # modulo 256
    kind = TRUE_COLOUR if coloured else GREY
    header = struct.pack(">IIBBBBB", columns, rows, 8, kind, 0, 0, 0)  # 8 bits a sample
    content = _chunk(b"IDAT", zlib.compress(lines.tobytes(), 6))
    return SIGNATURE + _chunk(b"IHDR", header) + content + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
