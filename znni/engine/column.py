"""The column of a sweep that layers are in: which block goes on from the one before."""

from __future__ import annotations

from znni.core.shapes import Box, Vec3


class Column:
    """Tells whether a block goes on from the block that the layers computed last.

    No block goes on if another column begins, or if a block in between was not computed. Another
    process may have taken that block, or an error may have stopped its layers.
    """

    def __init__(self) -> None:
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
            self._next = computed.start._replace(z=computed.stop.z)
