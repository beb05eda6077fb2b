"""A new OME-Zarr: NGFF 0.5, in Zarr version 3, with coarser resolutions if wanted."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, RunFailed, option
from znni.core.options import Coarsening
from znni.core.shapes import Box, Vec3
from znni.core.text import counted
from znni.core.volume import SAME_COMMAND, Begun, Grid, LastSteps, NewOutput, at_once
from znni.volumes.block_checks import check_written, write_block
from znni.volumes.formats import library
from znni.volumes.held_block import HeldBlock
from znni.volumes.ledger_file import LedgerFile, MemoryLedger, unfinished
from znni.volumes.partial_file import check_room, partial_name, refused_at
from znni.volumes.partial_folder import PartialFolder, check_folder
from znni.volumes.remote_output import RemoteFolder, check_url
from znni.volumes.stored import is_url, reason
from znni.volumes.zarr.chunks import ZarrChunks
from znni.volumes.zarr.encoding import compressors
from znni.volumes.zarr.files import chunk_and_shard
from znni.volumes.zarr.ome_metadata import LEVEL, channel_metadata, image_metadata
from znni.volumes.zarr.pyramid import PYRAMID, coarser_grid, write_levels
from znni.volumes.zarr.repair import mend

LEDGER = f"{LEVEL}/ledger"
SEEN = Vec3(1, 512, 512)  # voxels whose values choose the limits at which a viewer shows a map
MARKS = ("zarr.json", ".zgroup", ".zarray")  # a folder with one of them is a Zarr


def check_output(place: str, wanted: NewOutput) -> None:
    """Refuse a place where no Zarr can be made, or without room for one. Nothing is changed.

    Raises:
        InvalidInput: the place is refused, or another run is writing there.
    """
    library("zarr", "zarr")
    if is_url(place):
        unfinished = f"{LEVEL}/zarr.json"
        check_url(place, (*MARKS, unfinished), overwrite=wanted.overwrite)
        return
    with refused_at(place):
        check_folder(Path(place), MARKS, overwrite=wanted.overwrite)
        if wanted.compression == "none":
            check_room(Path(place), wanted.nbytes)


def begun_output(place: str, wanted: NewOutput) -> Begun:
    """Return the state of an output that a run wants to make. Nothing is changed.

    Raises:
        InvalidInput: ``ZarrOutput`` would raise it.
    """
    check_output(place, wanted)
    if is_url(place):
        return Begun()
    partial = partial_name(Path(place))
    with refused_at(place):
        found = unfinished(partial, wanted)
    if found is None:
        return Begun()
    open_unfinished(partial, wanted, "r")
    return found


class ZarrOutput:
    """A new OME-Zarr with the output in its array ``0``.

    The array is made first. The group around it, with the OME metadata, comes last, when all is
    written: until then the Zarr is no image. A local folder also has another name until then, and
    can be continued. A complete output keeps its ledger beside the array's metadata, in
    ``0/ledger``.

    The values of a small output of one block are held until it is finished: before, there is
    nothing to resume.

    Raises:
        InvalidInput: the output exists and may not be overwritten, cannot be made, or is the
            unfinished output of another run.
        RunFailed: a write failed.
    """

    def __init__(self, place: str, wanted: NewOutput) -> None:
        check_output(place, wanted)
        self._wanted = wanted
        self._folder: PartialFolder | RemoteFolder
        self._ledger: MemoryLedger
        self._resumed: LedgerFile | None = None
        if is_url(place):
            self._folder = RemoteFolder(place, overwrite=wanted.overwrite)
            self._ledger = MemoryLedger(wanted.identity)
        else:
            self._folder = PartialFolder(place)
            self._ledger = ledger = _ledger_of(self._folder, wanted)
            self._resumed = ledger if ledger.resumed else None
        self._array: Any = None
        self._chunks: ZarrChunks
        self._held = HeldBlock(wanted)
        if self._resumed:
            try:
                self._array = open_unfinished(self._folder.root, wanted, "r+")
            except BaseException:
                self.abandon()
                raise

    @property
    def begun(self) -> Begun:
        """The blocks that exist already; their history is certain once the output is described."""
        return self._ledger.content

    def describe(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Note how the output is made. The array is made now, unless all values may be held."""
        if self._resumed:
            mend(self._array, Path(self._folder.root) / LEVEL, self._resumed)
            self._chunks = ZarrChunks(self._array, self._folder, LEVEL, self._wanted)
        else:
            self._held.describe(attributes, patch, self._begin)

    def _begin(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Put the ledger and the array, without values, onto the disk.

        Raises:
            RunFailed: a write failed.
        """
        try:
            if isinstance(self._ledger, LedgerFile):
                self._ledger.settle()
            self._make(attributes, patch)
            self._folder.settle()
        except Exception as error:  # file systems and their libraries raise all kinds
            raise self._failed(error) from error

    def _make(self, attributes: dict[str, Any], patch: Vec3) -> None:
        """Make the array, in chunks that divide patches evenly."""
        chunk, shard = chunk_and_shard(patch, self._wanted)
        store = f"{self._folder.root}/{LEVEL}"
        self._array = new_array(store, self._wanted, attributes, chunk, shard)
        self._chunks = ZarrChunks(self._array, self._folder, LEVEL, self._wanted)

    def note_plan(self, plan: str) -> None:
        """Note the plan of all boxes written from here on."""
        self._ledger.note_plan(plan)

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Write the values (f', z, y, x) of a box, and note it in the ledger.

        The values of a small whole output are held instead.
        """
        if self._held.take(box, values, self._begin):
            return
        try:
            write_block(box, values, self._chunks, self._ledger.append)
        except MemoryError:
            raise
        except Exception as error:  # as above
            raise self._failed(error) from error

    def read(self, box: Box) -> NDArray[Any]:
        """Return the values (f', z, y, x) of a box that was written."""
        if self._held.values is not None:
            return self._held.values[(slice(None), *box.slices)]
        return np.asarray(self._array[(slice(None), *box.slices)])

    def finish(self, measured: dict[str, Any], _last_steps: LastSteps = at_once) -> None:
        """Update attributes, and write the metadata that make it an image."""
        self._held.begin(self._begin)
        if self._resumed:
            check_written(self._resumed, self.read)
        try:
            self._complete(measured)
        except (RunFailed, MemoryError):
            raise
        except Exception as error:  # as above
            raise self._failed(error) from error
        self._tidy()

    def _complete(self, measured: dict[str, Any]) -> None:
        """Update attributes, make the Zarr an image, and give it its name."""
        if self._held.values is not None:
            self._make(self._held.attributes | measured, self._held.patch)
            self._chunks.write(self._held.whole, self._held.values)
        else:
            self._array.update_attributes(measured)
        self._folder.put(LEDGER, self._held.summary(self._ledger.content))
        name = PurePosixPath(self._folder.place).name
        wanted = self._wanted
        make_image(
            self._folder.root, name, self._array, wanted.grid, wanted.coarsening, wanted.maps
        )
        self._folder.complete()

    def abandon(self, resume_advice: str = SAME_COMMAND, /) -> str:
        """Release the unfinished array, and delete it if it holds no block. Return a message."""
        place, blocks = self._folder.place, len(self._ledger.content.checksums)
        if self._is_complete():
            self._tidy()
            return f"{place} is complete"
        if not blocks:
            self._folder.discard()
            self._ledger.discard()
            return f"{place} was not made"
        self._folder.keep()
        self._ledger.close()
        finished = counted(blocks, "finished block")
        if isinstance(self._folder, RemoteFolder):
            again = option("overwrite", True)
            resume_advice = f"outputs at URLs cannot be continued: give {again} to start again"
        return (
            f"{place} was not made; {self._folder.root}/{LEVEL} holds {finished}; {resume_advice}"
        )

    def _is_complete(self) -> bool:
        """Return whether the output has its final name."""
        return self._folder.is_complete

    def _tidy(self) -> None:
        """Release the complete output, and delete what is left beside it."""
        self._folder.keep()
        self._ledger.discard()

    def _failed(self, error: Exception) -> RunFailed:
        return RunFailed(
            f"{self._folder.root}: cannot be written: {reason(error)}; make room or write elsewhere"
        )


def make_image(
    root: str,
    name: str,
    array: Any,
    grid: Grid,
    coarsening: Coarsening,
    maps: tuple[str, ...] = (),
) -> None:
    """Write the coarser resolutions of an array, if there are to be some, and its OME metadata.

    Args:
        root: folder or URL of the Zarr.
        name: name of the Zarr.
        array: the zarr.Array in it.
        grid: position of its voxels in space.
        coarsening: how coarser resolutions are made.
        maps: names of its maps; empty if they have none.
    """
    group = library("zarr", "zarr").open_group(root, mode="a", zarr_format=3)
    paths, grids = [LEVEL], [grid]
    if coarsening:
        for path, factor in write_levels(group, array, grid, coarsening):
            paths.append(path)
            grids.append(coarser_grid(grid, factor))
    image = image_metadata(name.removesuffix(".zarr"), paths, grids, coarsening)
    if maps:
        image["ome"] |= channel_metadata(maps, _ranges(array))
    group.update_attributes(image)


def _ranges(array: Any) -> list[tuple[float, float]]:
    """Return the range of values in the middle of each map; 1 wide if they are all the same."""
    size = Vec3(*array.shape[1:])
    start = (size - size.minimum(SEEN)) // 2
    middle = Box(start, start + size.minimum(SEEN))
    found = []
    for feature in range(array.shape[0]):
        values = array[(feature, *middle.slices)]
        values = values[np.isfinite(values)]
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
        found.append((low, high if high > low else low + 1))
    return found


def open_unfinished(root: Path | str, wanted: NewOutput, mode: str) -> Any:
    """Open the array of an unfinished output.

    Raises:
        InvalidInput: the array is damaged, or has another shape or type.
    """
    try:
        array = library("zarr", "zarr").open_array(f"{root}/{LEVEL}", mode=mode)
        wanted.check_array(array)
    except MemoryError:
        raise
    except Exception as error:  # zarr reports damage in all kinds of ways
        raise InvalidInput(
            f"{root}: cannot be continued: {reason(error)}; give {option('resume', False)} to "
            f"start afresh, or write elsewhere"
        ) from error
    return array


def new_array(
    store: Any, wanted: NewOutput, attributes: dict[str, Any], chunk: Vec3, shard: Vec3
) -> Any:
    """Make the array of an output.

    Args:
        store: where zarr makes it.
        wanted: description of the output.
        attributes: its attributes.
        chunk: extents of its chunks.
        shard: extents of its shards; those of chunks if it has none.
    """
    return library("zarr", "zarr").create_array(
        store,
        shape=wanted.shape,
        dtype=wanted.dtype,
        chunks=(1, *chunk),
        shards=(1, *shard) if wanted.sharded else None,
        compressors=compressors(wanted.compression or "zstd"),
        dimension_names=("c", "z", "y", "x"),
        attributes=attributes | ({PYRAMID: wanted.coarsening} if wanted.coarsening else {}),
        zarr_format=3,
    )


def _ledger_of(folder: PartialFolder, wanted: NewOutput) -> LedgerFile:
    """Return the ledger of a folder, which is emptied unless the output goes on.

    If that fails, ledger and folder are released.
    """
    with refused_at(folder.place), ExitStack() as failing:
        failing.callback(_release, folder)
        ledger = LedgerFile(folder.path, wanted)
        failing.callback(ledger.close)
        if not ledger.resumed:
            if any(folder.path.iterdir()):
                ledger.settle()  # else power may fail with the old ledger and half a folder
            folder.empty()
        failing.pop_all()
    return ledger


def _release(folder: PartialFolder) -> None:
    """Release a folder, and delete it if it is empty."""
    if any(folder.path.iterdir()):
        folder.keep()
    else:
        folder.discard()
