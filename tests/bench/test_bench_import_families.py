"""``python -m bench import-families``: imports of networks as other libraries make them."""

from __future__ import annotations

from pathlib import Path

import pytest
from quick_benchmarks import CEILINGS, InProcess, needs_torch
from typer.testing import CliRunner

import bench.import_families
from bench.__main__ import app
from bench.import_families import Family
from bench.record import Row, load
from bench.table import table
from znni.core.shapes import Vec3


def rows(out: Path, *arguments: str) -> list[Row]:
    found = CliRunner().invoke(app, ["import-families", *arguments, "--out", str(out)])
    assert found.exit_code == 0, found.output
    return load(out, "import-families").rows


def mesh_net() -> object:
    from bench.peers.torch_networks import mesh_net

    return mesh_net(2, (1, 2))


def normed_over_maps() -> object:
    from norm_over_maps import NormOverMaps
    from torch import nn

    return nn.Sequential(nn.Conv3d(1, 2, 1), NormOverMaps())


def windows_that_lose_voxels() -> object:
    from torch import nn

    return nn.Sequential(nn.Conv3d(1, 2, 3), nn.InstanceNorm3d(2))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.session.measure_ceilings", lambda _threads: CEILINGS)
    families = {
        "mesh": Family(mesh_net, Vec3.of(6), volume=Vec3(6, 6, 9)),
        "lossy": Family(windows_that_lose_voxels, Vec3.of(6)),
        "model": Family(normed_over_maps, Vec3.of(6), volume=Vec3(6, 6, 9)),
        "absent": Family(mesh_net, Vec3.of(6), ("no_such_library",)),
    }
    monkeypatch.setattr(bench.import_families, "Child", InProcess)
    monkeypatch.setattr(bench.import_families, "FAMILIES", families)


@pytest.mark.slow
@needs_torch
@pytest.mark.usefixtures("small")
def test_each_network_is_imported_and_compared(tmp_path: Path) -> None:
    pytest.importorskip("monai.inferers", reason="monai is not installed (znni[peers])")
    found = rows(tmp_path / "rows.json", "--format", ".pt2")
    imported, refused, model, absent = found
    assert imported["result"] == "imported"
    assert imported["runtime"] == "PyTorch"
    assert imported["error"] < 1e-6
    assert imported["parameters"] == 2 * 27 + 2 + 4 * 27 + 2 + 2 * 4 + 3 * 2 + 3
    assert refused["result"] == "refused"
    assert "fewer voxels than a window has" in refused["skipped"]
    assert model["result"] == "runs as it is"
    assert "error" not in model
    assert [row.get("computed_by") for row in found] == ["znni", None, "pytorch", None]
    for row in (imported, model):
        assert row["volume"] == "6x6x9"
        assert 0 < row["window_error"] < 1e-6
        assert 0 < row["volume_error"] < 1e-6
    assert absent["skipped"] == "no_such_library is not installed"
    assert "no_such_library is not installed" in table("import-families", found)


def test_an_unknown_network_is_refused() -> None:
    found = CliRunner().invoke(app, ["import-families", "--net", "LeNet"])
    assert "--net LeNet is unknown; choose from" in str(found.exception)
