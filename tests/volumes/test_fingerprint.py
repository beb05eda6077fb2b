"""Marks of volumes: they tell files from others, and are those of earlier versions."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from znni.core.shapes import Box, Vec3
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
