"""Opening volumes and outputs by the names that users give."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from znni.core.argument_types import checks_types
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput, option
from znni.core.option_types import Channel, MapOverTime, Moment, Packing, PointInTime
from znni.core.volume import NewOutput, Output
from znni.core.voxel_size import voxel_size as parsed_voxel_size
from znni.volumes.array import ArrayOutput, ArrayVolume
from znni.volumes.chosen_volume import ChosenVolume, listed, map_number
from znni.volumes.formats import Format, check_plain, formats
from znni.volumes.formats.slices import NAME as SLICES
from znni.volumes.ledger_entries import Ledger, parse
from znni.volumes.named_axes import at_time
from znni.volumes.partial_file import partial_name
from znni.volumes.stored import errors_as, is_url, reason
from znni.volumes.writer import Writer


@checks_types
def open_volume(
    source: str | Path | ArrayLike,
    dataset: str | None = None,
    *,
    channel: Channel | None = None,
    time: PointInTime | None = None,
    invert: bool = False,
    voxel_size: str | None = None,
) -> ArrayVolume:
    """Open a volume.

    Args:
        source: an array, or a path or URL whose ending tells the format, optionally with
            ``:/path/of/dataset``.
        dataset: dataset of a file with several volumes; the same as the path after the colon.
        channel: the only map to read: its number, or its name if the file has names.
        time: number of the point in time, if there are several; ``all``: they are the maps. If each
            has several maps, ``channel`` chooses one of these.
        invert: exchange light and dark.
        voxel_size: extents of a voxel and their unit, as ``0.5,0.1,0.1um`` (z, y, x), or ``40nm``
            for all axes: instead of what the file says. Without a unit, the file's one holds.

    Raises:
        InvalidInput: the source is no volume, has no such map or point in time, or the text of
            the voxel size has another form.
    """
    voxels = None if voxel_size is None else parsed_voxel_size(voxel_size)
    if isinstance(time, str) and time != "all":
        raise InvalidInput(f"time is {time!r}, a str; give a number from 0 on, or 'all'")
    moment: Moment | None = time
    if time == "all" and channel is not None:
        first = _opened(source, dataset, 0)
        if first.features > 1 or first.maps:
            at_each = map_number(first, channel)
            ChosenVolume(first, at_each, invert=False)  # raises if there is no such map
            moment, channel = MapOverTime(at_each), None
    volume = _opened(source, dataset, moment)
    if channel is None and not invert and voxels is None:
        return volume
    number = None if channel is None else map_number(volume, channel)
    return ChosenVolume(volume, number, invert=invert, voxels=voxels)


def _opened(
    source: str | Path | ArrayLike, dataset: str | None, time: Moment | None
) -> ArrayVolume:
    if not isinstance(source, str | Path):
        if dataset:
            raise InvalidInput(
                f"an array in memory has no {option('dataset', dataset)}; leave it out"
            )
        return ArrayVolume(at_time(source, "the array", time))
    place, inside = split_dataset(str(source))
    if inside and dataset and inside.strip("/") != dataset.strip("/"):
        raise InvalidInput(
            f"{source} names one dataset and {option('dataset', dataset)} another; give one"
        )
    return _format_to_read(place).functions.open(place, inside or dataset, time)


def not_compressed(file: Path, copy: Path | None) -> Path:
    """Return a file whose values are read in any order: the given one, or a copy of what is in it.

    Args:
        file: a volume.
        copy: the path of the copy without its ending. A copy that is there already is used again.
            None: the file is decompressed as a check, and nothing is kept.

    Raises:
        InvalidInput: the file cannot be read.
    """
    unpack = _format_to_read(str(file)).functions.unpack
    return unpack(str(file), copy) if unpack else file


def files_of(source: str | Path) -> list[Path]:
    """Return the files of a volume. It has none at a URL, or if it has a file for each chunk.

    Raises:
        InvalidInput: the volume cannot be read.
    """
    place, _ = split_dataset(str(source))
    files = None if is_url(place) else _format_to_read(place).functions.files
    return files(place) if files else []


def describe_volume(source: str) -> str:
    """Describe a file, folder or URL in lines for people.

    Raises:
        InvalidInput: nothing there can be read.
    """
    place, inside = split_dataset(source)
    form = _format_to_read(place)
    described = form.functions.describe(place, inside)
    for time in (None, 0):  # a volume may have several points in time
        with suppress(InvalidInput):
            volume = form.functions.open(place, inside, time)
            return f"{described}\n    maps {listed(volume)}" if volume.maps else described
    return described  # it has several volumes, or none


def read_ledger(place: str) -> Ledger:
    """Return the ledger of an output, whole or partial, at a path or a URL.

    Raises:
        InvalidInput: there is none that can be read.
    """
    place = place.rstrip("/")
    if writer := _writer_of(place):
        with errors_as(
            lambda error: InvalidInput(
                f"{place}: its ledger cannot be read: {reason(error)}; give a whole output"
            )
        ):
            found, _ = parse(writer.ledger())
        if found is not None:
            return found
    raise InvalidInput(
        f"{place}: has no ledger of its blocks; outputs of this version of znni or later have one, "
        f"except .npy files: compute it again"
    )


def open_output(
    out: str | Path | Any,
    source: str | Path | ArrayLike,
    wanted: NewOutput,
    mask: str | Path | ArrayLike | None = None,
) -> Output:
    """Open the output of a run over a volume.

    Args:
        out: file to make, its format known by its ending, or an array (f', z, y, x).
        source: path or object that the volume was opened from; the output must not overwrite it.
        wanted: description of the output's contents.
        mask: path or object that the mask was opened from, if any; the output must not overwrite
            it.

    Raises:
        InvalidInput: the output is the input or the mask, exists already, or cannot hold such
            values.
    """
    if not isinstance(out, str | Path):
        if isinstance(source, np.ndarray) and np.may_share_memory(source, out):
            raise InvalidInput("the output array shares memory with the input; give another")
        check_plain("the output array", wanted, "an array")
        return ArrayOutput(out, wanted.features, wanted.size, wanted.dtype)
    return writer_at(out, source, mask).create(wanted)


def writer_at(
    out: str | Path | Any,
    source: str | Path | ArrayLike | None = None,
    mask: str | Path | ArrayLike | None = None,
) -> Writer:
    """Return what makes the output of a run, whose format is known by its ending.

    The output must overwrite neither the volume nor the mask.

    Raises:
        InvalidInput: the output is the input or the mask, or an array, or no format that can be
            written has such an ending.
    """
    if not isinstance(out, str | Path):
        raise InvalidInput(
            "an array in memory is not computed in parts; give the name of a .zarr as output"
        )
    place = _bare(str(out))
    for what, read in {"input": source, "mask": mask}.items():
        if isinstance(read, str | Path):
            _check_apart(place, split_dataset(str(read))[0], what)
    if writer := _writer_of(place):
        return writer
    endings = ", ".join(ending for form in formats() if form.writer for ending in form.endings)
    raise InvalidInput(f"{place}: znni writes no format with this ending; use one of {endings}")


def _writer_of(place: str) -> Writer | None:
    """Return what makes an output; None if no format that can be written has such an ending."""
    name = PurePosixPath(place).name
    return next((form.writer(place) for form in formats() if form.has(name) and form.writer), None)


def packing_at(out: object, wanted: NewOutput) -> Packing | None:
    """Return how a file is compressed that is written at the end, from all finished blocks.

    It is None if blocks are written to their places, or if no such output can be written.
    """
    writer = _writer_of(_bare(str(out))) if isinstance(out, str | Path) else None
    return writer.packing(wanted) if writer else None


def split_dataset(source: str) -> tuple[str, str | None]:
    """Split ``file.h5:/raw`` into file and dataset. A colon in the file's own name stays.

    The colons of a URL stay, too: it has a dataset only after a name with a format's ending.
    """
    place, colon, inside = source.rpartition(":")
    if not colon:
        return _bare(source), None
    url = is_url(source) and not source.startswith("file://")
    place = _bare(place)
    apart = any(form.has(place) for form in formats()) if url else not Path(source).exists()
    if place and apart and not inside.startswith("//"):
        return place, inside
    return _bare(source), None


def stem(source: str) -> str:
    """Return the name of a volume's file without its ending."""
    place = split_dataset(source)[0]
    for part in reversed(PurePosixPath(place).parts):
        for form in formats():
            for ending in form.endings:
                if part.lower().endswith(ending):
                    return part[: -len(ending)]
    path = Path(place)
    return path.resolve().name if path.is_dir() else path.stem


def names_folder(out: str, *, several: bool = False) -> bool:
    """Return whether an output's name is that of a folder for outputs.

    A Zarr is a folder too, but its name has the ending of a format.

    Args:
        out: the name.
        several: whether it is for several outputs, so that the folder need not exist.
    """
    if any(form.has(PurePosixPath(_bare(out)).name) for form in formats()):
        return False
    if several or out.endswith("/"):
        return True
    return Path(out).is_dir()


def _bare(place: str) -> str:
    """Return a path or URL without a final slash; a local one also without ``file://``."""
    return place.removeprefix("file://").rstrip("/") or place


def _format_to_read(place: str) -> Format:
    """Return the format of the innermost name with a known ending.

    Many kinds of files are HDF5 under endings of their own, so HDF5 is assumed for any other. Any
    other folder is one of slices. The blocks of an unfinished output lie in a Zarr if its format
    needs all of them at once.
    """
    name = SLICES if not is_url(place) and Path(place).is_dir() else "HDF5"
    for part in reversed(PurePosixPath(place).parts):
        for form in formats():
            if form.has(part):
                waits = part.endswith(".partial") and form.writer and form.writer.is_staged
                if not (waits and Path(place).is_dir()):
                    return form
                name = "Zarr"
    (assumed,) = (form for form in formats() if form.name == name)
    return assumed


def _check_apart(out: str, source: str, what: str) -> None:
    """Refuse to write where a run reads, under the final name or the partial one."""
    if is_url(out) or is_url(source):
        if f"{source}/".startswith(f"{out}/"):
            raise InvalidInput(f"{out}: is the {what}; name another output")
        return
    place = Path(out)
    for written in (place, partial_name(place)):
        try:
            found = written.stat()
        except OSError:  # it does not exist yet
            continue
        if any(_is_file(part, found) for part in (Path(source), *Path(source).parents)):
            raise InvalidInput(f"{written}: is the {what}; name another output")


def _is_file(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), found)
    except OSError:  # it does not exist
        return False
