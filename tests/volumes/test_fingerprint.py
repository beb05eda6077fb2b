"""Marks of volumes: they tell files from others, and are those of earlier versions."""

from __future__ import annotations

from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_mapped_arrays import write_set

from znni.core.shapes import Box, Vec3
from znni.volumes.array import ArrayVolume
from znni.volumes.fingerprint import DIGITS, SAMPLE_BYTES, SAMPLES, fingerprint
from znni.volumes.locate import files_of, open_volume


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


def detached(folder: Path, ending: str) -> Path:
    """Write a header, and its values in another file."""
    np.random.default_rng(0).integers(0, 256, (20, 300, 300), np.uint8).tofile(folder / "v.raw")
    header = folder / f"v{ending}"
    header.write_text(
        "NRRD0004\ntype: uchar\ndimension: 3\nsizes: 300 300 20\nencoding: raw\n"
        "data file: v.raw\n\n"
        if ending == ".nhdr"
        else "NDims = 3\nDimSize = 300 300 20\nElementType = MET_UCHAR\nElementDataFile = v.raw\n"
    )
    return header


@pytest.mark.parametrize("ending", [".nhdr", ".mhd"])
def test_values_beside_a_header_are_marked(ending: str, tmp_path: Path) -> None:
    header = detached(tmp_path, ending)
    volume = open_volume(header)
    part = Box(Vec3(0, 0, 0), volume.size)
    values = header.with_name("v.raw")
    assert files_of(header) == [header, values]
    before = fingerprint(header, volume, part)
    assert before["the input's length in bytes"] == str(header.stat().st_size + 20 * 300 * 300)
    content = bytearray(values.read_bytes())
    content[123_456] ^= 1  # no sample has it
    values.write_bytes(content)
    after = fingerprint(header, volume, part)
    changed = [name for name, mark in before.items() if after[name] != mark]
    assert changed == ["the input's time of change"]
    content[-1] ^= 1
    values.write_bytes(content)
    assert fingerprint(header, volume, part)["the input's bytes"] != before["the input's bytes"]


def test_all_files_of_a_set_and_all_slices_are_marked(tmp_path: Path) -> None:
    write_set(tmp_path)
    names = ["a.ome.tif", "b.ome.tif"]
    assert files_of(tmp_path / "b.ome.tif") == [tmp_path / name for name in reversed(names)]
    assert files_of(f"{tmp_path}/a.ome.tif:1") == [tmp_path / name for name in names]
    np.save(tmp_path / "v.npy", np.zeros((2, 3, 4)))
    assert files_of(tmp_path / "v.npy") == [tmp_path / "v.npy"]
    (tmp_path / "v.zarr").mkdir()
    assert files_of(tmp_path / "v.zarr") == []
    assert files_of("s3://bucket/v.nii") == []
    assert files_of(tmp_path) == [tmp_path / name for name in names]


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
