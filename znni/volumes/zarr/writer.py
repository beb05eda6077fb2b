"""What makes OME-Zarrs."""

from __future__ import annotations

from pathlib import Path

from znni.core.options import Recheck
from znni.core.volume import Begun, BlockStore, NewOutput, Output
from znni.volumes.formats import library
from znni.volumes.ledger_entries import Note
from znni.volumes.ledger_file import ledger_name, unfinished
from znni.volumes.partial_file import refused_at
from znni.volumes.remote_output import RemoteFolder
from znni.volumes.writer import Gathered, Share, SharedOutput, Summing, Writer
from znni.volumes.zarr.format import split_at_zarr, told_in_one_line
from znni.volumes.zarr.output import LEDGER, ZarrOutput, checked_folder, open_unfinished
from znni.volumes.zarr.shared_output import BlockSink, SharedZarr, gather_zarr


class ZarrWriter(Writer):
    """Makes OME-Zarrs in a folder or at a URL."""

    def begun(self, wanted: NewOutput) -> Begun:
        """Return the state of an output that a run wants to make. Nothing is changed."""
        folder = checked_folder(self.place, wanted)
        if isinstance(folder, RemoteFolder):
            return Begun()
        with refused_at(self.place):
            found = unfinished(folder.path, wanted)
        if found is None:
            return Begun()
        open_unfinished(folder.root, wanted, "r")
        return found

    def create(self, wanted: NewOutput) -> Output:
        """Make a new output, or open an unfinished one in a folder."""
        return ZarrOutput(self.place, wanted)

    def ledger(self) -> bytes:
        """Return the text of the ledger, in a whole output or beside a partial one, or nothing."""
        root, _ = split_at_zarr(self.place, None)
        beside = ledger_name(Path(root))
        if beside.is_file():
            return beside.read_bytes()
        files, path = library("fsspec", "zarr").core.url_to_fs(root)
        try:
            with told_in_one_line(root, FileNotFoundError):
                return bytes(files.cat_file(f"{path}/{LEDGER}"))
        except FileNotFoundError:
            return b""

    def join(self, wanted: NewOutput, share: Share) -> SharedOutput:
        """Open an output that several processes write, each its share."""
        return SharedZarr(self.place, wanted, share)

    def blocks(self, wanted: NewOutput, note: Note) -> BlockStore:
        """Open an output that another process has described, to write blocks of it."""
        return BlockSink(self.place, wanted, note)

    def gather(self, recheck: Recheck, summing: Summing) -> Gathered:
        """Complete an output that several processes have written."""
        return gather_zarr(self.place, recheck, summing)


WRITER = ZarrWriter
