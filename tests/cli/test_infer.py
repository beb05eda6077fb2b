"""``znni infer`` writes the network's output for any region, border, type and size."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np
import pytest
from command_line import INFER, NET, VOLUME, attributes, read_main, succeeds, voxels, write_volume
from tiny_network import close, expected, parts, whole

from bench.reference import sliding_output
from znni import __version__
from znni.cli.infer import _start_processes
from znni.core.plan_options import Choices
from znni.core.processors import DeviceChoice
from znni.engine.workers.processes import WaitingProcesses
from znni.machine.gpus import detect_gpus, look_at_gpus
from znni.plans.job_seconds import ReportStage
from znni.plans.plan import Plan

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives", "nothing_partial")


def test_an_output_says_how_it_came_to_be() -> None:
    succeeds(*INFER, "--roi", "1:5,4:10,6:9", "--dtype", "uint8", "--threads", 1)
    network, weights = parts()
    with h5py.File("out.h5") as file:
        assert list(file) == ["ledger", "main"]
        main = file["main"]
        assert (main.dtype, main.shape, main.chunks) == (np.uint8, (2, 4, 6, 3), (1, 4, 6, 3))
    noted = attributes()
    assert noted["network"] == "tiny"
    assert noted["weights_sha256"] == weights.sha256
    assert noted["weights"] == "tiny.npz"
    assert noted["source"] == "volume.h5"
    assert noted["znni_version"] == __version__
    assert noted["command"] == (
        "znni infer volume.h5 --net tiny.yaml --out out.h5 "
        "--roi 1:5,4:10,6:9 --dtype uint8 --threads 1"
    )
    assert noted["voxel_offset"].tolist() == [1, 4, 6]
    assert noted["scale"] == pytest.approx(1 / 255)
    assert noted["seconds"] > 0
    assert noted["peak_memory_bytes"] > 0
    assert noted["gpu_peak_memory_bytes"] == 0
    assert noted["fallbacks"] == 0
    phases = ("start", "planning", "opening", "building", "running")
    for purpose in (*phases, "reading", "host_layers", "writing"):
        assert noted[f"{purpose}_seconds"] > 0
        assert noted[f"predicted_{purpose}_seconds"] > 0
    assert noted["predicted_exit_seconds"] > 0
    assert "exit_seconds" not in noted  # the process has not ended when it is noted
    in_turn = sum(noted[f"{phase}_seconds"] for phase in phases)
    assert noted["seconds"] == pytest.approx(in_turn)
    assert noted["gpu_layers_seconds"] == 0
    assert noted["bottleneck"] in get_args(ReportStage)
    plan = Plan.from_json(noted["plan"])
    assert plan.network == network
    assert plan.output == (4, 6, 3)
    described = succeeds("info", "out.h5")
    assert "/main  (2, 4, 6, 3) uint8" in described
    assert f"weights_sha256: {weights.sha256}" in described
    shortened = re.search(r"^    network_file: (.*)$", described, re.MULTILINE)
    assert shortened
    length = len(noted["network_file"])
    assert shortened[1] == f"{noted['network_file'][:160]}... ({length:,} characters)"


@pytest.mark.parametrize("source", ["volume.h5:/raw", "volume.h5:raw"])
def test_the_output_has_a_name_of_its_own(source: str) -> None:
    Path("other").mkdir()
    assert succeeds("infer", source, "--net", "tiny.yaml").startswith("volume-tiny.h5: ")
    assert close(read_main("volume-tiny.h5"), whole())


@pytest.mark.parametrize("dataset", [("--dataset", "raw"), ("--dataset", "/raw")])
def test_one_dataset_of_several(dataset: tuple[str, str]) -> None:
    with h5py.File("volume.h5", "a") as file:
        file["other"] = np.zeros((9, 9, 9))
    succeeds(*INFER, *dataset)
    assert close(read_main("out.h5"), whole())


@pytest.mark.parametrize(
    ("roi", "box"),
    [
        ("1:5,4:10,6:9", np.s_[1:5, 4:10, 6:9]),
        ("0:6,2:17,3:19", np.s_[0:6, 2:17, 3:19]),
        ("5:6,16:17,18:19", np.s_[5:6, 16:17, 18:19]),
        ("0:3, 5:6, 3:19", np.s_[0:3, 5:6, 3:19]),
    ],
)
def test_a_region_is_a_crop_of_the_whole(roi: str, box: tuple[slice, ...]) -> None:
    succeeds(*INFER, "--roi", roi)
    before = (0, 2, 3)  # input voxels before the first one that has output
    crop = tuple(slice(s.start - b, s.stop - b) for s, b in zip(box, before, strict=True))
    assert close(read_main("out.h5"), whole()[:, *crop])


@pytest.mark.parametrize("pad", ["reflect", "edge", "constant"])
def test_all_voxels_with_padding(pad: Any) -> None:
    succeeds(*INFER, "--border", "same", "--pad", pad)
    network, weights = parts()
    view = network.field_of_view
    margins = [((extent - 1) // 2, extent - 1 - (extent - 1) // 2) for extent in view]
    seen = voxels() * network.scaling.scale + network.scaling.offset
    padded = np.pad(seen, margins, mode=pad)[np.newaxis]
    found = read_main("out.h5")
    assert found.shape[1:] == VOLUME
    assert close(found, sliding_output(network, weights, padded))
    succeeds(*INFER, "--border", "same", "--pad", pad, "--roi", ":3,5:,:", "--overwrite")
    assert close(read_main("out.h5"), found[:, :3, 5:])


@pytest.mark.parametrize(("dtype", "error"), [("float16", 1e-3), ("uint8", 0.51)])
def test_types_of_output(dtype: str, error: float) -> None:
    succeeds(*INFER, "--dtype", dtype)
    found = read_main("out.h5")
    assert found.dtype == dtype
    scale = 255 if dtype == "uint8" else 1
    assert close(found.astype(np.float64), whole() * scale, error)


@pytest.mark.parametrize(
    "shape", [(2, 6, 8), (3, 6, 8), (2, 7, 9), (1, 40, 41), (2, 6, 50), (19, 7, 8), (5, 13, 17)]
)
def test_sizes_that_are_multiples_of_nothing(shape: tuple[int, int, int]) -> None:
    if shape[0] == 1:
        Path("tiny.yaml").write_text(NET.replace("[2, 3, 3]", "[1, 3, 3]"))
    arguments = (*INFER, "--overwrite", "--random-weights", 3, "--border")
    write_volume(voxels(shape))
    succeeds(*arguments, "valid")
    assert close(read_main("out.h5"), expected(voxels(shape), seed=3))
    succeeds(*arguments, "same")
    assert read_main("out.h5").shape == (2, *shape)


def test_little_memory_gives_the_same() -> None:
    write_volume(voxels((30, 31, 33)))
    succeeds(*INFER, "--ram", "512.2MiB")
    assert close(read_main("out.h5"), expected(voxels((30, 31, 33))))
    assert Plan.from_json(attributes()["plan"]).patches > 1


def test_several_maps_in() -> None:
    Path("tiny.yaml").write_text("in_features: 2\n" + NET)
    volume = voxels((2, *VOLUME), "int16")
    write_volume(volume)
    succeeds(*INFER, "--random-weights", 0)
    assert close(read_main("out.h5"), expected(volume, seed=0))


@pytest.mark.parametrize(
    ("device", "waiting", "begins"),
    [("gpu", True, detect_gpus), ("auto", False, look_at_gpus), ("cpu", False, None)],
)
def test_the_process_that_reads_for_others_starts_no_cuda(
    device: DeviceChoice, waiting: bool, begins: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = WaitingProcesses((), ()) if waiting else None
    monkeypatch.setattr("znni.inference.prestart.processes_for", lambda *_: processes)
    monkeypatch.setattr("znni.machine.gpus.has_driver", lambda: True)
    limits = Choices(device=device, gpus=2)
    assert _start_processes(limits, alone=True, may_use_gpus=True) == (processes, begins)
    assert _start_processes(limits, alone=True, may_use_gpus=False) == (processes, None)
