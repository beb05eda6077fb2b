"""An OME-Zarr that several processes write at the same time, each in files of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, RunFailed, ZnniError, option
from znni.core.options import Recheck
from znni.core.shapes import Box, Vec3
from znni.core.text import counted
from znni.core.volume import SAME_COMMAND, Begun, NewOutput
from znni.volumes.block_checks import Read, checksum_or_none, write_block
from znni.volumes.formats import Gathered, Share, Summing, library
from znni.volumes.partial_file import check_folder_of, check_new, partial_name, refused_at
from znni.volumes.partial_folder import put_file, put_in_place
from znni.volumes.shared_ledger import SharedBlocks, SharedLedger, make_once, summary
from znni.volumes.stored import is_url, reason
from znni.volumes.zarr.chunks import ZarrChunks
from znni.volumes.zarr.ome_metadata import image_metadata
from znni.volumes.zarr.output import (
    LEDGER,
    LEVEL,
    chunk_and_shard,
    new_array,
    open_unfinished,
)

log = logging.getLogger("znni")

METADATA = "zarr.json"
SAMPLE = 100  # blocks that are read again before an output is complete, unless all or none are


class SharedFolder:
    """A folder ``NAME.partial`` to which several processes write whole files.

    Attributes:
        place: final name.
        root: name while the folder is incomplete, as text.
        path: ``root`` as a path.

    Raises:
        InvalidInput: ``NAME`` exists, or nothing can be made there.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.path = partial_name(Path(place))
        self.root = str(self.path)
        self._own = uuid4().hex
        with refused_at(place):
            check_new(Path(place), overwrite=False)
            if not self.path.exists():
                check_folder_of(Path(place))
            self.path.mkdir(exist_ok=True)

    def put(self, name: str, *parts: bytes | memoryview) -> None:
        """Create or replace a file in the folder, atomically. Without parts, delete the file.

        Raises:
            OSError: writing failed.
        """
        path = self.path / name
        put_file(path, partial_name(path.with_name(f"{path.name}.{self._own}")), parts)


class SharedZarr:
    """The share of one process in an OME-Zarr that several processes write.

    The blocks of all processes lie on one grid, and each block is whole files. So no file is
    written by two processes, unless both compute the same block; then both write the same bytes.
    All follow the plan of the process that came first.

    Args:
        place: path of the output.
        wanted: description of the output.
        share: the boxes of the output that this process writes.

    Raises:
        InvalidInput: the output exists, cannot be made there, or is of something else.
    """

    def __init__(self, place: str, wanted: NewOutput, share: Share) -> None:
        library("zarr", "zarr")
        self._wanted = wanted
        self._share = share
        self._folder = SharedFolder(place)
        self._ledger = SharedLedger(self._folder.path)
        self._begun = Begun()
        self._array: Any = None
        self._chunks: ZarrChunks
        foreign = any(self._folder.path.iterdir())
        if found := self._ledger.session():  # looked for after that: another may begin just now
            self._ledger.check(found, wanted)
            self._begun.plan = found.plan
        elif foreign:
            raise InvalidInput(
                f"{self._folder.path}: is an unfinished output of something else; delete it and "
                f"its ledger, or write elsewhere"
            )

    @property
    def begun(self) -> Begun:
        """The plan of all processes; once the output is described, also the finished blocks."""
        return self._begun

    def go_on_with(self, plan: str) -> None:
        """Propose a plan for all blocks; ``begun`` has the one that came first."""
        with self._told_in_one_line():
            self._begun.plan = self._ledger.agree(self._wanted, plan).plan

    def describe(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Make the array if no other process has done so, and check this share's blocks."""
        wanted = self._wanted
        chunk, shard = chunk_and_shard(patch, wanted.size, shared=True)
        with self._told_in_one_line():
            made: dict[str, Any] = {}
            memory = library("zarr.storage", "zarr").MemoryStore(made)
            new_array(memory, wanted, attributes, chunk, shard)
            (self._folder.path / LEVEL).mkdir(exist_ok=True)
            make_once(self._folder.path / LEVEL / METADATA, made[METADATA].to_bytes())
        self._array = open_unfinished(self._folder.root, wanted, "r+")
        self._chunks = ZarrChunks(self._array, self._folder, LEVEL, wanted)
        blocks = self._ledger.blocks(self._share(patch))
        finished = list(blocks.finished)
        if finished:
            count = counted(len(finished), "finished block")
            log.warning("%s: checking %s", self._folder.root, count)
        found = _compared(blocks, finished, self.read)
        _strike_off(self._ledger, blocks, found)
        self._begun.history = [(box, True) for box, checksum in found.items() if checksum]

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Store the values (f', z, y, x) of a box."""
        with self._told_in_one_line():
            write_block(box, values, self._chunks, self._ledger)

    def read(self, box: Box) -> NDArray[Any]:
        """Return the values (f', z, y, x) of a box that was written."""
        return np.asarray(self._array[(slice(None), *box.slices)])

    def finish(self, measured: dict[str, Any]) -> None:
        """Note that this share is written; ``gather`` completes the output."""
        with self._told_in_one_line():
            os.sync()
            self._ledger.append({"run": {k: v for k, v in measured.items() if k != "plan"}})
            self._ledger.close()

    def abandon(self, way_on: str = SAME_COMMAND, /) -> str:
        """Release the unfinished output. Return a message."""
        self._ledger.close()
        if not self._begun.plan:
            with suppress(OSError):  # others may have begun meanwhile
                self._folder.path.rmdir()
            return f"{self._folder.place} was not made"
        return f"this part of {self._folder.place} was not finished; {way_on}"

    def _told_in_one_line(self) -> AbstractContextManager[None]:
        return _told_in_one_line(self._folder.root)


def join_zarr(place: str, wanted: NewOutput, share: Share) -> SharedZarr:
    """Open an output that several processes write.

    Raises:
        InvalidInput: ``SharedZarr`` raises it, or the place is a URL.
    """
    _check_local(place)
    return SharedZarr(place, wanted, share)


def gather_zarr(place: str, recheck: Recheck, summing: Summing) -> Gathered:
    """Complete an output that several processes have written.

    Blocks that were written more than once are read again and compared with their checksums, and
    of the others those that ``recheck`` says: none, a sample, or all.

    Args:
        place: path of the output.
        recheck: which blocks are read again.
        summing: makes the attributes of the whole run.

    Raises:
        InvalidInput: there is no such output.
        RunFailed: blocks are missing or damaged, or the output cannot be completed.
    """
    _check_local(place)
    final, partial = Path(place), partial_name(Path(place))
    ledger = SharedLedger(partial)
    session = ledger.session() if partial.is_dir() else None
    if session is None:
        at = "is complete already" if final.exists() else "no part of it was computed yet"
        raise InvalidInput(
            f"{place}: {at}; znni infer with {option('part', 'I/N')} computes parts of an output"
        )
    with _told_in_one_line(str(partial)):
        array = library("zarr", "zarr").open_array(f"{partial}/{LEVEL}", mode="r+")
        blocks = ledger.blocks()
        finished = blocks.finished
        _check_all_there(place, finished, Vec3(*array.shape[1:]))

        def read(box: Box) -> NDArray[Any]:
            return np.asarray(array[(slice(None), *box.slices)])

        chosen = _to_compare(finished, recheck)
        found = _compared(blocks, chosen, read)
        if damaged := _strike_off(ledger, blocks, found):
            ledger.close()
            raise RunFailed(
                f"{place}: {counted(len(damaged), 'block')} not as written, the first at "
                f"{damaged[0]}; run its parts again, which compute them, and then finish it"
            )
        checksums = {box: known[-1] for box, known in finished.items()}
        checksums |= {box: checksum for box, checksum in found.items() if checksum}
        array.update_attributes(summing(session.plan, blocks.runs))
        for left in partial.rglob("*.partial"):  # a process was killed while it wrote
            left.unlink()
        put_file(partial / LEDGER, partial_name(partial / LEDGER), [summary(session, checksums)])
        group = library("zarr", "zarr").open_group(str(partial), mode="a", zarr_format=3)
        name = final.name.removesuffix(".zarr")
        group.update_attributes(image_metadata(name, LEVEL, session.grid))
        os.sync()
        put_in_place(partial, final)
    ledger.discard()
    return Gathered(len(checksums), len(chosen), blocks.runs)


def _check_local(place: str) -> None:
    if is_url(place):
        raise InvalidInput(
            f"{place}: outputs at URLs cannot be computed in parts; name a folder that all "
            f"processes see"
        )


def _check_all_there(place: str, finished: Iterable[Box], size: Vec3) -> None:
    """Refuse to complete an output of which blocks are missing."""
    missing = [Box(Vec3(0, 0, 0), size)]
    for box in finished:
        missing = [part for one in missing for part in one.without(box)]
    if missing:
        voxels = sum(box.size.volume for box in missing)
        raise RunFailed(
            f"{place}: {voxels:,} of {counted(size.volume, 'voxel')} are not computed yet, the "
            f"first at {min(missing)}; wait for the parts that are still running, or run those "
            f"that failed again"
        )


def _to_compare(finished: Mapping[Box, Sequence[str]], recheck: Recheck) -> Sequence[Box]:
    """Return the blocks to be read again, in order.

    Args:
        finished: the checksums of the finished blocks.
        recheck: which blocks are read again.
    """
    if recheck == "all":
        return list(finished)
    several = [box for box, checksums in finished.items() if len(checksums) > 1]
    if recheck == "none" or len(finished) <= len(several):
        return several
    once = [box for box, checksums in finished.items() if len(checksums) == 1]
    generator = np.random.default_rng()
    drawn = generator.choice(len(once), min(SAMPLE, len(once)), replace=False)
    return sorted([*several, *(once[index] for index in drawn)])


def _compared(blocks: SharedBlocks, chosen: Sequence[Box], read: Read) -> dict[Box, str | None]:
    """Return the checksum of each chosen block as it is read; None if nobody has written that."""
    found = {box: checksum_or_none(read, box) for box in chosen}
    return {
        box: checksum if checksum in blocks.written[box].checksums else None
        for box, checksum in found.items()
    }


def _strike_off(
    ledger: SharedLedger, blocks: SharedBlocks, found: Mapping[Box, str | None]
) -> list[Box]:
    """Note in a ledger which blocks are not as they were written, and return them."""
    damaged = [box for box, checksum in found.items() if checksum is None]
    for box in damaged:
        ledger.strike_off(box, len(blocks.written[box].checksums))
    if damaged:
        lost = counted(len(damaged), "finished block")
        log.warning("%s: %s damaged, to be computed again", ledger.path.name, lost)
    return damaged


@contextmanager
def _told_in_one_line(root: str) -> Iterator[None]:
    """Turn an error of file systems or their libraries, which is of any kind, into one line."""
    try:
        yield
    except (ZnniError, MemoryError):
        raise
    except Exception as error:
        raise RunFailed(
            f"{root}: cannot be written: {reason(error)}; make room or write elsewhere"
        ) from error
