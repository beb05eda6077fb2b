"""Chunks without a file, which a Zarr reads as its fill value: either left out or lost."""

from __future__ import annotations

import os
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from znni.core.text import counted

MOST_LISTED = 2**14  # files: listing a folder of so many takes tenths of a second


def absent_chunks(array: Any, folder: Path) -> str:
    """Return in words how many chunks of an array in a local folder are absent.

    The text is empty if none is, or if there would be more than ``MOST_LISTED`` files.
    """
    kind, extents = ("shard", array.shards) if array.shards else ("chunk", array.chunks)
    counts = [-(-size // extent) for size, extent in zip(array.shape, extents, strict=True)]
    if prod(counts) > MOST_LISTED:
        return ""
    listed = {
        os.path.relpath(Path(inside, name), folder)
        for inside, _, names in os.walk(folder)
        for name in names
    }
    keys = map(array.metadata.encode_chunk_key, product(*map(range, counts)))
    # Targets of links are not listed, but they exist.
    absent = sum(key not in listed and not (folder / key).exists() for key in keys)
    if not absent:
        return ""
    of = f"{absent:,} of {counted(prod(counts), kind)} {'is' if absent == 1 else 'are'} absent"
    value = array.fill_value or 0  # in version 2 it may be None, which zarr reads as 0
    return f"{of}, and read as its fill value {value}"
