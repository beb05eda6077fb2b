"""What the engine asks of a volume, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.options import Compression, OutputType
from znni.core.shapes import Box, Vec3

SAME_COMMAND = "the same command goes on from there"

Point: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True)
class Grid:
    """Where a volume's voxels lie in space, each axis (z, y, x) by itself.

    Attributes:
        scale: extents of a voxel, in ``units``.
        translation: where the middle of the first voxel lies, in ``units``.
        units: by their UDUNITS-2 names, such as ``micrometer``; None where they are not known.
    """

    scale: Point = (1.0, 1.0, 1.0)
    translation: Point = (0.0, 0.0, 0.0)
    units: tuple[str | None, str | None, str | None] = (None, None, None)

    def starting_at(self, voxel: Vec3) -> Grid:
        """The grid of the part of the volume that begins at a voxel."""
        (z, y, x), (z_step, y_step, x_step) = self.translation, self.scale
        start = (z + voxel.z * z_step, y + voxel.y * y_step, x + voxel.x * x_step)
        return replace(self, translation=start)

    def __str__(self) -> str:
        units = [f" {unit}" if unit else "" for unit in self.units]
        scale = ", ".join(f"{a:g}{unit}" for a, unit in zip(self.scale, units, strict=True))
        start = ", ".join(f"{a:g}{unit}" for a, unit in zip(self.translation, units, strict=True))
        return f"voxels of ({scale}) from ({start})"


@dataclass(frozen=True)
class NewOutput:
    """An output to be made.

    Attributes:
        features: maps f'.
        size: voxels per axis.
        dtype: of the values.
        grid: where its voxels lie.
        overwrite: replace what has its name.
        compression: of its chunks; None for what is usual in its format.
        sharded: store many chunks to a file.
        identity: what the values depend on, by the names that people are told: an unfinished
            output of the same is gone on with.
        resume: go on with what earlier runs left; else start afresh.

    Raises:
        InvalidInput: no such compression.
    """

    features: int
    size: Vec3
    dtype: OutputType = "float32"
    grid: Grid = Grid()
    overwrite: bool = False
    compression: Compression | None = None
    sharded: bool = False
    identity: Mapping[str, str] = field(default_factory=dict)
    resume: bool = False

    def __post_init__(self) -> None:
        if self.compression is not None and self.compression not in get_args(Compression):
            known = ", ".join(get_args(Compression))
            raise InvalidInput(f"compression is {self.compression!r}; choose one of {known}")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of its array (f', z, y, x)."""
        return (self.features, *self.size)

    @property
    def nbytes(self) -> int:
        """Of its values, as they are before any compression."""
        return self.features * self.size.volume * np.dtype(self.dtype).itemsize

    def check_array(self, array: Any) -> None:
        """Check what an earlier run made for it, which has a shape and a dtype.

        Raises:
            ValueError: it has others than the output.
        """
        if (array.shape, array.dtype) != (self.shape, self.dtype):
            raise ValueError(
                f"it has {array.dtype} of shape {array.shape}, and the output is {self.dtype} of "
                f"{self.shape}"
            )


@dataclass
class Begun:
    """What there is of an unfinished output.

    Attributes:
        plan: of the blocks that come next, as JSON; empty where none is known.
        history: boxes that were written (True), or found to be damaged (False), in order.
    """

    plan: str = ""
    history: list[tuple[Box, bool]] = field(default_factory=list)


class Volume(Protocol):
    """Voxels to read, in boxes.

    Attributes:
        features: maps (channels) per voxel.
        size: voxels per axis.
        itemsize: bytes of one stored value.
        grid: where the voxels lie.
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

    @property
    def grid(self) -> Grid:
        """Where the voxels lie."""

    def read(self, box: Box) -> NDArray[Any]:
        """The values (f, z, y, x) of a box within the volume."""


class Sink(Protocol):
    """What takes dense output, in boxes."""

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Take the values (f', z, y, x) of a box."""


class Output(Sink, Protocol):
    """Where dense output goes, in boxes, each voxel once."""

    @property
    def begun(self) -> Begun:
        """What is there already; its history is sure once the output is described."""

    def describe(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Note how the output comes to be, before the first box is written.

        What earlier runs left keeps their notes, and its blocks are checked.

        Args:
            attributes: what is to be stored with it.
            patch: as planned, the boxes that will be written start at multiples of it and have
                its extents, but for the last ones along each axis.
        """

    def go_on_with(self, plan: str) -> None:
        """Note the plan of the boxes that are written from here on, as JSON."""

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a box."""

    def read(self, box: Box) -> NDArray[Any]:
        """The values (f', z, y, x) of a box that was written."""

    def finish(self, measured: dict[str, Any]) -> None:
        """All boxes are written: bring attributes up to date, and make the output a whole one."""

    def abandon(self, way_on: str = SAME_COMMAND, /) -> str:
        """The run stops part-way: keep what is written, but never as a whole output.

        Args:
            way_on: what to do with blocks that are finished, where they can be gone on with.

        Returns:
            What is left of it.
        """
