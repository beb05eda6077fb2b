"""Parts of arrays that are in chunks: the indices along each axis, as ranges without steps."""

from __future__ import annotations

from collections.abc import Iterable


def chunk_starts(part: Iterable[range], chunks: Iterable[int]) -> list[range]:
    """Return the starts of the chunks that a part overlaps, along each axis."""
    return [
        range(along.start // size * size, along.stop, size)
        for along, size in zip(part, chunks, strict=True)
    ]


def common(part: Iterable[range], start: Iterable[int], extents: Iterable[int]) -> list[range]:
    """Return what a part and a box have in common."""
    return [
        range(max(first, along.start), min(first + size, along.stop))
        for along, first, size in zip(part, start, extents, strict=True)
    ]


def counted_from(origin: Iterable[int], part: Iterable[range]) -> tuple[slice, ...]:
    """Return a part as slices, counted from an origin."""
    return tuple(
        slice(along.start - first, along.stop - first)
        for first, along in zip(origin, part, strict=True)
    )
