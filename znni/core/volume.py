"""The interface between the engine and volumes of any format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import Coarsening, StoredType
from znni.core.run_options import ExistingOptions, StorageOptions
from znni.core.shapes import Box, Vec3

LARGE = 256**3  # voxels of an image that gets coarser resolutions unasked
SAME_COMMAND = "the same command goes on from there"

Point: TypeAlias = tuple[float, float, float]


class Affine(NamedTuple):
    """Orientation and place of voxels in the space of a patient or an atlas, as NIfTI has them.

    Attributes:
        rows: twelve numbers, three rows of four. Each row times (x, y, z, 1) of a voxel is one
            coordinate of its place.
        code: NIfTI's number of that space, above 0.
    """

    rows: tuple[float, ...]
    code: int

    def starting_at(self, voxel: Vec3) -> Affine:
        """Return that of the part of the volume that begins at a voxel."""
        z, y, x = voxel
        rows = (self.rows[start : start + 4] for start in (0, 4, 8))
        moved = [(a, b, c, d + a * x + b * y + c * z) for a, b, c, d in rows]
        return Affine(tuple(number for row in moved for number in row), self.code)


@dataclass(frozen=True)
class Grid:
    """Position of a volume's voxels in space, for each axis (z, y, x) by itself.

    Attributes:
        scale: extents of a voxel, in ``units``.
        translation: position of the middle of the first voxel, in ``units``.
        units: UDUNITS-2 names, such as ``micrometer``; None where unknown.
        affine: orientation in the space of a patient or an atlas; None if unknown.
    """

    scale: Point = (1.0, 1.0, 1.0)
    translation: Point = (0.0, 0.0, 0.0)
    units: tuple[str | None, str | None, str | None] = (None, None, None)
    affine: Affine | None = None

    def starting_at(self, voxel: Vec3) -> Grid:
        """Return the grid of the part of the volume that begins at a voxel."""
        (z, y, x), (z_step, y_step, x_step) = self.translation, self.scale
        start = (z + voxel.z * z_step, y + voxel.y * y_step, x + voxel.x * x_step)
        affine = self.affine and self.affine.starting_at(voxel)
        return replace(self, translation=start, affine=affine)

    def __str__(self) -> str:
        units = [f" {unit}" if unit else "" for unit in self.units]
        scale = ", ".join(f"{a:g}{unit}" for a, unit in zip(self.scale, units, strict=True))
        start = ", ".join(f"{a:g}{unit}" for a, unit in zip(self.translation, units, strict=True))
        return f"voxels of ({scale}) from ({start})"


@dataclass(frozen=True)
class NewOutput(StorageOptions, ExistingOptions):
    """Description of an output to be made, with the options of its storage.

    Attributes:
        features: number of maps f'.
        size: voxels per axis.
        dtype: type of the values.
        grid: position of the voxels in space.
        labels: True if values are labels, so that no mean of them means anything.
        identity: everything that the values depend on, by names that users see. A run continues
            an unfinished output only if its identity is the same.
        maps: names of the maps, as OME-Zarr, OME-TIFF and HDF5 store them; empty if they have none.
        resume: as for a run, but only if it is asked for.

    Raises:
        InvalidInput: there is no such compression.
    """

    features: int
    size: Vec3
    dtype: StoredType = "float32"
    grid: Grid = Grid()
    labels: bool = False
    identity: Mapping[str, str] = field(default_factory=dict)
    maps: tuple[str, ...] = ()
    resume: bool = field(default=False, kw_only=True)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the array, (f', z, y, x)."""
        return (self.features, *self.size)

    @property
    def nbytes(self) -> int:
        """Bytes of the values before any compression."""
        return self.features * self.size.volume * np.dtype(self.dtype).itemsize

    @property
    def coarsening(self) -> Coarsening:
        """The rule that makes coarser resolutions; empty if there are none."""
        wanted = self.size.volume > LARGE if self.pyramid is None else self.pyramid
        return ("mode" if self.labels else "mean") if wanted else ""

    def check_array(self, array: Any) -> None:
        """Check the array that an earlier run made for this output.

        Raises:
            ValueError: its shape or dtype differs from the output's.
        """
        if (array.shape, array.dtype) != (self.shape, self.dtype):
            raise ValueError(
                f"it has {array.dtype} of shape {array.shape}, and the output is {self.dtype} of "
                f"{self.shape}"
            )


@dataclass
class ResumeState:
    """State of an unfinished output.

    Attributes:
        plan: plan for the blocks that come next, as JSON; empty if unknown.
        history: boxes that were written (True), or found to be damaged (False), in order.
    """

    plan: str = ""
    history: list[tuple[Box, bool]] = field(default_factory=list)


class Volume(Protocol):
    """Voxels that can be read in boxes.

    Attributes:
        features: maps (channels) per voxel.
        size: voxels per axis.
        dtype: type of the stored values.
        itemsize: bytes of one stored value.
        grid: position of the voxels in space.
        pieces: extents of the pieces that threads may read at the same time, each by itself. They
            begin at multiples of these extents. None: one call reads a large box faster.
    """

    @property
    def features(self) -> int:
        """Maps (channels) per voxel."""

    @property
    def size(self) -> Vec3:
        """Voxels per axis."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored values."""

    @property
    def itemsize(self) -> int:
        """Bytes of one stored value."""

    @property
    def grid(self) -> Grid:
        """Position of the voxels in space."""

    @property
    def pieces(self) -> Vec3 | None:
        """Extents of the pieces that threads may read at the same time, if there are any."""

    def read(self, box: Box) -> NDArray[Any]:
        """Return the values (f, z, y, x) of a box within the volume."""


class Sink(Protocol):
    """A receiver of dense output, in boxes. An ``Output`` is one.

    ``PartialOutput`` and ``BlockSink`` write files, ``ArrayOutput`` fills an array, and
    ``Comparison`` compares with a finished block.
    """

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Receive the values (f', z, y, x) of a box."""


class BlockStore(Sink, Protocol):
    """A receiver of dense output, in boxes, which can be read again."""

    def read(self, box: Box) -> NDArray[Any]:
        """Return the values (f', z, y, x) of a box that was written."""


# A piece of work.
Action: TypeAlias = Callable[[], None]

# Takes the last two steps of an output, to do them in order, now or later. The first waits for the
# disk, in any thread. The second gives the output its final name.
LastSteps: TypeAlias = Callable[[Action, Action], None]


def at_once(wait: Action, name: Action) -> None:
    """Do the last steps of an output now."""
    wait()
    name()


class Output(BlockStore, Protocol):
    """A destination of dense output, in boxes, each voxel once.

    Each format has a class. ``open_output`` in ``volumes/locate.py`` finds it.
    """

    @property
    def resume_state(self) -> ResumeState:
        """Work already there; its history is final once the output is begun."""

    def begin(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Begin the output on the disk, before the first box is written.

        If earlier runs left a part, its blocks are checked instead, and their notes stay.

        Args:
            attributes: attributes to store with the output.
            patch: planned patch. The boxes that will be written start at multiples of it and have
                its extents, except the last ones along each axis.
        """

    def note_plan(self, plan: str) -> None:
        """Note the plan of the boxes that are written from here on, as JSON."""

    def finish(self, measured: dict[str, Any], last_steps: LastSteps = at_once) -> None:
        """Complete the output after all boxes are written, and update its attributes.

        Args:
            measured: attributes to store with the output.
            last_steps: takes the last steps, if the output has such steps that need no memory.
        """

    def abandon(self, resume_advice: str = SAME_COMMAND, /) -> str:
        """Stop part-way: keep what is written, but as a complete output only if it is complete.

        Args:
            resume_advice: advice on how to continue, for when finished blocks can be kept.

        Returns:
            A description of what is left of the output. If it is complete, the description says so.
        """
