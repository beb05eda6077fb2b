"""An OME-Zarr that several processes write at the same time, each in files of its own."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, RunFailed, Unreachable, option
from znni.core.option_types import Coarsening, Recheck
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.text import counted
from znni.core.volume import SAME_COMMAND, LastSteps, NewOutput, ResumeState, at_once
from znni.volumes.block_checks import ReadBlock, checksum_or_none, warn_of_damaged, write_block
from znni.volumes.formats import library
from znni.volumes.formats.zarr.chunk_writer import ZarrChunks
from znni.volumes.formats.zarr.files import chunk_and_shard
from znni.volumes.formats.zarr.ome_metadata import LEVEL
from znni.volumes.formats.zarr.output import LEDGER, make_image, new_array, open_unfinished
from znni.volumes.formats.zarr.pyramid import PYRAMID
from znni.volumes.ledger_entries import Note
from znni.volumes.output_folder import OutputFolder, output_folder
from znni.volumes.shared_ledger import SharedBlocks, SharedLedger, summary
from znni.volumes.stored import errors_as, is_url, reason
from znni.volumes.writer import Gathered, Share, Summing

log = logging.getLogger("znni")

METADATA = f"{LEVEL}/zarr.json"
SAMPLE = 100  # blocks that are read again before an output is complete, unless all or none are


class BlockSink:
    """Writes blocks of an output that another process has begun, as ``Writer.blocks``."""

    def __init__(self, place: str, wanted: NewOutput, note: Note) -> None:
        library("zarr", "zarr")
        self._folder = output_folder(place)
        self._note = note
        self._open(wanted)

    def _open(self, wanted: NewOutput) -> None:
        folder = self._folder
        with self._writing():
            if not (folder.is_begun and folder.has(METADATA)):
                raise InvalidInput(
                    f"{folder.place}: there is no unfinished output {folder.root} that this "
                    f"machine can reach; name storage that all machines see under this name"
                )
            self._array = open_unfinished(folder.root, wanted, "r+")
        self._sink = ZarrChunks(self._array, folder, LEVEL, wanted)

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a box, and note it."""
        with self._writing():
            write_block(box, values, self._sink, self._note)

    def read(self, box: Box) -> NDArray[Any]:
        """Return the values (f', z, y, x) of a box that was written.

        Raises:
            Unreachable: the output is out of reach.
        """
        return _read(self._array, self._folder, box)

    def _writing(self) -> AbstractContextManager[None]:
        return _writing(self._folder.root)


class SharedZarr(BlockSink):
    """The share of one process in an OME-Zarr that several processes write.

    The blocks of all processes lie on one grid, and each block is whole files. So no file is
    written by two processes, unless both compute the same block; then both write the same bytes.
    All follow the plan of the process that came first. ``Writer.join`` says what it takes.
    """

    def __init__(self, place: str, wanted: NewOutput, share: Share) -> None:
        library("zarr", "zarr")
        self._wanted = wanted
        self._share = share
        self._folder = output_folder(place)
        self._ledger = SharedLedger(self._folder.ledger)
        if self._folder.is_whole and not self._folder.is_begun:
            self._ledger.discard()  # a process was ended right after it had completed the output
        self._folder.check_to_share()
        self._resume_state = ResumeState()
        self._note = self.note
        with self._writing():
            foreign = self._folder.has("")
        if found := self._ledger.session():  # looked for after that: another may begin just now
            self._ledger.check(found, wanted)
            self._resume_state.plan = found.plan
        elif foreign:
            raise InvalidInput(
                f"{self._folder.root}: is an unfinished output of something else; delete it "
                f"and its ledger, or write elsewhere"
            )

    @property
    def resume_state(self) -> ResumeState:
        """The plan of all processes; once the output is begun, also the finished blocks."""
        return self._resume_state

    def note_plan(self, plan: str) -> None:
        """Propose a plan for all blocks; ``resume_state`` has the one that came first."""
        with self._writing():
            if not self._resume_state.plan:
                self._folder.make()
            self._resume_state.plan = self._ledger.agree(self._wanted, plan).plan

    def begin(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Make the array if no other process has done so, and check this share's blocks."""
        wanted = self._wanted
        chunk, shard = chunk_and_shard(patch, wanted, shared=True)
        with self._writing():
            made: dict[str, Any] = {}
            memory = library("zarr.storage", "zarr").MemoryStore(made)
            new_array(memory, wanted, attributes, chunk, shard)
            (metadata,) = made.values()
            self._folder.make_once(METADATA, metadata.to_bytes())
            self._open(wanted)
            blocks = self._ledger.blocks(self._share(patch))
            finished = list(blocks.finished)
            if finished:
                count = counted(len(finished), "finished block")
                log.warning("%s: checking %s", self._folder.root, count)
            found = _compared(blocks, finished, self.read)
            _strike_off(self._ledger, blocks, found)
        self._resume_state.history = [(box, True) for box, checksum in found.items() if checksum]

    def note(self, entry: Mapping[str, Any]) -> None:
        """Append an entry to this process's log, for example of a block that another one wrote."""
        with self._writing():
            self._ledger.append(entry)

    def finished(self) -> dict[Box, list[str]]:
        """Return the blocks that any process has finished, each with the checksums it may have."""
        return self._ledger.blocks().finished

    def checksum(self, box: Box) -> str | None:
        """Return the checksum of a block as it is read now; None if it cannot be read."""
        return checksum_or_none(self.read, box)

    def strike_off(self, box: Box) -> None:
        """Note that a block is not as it was written, however often that was."""
        with self._writing():
            self._ledger.strike_off(box, self._ledger.blocks([box]))

    def finish(self, measured: dict[str, Any], _last_steps: LastSteps = at_once) -> None:
        """Note that this share is written; ``gather`` completes the output."""
        with self._writing():
            self._ledger.append({"run": {k: v for k, v in measured.items() if k != "plan"}})
        self.close()

    def close(self) -> None:
        """Have all that was noted reach the disk, and release the unfinished output."""
        with self._writing():
            self._folder.settle()
            self._ledger.close()

    def abandon(self, resume_advice: str = SAME_COMMAND, /) -> str:
        """Release the unfinished output. Return a message."""
        with suppress(OSError):  # blocks that are not noted now are computed again
            self._ledger.close()
        with suppress(Exception):  # the run has already failed, perhaps for the same reason
            if self._folder.is_whole:
                return f"{self._folder.place} is complete"
        if not self._resume_state.plan:
            return f"{self._folder.place} was not made"
        return f"{self._folder.place} is not finished; {resume_advice}"


def gather_zarr(place: str, recheck: Recheck, summing: Summing) -> Gathered:
    """Complete an output that several processes have written, as ``Writer.gather``."""
    zarr = library("zarr", "zarr")
    folder = output_folder(place)
    ledger = SharedLedger(folder.ledger)
    with _writing(folder.root):
        session = ledger.session() if folder.is_begun else None
        if session is None:
            so_far = "is complete already" if folder.is_whole else "no part of it was computed yet"
            raise InvalidInput(
                f"{place}: {so_far}; znni infer with {option('part', 'I/N')} computes parts of an "
                f"output"
            )
        array = zarr.open_array(f"{folder.root}/{LEVEL}", mode="r+")
        blocks = ledger.blocks()
        finished = blocks.finished
        _check_all_there(place, finished, Vec3(*array.shape[1:]))
        chosen = _to_compare(finished, recheck)
        found = _compared(blocks, chosen, lambda box: _read(array, folder, box))
        if damaged := _strike_off(ledger, blocks, found):
            ledger.close()
            raise RunFailed(
                f"{place}: {counted(len(damaged), 'block')} not as written, the first at "
                f"{damaged[0]}; run its parts again, which compute them, and then finish it"
            )
        checksums = {box: known[-1] for box, known in finished.items()}
        checksums |= {box: checksum for box, checksum in found.items() if checksum}
        array.update_attributes(summing(session.plan, blocks.runs))
        folder.put(LEDGER, summary(session, blocks, checksums))
        coarsening: Coarsening = array.attrs.get(PYRAMID, "")
        make_image(folder.root, PurePosixPath(place).name, array, session.grid, coarsening)
        folder.complete()
    ledger.discard()
    return Gathered(len(checksums), len(chosen), blocks.runs)


def _read(array: Any, folder: OutputFolder, box: Box) -> NDArray[Any]:
    """Return the values (f', z, y, x) of a box of an unfinished output.

    Raises:
        Unreachable: the output is out of reach. Any other error says that the box is damaged.
    """
    try:
        return np.asarray(array[(slice(None), *box.slices)])
    except MemoryError:
        raise
    except Exception:  # libraries and their codecs raise all kinds, so ask for something else
        try:
            folder.get(METADATA)
        except OSError as error:
            raise Unreachable(
                f"{folder.root}: cannot be read: {reason(error)}; check the data and the network"
            ) from error
        return np.asarray(array[(slice(None), *box.slices)])


def _check_all_there(place: str, finished: Collection[Box], size: Vec3) -> None:
    """Refuse to complete an output if blocks are missing."""
    extents = [box.size for box in finished] or [size]
    patch = Vec3(*map(max, zip(*extents, strict=True)))  # all blocks lie on one grid
    grid = Box(ZERO, size).cut(patch)
    if (first := next((box for box in grid if box not in finished), None)) is not None:
        missing = size.volume - sum(extent.volume for extent in extents if finished)
        raise RunFailed(
            f"{place}: {missing:,} of {counted(size.volume, 'voxel')} are not computed yet, the "
            f"first at {first}; wait for the parts that are still running, or run those that "
            f"failed again"
        )


def _to_compare(finished: Mapping[Box, Sequence[str]], recheck: Recheck) -> Sequence[Box]:
    """Return the blocks to be read again, in order."""
    if recheck == "all":
        return list(finished)
    several = [box for box, checksums in finished.items() if len(checksums) > 1]
    if recheck == "none" or len(finished) <= len(several):
        return several
    once = [box for box, checksums in finished.items() if len(checksums) == 1]
    generator = np.random.default_rng()
    drawn = generator.choice(len(once), min(SAMPLE, len(once)), replace=False)
    return sorted([*several, *(once[index] for index in drawn)])


def _compared(
    blocks: SharedBlocks, chosen: Sequence[Box], read: ReadBlock
) -> dict[Box, str | None]:
    """Return the checksum of each chosen block as it is read; None if nobody has written that."""
    found = {box: checksum_or_none(read, box) for box in chosen}
    return {
        box: checksum if checksum in dict(blocks.written[box]) else None
        for box, checksum in found.items()
    }


def _strike_off(
    ledger: SharedLedger, blocks: SharedBlocks, found: Mapping[Box, str | None]
) -> list[Box]:
    """Note in a ledger which blocks are not as they were written, and return them."""
    damaged = [box for box, checksum in found.items() if checksum is None]
    for box in damaged:
        ledger.strike_off(box, blocks)
    warn_of_damaged(ledger.partial, damaged)
    return damaged


def _writing(root: str) -> AbstractContextManager[None]:
    """Turn an error of file systems or their libraries into one that says what to do."""

    def failed(error: Exception) -> RunFailed:
        resume_advice = "try again" if is_url(root) else "make room"
        return RunFailed(
            f"{root}: cannot be written: {reason(error)}; {resume_advice} or write elsewhere"
        )

    return errors_as(failed)
