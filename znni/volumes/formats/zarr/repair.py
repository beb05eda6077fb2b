"""Repairing an unfinished Zarr: afterwards every chunk in it is readable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from znni.core.shapes import ZERO, Box, Vec3
from znni.volumes.block_checks import strike_off_damaged
from znni.volumes.ledger_file import LedgerFile

DIMENSIONS = 4  # f, z, y, x


def mend(array: Any, folder: Path, ledger: LedgerFile) -> None:
    """Remove damaged blocks from the ledger, and delete unreadable chunks that must be added to.

    A chunk that two blocks share is read, changed and replaced. zarr-python replaces whole files,
    so a killed run leaves all of them readable. After a power failure or other damage, unreadable
    files are deleted, and all blocks in them are computed again.
    """
    extents = Vec3(*(array.shards or array.chunks)[1:])
    whole = Box(ZERO, Vec3(*array.shape[1:]))
    for left in folder.parent.rglob("*.partial"):  # writing one of its files was interrupted
        left.unlink()
    unfinished = whole.without(*ledger.content.checksums)
    while True:
        for file, feature, start in _stored_chunks(folder):
            inside = Box(start * extents, (start + 1) * extents).intersection(whole)
            if inside and any(inside.intersection(part) for part in unfinished):
                _delete_unreadable(array, file, (feature, *inside.slices))
        unfinished = strike_off_damaged(ledger, lambda box: array[(slice(None), *box.slices)])
        if not unfinished:
            return


def _stored_chunks(folder: Path) -> Iterator[tuple[Path, int, Vec3]]:
    """Yield the files of an array's chunks or shards, with their maps and grid indices."""
    for file in (folder / "c").rglob("*"):
        index = file.relative_to(folder / "c").parts
        if len(index) == DIMENSIONS and all(map(str.isdecimal, index)):  # skips other files
            feature, z, y, x = map(int, index)
            yield file, feature, Vec3(z, y, x)


def _delete_unreadable(array: Any, file: Path, key: tuple[Any, ...]) -> None:
    try:
        array[key]
    except MemoryError:
        raise
    except Exception:  # codecs raise all kinds
        file.unlink()
