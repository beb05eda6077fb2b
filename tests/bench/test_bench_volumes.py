"""The benchmark of reading and writing: what it measures, and its command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quick_benchmarks import QUICK
from typer.testing import CliRunner

from bench.__main__ import app
from bench.record import load
from bench.volumes import FORMATS, compare_formats, smooth


@pytest.mark.slow
def test_every_format_is_measured_beside_its_library_and_the_floors(tmp_path: Path) -> None:
    rows = compare_formats("uint8", 32, tmp_path, QUICK)
    assert all(row["seconds"] > 0 and row["mb_per_s"] > 0 for row in rows)
    assert {row["format"] for row in rows} == {"floor", "HDF5, gzip", *(f.name for f in FORMATS)}
    compared = [row for row in rows if "gain" in row]
    assert {(row["action"], row["format"]) for row in compared} == {
        ("read", "HDF5, gzip"),
        *(("write", form.name) for form in FORMATS if form.ending == ".zarr"),
    }
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [8, 20])
def test_values_are_like_a_networks(size: int) -> None:
    values = smooth(size)
    assert values.shape == (size,) * 3
    assert values.dtype == np.float32
    assert 0 <= values.min() < 0.2
    assert 0.8 < values.max() <= 1
    assert np.abs(np.diff(values)).mean() < 0.2


@pytest.mark.slow
def test_the_command_saves_what_it_prints(tmp_path: Path) -> None:
    out = tmp_path / "volumes.json"
    made = tmp_path / "made"
    made.mkdir()
    command = ["volumes", "--size", "16", "--repeats", "1", "--folder", str(made)]
    found = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert found.exit_code == 0
    assert "| Zarr, zstd" in found.output
    assert {row["dtype"] for row in load(out, "volumes").rows} == {"float32", "float16", "uint8"}
