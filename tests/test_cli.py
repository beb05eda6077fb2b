"""The commands, end to end, on a small network and volume."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np
import pytest
from command_line import NET, VOLUME, read_main, refused, succeeds, voxels, write_case, znni
from fakes import Fake, fake_catalogue
from numpy.typing import NDArray

from znni import __version__
from znni.job_seconds import Stage
from znni.network import Network
from znni.network_file import load_network
from znni.plans import Plan
from znni.primitive import convolved
from znni.primitives.reference import dense
from znni.progress import show_progress
from znni.weights import Weights, load_weights

INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5")
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A good case; run by primitives that cost no time to plan for, but for ``real`` tests."""
    write_case(tmp_path)
    monkeypatch.chdir(tmp_path)
    if "real" not in request.node.name:
        monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_catalogue())
    yield tmp_path
    assert not list(tmp_path.glob("*.partial"))


def parts() -> tuple[Network, Weights]:
    network = load_network("tiny.yaml")
    assert network.weights is not None
    return network, load_weights(network.weights, network)


def expected(volume: NDArray[Any]) -> NDArray[Any]:
    """What the network gives on an array (f, z, y, x) of stored values."""
    network, weights = parts()
    scaled = volume * network.scaling.scale + network.scaling.offset
    return dense(network, weights, scaled)


def whole() -> NDArray[Any]:
    return expected(voxels()[np.newaxis])


def close(found: NDArray[Any], wanted: NDArray[Any], tolerance: float = TOLERANCE) -> bool:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
    return found.shape == wanted.shape


def test_real_primitives_give_the_network_at_every_voxel() -> None:
    said = succeeds(*INFER, "--threads", 2)
    assert said.startswith("out.h5: 1,440 voxels in ")
    assert close(read_main("out.h5"), whole())


def test_an_output_says_how_it_came_to_be() -> None:
    succeeds(*INFER, "--roi", "1:5,4:10,6:9", "--dtype", "uint8", "--threads", 1)
    network, weights = parts()
    with h5py.File("out.h5") as file:
        assert list(file) == ["ledger", "main"]
        main = file["main"]
        assert (main.dtype, main.shape, main.chunks) == (np.uint8, (2, 4, 6, 3), (1, 4, 6, 3))
        attributes = dict(main.attrs)
    assert attributes["network"] == "tiny"
    assert attributes["weights_sha256"] == weights.sha256
    assert attributes["weights"] == "tiny.npz"
    assert attributes["source"] == "volume.h5"
    assert attributes["znni_version"] == __version__
    assert attributes["command"] == (
        "znni infer volume.h5 --net tiny.yaml --out out.h5 "
        "--roi 1:5,4:10,6:9 --dtype uint8 --threads 1"
    )
    assert attributes["voxel_offset"].tolist() == [1, 4, 6]
    assert attributes["scale"] == pytest.approx(1 / 255)
    assert attributes["seconds"] > 0
    assert attributes["peak_memory_bytes"] > 0
    assert attributes["gpu_peak_memory_bytes"] == 0
    assert attributes["fallbacks"] == 0
    for purpose in ("building", "running", "reading", "host_layers", "writing"):
        assert attributes[f"{purpose}_seconds"] > 0
        assert attributes[f"predicted_{purpose}_seconds"] > 0
    in_turn = attributes["building_seconds"] + attributes["running_seconds"]
    assert attributes["seconds"] == pytest.approx(in_turn)
    assert attributes["gpu_layers_seconds"] == 0
    assert attributes["bottleneck"] in get_args(Stage)
    plan = Plan.from_json(attributes["plan"])
    assert plan.network == network
    assert plan.output == (4, 6, 3)
    described = succeeds("info", "out.h5")
    assert "/main  (2, 4, 6, 3) uint8" in described
    assert f"weights_sha256: {weights.sha256}" in described


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
    before = (0, 2, 3)  # input voxels before the first that has output
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
    assert close(found, dense(network, weights, padded))
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
    with h5py.File("volume.h5", "w") as file:
        file["raw"] = voxels(shape)
    from znni.weights import random_weights

    network = load_network("tiny.yaml")
    scaled = voxels(shape)[np.newaxis] * network.scaling.scale + network.scaling.offset
    succeeds(*arguments, "valid")
    assert close(read_main("out.h5"), dense(network, random_weights(network, 3), scaled))
    succeeds(*arguments, "same")
    assert read_main("out.h5").shape == (2, *shape)


def test_little_memory_gives_the_same() -> None:
    with h5py.File("volume.h5", "w") as file:
        file["raw"] = voxels((30, 31, 33))
    succeeds(*INFER, "--ram", "512.2MiB")
    found = read_main("out.h5")
    assert close(found, expected(voxels((30, 31, 33))[np.newaxis]))
    with h5py.File("out.h5") as file:
        assert Plan.from_json(file["main"].attrs["plan"]).patches > 1


def test_several_maps_in() -> None:
    Path("tiny.yaml").write_text("in_features: 2\n" + NET)
    volume = voxels((2, *VOLUME), "int16")
    with h5py.File("volume.h5", "w") as file:
        file["raw"] = volume
    succeeds(*INFER, "--random-weights", 0)
    from znni.weights import random_weights

    network = load_network("tiny.yaml")
    scaled = volume * network.scaling.scale + network.scaling.offset
    assert close(read_main("out.h5"), dense(network, random_weights(network, 0), scaled))


def test_a_plan_is_made_shown_saved_and_run() -> None:
    plan = ("plan", "--net", "tiny.yaml", "--volume")
    table = succeeds(*plan, "7,20,23")
    assert succeeds(*plan, "volume.h5:/raw").splitlines()[0] == table.splitlines()[0]
    for part in ("conv1", "pool1", "conv2", "peak memory", "cover 6x15x16"):
        assert part in table
    printed = succeeds(*plan, "7,20,23", "--json", "--out", "plan.json")
    assert json.loads(printed) == json.loads(Path("plan.json").read_text())
    assert Plan.from_json(printed).output == (6, 15, 16)
    succeeds(*INFER, "--plan", "plan.json")
    assert close(read_main("out.h5"), whole())
    small = succeeds(*plan, "volume.h5", "--roi", "0:2,4:9,4:9", "--out", "small.json")
    assert "2x5x5" in small
    succeeds(*INFER, "--plan", "small.json", "--overwrite")  # a plan fits any volume
    assert close(read_main("out.h5"), whole())


def has_inexact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer a convolution that is faster, and not accurate."""
    inexact = Fake("inexact", convolved, flops=10.0, accuracy=5e-3)
    monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_catalogue(inexact))


def test_less_accuracy_is_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    has_inexact(monkeypatch)
    plan = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")
    assert "inexact" not in succeeds(*plan)
    assert "inexact" not in succeeds(*plan, "--accuracy", "tf32")
    assert "accuracy" not in succeeds(*plan, "--accuracy", "float32")
    line = "accuracy      bfloat16 in conv1, conv2: relative errors of up to 0.01 a layer\n"
    table = succeeds(*plan, "--accuracy", "bfloat16", "--out", "inexact.json")
    assert "inexact" in table
    assert table.endswith(line)
    assert succeeds(*INFER, "--dry-run", "--accuracy", "bfloat16").endswith(line)
    said = succeeds(*INFER, "--accuracy", "bfloat16")
    assert "; accuracy bfloat16 in conv1, conv2: " in said
    with h5py.File("out.h5") as file:
        assert file["main"].attrs["accuracy"] == "bfloat16"
    assert "accuracy" not in succeeds(*INFER, "--overwrite")
    with h5py.File("out.h5") as file:
        assert file["main"].attrs["accuracy"] == "float32"


def test_a_plan_of_less_accuracy_is_run_only_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_inexact(monkeypatch)
    plan = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")
    succeeds(*plan, "--accuracy", "bfloat16", "--out", "inexact.json")
    for arguments in ((), ("--dry-run",)):
        assert refused(*INFER, "--plan", "inexact.json", *arguments).startswith(
            "the plan runs layer conv1 by inexact, whose accuracy is bfloat16; give "
            "accuracy='bfloat16' (--accuracy bfloat16) to allow that, or plan again with znni.plan"
        )
    allowed = (*INFER, "--plan", "inexact.json", "--accuracy", "bfloat16")
    assert "accuracy      bfloat16 in conv1" in succeeds(*allowed, "--dry-run")
    assert "; accuracy bfloat16 in conv1" in succeeds(*allowed)
    assert close(read_main("out.h5"), whole())


def test_less_accuracy_than_there_is_to_have(monkeypatch: pytest.MonkeyPatch) -> None:
    without = "float32: bfloat16 is allowed, and the processor has no instructions for it"
    assert succeeds(*INFER, "--accuracy", "bfloat16", "--dry-run").endswith(f"  {without}\n")
    assert without in succeeds(*INFER, "--accuracy", "bfloat16")
    has_inexact(monkeypatch)
    succeeds("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--out", "plan.json")
    shown = succeeds(*INFER, "--dry-run", "--plan", "plan.json", "--accuracy", "bfloat16")
    assert "float32: bfloat16 is allowed, and the plan makes no use of it\n" in shown
    said = refused(*INFER, "--accuracy", "float16")
    assert "'float16' is not one of 'float32', 'tf32', 'bfloat16'" in said


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    before = sorted(folder.iterdir())
    shown = succeeds(*INFER, "--dry-run")
    assert "conv1" in shown
    assert "throughput" in shown
    assert sorted(folder.iterdir()) == before
    succeeds("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--out", "plan.json")
    assert "conv1" in succeeds(*INFER, "--dry-run", "--plan", "plan.json")


def test_a_dry_run_refuses_a_volume_of_other_maps() -> None:
    with h5py.File("rgb.h5", "w") as file:
        file["raw"] = np.zeros((3, 7, 20, 23), np.uint8)
    assert "3 maps and network tiny takes 1" in refused(
        "infer", "rgb.h5", "--net", "tiny.yaml", "--dry-run"
    )


def test_a_dry_run_says_what_would_stop_a_run() -> None:
    assert "refused now" not in succeeds(*INFER, "--dry-run")
    Path("tiny.npz").unlink()
    Path("out.h5").touch()
    shown = succeeds(*INFER, "--dry-run")
    assert "conv1" in shown
    missing, there = shown.splitlines()[-2:]
    assert missing.startswith("refused now   ")
    assert "tiny.npz" in missing
    assert there.startswith("refused now   out.h5: exists; give overwrite=True (--overwrite)")
    ready = ("--dry-run", "--overwrite", "--random-weights", "1")
    assert "refused now" not in succeeds(*INFER, *ready)


def test_info() -> None:
    network = succeeds("info", "tiny.yaml")
    for part in ("conv 2x3x3, 1 -> 3 maps, relu", "max-pool 1x2x2", "value * 0.01 + -1", "6x8"):
        assert part in network
    assert "/raw  (7, 20, 23) uint8, chunks (4, 8, 8)" in succeeds("info", "volume.h5")
    assert "/raw" in succeeds("info", "volume.h5:/raw")


def test_version_and_help() -> None:
    assert succeeds("--version") == f"znni {__version__}\n"
    for command in ((), ("infer",), ("plan",), ("calibrate",), ("import",), ("info",)):
        said = succeeds(*command, "--help")
        assert said.startswith(f"Usage: {' '.join(('znni', *command))} [OPTIONS]")
        assert "--help " in said
        assert "<bool>" not in said  # flags take no value


def test_debug_shows_a_traceback_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    outcome = znni("infer", "none.h5", "--net", "tiny.yaml", "--debug")
    assert outcome.code == 2
    assert outcome.err.startswith("Traceback")
    assert outcome.err.endswith("znni: error: none.h5: no such file; check the path\n")
    with caplog.at_level(logging.INFO, logger="znni"):
        assert znni("--debug", *INFER).code == 0
    assert "planned in" in caplog.text


def test_one_letter_wrong() -> None:
    said = refused(*INFER, "--dtpye", "uint8")
    assert "No such option: --dtpye" in said
    assert "--dtype" in said
    assert said.endswith("; see znni infer --help")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with show_progress() as progress:
        progress(500, 1000)
        progress(1000, 1000)
    assert "100%" in terminal.getvalue()
    assert "voxels/s" in terminal.getvalue()


def test_progress_elsewhere_is_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 61.0, 90.0, 122.0])
    monkeypatch.setattr("znni.progress.time.perf_counter", lambda: next(clock))
    with show_progress() as progress:
        for done in (100, 610, 800, 1220):
            progress(done, 2440)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "25% done, 10 voxels/s, 3 min left",
        "50% done, 10 voxels/s, 2 min left",
    ]
