"""Volumes in Zarr versions 2 and 3, with or without OME-NGFF metadata, in a folder or at a URL."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from znni.core.errors import InvalidInput, ZnniError
from znni.core.option_types import Codec, Form, Moment
from znni.volumes.array import ArrayVolume
from znni.volumes.formats import Functions, described, library, likely_image, names_one_of
from znni.volumes.formats.zarr import ENDINGS
from znni.volumes.formats.zarr.absent_chunks import absent_chunks
from znni.volumes.formats.zarr.chunk_reader import ChunkedZarr
from znni.volumes.formats.zarr.ome_metadata import LEVEL, Level, levels
from znni.volumes.grid_attributes import grid_of, with_affine
from znni.volumes.named_axes import AXES, NamedAxes, at_time
from znni.volumes.stored import StoredVolume, errors_as, is_url, no_such_file, reason

OF_RUNS = "network_file"  # an attribute of outputs, which leave out chunks of zeros

log = logging.getLogger("znni")


@dataclass(frozen=True)
class _Found:
    """An array of a Zarr.

    Attributes:
        path: path within the Zarr; empty if the Zarr is a single array.
        array: the zarr.Array.
        level: description of the array in OME metadata, or None.
        group: the zarr.Group of the image, if the array is its finest resolution.
        coarser: descriptions of the image's other resolutions.
    """

    path: str
    array: Any
    level: Level | None
    group: Any = None
    coarser: tuple[Level, ...] = ()

    @property
    def name(self) -> str:
        return self.path

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def __str__(self) -> str:
        return f"/{self.path} {self.array.shape} {self.array.dtype}"


def open_zarr(place: str, dataset: str | None, time: Moment | None = None) -> StoredVolume:
    """Open the volume at a path or URL, with a warning if chunks of it are absent.

    A Zarr may leave out chunks that hold only its fill value. Nothing tells these from lost chunks,
    except for outputs, which have a ledger.

    Args:
        place: folder or URL of the Zarr, or of an array or group in it.
        dataset: path in it, to an array or to a group with one image. Default: the only one. An
            image is opened at its finest resolution.
        time: number of the point in time; None: there is one only; ``all``: they are the maps.

    Raises:
        InvalidInput: there is no volume, or several.
    """
    root, inside = _split(place, dataset)
    stored = _only_volume(_open(root, inside), root, inside, time)
    name = f"{root}:/{stored.path}" if stored.path else root
    attributes = stored.array.attrs
    if OF_RUNS not in attributes and (absent := _absent(stored, root)):
        log.warning("%s: %s", name, absent)
    known, chunked = _chunks(stored.array), ChunkedZarr(stored.array)
    if stored.level is None:
        array = at_time(chunked, name, time)
        return StoredVolume(
            array, name, grid_of(attributes), attributes, list, known, chunked.chunk_bytes
        )
    named = NamedAxes(chunked, stored.level.axes, name, time, stored.level.channels)
    grid = with_affine(stored.level.grid, attributes)

    def coarser() -> list[ArrayVolume]:
        return _coarser(stored, root, time)

    return StoredVolume(named, name, grid, attributes, coarser, known, chunked.chunk_bytes)


def _chunks(array: Any) -> tuple[Form, Codec | None, tuple[int, ...]]:
    """Return what reads the chunks of an array, their codec if it is known, and their extents."""
    names = [str(compressor).lower() for compressor in array.compressors]
    codecs: tuple[Codec, ...] = ("zstd", "gzip")
    known = (codec for codec in codecs if any(codec in name for name in names))
    return "zarr", next(known, None), array.chunks


def _coarser(found: _Found, root: str, time: Moment | None) -> list[ArrayVolume]:
    """Open the coarser resolutions of an image."""
    finest = found.level.path if found.level else ""
    image = f"{root}:/{found.path.removesuffix(finest)}"
    volumes: list[ArrayVolume] = []
    for level in found.coarser:
        name = f"{image}{level.path}"
        array = _member(found.group, level, name, root)
        named = NamedAxes(ChunkedZarr(array), level.axes, name, time, level.channels)
        volumes.append(StoredVolume(named, name, level.grid, array.attrs))
    return volumes


def describe_zarr(place: str, dataset: str | None) -> str:
    """Describe the arrays of a Zarr: shape, type, chunks, and how outputs were made."""
    root, inside = _split(place, dataset)
    lines = [root]
    for stored in _arrays(_open(root, inside), root, inside, all_levels=True):
        array = stored.array
        shards = f", shards {array.shards}" if array.shards else ""
        codecs = ", ".join(type(codec).__name__ for codec in array.compressors) or "uncompressed"
        lines.append(f"  {stored}, chunks {array.chunks}{shards}, {codecs}")
        if absent := _absent(stored, root):
            lines.append(f"    {absent}")
        if stored.level:
            lines.append(f"    axes {' '.join(stored.level.axes)}, {stored.level.grid}")
        lines += described(array.attrs)
    return "\n".join(lines)


def _split(place: str, dataset: str | None) -> tuple[str, str]:
    """Return the innermost Zarr of a path, and the path within it.

    An unfinished output has no group yet, but its array.
    """
    parts = place.split("/")
    ends = [i for i, part in enumerate(parts) if names_one_of(ENDINGS, part)]
    end = ends[-1] + 1 if ends else len(parts)
    inside = [part for part in (*parts[end:], *(dataset or "").split("/")) if part]
    root = "/".join(parts[:end])
    unfinished = root.endswith(".partial") and (Path(root) / LEVEL).is_dir()
    return root, "/".join(inside) or LEVEL * unfinished


def _open(root: str, inside: str) -> Any:
    """Return the zarr.Array or zarr.Group at a path."""
    zarr = library("zarr", "zarr")
    if not is_url(root) and not Path(root).exists():
        raise no_such_file(root)
    try:
        with reading(root, FileNotFoundError, zarr.errors.NodeNotFoundError):
            return zarr.open(f"{root}/{inside}".rstrip("/"), mode="r")
    except (FileNotFoundError, zarr.errors.NodeNotFoundError):
        if not inside:
            raise InvalidInput(
                f"{root}: holds no Zarr: there is neither a zarr.json nor a .zgroup or .zarray; "
                f"check the path"
            ) from None
        there = ", ".join(map(str, _arrays(_open(root, ""), root, "", all_levels=True)))
        raise InvalidInput(
            f"{root}: has no dataset {inside!r}; it has {there or 'none that can be listed'}"
        ) from None


def reading(root: str, *passed: type[Exception]) -> AbstractContextManager[None]:
    """Turn errors of metadata, codecs, servers and credentials into one clear error."""

    def failed(error: Exception) -> InvalidInput:
        if isinstance(error, ImportError):  # the URL's protocol needs a library
            return InvalidInput(f"{root}: cannot be read: {reason(error)}; pip install it")
        remedy = "check that it is whole, and that zarr-python knows its codecs and types"
        if is_url(root) and isinstance(error, OSError):
            remedy = "check the URL, the network and the credentials that the server asks for"
        return InvalidInput(f"{root}: cannot be read as Zarr: {reason(error)}; {remedy}")

    return errors_as(failed, *passed)


def _absent(found: _Found, root: str) -> str:
    """Return a message about absent chunks; empty if none is known to be absent."""
    return "" if is_url(root) else absent_chunks(found.array, Path(root, found.path))


def _only_volume(node: Any, root: str, inside: str, time: Moment | None) -> _Found:
    arrays = list(_arrays(node, root, inside))
    axes = (3, 4) if time is None else (4, 5)
    volumes = [one for one in arrays if one.level or one.array.ndim in axes]
    if not arrays or (not volumes and not inside):
        raise InvalidInput(
            f"{root}: has no array with axes {AXES[time is not None]}; it has "
            f"{', '.join(map(str, arrays)) or 'none that can be listed'}"
        )
    if len(volumes) > 1:
        listed = ", ".join(map(str, volumes))
        raise InvalidInput(
            f"{root}: has several volumes: {listed}; name one, as "
            f"{root}:/{likely_image(volumes).path}"
        )
    return volumes[0] if volumes else arrays[0]


def _arrays(node: Any, root: str, path: str, *, all_levels: bool = False) -> Iterator[_Found]:
    """Yield the arrays at and below a node: an image's finest resolution, or all of them."""
    if not hasattr(node, "members"):
        yield _Found(path, node, _level_of(root, path))
        return
    where = f"{root}:/{path}" if path else root
    image = levels(node.attrs, where)
    for level in image if all_levels else image[:1]:
        array = _member(node, level, where, root)
        rest = tuple(image[1:]) if level is image[0] else ()
        yield _Found(f"{path}/{level.path}".strip("/"), array, level, node, rest)
    if not image:
        with reading(where):
            members = sorted(node.members())
        for name, member in members:
            yield from _arrays(member, root, f"{path}/{name}".strip("/"), all_levels=all_levels)


def _member(group: Any, level: Level, where: str, root: str) -> Any:
    """Return the array of a resolution."""
    try:
        with reading(where, KeyError):
            array = group[level.path]
    except KeyError:
        raise InvalidInput(
            f"{where}: its OME metadata has a resolution {level.path!r} that is not there; "
            f"copy it again, or give another, as {root}:/PATH"
        ) from None
    if hasattr(array, "members"):
        raise InvalidInput(
            f"{where}: its OME metadata has a resolution {level.path!r} that is a group and no "
            f"array; write it again, or give another, as {root}:/PATH"
        )
    return array


def _level_of(root: str, path: str) -> Level | None:
    """Return the description of an array in the metadata of a group around it, or None."""
    for group_path in map(str, PurePosixPath(path).parents if path else ()):
        try:
            group = _open(root, group_path.strip("."))
        except ZnniError:  # no group around it: a single array
            continue
        if hasattr(group, "members"):
            for level in levels(group.attrs, f"{root}:/{group_path}"):
                if PurePosixPath(group_path) / level.path == PurePosixPath(path):
                    return level
    return None


FUNCTIONS = Functions(open_zarr, describe_zarr, files=None)
