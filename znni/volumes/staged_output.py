"""Outputs of formats that are written from start to end, gathered in a Zarr beside them first."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, RunFailed
from znni.core.option_types import Packing
from znni.core.run_options import StorageOptions
from znni.core.shapes import Box, Vec3
from znni.core.volume import LastSteps, NewOutput, Output, ResumeState
from znni.machine.arrays import resident_memory
from znni.volumes.formats.zarr.output import ZarrOutput
from znni.volumes.formats.zarr.writer import ZarrWriter
from znni.volumes.output_place import check_free, refused_at
from znni.volumes.partial_file import AS_FILE, PartialFile, is_at
from znni.volumes.planes import planes
from znni.volumes.stored import is_url, reason
from znni.volumes.writer import Writer

PROMISED = "predicted_memory_bytes"  # the attribute with the memory that the run may take
MOST_ROOM = 2**30  # bytes of a slab; more makes nothing faster


@dataclass(frozen=True)
class Content:
    """Values of a file that is written from its start to its end, and what it says about them.

    Attributes:
        wanted: shape, type, grid and compression.
        planes: returns the planes (y, x), first those of the first map, each map by z.
        attributes: how the values were made; empty if that is not known.
        ledger: text of the ledger; empty if there is none.
    """

    wanted: NewOutput
    planes: Callable[[], Generator[NDArray[np.generic], None, None]]
    attributes: Mapping[str, Any]
    ledger: bytes = b""

    @property
    def notes(self) -> str:
        """The attributes and the ledger as JSON; empty if there are no attributes."""
        said = {"attributes": dict(self.attributes), "ledger": self.ledger.decode()}
        return json.dumps(said, default=lambda value: value.tolist()) if self.attributes else ""


class StagedWriter(Writer):
    """Writes whole files of one format, when all of their blocks are in a Zarr."""

    is_staged = True

    @abstractmethod
    def check(self, wanted: NewOutput) -> None:
        """Refuse what such a file cannot hold.

        Raises:
            InvalidInput: it cannot hold the type, or an option.
        """

    @abstractmethod
    def save(self, file: IO[bytes], content: Content) -> None:
        """Write a file that is open for writing."""

    @abstractmethod
    def packing(self, wanted: NewOutput) -> Packing:
        """Return how the file is compressed."""

    def resume_state(self, wanted: NewOutput) -> ResumeState:
        """Return the state of an output that a run wants to make. Nothing is changed."""
        self.check_place(wanted)
        return ZarrWriter(self.place).resume_state(gathered(wanted))

    def create(self, wanted: NewOutput) -> Output:
        """Make a new output, or open an unfinished one to continue it."""
        return StagedOutput(self, wanted)

    def check_place(self, wanted: NewOutput) -> None:
        """Refuse a place, or a description, if no file can be made."""
        if is_url(self.place):
            raise InvalidInput(
                f"{self.place}: only a Zarr is written to a URL; write a local file and copy it, "
                f"or name a .zarr"
            )
        self.check(wanted)
        if Path(self.place).is_dir():
            raise InvalidInput(f"{self.place}: is a folder; name a file in it")

    def write_whole(self, new: Path, content: Content) -> None:
        """Write a file under another name than its own, and have it reach the disk.

        Raises:
            RunFailed: the system refuses.
        """
        try:
            with new.open("wb") as file:
                self.save(file, content)
                file.flush()
                os.fsync(file)
        except OSError as error:
            raise _failed(new, error) from error

    def save_whole(self, content: Content) -> None:
        """Write a file under its partial name, and give it its own when it is whole.

        If writing stops, nothing is left of it.

        Raises:
            InvalidInput: it cannot be made there.
            RunFailed: a write failed.
        """
        self.check_place(content.wanted)
        path = Path(self.place)
        with refused_at(path):
            check_free(path, AS_FILE, overwrite=content.wanted.overwrite)
            file = PartialFile(path)
        try:
            file.truncate(0)
            self.write_whole(file.root, content)
            file.complete()
        except BaseException as error:
            if file.is_complete:
                error.add_note(f"{path} is complete")
            else:
                file.discard()
                error.add_note(f"{path} was not made")
            file.close()
            if isinstance(error, OSError):
                raise _failed(file.root, error) from error
            raise


def gathered(wanted: NewOutput) -> NewOutput:
    """Return the description of the Zarr that gathers an output."""
    return replace(wanted, **vars(StorageOptions(pyramid=False)))


def _failed(new: Path, error: OSError) -> RunFailed:
    return RunFailed(f"{new}: cannot be written: {reason(error)}; make room or write elsewhere")


class StagedOutput(ZarrOutput):
    """A file that is written when all blocks are in a Zarr, its ``NAME.partial``.

    Until then it is an unfinished Zarr with a ledger, and can be continued. The file is written
    into that folder, and takes its name when it is whole. If the run is stopped meanwhile, the same
    command writes the file again. No Zarr is made if the values are held.
    """

    def __init__(self, writer: StagedWriter, wanted: NewOutput) -> None:
        writer.check_place(wanted)
        self._whole_file: os.stat_result | None = None  # once it takes its name
        super().__init__(writer.place, gathered(wanted))
        self._file = wanted
        self._writer = writer
        self._block = 0  # bytes

    def begin(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Make the Zarr, unless all values may be held, and note how large its blocks are."""
        wanted = self._wanted
        extents = patch.minimum(wanted.size)
        self._block = extents.volume * wanted.features * np.dtype(wanted.dtype).itemsize
        super().begin(attributes, patch)

    def _complete(self, measured: dict[str, Any], _last_steps: LastSteps) -> None:
        """Write the file, give it its name, and delete the Zarr."""
        values: Any = self._held
        if values is not None:
            attributes = json.loads(json.dumps(self._attributes | measured))  # as a Zarr's are
        else:
            values = self._array
            values.update_attributes(measured)
            attributes = dict(values.attrs)

        def one_map(feature: int, box: Box) -> NDArray[Any]:
            return np.asarray(values[(feature, *box.slices)])

        folder = Path(self._folder.root)
        new, place = folder / "file", Path(self._folder.place)
        wanted = self._wanted
        plane = wanted.size.y * wanted.size.x * np.dtype(wanted.dtype).itemsize
        free = int(attributes.get(PROMISED, 0)) - resident_memory()
        if self._file.coarsening:  # a plane of each coarser resolution, and parts of planes
            free -= plane // 2
        room = max(self._block, min(free, MOST_ROOM))

        def read() -> Generator[NDArray[np.generic], None, None]:
            return planes(one_map, wanted.features, wanted.size, plane, room)

        content = Content(self._file, read, attributes, self._summary())
        self._writer.write_whole(new, content)
        self._whole_file = new.stat()
        new.replace(place)
        self._tidy()

    def _is_complete(self) -> bool:
        return is_at(Path(self._folder.place), self._whole_file)

    def _tidy(self) -> None:
        """Delete the Zarr: the file has its name."""
        self._ledger.discard()  # before the Zarr, so that no run goes on with what is left of it
        self._folder.discard()
        self._folder.keep()
