"""Copies of volumes in other formats and types, whole or of a region."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from znni.core.argument_types import checks_types
from znni.core.array_like import ArrayLike
from znni.core.chunks import CHUNK
from znni.core.errors import InvalidInput, option
from znni.core.option_types import Channel, Compression, PointInTime, StoredType
from znni.core.plan_options import memory_size
from znni.core.run_options import InputOptions
from znni.core.shapes import ZERO, Box, Region, Vec3
from znni.core.text import counted, in_units
from znni.core.volume import NewOutput
from znni.engine.run_state import Progress, no_progress
from znni.engine.tiles import region_of
from znni.inference.exported_values import ExportedValues, values_for
from znni.inference.request import marks_of, numbered, open_input
from znni.machine.arrays import resident_memory
from znni.network.network_file import network_from_text
from znni.volumes.array import ArrayVolume
from znni.volumes.fingerprint import fingerprint
from znni.volumes.formats.hdf5.axis_tags import NAMES
from znni.volumes.grid_attributes import grid_attributes
from znni.volumes.label_values import holds_labels
from znni.volumes.locate import open_output, writer_at
from znni.volumes.planes import planes
from znni.volumes.staged_output import Content, StagedWriter

ROOM = 2**30  # bytes of memory beside those of the process at the start, unless the user says more
LABELS_ROOM = 2**27  # bytes of memory to copy labels
COPIES = 4  # of a block: as read, converted, and on its way through codecs
LEAST = 2**26  # bytes: less makes blocks too small to be quick


@dataclass(frozen=True)
class Exported:
    """A finished copy.

    Attributes:
        path: its place.
        features: its maps.
        size: its extents.
        dtype: its type.
    """

    path: str
    features: int
    size: Vec3
    dtype: str

    def __str__(self) -> str:
        """Return this in words."""
        return f"{self.path}: {counted(self.features, 'map')} of {self.size}, {self.dtype}"


@checks_types
def export(
    source: str | Path | ArrayLike,
    target: str | Path,
    *,
    dataset: str | None = None,
    channel: Channel | None = None,
    time: PointInTime | None = None,
    voxel_size: str | None = None,
    roi: Region | None = None,
    dtype: str | None = None,
    labels: bool = False,
    threshold: float | None = None,
    compression: Compression | None = None,
    sharded: bool = False,
    pyramid: bool | None = None,
    overwrite: bool = False,
    resume: bool = True,
    ram: int | str | None = None,
    progress: Progress = no_progress,
) -> Exported:
    """Copy a volume to a file of another format, block by block.

    Spacing, units, origin, orientation and names of channels go along as far as the new format has
    them. An output of ``znni.infer`` keeps its attributes, so ``znni.view`` works with the copy
    (not with ``.npy``).

    Args:
        source: a volume in any format that znni reads, or an array.
        target: the file to make: ``.h5``, ``.zarr``, ``.tif``, ``.nii``, ``.nii.gz``, ``.nrrd``,
            ``.mha`` or ``.npy``.
        dataset: dataset to copy, if the file has several.
        channel: the only map to copy: its number, or its name if the file has names.
        time: number of the point in time, if there are several; ``all``: they are the maps.
        voxel_size: extents of a voxel, as ``0.5,0.1,0.1um``, if the file has none or wrong ones.
        roi: voxels to copy, as ``numpy.s_[10:20, :, 5:]``; by default all.
        dtype: type of the copy; by default the source's. Floats become uint8 as 0..1 to 0..255.
        labels: store the label of the largest map instead of the values.
        threshold: store 1 where a value is above it, and else 0.
        compression: ``zstd`` (Zarr only), ``gzip`` (Zarr, TIFF, NRRD, MetaImage) or ``none``.
        sharded: store many chunks of a Zarr in one file.
        pyramid: also store coarser resolutions of an OME-Zarr or OME-TIFF; by default if it is
            large.
        overwrite: replace an existing file.
        resume: continue an unfinished copy, if the format allows it (HDF5, Zarr).
        ram: memory that the process may take; by default 1 GiB more than it takes already.
        progress: called with the voxels written and those wanted.

    Raises:
        InvalidInput: something given cannot be used as it is.
        RunFailed: reading or writing failed.
    """
    read = numbered(InputOptions(dataset, channel, time, voxel_size=voxel_size), source)
    volume = open_input(read, source)
    box = region_of(roi, volume.size)
    values = values_for(volume, dtype, labels, threshold)
    wanted = NewOutput(
        values.features(volume.features),
        box.size,
        cast(StoredType, values.dtype),
        volume.grid.starting_at(box.start),
        overwrite=overwrite,
        compression=compression,
        sharded=sharded,
        pyramid=pyramid,
        labels=values.labels is not None or holds_labels(volume.attributes(), values.dtype),
        identity={
            **fingerprint(source, volume, box, "the copied volume"),
            **marks_of(read),
            "the region": str(box),
            "the type": values.dtype,
            "its labels": str(values.labels or "none"),
        },
        resume=resume,
        maps=volume.maps if values.features(volume.features) == volume.features else (),
    )
    copy = _Copy(volume, box, values, wanted)
    attributes = _attributes(volume, box, values, str(source)) | grid_attributes(wanted.grid)
    _write(target, source, copy, attributes, _room(ram), progress)
    return Exported(str(target), wanted.features, wanted.size, values.dtype)


def copy_labels(volume: ArrayVolume, target: str | Path, progress: Progress = no_progress) -> None:
    """Write labels to a file, as they are, with their attributes. An existing file is replaced.

    Args:
        volume: the labels.
        target: the file to make.
        progress: called with the voxels written and those wanted.

    Raises:
        InvalidInput: the file cannot hold labels.
        RunFailed: reading or writing failed.
    """
    wanted = NewOutput(
        volume.features,
        volume.size,
        cast(StoredType, volume.dtype.name),
        volume.grid,
        overwrite=True,
        labels=True,
    )
    values = ExportedValues(volume.dtype.name)
    copy = _Copy(volume, Box(ZERO, volume.size), values, wanted)
    attributes = volume.attributes() | grid_attributes(wanted.grid)
    _write(target, volume.name, copy, attributes, LABELS_ROOM, progress)


def _write(
    target: str | Path,
    source: str | Path | ArrayLike,
    copy: _Copy,
    attributes: dict[str, Any],
    room: int,
    progress: Progress,
) -> None:
    """Write a copy: as a whole file, or in blocks if its format takes them in any order."""
    writer = writer_at(str(target), source)
    if isinstance(writer, StagedWriter):
        writer.save_whole(Content(copy.wanted, lambda: copy.planes(room, progress), attributes))
    else:
        _write_blocks(target, source, copy, attributes, room, progress)


@dataclass(frozen=True)
class _Copy:
    """The values of a copy, computed from those of its source when they are read."""

    volume: ArrayVolume
    box: Box
    values: ExportedValues
    wanted: NewOutput

    def read(self, box: Box, maps: slice = slice(None)) -> NDArray[Any]:
        """Return the values (f, z, y, x) of a box of the copy."""
        found = self.volume.read(box.shifted(self.box.start), maps)
        return self.values.of(found, self.volume.name)

    def planes(self, room: int, progress: Progress) -> Generator[NDArray[np.generic], None, None]:
        """Yield the planes (y, x) of the copy, first those of the first map."""
        size, of_all = self.wanted.size, self.values.features(2) == 1
        read_maps = self.volume.features if of_all else 1

        def one_map(feature: int, box: Box) -> NDArray[Any]:
            maps = slice(None) if of_all else slice(feature, feature + 1)
            values: NDArray[Any] = self.read(box, maps)[0]
            return values

        each = size.y * size.x * _bytes_of_voxel(self) * read_maps
        total = self.wanted.features * size.z
        values = planes(one_map, self.wanted.features, size, each, room // COPIES)
        for done, plane in enumerate(values, start=1):
            yield plane
            if done % CHUNK == 0 or done == total:
                progress(size.volume * done // total, size.volume)


def _bytes_of_voxel(copy: _Copy) -> int:
    """Return the bytes of one value, as read or as stored, whichever is more."""
    return max(copy.volume.itemsize, np.dtype(copy.wanted.dtype).itemsize, 4)


def _write_blocks(
    target: str | Path,
    source: object,
    copy: _Copy,
    attributes: dict[str, Any],
    room: int,
    progress: Progress,
) -> None:
    """Write a copy in blocks; go on with those that an earlier run has finished."""
    wanted = copy.wanted
    output = open_output(target, cast(Any, source), wanted)
    try:
        each = _bytes_of_voxel(copy) * max(copy.volume.features, wanted.features)
        patch = _block(wanted.size, room // COPIES // each)
        output.begin(attributes, patch)
        output.note_plan("")
        finished: set[Box] = set()
        for box, whole in output.resume_state.history:
            (finished.add if whole else finished.discard)(box)
        done = 0
        for box in Box(ZERO, wanted.size).cut(patch):
            for part in () if box in finished else box.without(*finished):
                output.write(part, copy.read(part))
            done += box.size.volume
            progress(done, wanted.size.volume)
        output.finish({})
    except BaseException as error:
        error.add_note(output.abandon())
        raise


def _block(size: Vec3, most: int) -> Vec3:
    """Return the extents of blocks of at most so many voxels: as wide as possible, 64 deep.

    Chunks of nearly all files lie within one block, and planes are read once.
    """
    depth = min(size.z, CHUNK)
    for y in (size.y, *range(size.y // CHUNK * CHUNK, 0, -CHUNK)):
        if depth * y * size.x <= most:
            return Vec3(depth, y, size.x)
    least = Vec3(depth, CHUNK, CHUNK).minimum(size)
    return least._replace(x=max(least.x, min(size.x, most // (least.z * least.y) // CHUNK * CHUNK)))


def _room(ram: int | str | None) -> int:
    if ram is None:
        return ROOM
    try:
        allowed = memory_size(ram)
    except ValueError as error:
        raise InvalidInput(f"ram: {error}") from None
    taken = resident_memory()
    if allowed - taken < LEAST:
        least = f"{-(-(taken + LEAST) // 2**20)}MiB"
        raise InvalidInput(
            f"an export needs {in_units(LEAST)} beside the {in_units(taken)} of the process, and "
            f"{in_units(allowed)} are allowed; give {option('ram', least)} or more"
        )
    return allowed - taken


def _attributes(
    volume: ArrayVolume, box: Box, values: ExportedValues, source: str
) -> dict[str, Any]:
    """Return the attributes of a copy: those of the copied output that hold for the copy, too.

    If a volume of another program is copied in part, the copy notes where in it that part lies.
    """
    noted: dict[str, Any] = {}
    start, extents = _three(volume, "voxel_offset"), _three(volume, "source_extents")
    if start is None or extents is None:
        start, extents = ZERO, volume.size
    if volume.attribute("znni_version") is None and extents != box.size:
        noted = {"voxel_offset": start + box.start, "source_extents": extents}
    elif volume.attribute("znni_version") is not None:
        noted = {name: _plain(value) for name, value in volume.attributes().items()}
        offset = noted.get("voxel_offset")
        if isinstance(offset, list | tuple) and len(offset) == 3:
            start = Vec3(*map(int, offset)) + box.start
            noted |= {"voxel_offset": start, "roi": str(Box(start, start + box.size))}
        for own in ("pyramid", NAMES):  # the copy may have others
            noted.pop(own, None)
        if values.labels:
            noted |= _label_attributes(values, noted)
        noted["scale"] = 1 / 255 if values.scales else 1.0 if _unscaled(values) else values.scale
    return noted | {"exported_from": source}


def _three(volume: ArrayVolume, name: str) -> Vec3 | None:
    """Return an attribute of three integers; None if it is absent or another program's."""
    try:
        z, y, x = map(int, volume.attribute(name))
    except (TypeError, ValueError):
        return None
    return Vec3(z, y, x)


def _unscaled(values: ExportedValues) -> bool:
    return values.labels is not None or np.dtype(values.dtype).kind == "f"


def _label_attributes(values: ExportedValues, found: Mapping[str, Any]) -> dict[str, Any]:
    assert values.labels
    network = network_from_text(str(found["network_file"]), "attribute network_file")
    return values.labels.attributes(network)


def _plain(value: Any) -> Any:
    """Return an attribute as Python's own types, which all formats can store."""
    return value.tolist() if hasattr(value, "tolist") else value
