"""A batch in pieces small enough for cuDNN's index arithmetic and for bounded workspace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from znni.core.shapes import Shape5
from znni.network.network import Conv

# Bytes that a piece's input and output take in cuDNN's layout, unless one plane takes more; a
# GPU is busy with less.
PIECE_BYTES = 512 * 2**20

# cuDNN counts the elements of a tensor in 32 bits.
MOST_ELEMENTS = 2**31 - 1


@dataclass(frozen=True)
class Pieces:
    """Equal pieces of a batch, the last ones shifted back so as to end where it ends.

    Attributes:
        shape: of a piece's input.
        out: of its output.
        whole: of the whole output.
    """

    shape: Shape5
    out: Shape5
    whole: Shape5

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The first image and the first plane of the output, of each piece."""
        for image in _starts(self.whole.n, self.out.n):
            for plane in _starts(self.whole.z, self.out.z):
                yield image, plane


def pieces(conv: Conv, shape: Shape5, out: Shape5, number_bytes: int) -> Pieces | None:
    """As few pieces as keep to ``PIECE_BYTES``: of whole images, or of some planes of one.

    Returns:
        None where even one plane of output has more elements than cuDNN counts.
    """

    def piece(images: int, planes: int) -> Pieces:
        seen = planes + conv.kernel.z - 1
        return Pieces(shape._replace(n=images, z=seen), out._replace(n=images, z=planes), out)

    def nbytes(tried: Pieces) -> int:
        return (tried.shape.elements + tried.out.elements) * number_bytes

    image = nbytes(piece(1, out.z))
    if image <= PIECE_BYTES:
        found = piece(_even(out.n, PIECE_BYTES // image), out.z)
    else:
        first = nbytes(piece(1, 1))
        further = nbytes(piece(1, 2)) - first
        planes = 1 + max(0, PIECE_BYTES - first) // further
        found = piece(1, _even(out.z, planes))
    countable = max(found.shape.elements, found.out.elements) <= MOST_ELEMENTS
    return found if countable else None


def _even(count: int, most: int) -> int:
    """The size of as few equal parts, the last perhaps shifted back, as ``most`` allows."""
    return -(-count // -(-count // most))


def _starts(count: int, size: int) -> list[int]:
    return [min(start, count - size) for start in range(0, count, size)]
