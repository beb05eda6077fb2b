"""Absent chunks of a Zarr are counted, whether left out or lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr_images import write_image

from znni.volumes.formats.zarr import absent_chunks
from znni.volumes.locate import describe_volume, open_volume

pytestmark = pytest.mark.usefixtures("own_folder", "memory_files")


def write(version: Any = 3, shards: tuple[int, ...] | None = None, fill: int | None = 3) -> None:
    """Write ``s.zarr`` of 3x2x2 chunks, the last ones cut off by the array's end."""
    array = zarr.create_array(
        "s.zarr",
        shape=(5, 6, 7),
        dtype="u1",
        chunks=(2, 3, 4),
        shards=shards,
        fill_value=fill,
        zarr_format=version,
        overwrite=True,
    )
    array[...] = 9


def warnings(caplog: pytest.LogCaptureFixture, source: str = "s.zarr") -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="znni"):
        open_volume(source)
    return caplog.messages


@pytest.mark.parametrize(
    ("version", "shards", "file", "said"),
    [
        (3, None, "c/2/1/0", "1 of 12 chunks is absent, and read as its fill value 3"),
        (2, None, "2.1.0", "1 of 12 chunks is absent, and read as its fill value 3"),
        (3, (4, 6, 8), "c/1/0/0", "1 of 2 shards is absent, and read as its fill value 3"),
    ],
)
def test_an_absent_chunk_is_told(
    caplog: pytest.LogCaptureFixture,
    version: int,
    shards: tuple[int, ...] | None,
    file: str,
    said: str,
) -> None:
    write(version, shards)
    assert warnings(caplog) == []
    assert "absent" not in describe_volume("s.zarr")
    Path("s.zarr", file).unlink()
    assert warnings(caplog) == [f"s.zarr: {said}"]
    assert f"\n    {said}" in describe_volume("s.zarr")


def test_a_resolution_among_others(caplog: pytest.LogCaptureFixture) -> None:
    write_image("cells.zarr", "zyx", chunks=(2, 3, 4))
    Path("cells.zarr/0/c/0/0/0").unlink()
    Path("cells.zarr/0/c/1/0/0").unlink()
    said = "2 of 12 chunks are absent, and read as its fill value 0"
    assert warnings(caplog, "cells.zarr") == [f"cells.zarr:/0: {said}"]
    assert warnings(caplog, "cells.zarr/0") == [f"cells.zarr:/0: {said}"]
    assert warnings(caplog, "cells.zarr/1") == []


def test_chunks_behind_a_link_are_there(caplog: pytest.LogCaptureFixture) -> None:
    write()
    Path("s.zarr/c/1").rename("elsewhere")
    Path("s.zarr/c/1").symlink_to(Path("elsewhere").resolve())
    assert warnings(caplog) == []
    Path("elsewhere/0/0").unlink()
    assert warnings(caplog)[0].startswith("s.zarr: 1 of 12 chunks")


def test_no_fill_value_is_zero(caplog: pytest.LogCaptureFixture) -> None:
    write(2, fill=None)
    Path("s.zarr/0.0.0").unlink()
    assert open_volume("s.zarr").size == (5, 6, 7)
    assert warnings(caplog)[0].endswith("as its fill value 0")


def test_outputs_leave_out_zeros(caplog: pytest.LogCaptureFixture) -> None:
    write()
    Path("s.zarr/c/0/0/0").unlink()
    zarr.open("s.zarr").attrs["network_file"] = "{}"
    assert warnings(caplog) == []


def test_what_would_take_long_is_not_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    Path("s.zarr/c/0/0/0").unlink()
    monkeypatch.setattr(absent_chunks, "MOST_LISTED", 11)
    assert warnings(caplog) == []
    monkeypatch.setattr(absent_chunks, "MOST_LISTED", 12)
    assert len(warnings(caplog)) == 1


def test_at_a_url_nothing_is_listed(caplog: pytest.LogCaptureFixture) -> None:
    write_image("memory://cells.zarr", "zyx", chunks=(2, 3, 4))
    zarr.open_array("memory://cells.zarr/0")[:2, :3, :4] = np.zeros((2, 3, 4), np.uint16)
    assert warnings(caplog, "memory://cells.zarr") == []
