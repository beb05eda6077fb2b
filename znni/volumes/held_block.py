"""Small outputs of one block, held until they are finished: before, there is nothing to resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Box, Vec3
from znni.core.volume import NewOutput
from znni.volumes.checksums import checksum_of
from znni.volumes.ledger_entries import Ledger

# An output of one block is held until all is known of it, if it has at most so many bytes.
# A file that is made in memory has them once more. A plan counts both among those of the process.
HELD_BYTES = 4 << 20

# Makes an output on the disk, given its attributes and the planned patch.
Make: TypeAlias = Callable[[dict[str, Any], Vec3], None]


class HeldBlock:
    """The description of an output that is not made yet, and the values of its one block.

    It does not keep what makes the output. That refers to it, so both would stay in memory until
    Python looks for cycles.

    Attributes:
        whole: the box of the whole output.
        attributes: attributes to store with the output.
        patch: planned patch.
        values: the values (f', z, y, x) of the whole output, or None.
    """

    def __init__(self, wanted: NewOutput) -> None:
        self.whole = Box(Vec3(0, 0, 0), wanted.size)
        self._small = wanted.nbytes <= HELD_BYTES
        self._waits = False
        self._checksum = ""
        self.attributes: dict[str, Any] = {}
        self.patch = wanted.size
        self.values: NDArray[Any] | None = None

    def describe(self, attributes: dict[str, Any], patch: Vec3, make: Make) -> None:
        """Make the output, unless all of its values may be held."""
        self.attributes, self.patch, self._waits = attributes, patch, True
        if not self._small or patch.minimum(self.whole.size) != self.whole.size:
            self.begin(make)

    def begin(self, make: Make) -> None:
        """Make the output if it waits for that, and no values are held."""
        if self._waits and self.values is None:
            self._waits = False
            make(self.attributes, self.patch)

    def take(self, box: Box, values: NDArray[Any], make: Make) -> bool:
        """Hold the values (f', z, y, x) of a box if they are all, or make the output.

        Returns:
            Whether they are held. Otherwise they are to be written.
        """
        if self._waits and box == self.whole:
            self.values = np.array(values, order="C")
            self._checksum = checksum_of(self.values)
            return True
        self.begin(make)
        return False

    def summary(self, content: Ledger) -> bytes:
        """Return the text of the ledger of the whole output, with the block if it is held.

        The ledger itself stays without that block, which is not on the disk until all is.
        """
        if self.values is not None:
            content = replace(content, checksums={self.whole: self._checksum})
        return content.summary()

    def release(self) -> None:
        """Release the values: they are written."""
        self.values = None
