"""A new HDF5 file that stays readable and can be continued, however the run ends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from znni.core.background import in_background
from znni.core.chunks import chunk_extents
from znni.core.errors import InvalidInput, RunFailed, option
from znni.core.shapes import Box, Vec3
from znni.core.text import counted
from znni.core.volume import SAME_COMMAND, Begun, LastSteps, NewOutput, at_once
from znni.volumes.block_checks import check_written, strike_off_damaged, write_block
from znni.volumes.hdf5.chunks import ChunkWriter, HeldChanges, make_changes
from znni.volumes.hdf5.new_file import (
    LEDGER,
    OUTPUT_DATASET,
    keep_ledger,
    make_output,
    whole_file,
)
from znni.volumes.held_block import HELD_BYTES, HeldBlock
from znni.volumes.ledger_file import LedgerFile, unfinished
from znni.volumes.partial_file import (
    AS_FILE,
    PartialFile,
    check_free,
    check_room,
    partial_name,
    refused_at,
)
from znni.volumes.stored import reason

# The first bytes of a small output until all others are there. Then HDF5's signature replaces them.
NOT_WHOLE = b"unwhole\n"


def check_output(path: Path, wanted: NewOutput) -> None:
    """Refuse a path where no file can be made, or without room for it. Nothing is changed.

    Raises:
        InvalidInput: the path is refused, or another run is writing it.
    """
    with refused_at(path):
        if path.is_dir():
            raise InvalidInput(f"{path}: is a folder; name a file in it")
        check_free(path, AS_FILE, overwrite=wanted.overwrite)
        check_room(path, wanted.nbytes)


def begun_output(path: Path, wanted: NewOutput) -> Begun:
    """Return the state of an output file that a run wants to make. Nothing is changed.

    Raises:
        InvalidInput: ``Hdf5Output`` would raise it.
    """
    check_output(path, wanted)
    partial = partial_name(path)
    with refused_at(path):
        found = unfinished(partial, wanted, _made_again)
        if found is None:
            return Begun()
        with partial.open("rb") as disk, _readable(partial, resumed=True):
            as_changed = HeldChanges(disk.fileno(), found.changes)
            with h5py.File(as_changed, "r") as file:
                _chunks_of(file[OUTPUT_DATASET], wanted, disk.fileno())
    return found


class Hdf5Output:
    """A new file with the output in its dataset ``/main``, and its ledger in ``/ledger``.

    It is a ``PartialFile``: it takes its final name only when it is complete. All chunks and
    attributes have their places, and are on the disk, before the first block is written. A thread
    makes them while the first block is read and computed. From then on HDF5 only reads, and
    blocks are written into their chunks without HDF5. So an unfinished file is readable however the
    run ended; missing blocks read as zeros. HDF5's final changes are noted in the ledger first. If
    the run stops in the middle of them, the next run makes them.

    ``finish`` writes a small output of one block in one piece. Until then there is nothing to
    resume. So it has no ledger beside it.

    Raises:
        InvalidInput: the file exists and may not be overwritten, cannot be made, or is the
            unfinished file of another run.
        RunFailed: a write failed.
    """

    def __init__(self, path: Path, wanted: NewOutput) -> None:
        self._wanted = wanted
        check_output(path, wanted)
        with refused_at(path):
            self._disk = PartialFile(path)
            try:
                self._ledger = LedgerFile(self._disk.partial, wanted, _made_again)
            except BaseException:
                if not self._disk.size:
                    self._disk.partial.unlink()
                self._disk.close()
                raise
        self._file: h5py.File | None = None
        self._made: Future[None] | None = None
        self._making, self._abandoned = Lock(), False
        self._held = HeldBlock(wanted)
        try:
            if self._ledger.resumed:
                make_changes(self._disk.fileno(), self._ledger.content.changes)
                self._open()
            else:
                self._disk.truncate(0)
        except BaseException:
            self.abandon()
            raise

    @property
    def begun(self) -> Begun:
        """The blocks that exist already; their history is certain once the output is described."""
        return self._ledger.content

    def _close(self) -> None:
        if self._file:
            self._file.close()

    def _open(self) -> None:
        with self._readable():
            self._file = h5py.File(self._disk, "r")
            self._dataset = self._file[OUTPUT_DATASET]
            self._chunks = _chunks_of(self._dataset, self._wanted, self._disk.fileno())

    def _readable(self) -> AbstractContextManager[None]:
        return _readable(self._disk.partial, resumed=self._ledger.resumed)

    def describe(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Store how the output is made. From here on the file's structure does not change."""
        if self._ledger.resumed:
            strike_off_damaged(self._ledger, self.read)
            return
        self._held.describe(attributes, patch, self._begin)

    def _begin(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Begin to make the file. Methods that need it wait."""
        self._made = in_background(partial(self._make, attributes, patch))

    def _wait_until_made(self) -> None:
        """Wait until blocks can be written and read.

        Raises:
            RunFailed: the file cannot be made.
        """
        if self._made:
            self._made.result()

    def _make(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Put the ledger and the structure of the file onto the disk.

        Raises:
            RunFailed: a write failed.
        """
        wanted, chunk = self._wanted, chunk_extents(patch, self._wanted.size)
        with self._making:
            if self._abandoned:
                return
            try:
                self._ledger.settle()
                with h5py.File(self._disk, "w") as new:
                    make_output(new, wanted.shape, wanted.dtype, chunk, wanted.maps, attributes)
                self._disk.settle()
            except OSError as error:
                raise self._failed(error) from None
            self._open()

    def note_plan(self, plan: str) -> None:
        """Note the plan of all boxes written from here on."""
        self._wait_until_made()
        self._ledger.note_plan(plan)

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Write the values (f', z, y, x) of a box, and note it in the ledger.

        The values of a small whole output are held instead.
        """
        if self._held.take(box, values, self._begin):
            return
        self._wait_until_made()
        try:
            write_block(box, values, self._chunks, self._ledger.append)
        except OSError as error:
            raise self._failed(error) from None

    def read(self, box: Box) -> NDArray[Any]:
        """Return the values (f', z, y, x) of a box that was written."""
        if self._held.values is not None:
            return self._held.values[(slice(None), *box.slices)]
        self._wait_until_made()
        return np.asarray(self._dataset[(slice(None), *box.slices)])

    def finish(self, measured: dict[str, Any], last_steps: LastSteps = at_once) -> None:
        """Update attributes, and give the file its final name in the last steps."""
        held, wanted = self._held, self._wanted
        if held.values is not None:
            chunk, described = chunk_extents(held.patch, wanted.size), held.attributes | measured
            ledger = held.summary(self._ledger.content)
            file = whole_file(held.values, wanted.dtype, chunk, wanted.maps, described, ledger)
            signature, file[: len(NOT_WHOLE)] = bytes(file[: len(NOT_WHOLE)]), NOT_WHOLE
            self._disk.write(file)  # in one piece
            self._disk.seek(0)
            self._disk.write(signature)
            held.release()
            last_steps(self._settle, self._take_name)
            return
        held.begin(self._begin)
        self._wait_until_made()
        if self._ledger.resumed:
            self._close()
            self._open()  # HDF5 keeps what it read from chunks before they were written
            check_written(self._ledger, self.read)
        self._close()
        seen = HeldChanges(self._disk.fileno())
        with self._readable(), h5py.File(seen, "r+") as file:
            attributes = file[OUTPUT_DATASET].attrs
            for name, value in measured.items():
                if name not in attributes:
                    attributes[name] = value
                elif attributes[name] != value:
                    attributes.modify(name, value)
            keep_ledger(file, self._ledger.content.summary())
        try:
            self._ledger.note_changes(seen.changes)
            make_changes(self._disk.fileno(), seen.changes)
        except OSError as error:
            raise self._failed(error) from None
        last_steps(self._settle, self._take_name)

    def _settle(self) -> None:
        """Wait until the disk has the whole file.

        Raises:
            RunFailed: it cannot be written.
        """
        try:
            self._disk.settle()
        except OSError as error:
            raise self._failed(error) from None

    def _take_name(self) -> None:
        """Give the file its final name.

        Raises:
            RunFailed: the system refuses.
        """
        try:
            self._disk.take_name()
        except OSError as error:
            raise self._failed(error) from None
        self._ledger.discard()

    def abandon(self, resume_advice: str = SAME_COMMAND, /) -> str:
        """Close the unfinished file, and delete it if it holds no block. Return a message."""
        self._abandoned = True
        with self._making:
            self._close()
        if self._disk.is_complete:
            self._ledger.discard()
            self._disk.close()
            return f"{self._disk.path} is complete"
        blocks = len(self._ledger.content.checksums)
        if not blocks:  # deleted while locked, so no other run has it yet
            self._disk.partial.unlink(missing_ok=True)
            self._ledger.discard()
            self._disk.close()
            return f"{self._disk.path} was not made"
        self._ledger.close()
        self._disk.close()
        return (
            f"{self._disk.path} was not made; {self._disk.partial} holds "
            f"{counted(blocks, 'finished block')}; {resume_advice}"
        )

    def _failed(self, error: OSError) -> RunFailed:
        return RunFailed(
            f"{self._disk.partial}: cannot be written: {error.strerror}; make room or write "
            f"elsewhere"
        )


def _made_again(partial: Path) -> bool:
    """Return whether an unfinished file is a small output whose run was killed before it was named.

    It has its ledger inside, unless the kill came before all of it was written.
    """
    with partial.open("rb") as disk:
        if disk.read(len(NOT_WHOLE)) == NOT_WHOLE:
            return True
        try:
            with h5py.File(disk, "r") as file:
                return LEDGER in file and file[OUTPUT_DATASET].nbytes <= HELD_BYTES
        except Exception:  # h5py reports damage in all kinds of ways
            return False


@contextmanager
def _readable(partial: Path, *, resumed: bool) -> Iterator[None]:
    """Turn any failure of HDF5 to read an unfinished file into one clear error."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # h5py reports damage in all kinds of ways
        if not resumed:
            raise RunFailed(
                f"{partial}: HDF5 cannot read what was just written: {reason(error)}; check the "
                f"disk, or write elsewhere"
            ) from error
        raise InvalidInput(
            f"{partial}: cannot be continued, as HDF5 cannot read it: {reason(error)}; give "
            f"{option('resume', False)} to start afresh, or write elsewhere"
        ) from error


def _chunks_of(dataset: h5py.Dataset, wanted: NewOutput, descriptor: int) -> ChunkWriter:
    """Return a chunk writer for an unfinished file, after checking its structure and attributes."""
    wanted.check_array(dataset)
    dict(dataset.attrs)  # the end of the run updates them
    return ChunkWriter(dataset, descriptor)
