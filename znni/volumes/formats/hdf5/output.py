"""A new HDF5 file that stays readable and can be continued, however the run ends."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Lock
from typing import Any

import h5py

from znni.core.background import in_background
from znni.core.errors import InvalidInput, RunFailed, ZnniError, option
from znni.core.volume import LastSteps, NewOutput
from znni.volumes.block_checks import strike_off_damaged
from znni.volumes.formats import check_plain
from znni.volumes.formats.hdf5 import NAME
from znni.volumes.formats.hdf5.chunk_writer import ChunkWriter, HeldChanges, make_changes
from znni.volumes.formats.hdf5.new_file import (
    LEDGER,
    OUTPUT_DATASET,
    keep_ledger,
    make_output,
    whole_file,
)
from znni.volumes.ledger_file import LedgerFile
from znni.volumes.output_place import check_free, check_room, refused_at
from znni.volumes.partial_file import AS_FILE, PartialFile
from znni.volumes.partial_output import HELD_BYTES, PartialOutput
from znni.volumes.stored import errors_as, reason

# The first bytes of a small output until all others are there. Then HDF5's signature replaces them.
NOT_WHOLE = b"unwhole\n"


def check_output(path: Path, wanted: NewOutput) -> None:
    """Refuse a path where no file can be made, or without room for it. Nothing is changed.

    Raises:
        InvalidInput: the path is refused, another run is writing it, or the file should be
            compressed.
    """
    check_plain(str(path), wanted, NAME)
    with refused_at(path):
        if path.is_dir():
            raise InvalidInput(f"{path}: is a folder; name a file in it")
        check_free(path, AS_FILE, overwrite=wanted.overwrite)
        check_room(path, wanted.nbytes)


class Hdf5Output(PartialOutput):
    """A new file with the output in its dataset ``/main``, and its ledger in ``/ledger``.

    It is a ``PartialFile``: it takes its final name only when it is complete. All chunks and
    attributes have their places, and are on the disk, before the first block is written. A thread
    makes them while the first block is read and computed. From then on HDF5 only reads, and
    blocks are written into their chunks without HDF5. So an unfinished file is readable however the
    run ended; missing blocks read as zeros. HDF5's final changes are noted in the ledger first. If
    the run stops in the middle of them, the next run makes them.

    ``finish`` writes a small output of one block in one piece. Until then there is nothing to
    resume. So it has no ledger beside it.

    Its room on the disk is reserved from the start, so its chunks are not compressed.
    """

    _write_errors = OSError
    _ledger: LedgerFile

    def __init__(self, path: Path, wanted: NewOutput) -> None:
        check_output(path, wanted)
        with refused_at(path):
            self._disk = PartialFile(path)
            try:
                ledger = LedgerFile(self._disk.root, wanted, made_again)
            except BaseException:
                if not self._disk.size:
                    self._disk.discard()
                self._disk.close()
                raise
        super().__init__(wanted, self._disk, ledger)
        self._file: h5py.File | None = None
        self._made: Future[None] | None = None
        self._making, self._abandoned = Lock(), False
        try:
            if self._earlier:
                make_changes(self._disk.fileno(), ledger.content.changes)
                self._open()
            else:
                self._disk.truncate(0)
        except BaseException:
            self.abandon()
            raise

    def _open(self) -> None:
        with readable(self._disk.root, resumed=self._ledger.resumed):
            self._file = h5py.File(self._disk, "r")
            self._array = self._file[OUTPUT_DATASET]
            self._sink = chunk_writer_of(self._array, self._wanted, self._disk.fileno())

    def _close(self) -> None:
        if self._file:
            self._file.close()

    def _check_earlier(self, ledger: LedgerFile) -> None:
        strike_off_damaged(ledger, self.read)

    def _start_making(self) -> None:
        self._made = in_background(self._make)

    def _wait_until_made(self) -> None:
        if self._made:
            self._made.result()

    def _make(self) -> None:
        """Put the ledger and the structure of the file onto the disk.

        Raises:
            RunFailed: a write failed.
        """
        with self._making:
            if self._abandoned:
                return
            with self._failing():
                self._ledger.settle()
                with h5py.File(self._disk, "w") as new:
                    make_output(new, self._wanted, self._patch, self._attributes)
                self._disk.settle()
            self._open()

    def _reopen(self) -> None:
        """Open the file again: HDF5 keeps what it read from chunks before they were written."""
        self._close()
        self._open()

    def _complete(self, measured: dict[str, Any], last_steps: LastSteps) -> None:
        if self._held is not None:
            self._write_held(measured)
        else:
            self._close()
            seen = HeldChanges(self._disk.fileno())
            reading = readable(self._disk.root, resumed=self._ledger.resumed)
            with reading, h5py.File(seen, "r+") as file:
                attributes = file[OUTPUT_DATASET].attrs
                for name, value in measured.items():
                    if name not in attributes:
                        attributes[name] = value
                    elif attributes[name] != value:
                        attributes.modify(name, value)
                keep_ledger(file, self._summary())
            self._ledger.note_changes(seen.changes)
            make_changes(self._disk.fileno(), seen.changes)
        last_steps(self._settle, self._take_name)

    def _write_held(self, measured: dict[str, Any]) -> None:
        """Write the whole file in one piece, and its signature after it."""
        assert self._held is not None
        attributes = self._attributes | measured
        file = whole_file(self._held, self._wanted, self._patch, attributes, self._summary())
        signature, file[: len(NOT_WHOLE)] = bytes(file[: len(NOT_WHOLE)]), NOT_WHOLE
        self._disk.write(file)
        self._disk.seek(0)
        self._disk.write(signature)
        self._held = None

    def _settle(self) -> None:
        """Wait until the disk has the whole file."""
        with self._failing():
            self._disk.settle()

    def _take_name(self) -> None:
        """Give the file its final name."""
        with self._failing():
            self._disk.take_name()
        self._ledger.discard()

    def _release(self) -> None:
        self._abandoned = True
        with self._making:
            self._close()


def made_again(partial: Path) -> bool:
    """Return whether an unfinished file is a small output whose run was killed before it was named.

    It has its ledger inside, unless the kill came before all of it was written.
    """
    with partial.open("rb") as disk:
        # If only the first bytes of the signature were written, the others are still there.
        if disk.read(len(NOT_WHOLE))[-2:] == NOT_WHOLE[-2:]:
            return True
        try:
            with h5py.File(disk, "r") as file:
                return LEDGER in file and file[OUTPUT_DATASET].nbytes <= HELD_BYTES
        except Exception:  # h5py reports damage in all kinds of ways
            return False


def readable(partial: Path, *, resumed: bool) -> AbstractContextManager[None]:
    """Turn any failure of HDF5 to read an unfinished file into one clear error."""

    def failed(error: Exception) -> ZnniError:
        if not resumed:
            return RunFailed(
                f"{partial}: HDF5 cannot read what was just written: {reason(error)}; check the "
                f"disk, or write elsewhere"
            )
        return InvalidInput(
            f"{partial}: cannot be continued, as HDF5 cannot read it: {reason(error)}; give "
            f"{option('resume', False)} to start afresh, or write elsewhere"
        )

    return errors_as(failed)


def chunk_writer_of(dataset: h5py.Dataset, wanted: NewOutput, descriptor: int) -> ChunkWriter:
    """Return a chunk writer for an unfinished file, after checking its structure and attributes."""
    wanted.check_array(dataset)
    dict(dataset.attrs)  # the end of the run updates them
    return ChunkWriter(dataset, descriptor)
