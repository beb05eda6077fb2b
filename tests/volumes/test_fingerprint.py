"""Marks of volumes: they tell files from others, and are those of earlier versions."""

from __future__ import annotations

from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from znni.core.shapes import Box, Vec3
from znni.volumes.array import ArrayVolume
from znni.volumes.fingerprint import DIGITS, SAMPLE_BYTES, SAMPLES, fingerprint
from znni.volumes.locate import open_volume


@pytest.mark.parametrize("extents", [(3, 5, 7), (32, 64, 60), (40, 64, 64)])
def test_the_bytes_of_small_and_large_files_are_sampled_alike(
    extents: tuple[int, int, int], tmp_path: Path
) -> None:
    """Small files are read at once."""
    path = tmp_path / "volume.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, extents, np.uint8))
    volume = open_volume(path)
    marks = fingerprint(str(path), volume, Box(Vec3(0, 0, 0), volume.size))
    content = path.read_bytes()
    last = max(0, len(content) - SAMPLE_BYTES)
    places = [last * number // (SAMPLES - 1) for number in range(SAMPLES)]
    found = sha256(b"".join(content[place : place + SAMPLE_BYTES] for place in places))
    assert marks["the input's bytes"] == found.hexdigest()[:DIGITS]
    assert marks["the input's length in bytes"] == str(len(content))


@pytest.mark.parametrize("length", [0, 100, 4 * SAMPLE_BYTES, 2 * SAMPLES * SAMPLE_BYTES])
def test_reads_that_give_only_a_part_make_no_difference(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of file systems on a network."""

    class Slow(FileIO):
        def read(self, size: int | None = -1, /) -> Any:
            return super().read(min(1000, size or 0))

    path = tmp_path / "volume"
    path.write_bytes(np.random.default_rng(0).bytes(length))
    volume = ArrayVolume(np.zeros((1, 2, 3, 4), np.uint8))
    part = Box(Vec3(0, 0, 0), volume.size)
    found = fingerprint(path, volume, part)
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: Slow(self))
    assert fingerprint(path, volume, part) == found
