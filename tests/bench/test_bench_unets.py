"""``python -m bench unets``: whole windows on the CPU and on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from quick_benchmarks import CEILINGS, needs_torch
from typer.testing import CliRunner

from bench.__main__ import app
from bench.unet_networks import UNETS, unet_weights
from znni.core.options import ACCURACIES

PEER = "torch fp32 contiguous_format"


def rows(*arguments: str, out: Path) -> dict[str, dict[str, object]]:
    """The rows of a comparison, by name."""
    command = ("unets", "--net", "unet3d", "--peer", PEER, "--repeats", "1", "--out", str(out))
    found = CliRunner().invoke(app, [*command, *arguments])
    assert found.exit_code == 0, found.output
    return {row["name"]: row for row in json.loads(out.read_text())["rows"]}


@needs_torch
def test_ways_of_pytorch_on_a_gpu_give_the_output_of_the_host() -> None:
    from bench.peers.whole_windows import exact_output
    from bench.peers.windows_on_gpu import peers_on_gpu

    network = UNETS["unet3d"]()
    weights = unet_weights(network)
    x = np.random.default_rng(0).standard_normal((1, 16, 16, 24), np.float32)
    exact = exact_output(network, weights, x)
    makers = peers_on_gpu(network, weights, x, "cpu")
    assert len(makers) == 4 * 2 * 2
    for name, allowed in ((PEER, 1e-5), ("torch bf16 channels_last_3d", 5e-2)):
        apart = np.abs(makers[name]().output() - exact).max()
        assert apart <= allowed * np.abs(exact).max(), name


@needs_torch
def test_a_window_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.session.measure_ceilings", lambda _threads: CEILINGS)
    found = rows("--window", "16", "--ram", "2GiB", out=tmp_path / "unets.json")
    assert set(found) == {"znni", PEER}
    assert all(row["error"] < ACCURACIES["float32"] for row in found.values())
    assert found["znni"]["predicted_voxels_per_s"] > 0


@pytest.mark.gpu
@needs_torch
@pytest.mark.parametrize("accuracy", ["float32", "tf32"])
def test_a_window_on_a_gpu(accuracy: str, tmp_path: Path) -> None:
    out = tmp_path / "unets.json"
    found = rows("--device", "gpu", "--window", "64", "--accuracy", accuracy, out=out)
    ours = found["znni"]
    assert found[PEER]["error"] < ours["error"] < 10 * ACCURACIES[accuracy]
    assert ours["layers_seconds"] > 0
    assert ours["peak_gib"] <= ours["declared_gib"]
