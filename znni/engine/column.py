"""The column of a sweep that layers are in: which block goes on from the one before."""

from __future__ import annotations

from znni.core.shapes import Axis, Box, Vec3, extent, resized


class Column:
    """Tells whether a block goes on from the block that the layers computed last.

    No block goes on if another column begins, or if a block in between was not computed. Another
    process may have taken that block, or an error may have stopped its layers.

    Args:
        axis: the axis along which blocks of a column follow one another.
    """

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._next: Vec3 | None = None

    def follows(self, computed: Box) -> bool:
        """Return whether a block goes on, as its layers begin.

        Args:
            computed: the box that it computes.
        """
        follows, self._next = computed.start == self._next, None
        return follows

    def done(self, computed: Box) -> None:
        """Note that the layers have computed a block."""
        if computed.size.volume:  # else it belongs to no job
            self._next = resized(computed.start, self._axis, extent(computed.stop, self._axis))
