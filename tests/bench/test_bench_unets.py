"""``python -m bench unets``: whole windows on the CPU and on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from emulated_gpu import EMULATED, EMULATED_CUPY, emulated_gpu, needs_emulation
from paths import MACHINES
from quick_benchmarks import CEILINGS, needs_torch
from typer.testing import CliRunner

from bench import patches, unets
from bench.__main__ import app
from bench.unet_networks import UNETS, unet_weights
from planner.cost_model import BUILT_IN
from planner.search import Search
from znni.calibration.overhead_figures import run_overhead
from znni.core.option_types import ACCURACIES
from znni.core.shapes import Vec3
from znni.engine.tiles import for_job, make_job
from znni.machine.machine import Device, Machine
from znni.network.geometry import with_window
from znni.network.layers import Conv, Normalize, Padding
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.plans.primitive import on_device
from znni.plans.rewrites.network_rules import as_given
from znni.primitives.catalogue import catalogue
from znni.primitives.tiled_reference import output_at_once

PEER = "torch fp32 contiguous_format"


def rows(*arguments: str, out: Path) -> dict[str, dict[str, object]]:
    """The rows of a comparison, by name."""
    command = ("unets", "--net", "unet3d", "--peer", PEER, "--repeats", "1", "--out", str(out))
    found = CliRunner().invoke(app, [*command, *arguments])
    assert found.exit_code == 0, found.output
    return {row["name"]: row for row in json.loads(out.read_text())["rows"]}


@pytest.mark.slow
@needs_torch
def test_ways_of_pytorch_on_a_gpu_give_the_output_of_the_host() -> None:
    from bench.peers.torch_windows import torch_ways
    from bench.peers.whole_windows import exact_output

    network = UNETS["unet3d"]()
    weights = unet_weights(network)
    x = np.random.default_rng(0).standard_normal((1, 16, 16, 24), np.float32)
    exact = exact_output(network, weights, x)
    makers = torch_ways(network, weights, device="cpu")
    assert len(makers) == 4 * 2 * 2
    for name, allowed in ((PEER, 1e-5), ("torch bf16 channels_last_3d", 5e-2)):
        apart = np.abs(makers[name]().output(x) - exact).max()
        assert apart <= allowed * np.abs(exact).max(), name


@pytest.mark.slow
@needs_torch
def test_a_window_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.session.measure_ceilings", lambda _threads: CEILINGS)
    found = rows("--window", "16", "--ram", "2GiB", out=tmp_path / "unets.json")
    assert set(found) == {"znni", PEER}
    assert all(row["error"] < ACCURACIES["float32"] for row in found.values())
    assert found["znni"]["predicted_voxels_per_s"] > 0


@pytest.mark.slow
def test_windows_are_predicted_for_machines_that_are_not_here(tmp_path: Path) -> None:
    out = tmp_path / "unets.json"
    asked = ["--net", "unet3d", "--net", "nnunet-instance", "--window", "32"]
    for name in ("rtx4090", "a100-40"):
        asked += ["--machine", str(MACHINES / f"{name}.yaml")]
    done = CliRunner().invoke(
        app, ["unets", "--device", "gpu", "--accuracy", "tf32", *asked, "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())["rows"]
    assert [(row["processor"], row["network"]) for row in found] == [
        (gpu, network)
        for gpu in ("NVIDIA GeForce RTX 4090", "NVIDIA A100 40 GB")
        for network in ("unet3d", "nnunet-instance")
    ]
    for row in found:
        seconds = row["predicted_seconds"]
        assert row["predicted_voxels_per_s"] * seconds == pytest.approx(32**3)
        assert (row["window"], row["windows"], row["batch"]) == ("32x32x32", 1, 1)
        assert 0 < row["declared_gib"] < 1


@pytest.mark.slow
def test_several_windows_are_predicted_at_once(tmp_path: Path) -> None:
    out = tmp_path / "unets.json"
    asked = ["--window", "32", "--batch", "4", "--machine", str(MACHINES / "h200-node.yaml")]
    for name in ("rsunet", "nnunet-instance"):
        asked += ["--net", name]
    done = CliRunner().invoke(
        app, ["unets", "--device", "gpu", "--accuracy", "tf32", *asked, "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())["rows"]
    assert [(row["windows"], row["batch"]) for row in found] == [(4, 4), (4, 4)]
    for row in found:
        assert row["predicted_voxels_per_s"] * row["predicted_seconds"] == pytest.approx(4 * 32**3)
    assert unets._windows("valid-unet", 140, 4).number == 1


def test_several_windows_are_for_a_gpu() -> None:
    refused = CliRunner().invoke(app, ["unets", "--net", "unet3d", "--batch", "2"])
    assert refused.exit_code != 0
    assert "--batch does nothing with --device cpu" in str(refused.exception)


@pytest.mark.gpu
@needs_torch
@pytest.mark.parametrize("accuracy", ["float32", "tf32"])
@pytest.mark.whole_gpu
def test_a_window_on_a_gpu(accuracy: str, tmp_path: Path) -> None:
    out = tmp_path / "unets.json"
    found = rows("--device", "gpu", "--window", "64", "--accuracy", accuracy, out=out)
    ours = found["znni"]
    assert found[PEER]["error"] < ours["error"] < 10 * ACCURACIES[accuracy]
    assert ours["layers_seconds"] > 0
    assert ours["peak_gib"] <= ours["declared_gib"]


@pytest.mark.slow
@needs_emulation
@pytest.mark.parametrize("count", [0, 1, 3])
def test_windows_are_handed_over_as_in_a_run(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size, around = Vec3(6, 7, 8), Padding(Vec3.of(1), Vec3.of(1))
    layers: tuple[Conv | Normalize, ...] = (
        Conv("conv", 1, 16, Vec3.of(3), "relu", padding=around),
        Normalize("norm", 16, 16, activation="leaky_relu"),
    )
    network = Network.chain("small", 1, layers[: 1 + (count > 0)])
    if count:
        network = with_window(network, Window(size, overlap=0))
    windows = unets.Windows(network, size, max(1, count))
    machine = Machine(Device("cpu", "host", 2**34, 2, flops=1e11, bandwidth=1e10), (EMULATED,))
    libraries = "gpu_cudnn", "gpu_fft", "arranged_gpu_cudnn"
    able = on_device(catalogue(machine), "gpu").items()
    known = {name: it for name, it in able if not name.startswith(libraries)}
    job = make_job(network, windows.volume, "valid", None, None)
    space = Search(
        for_job(network, job), job.output, machine, known, run_overhead(machine), BUILT_IN,
        "none", "gpu",
    )  # fmt: skip
    weights, x = random_weights(network, 0), windows.noise()
    monkeypatch.setattr(patches, "free_gpu_bytes", lambda: 0)
    locked = EMULATED_CUPY.cuda.runtime.locked
    with emulated_gpu():
        if count:
            space = space.computing(min(2, count))
        plan = space.fastest_for(job.output)
        assert plan is not None
        read = unets.reader(plan, unets.side_by_side(x))
        blocks = patches.PatchesOnGpu(plan, "float32", weights, read)
        assert (blocks._given.values.ctypes.data in locked) is (count == 0)
        assert len(blocks.seconds(2)) == 2
        assert all(seconds > 0 for seconds in blocks.layer_seconds().values())
        trained = as_given(plan.network)
        right = unets.side_by_side(np.stack([output_at_once(trained, weights, each) for each in x]))
        apart = np.abs(unets._cropped(plan, blocks.output) - right).max()
    assert apart < ACCURACIES["tf32"] * np.abs(right).max()
