"""What the engine asks of a volume, whatever its format."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from znni.shapes import Box, Vec3


class Volume(Protocol):
    """Voxels to read, in boxes.

    Attributes:
        features: maps (channels) per voxel.
        size: voxels per axis.
        itemsize: bytes of one stored value.
    """

    @property
    def features(self) -> int:
        """Maps (channels) per voxel."""

    @property
    def size(self) -> Vec3:
        """Voxels per axis."""

    @property
    def itemsize(self) -> int:
        """Bytes of one stored value."""

    def read(self, box: Box) -> NDArray[Any]:
        """The values (f, z, y, x) of a box within the volume."""


class Output(Protocol):
    """Where dense output goes, in boxes, each voxel once."""

    def describe(self, attributes: dict[str, Any]) -> None:
        """Note how the output comes to be, before the first box is written."""

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a box."""

    def finish(self, measured: dict[str, Any]) -> None:
        """All boxes are written: bring attributes up to date, and make the output a whole one."""

    def abandon(self) -> str:
        """The run stops part-way: keep what is written, but never as a whole output.

        Returns:
            What is left of it.
        """
