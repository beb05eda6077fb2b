"""Begins and resumes OME-Zarrs. ``ZarrOutput`` in ``output.py`` writes them."""

from __future__ import annotations

from znni.core.option_types import Recheck
from znni.core.volume import BlockStore, NewOutput, Output, ResumeState
from znni.volumes.formats import library
from znni.volumes.formats.zarr.format import reading
from znni.volumes.formats.zarr.output import LEDGER, ZarrOutput, checked_folder, open_unfinished
from znni.volumes.formats.zarr.shared_output import BlockSink, SharedZarr, gather_zarr
from znni.volumes.ledger_entries import Note
from znni.volumes.ledger_file import unfinished
from znni.volumes.output_place import refused_at
from znni.volumes.remote_output import RemoteFolder
from znni.volumes.writer import Gathered, Share, SharedOutput, Summing, Writer


class ZarrWriter(Writer):
    """Makes OME-Zarrs in a folder or at a URL."""

    def resume_state(self, wanted: NewOutput) -> ResumeState:
        """Return the state of an output that a run wants to make. Nothing is changed."""
        folder = checked_folder(self.place, wanted)
        if isinstance(folder, RemoteFolder):
            return ResumeState()
        with refused_at(self.place):
            found = unfinished(folder.path, wanted)
        if found is None:
            return ResumeState()
        open_unfinished(folder.root, wanted, "r")
        return found

    def create(self, wanted: NewOutput) -> Output:
        """Make a new output, or open an unfinished one in a folder."""
        return ZarrOutput(self.place, wanted)

    def kept_ledger(self) -> bytes:
        """Return the text of the ledger in a whole output, or nothing."""
        files, path = library("fsspec", "zarr").core.url_to_fs(self.place)
        try:
            with reading(self.place, FileNotFoundError):
                return bytes(files.cat_file(f"{path}/{LEDGER}"))
        except FileNotFoundError:
            return b""

    def join(self, wanted: NewOutput, share: Share) -> SharedOutput:
        """Open an output that several processes write, each its share."""
        return SharedZarr(self.place, wanted, share)

    def blocks(self, wanted: NewOutput, note: Note) -> BlockStore:
        """Open an output that another process has begun, to write blocks of it."""
        return BlockSink(self.place, wanted, note)

    def gather(self, recheck: Recheck, summing: Summing) -> Gathered:
        """Complete an output that several processes have written."""
        return gather_zarr(self.place, recheck, summing)


WRITER = ZarrWriter
