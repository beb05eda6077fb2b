"""A batch in pieces that are small enough for cuDNN's index arithmetic and for its workspace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.network.layers import Conv
from znni.primitives.gpu.common.division import even_share

# Bytes that a piece's input and output may take in cuDNN's layout, unless one plane takes more.
# Fewer bytes would keep a GPU busy.
PIECE_BYTES = 512 * 2**20

# cuDNN counts the elements of a tensor in 32 bits.
MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class Pieces:
    """Equal pieces of a batch. The last ones are shifted back, so that they end where it ends.

    Attributes:
        shape: the shape of a piece's input.
        out: the shape of a piece's output.
        whole: the shape of the whole output.
    """

    shape: Shape5
    out: Shape5
    whole: Shape5

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the first image and the first output plane of each piece."""
        for image in _starts(self.whole.n, self.out.n):
            for plane in _starts(self.whole.z, self.out.z):
                yield image, plane


def pieces(conv: Conv, shape: Shape5, out: Shape5, number_bytes: int) -> Pieces | None:
    """Return as few pieces as keep to ``PIECE_BYTES``: whole images, or some planes of one.

    Returns:
        None if even one plane of output has more elements than cuDNN can count.
    """

    def piece(images: int, planes: int) -> Pieces:
        seen = planes + conv.kernel.z - 1
        return Pieces(shape._replace(n=images, z=seen), out._replace(n=images, z=planes), out)

    def nbytes(tried: Pieces) -> int:
        return (tried.shape.elements + tried.out.elements) * number_bytes

    image = nbytes(piece(1, out.z))
    if image <= PIECE_BYTES:
        found = piece(even_share(out.n, PIECE_BYTES // image), out.z)
    else:
        first = nbytes(piece(1, 1))
        further = nbytes(piece(1, 2)) - first
        planes = 1 + max(0, PIECE_BYTES - first) // further
        found = piece(1, even_share(out.z, planes))
    countable = max(found.shape.elements, found.out.elements) <= MOST_ELEMENTS
    return found if countable else None


def _starts(count: int, size: int) -> list[int]:
    return [min(start, count - size) for start in range(0, count, size)]
