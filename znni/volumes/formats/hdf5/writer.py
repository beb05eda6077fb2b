"""Begins and resumes HDF5 outputs. ``Hdf5Output`` in ``output.py`` writes them."""

from __future__ import annotations

from pathlib import Path

import h5py

from znni.core.volume import NewOutput, Output, ResumeState
from znni.volumes.formats.hdf5.chunk_writer import HeldChanges
from znni.volumes.formats.hdf5.format import file_at, reading
from znni.volumes.formats.hdf5.new_file import LEDGER, OUTPUT_DATASET
from znni.volumes.formats.hdf5.output import (
    Hdf5Output,
    check_output,
    chunk_writer_of,
    made_again,
    readable,
)
from znni.volumes.ledger_file import unfinished
from znni.volumes.output_place import refused_at
from znni.volumes.partial_file import partial_name
from znni.volumes.writer import Writer


class Hdf5Writer(Writer):
    """Makes HDF5 files."""

    def resume_state(self, wanted: NewOutput) -> ResumeState:
        """Return the state of an output file that a run wants to make. Nothing is changed."""
        path = Path(self.place)
        check_output(path, wanted)
        partial = partial_name(path)
        with refused_at(path):
            ledger = unfinished(partial, wanted, made_again)
            if ledger is None:
                return ResumeState()
            with partial.open("rb") as disk, readable(partial, resumed=True):
                as_changed = HeldChanges(disk.fileno(), ledger.changes)
                with h5py.File(as_changed, "r") as file:
                    chunk_writer_of(file[OUTPUT_DATASET], wanted, disk.fileno())
        return ledger

    def create(self, wanted: NewOutput) -> Output:
        """Make a new file, or open an unfinished one to continue it."""
        return Hdf5Output(Path(self.place), wanted)

    def kept_ledger(self) -> bytes:
        """Return the text of the ledger in a whole output, or nothing."""
        path = file_at(self.place)
        with reading(path), h5py.File(path, "r") as file:
            return bytes(file[LEDGER][()]) if LEDGER in file else b""


WRITER = Hdf5Writer
