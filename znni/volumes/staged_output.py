"""Outputs of formats that are written from start to end, gathered in a Zarr beside them first."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, RunFailed
from znni.core.run_options import StorageOptions
from znni.core.shapes import Box, Vec3
from znni.core.volume import Begun, LastSteps, NewOutput
from znni.machine.arrays import resident_memory
from znni.volumes.formats import Content, Sequential, Writer
from znni.volumes.ledger_file import ledger_name
from znni.volumes.partial_file import AS_FILE, PartialFile, check_free, is_at, refused_at
from znni.volumes.planes import planes
from znni.volumes.stored import is_url, reason
from znni.volumes.zarr.output import ZarrOutput, begun_output

PROMISED = "predicted_memory_bytes"  # the attribute with the memory that the run may take
MOST_ROOM = 2**30  # bytes of a slab; more makes nothing faster


def staged(sequential: Sequential, ledger: Callable[[str], bytes]) -> Writer:
    """Return a writer whose outputs are blocks of a Zarr until all are there.

    Args:
        sequential: writes the whole file then.
        ledger: returns the ledger that a whole file holds.
    """

    def begun(place: str, wanted: NewOutput) -> Begun:
        _check(place, wanted, sequential)
        return begun_output(place, _gathered(wanted))

    def ledger_text(place: str) -> bytes:
        beside = ledger_name(Path(place))
        return beside.read_bytes() if beside.is_file() else ledger(place)

    made = partial(StagedOutput, sequential=sequential)
    return Writer(begun, made, ledger_text, sequential=sequential)


def _check(place: str, wanted: NewOutput, sequential: Sequential) -> None:
    if is_url(place):
        raise InvalidInput(
            f"{place}: only a Zarr is written to a URL; write a local file and copy it, or name a "
            f".zarr"
        )
    sequential.check(place, wanted)
    if Path(place).is_dir():
        raise InvalidInput(f"{place}: is a folder; name a file in it")


def _gathered(wanted: NewOutput) -> NewOutput:
    """Return the description of the Zarr that gathers an output."""
    return replace(wanted, **vars(StorageOptions(pyramid=False)))


class StagedOutput(ZarrOutput):
    """A file that is written when all blocks are in a Zarr, its ``NAME.partial``.

    Until then it is an unfinished Zarr with a ledger, and can be continued. The file is written
    into that folder, and takes its name when it is whole. If the run is stopped meanwhile, the same
    command writes the file again. No Zarr is made if the values are held.

    Raises:
        InvalidInput: the output exists and may not be overwritten, cannot be made, or is the
            unfinished output of another run.
        RunFailed: a write failed.
    """

    def __init__(self, place: str, wanted: NewOutput, sequential: Sequential) -> None:
        _check(place, wanted, sequential)
        self._whole_file: os.stat_result | None = None  # once it takes its name
        super().__init__(place, _gathered(wanted))
        self._file = wanted
        self._sequential = sequential
        self._block = 0  # bytes

    def describe(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Make the Zarr, unless all values may be held, and note how large its blocks are."""
        wanted = self._wanted
        extents = patch.minimum(wanted.size)
        self._block = extents.volume * wanted.features * np.dtype(wanted.dtype).itemsize
        super().describe(attributes, patch)

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
        write_whole(new, place, self._sequential, content)
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


def save_whole(place: str, sequential: Sequential, content: Content) -> None:
    """Write a file under its partial name, and give it its own when it is whole.

    If writing stops, nothing is left of it.

    Raises:
        InvalidInput: it cannot be made there.
        RunFailed: a write failed.
    """
    _check(place, content.wanted, sequential)
    path = Path(place)
    with refused_at(place):
        check_free(path, AS_FILE, overwrite=content.wanted.overwrite)
        file = PartialFile(path)
    try:
        file.truncate(0)
        write_whole(file.partial, path, sequential, content)
        file.complete()
    except BaseException as error:
        if file.is_complete:
            error.add_note(f"{path} is complete")
        else:
            file.partial.unlink(missing_ok=True)
            error.add_note(f"{path} was not made")
        file.close()
        if isinstance(error, OSError):
            raise _failed(file.partial, error) from error
        raise


def _failed(new: Path, error: OSError) -> RunFailed:
    return RunFailed(f"{new}: cannot be written: {reason(error)}; make room or write elsewhere")


def write_whole(new: Path, place: Path, sequential: Sequential, content: Content) -> None:
    """Write a file under another name than its own, and have it reach the disk.

    Raises:
        RunFailed: the system refuses.
    """
    try:
        with new.open("wb") as file:
            sequential.save(file, place.name, content)
            file.flush()
            os.fsync(file)
    except OSError as error:
        raise _failed(new, error) from error
