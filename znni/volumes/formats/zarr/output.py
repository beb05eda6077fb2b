"""A new OME-Zarr: NGFF 0.5, in Zarr version 3, with coarser resolutions if wanted."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from znni.core.errors import InvalidInput, option
from znni.core.option_types import DEFAULT_COMPRESSION, Coarsening
from znni.core.shapes import Box, Vec3
from znni.core.volume import SAME_COMMAND, Grid, LastSteps, NewOutput
from znni.volumes.formats import library
from znni.volumes.formats.zarr.chunk_writer import ZarrChunks
from znni.volumes.formats.zarr.encoding import compressors
from znni.volumes.formats.zarr.files import chunk_and_shard
from znni.volumes.formats.zarr.ome_metadata import LEVEL, channel_metadata, image_metadata
from znni.volumes.formats.zarr.pyramid import PYRAMID, coarser_grid, write_levels
from znni.volumes.formats.zarr.repair import mend
from znni.volumes.ledger_file import LedgerFile, MemoryLedger
from znni.volumes.output_folder import OutputFolder, output_folder
from znni.volumes.output_place import refused_at
from znni.volumes.partial_folder import PartialFolder
from znni.volumes.partial_output import PartialOutput
from znni.volumes.remote_output import RemoteFolder
from znni.volumes.stored import reason

LEDGER = f"{LEVEL}/ledger"
SEEN = Vec3(1, 512, 512)  # voxels whose values choose the limits at which a viewer shows a map
MARKS = ("zarr.json", ".zgroup", ".zarray")  # a folder with one of them is a Zarr


def checked_folder(place: str, wanted: NewOutput) -> OutputFolder:
    """Return the folder of a new Zarr. Nothing is changed.

    Raises:
        InvalidInput: no Zarr can be made there, another run is writing there, or there is too
            little room.
    """
    library("zarr", "zarr")
    folder = output_folder(place)
    unfinished = (f"{LEVEL}/zarr.json",) if isinstance(folder, RemoteFolder) else ()
    room = wanted.nbytes if wanted.compression == "none" else 0
    folder.check((*MARKS, *unfinished), overwrite=wanted.overwrite, room=room)
    return folder


class ZarrOutput(PartialOutput):
    """A new OME-Zarr with the output in its array ``0``.

    The array is made first. The group around it, with the OME metadata, comes last, when all is
    written: until then the Zarr is no image. A local folder also has another name until then, and
    can be continued. A complete output keeps its ledger beside the array's metadata, in
    ``0/ledger``.
    """

    _inside = f"/{LEVEL}"

    def __init__(self, place: str, wanted: NewOutput) -> None:
        self._folder = checked_folder(place, wanted)
        self._folder.take(overwrite=wanted.overwrite)
        super().__init__(wanted, self._folder, _ledger_of(self._folder, wanted))
        if self._earlier:
            try:
                self._array = open_unfinished(self._folder.root, wanted, "r+")
            except BaseException:
                self.abandon()
                raise

    def _check_earlier(self, ledger: LedgerFile) -> None:
        mend(self._array, Path(self._folder.root) / LEVEL, ledger)
        self._sink = ZarrChunks(self._array, self._folder, LEVEL, self._wanted)

    def _start_making(self) -> None:
        with self._failing():
            self._ledger.settle()
            self._make(self._attributes)
            self._folder.settle()

    def _make(self, attributes: dict[str, Any]) -> None:
        """Make the array, in chunks that divide patches evenly."""
        chunk, shard = chunk_and_shard(self._patch, self._wanted)
        store = f"{self._folder.root}/{LEVEL}"
        self._array = new_array(store, self._wanted, attributes, chunk, shard)
        self._sink = ZarrChunks(self._array, self._folder, LEVEL, self._wanted)

    def _complete(self, measured: dict[str, Any], _last_steps: LastSteps) -> None:
        if self._held is not None:
            self._make(self._attributes | measured)
            self._sink.write(self._whole, self._held)
        else:
            self._array.update_attributes(measured)
        self._folder.put(LEDGER, self._summary())
        name = PurePosixPath(self._folder.place).name
        wanted = self._wanted
        make_image(
            self._folder.root, name, self._array, wanted.grid, wanted.coarsening, wanted.maps
        )
        self._folder.complete()
        self._tidy()

    def abandon(self, resume_advice: str = SAME_COMMAND, /) -> str:
        """Release the unfinished output, and delete it if it holds no block. Return a message."""
        if isinstance(self._folder, RemoteFolder):
            again = option("overwrite", True)
            resume_advice = f"outputs at URLs cannot be continued: give {again} to start again"
        return super().abandon(resume_advice)


def make_image(
    root: str, name: str, array: Any, grid: Grid, coarsening: Coarsening, maps: tuple[str, ...] = ()
) -> None:
    """Write the coarser resolutions of an array, if there are to be some, and its OME metadata."""
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
    """Make the array of an output."""
    return library("zarr", "zarr").create_array(
        store,
        shape=wanted.shape,
        dtype=wanted.dtype,
        chunks=(1, *chunk),
        shards=(1, *shard) if wanted.sharded else None,
        compressors=compressors(wanted.compression or DEFAULT_COMPRESSION),
        dimension_names=("c", "z", "y", "x"),
        attributes=attributes | ({PYRAMID: wanted.coarsening} if wanted.coarsening else {}),
        zarr_format=3,
    )


def _ledger_of(folder: OutputFolder, wanted: NewOutput) -> MemoryLedger:
    """Return the ledger of a folder, which is emptied unless the output goes on.

    If that fails, ledger and folder are released.
    """
    if isinstance(folder, RemoteFolder):
        return MemoryLedger(wanted.identity)
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
    if not any(folder.path.iterdir()):
        folder.discard()
    folder.keep()
