"""Whole cases whose networks a cluster computes: the labels are those of one machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from case_scans import NET, scan, weights_file, write
from command_line import refused, succeeds
from command_line import znni as command
from hand_started import HandStarted

import znni
from znni.calibration.overhead_figures import PROCESS_BYTES
from znni.cases import case as case_module
from znni.cases import results_folder
from znni.cases.case_folder import Case
from znni.cases.case_report import CaseReport
from znni.cases.folder import predict_cases
from znni.cases.memory import CaseMemory, room_of_files
from znni.cases.networks import alone
from znni.cases.on_cluster import CaseCluster, cluster_for
from znni.cluster.cluster_file import DASK_BYTES
from znni.core.errors import InvalidInput, RunFailed
from znni.core.plan_options import Choices
from znni.core.run_options import Options
from znni.core.shapes import Box, Vec3
from znni.inference.exporting import LABELS_ROOM
from znni.inference.plan_choice import machine_here
from znni.machine import detect
from znni.network.network_file import load_network
from znni.volumes.locate import open_volume

pytest.importorskip("distributed")

from znni.cluster import dask_engine
from znni.cluster.coordinator import Coordinator

NORMALIZE = "[{mean: 20, std: 50, clip: [-100, 150]}, {mean: 0, std: 1}, {mean: 0, std: 1}]"
SECOND_STAGE = {
    "name: organs": "name: second",
    "in_features: 1": "in_features: 3",
    "[{mean: 20, std: 50, clip: [-100, 150]}]": NORMALIZE,
    "{channels: [CT]}": "{channels: [CT], previous_stage: {name: low, labels: [1, 2]}}",
}
LIMITS: Any = {"device": "cpu", "costs": "built-in", "threads": 2, "ram": "2500MiB"}
ON_CPU: Any = {"device": "cpu", "costs": "built-in", "threads": 1}


def network_file(name: str, changes: dict[str, str]) -> None:
    """Write a network and its weights into this folder."""
    text = NET
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    first, rest = text.split("\n", 1)
    Path(f"{name}.yaml").write_text(f"{first}\nweights: {name}.npz\n{rest}")
    weights_file(Path(f"{name}.npz"), load_network(Path(f"{name}.yaml")))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network, a scan, and its labels by this machine alone."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        network_file("organs", {})
        write(Path("ct.nii.gz"), scan((30, 44, 40)))
        infer("alone.nii.gz", **ON_CPU)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with copies of these files."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def machines(folder: Path) -> Iterator[HandStarted]:
    with HandStarted(folder, "900MiB") as started:
        yield started


def infer(out: str, **more: Any) -> CaseReport:
    return znni.infer_case(["ct.nii.gz"], "organs.yaml", out, **more)


def assert_undisturbed(folder: Path) -> None:
    assert Path("shared.nii.gz").read_bytes() == Path("alone.nii.gz").read_bytes()
    assert not list(folder.glob("*.case"))


def assert_same_labels(one: str, other: str) -> None:
    """Compare voxels: the files note their windows, which ``nnunet predict`` mirrors."""
    made, wanted = open_volume(one), open_volume(other)
    whole = Box(Vec3(0, 0, 0), wanted.size)
    np.testing.assert_array_equal(made.read(whole), wanted.read(whole))


@pytest.mark.slow
def test_a_cluster_gives_the_labels_of_one_machine(folder: Path) -> None:
    steps: list[str] = []

    def note(step: str, _done: int, _total: int) -> None:
        steps.append(step)

    report = infer("shared.nii.gz", cluster="local:2", progress=note, **LIMITS)
    assert [*dict.fromkeys(steps)] == ["reading", "resampling", "network", "writing"]
    (found,) = report.on_cluster
    assert found.finished.blocks > 2
    assert_undisturbed(folder)
    line = "verify", "shared.nii.gz", "--case", "ct.nii.gz", "--net", "organs.yaml"
    assert "all labels agree" in succeeds(*line, "--voxels", "4")


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced(folder: Path, machines: HandStarted) -> None:
    worker = machines.start(nanny=True)
    killed: list[int] = []

    def kill(step: str, done: int, _total: int) -> None:
        child = machines.child_of(worker) if step == "network" and done and not killed else None
        if child:
            killed.append(child.pid)
            child.kill()

    infer("shared.nii.gz", cluster=machines.file, progress=kill, **ON_CPU)
    assert killed
    assert_undisturbed(folder)


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("step", ["network", "writing"])
def test_a_case_that_was_stopped_goes_on(
    folder: Path, step: str, there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It also goes on without the cluster, with the networks that are finished."""

    def stop(name: str, done: int, _total: int) -> None:
        if name == step and done:
            raise KeyboardInterrupt

    given: Any = {"cluster": "local:2", **LIMITS}
    with pytest.raises(KeyboardInterrupt):
        infer("shared.nii.gz", progress=stop, **given)
    below = [" ".join(each.cmdline()) for each in psutil.Process().children(recursive=True)]
    assert [line for line in below if "resource_tracker" not in line] == []
    made = folder / "shared.nii.gz.case"
    assert (made / "labels.zarr").exists() == (step == "writing")
    again = infer("shared.nii.gz", **(given if there else ON_CPU))
    assert len(again.on_cluster if there else again.reports) == (step == "network")
    went_on = "going on where an earlier run stopped" in caplog.text
    assert went_on == (there and step == "network")
    assert_undisturbed(folder)


@pytest.mark.slow
def test_a_later_stage_and_probabilities(folder: Path) -> None:
    """The input of a later stage has maps of labels, and the maps of its output are kept."""
    network_file("second", SECOND_STAGE)
    net = load_network(Path("second.yaml"))
    case = Case(
        (folder / "ct.nii.gz",), folder / "alone.nii", folder / "alone.nii.gz", folder / "alone.npz"
    )
    shared = replace(case, out=folder / "shared.nii", probabilities=folder / "shared.npz")
    options = Options(limits=Choices(**LIMITS))
    predict_cases([case], net, Options(limits=Choices(**ON_CPU)))
    report = predict_cases([shared], net, options, cluster="local:2")
    assert report.failures == []
    assert shared.out.read_bytes() == case.out.read_bytes()
    found, wanted = (np.load(f"{name}.npz")["probabilities"] for name in ("shared", "alone"))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    assert not list(folder.glob("*.case"))


@pytest.mark.slow
def test_cases_are_computed_in_turn_by_the_same_workers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They also stay if one of the cases fails."""
    started: list[Any] = []
    start, make_plan, planned = dask_engine.started_cluster, Coordinator.make_plan, count()

    def noted(*arguments: Any) -> Any:
        started.append(start(*arguments))
        return started[-1]

    def failing_once(*arguments: Any) -> Any:
        if next(planned) == 1:
            raise RunFailed("no plan this time")
        return make_plan(*arguments)

    monkeypatch.setattr(dask_engine, "started_cluster", noted)
    monkeypatch.setattr(Coordinator, "make_plan", failing_once)
    net = load_network(Path("organs.yaml"))
    monkeypatch.setattr(results_folder, "network_of_results", lambda _: net)
    for name in ("scans", "results"):
        Path(name).mkdir()
    for name in ("plans.json", "dataset.json"):
        (Path("results") / name).write_text("{}")
    for name in ("a", "b"):
        shutil.copy("ct.nii.gz", f"scans/{name}_0000.nii.gz")
    Path("scans/bad_0000.nii.gz").write_bytes(b"no scan")
    write(Path("scans/c_0000.nii.gz"), scan((20, 30, 28), 3))
    line = "nnunet", "predict", "-i", "scans", "-o", "labels", "-m", "results", "-device", "cpu"
    found = command(*line, "--ram", "2500MiB", "--cluster", "local:2")
    assert "2 cases in " in found.out
    assert "2 failed" in found.out
    assert "no plan this time" in found.err
    assert "bad_0000.nii.gz" in found.err
    assert len(started) == 1
    assert_same_labels("labels/a.nii.gz", "alone.nii.gz")
    assert not list(folder.glob("*.case"))
    assert [made.name for made in folder.glob("*/*.case")] == ["b.nii.gz.case"]
    znni.infer_case(["scans/c_0000.nii.gz"], "organs.yaml", "c.nii.gz", **ON_CPU)
    assert_same_labels("labels/c.nii.gz", "c.nii.gz")


@pytest.mark.slow
def test_workers_that_do_not_see_the_case_s_folder(folder: Path, machines: HandStarted) -> None:
    for _ in range(2):
        machines.start("no file")
    with pytest.raises(InvalidInput, match="/elsewhere") as raised:
        infer("shared.nii.gz", cluster=machines.file, **ON_CPU)
    assert "write the labels where all machines see them" in " ".join(raised.value.__notes__)
    assert (folder / "shared.nii.gz.case" / "input.npy").exists()


@pytest.mark.slow
def test_a_dry_run_predicts_a_case_on_a_cluster(folder: Path) -> None:
    line = "infer", "ct.nii.gz", "--net", "organs.yaml", "--case", "--dry-run", "--out", "seg.nii"
    Path("far.yaml").write_text(
        "kind: address\naddress: tcp://127.0.0.1:1\n"
        "groups: [{name: far, count: 3, cores: 4, ram: 4GiB, price_per_hour: 1}]\n"
    )
    said = succeeds(*line, "--device", "cpu", "--cluster", "far.yaml", "--ram", "1GiB")
    assert "for 3 workers" in said
    _, table = said.split("step ")
    rows = {row.split()[0]: row for row in table.splitlines()[1:-1]}
    assert [*rows] == ["reading", "resampling", "network", "writing", "all"]
    given: Any = {"cluster": "far.yaml", "device": "cpu"}
    found = znni.plan_case(["ct.nii.gz"], "organs.yaml", "seg.nii", **given)
    (run,) = found.on_cluster
    assert found.seconds["network"] == run.seconds
    assert (run.maps, found.plans) == (1, ())
    assert not list(folder.glob("seg*"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--cluster", "local:0"], "local:0"),
        (["--cluster", "missing.yaml"], "missing.yaml"),
        (["--cluster", "local:2", "--gpus", "2"], "--gpus 2 is about one machine; leave it out"),
        (["--cluster", "local:2", "--device", "gpu"], "no group of the cluster has GPUs"),
        (["--cluster", "local:2", "--part", "0/2"], "--part 0/2 does not apply to whole cases"),
        (["--cluster", "local:200", "--ram", "8GiB"], "memory"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_errors_are_one_line(more: list[str], said: str) -> None:
    line = "infer", "ct.nii.gz", "--net", "organs.yaml", "--case", "--out", "seg.nii"
    assert said in refused(*line, *more)
    assert not Path("seg.nii.case").exists()


@pytest.mark.parametrize("ram", [8 * 2**30, None])
def test_all_that_runs_on_this_machine_stays_within_the_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ram: int | None
) -> None:
    """That is the workers, this process, and the cases whose labels are written."""
    net, whole = load_network(Path("organs.yaml")), 8 * 2**30
    monkeypatch.setattr(detect, "_available_memory", lambda: whole / detect.AVAILABLE_SHARE + 1)
    options = Options(limits=Choices(device="cpu", ram=ram))
    here, machines = cluster_for("local:8", options, folder / "seg.nii", alone(net), writing=3)
    assert machines is not None
    idle = 8 * DASK_BYTES
    assert here.limits.ram == whole - idle
    left = whole - idle - PROCESS_BYTES - 3 * LABELS_ROOM - 8 * net.held_parameters
    assert 0 <= left - machines.ram_here < 8


@pytest.mark.parametrize(("ram", "left"), [("3GiB", 3 * 2**30), (None, 7 * 2**30)])
def test_the_memory_of_workers_in_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ram: str | None, left: int
) -> None:
    """A limit is that of this process alone. Without one, idle workers take some of the memory."""
    whole = 8 * 2**30
    monkeypatch.setattr(detect, "_available_memory", lambda: whole / detect.AVAILABLE_SHARE + 1)
    Path("near.yaml").write_text("kind: local\ngroups: [{name: a, count: 4, ram: 1GiB}]\n")
    options, net = Options(limits=Choices(device="cpu", ram=ram)), load_network(Path("organs.yaml"))
    here, machines = cluster_for("near.yaml", options, folder / "seg.nii", alone(net))
    assert machines is not None
    assert machines.ram_here == 4 * (2**30 - DASK_BYTES)
    assert machine_here(here.limits).host.memory == left


@pytest.mark.slow
def test_idle_workers_are_within_the_memory_that_there_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit, other steps may take what workers leave of the memory."""
    monkeypatch.setattr(detect, "_available_memory", lambda: 2800 * 2**20)
    whole, allowed, idle = detect.detect_host().host.memory, [], []

    def noted(*arguments: Any, **more: Any) -> CaseMemory:
        found = room_of_files(*arguments, **more)
        allowed.append(found.allowed)
        return found

    def measure(step: str, _done: int, _total: int) -> None:
        if step == "writing":
            below = psutil.Process().children(recursive=True)
            idle.append(sum(each.memory_full_info().uss for each in below))

    monkeypatch.setattr(case_module, "room_of_files", noted)
    infer("shared.nii.gz", cluster="local:2", progress=measure, **ON_CPU)
    assert max(idle) > 0
    assert allowed[0] + max(idle) <= whole
    assert_undisturbed(folder)


def test_a_file_in_which_only_some_groups_have_memory(tmp_path: Path) -> None:
    file = tmp_path / "far.yaml"
    file.write_text(
        "kind: address\naddress: tcp://127.0.0.1:1\n"
        "groups: [{name: a, count: 1, ram: 4GiB}, {name: b, count: 1}]\n"
    )
    with pytest.raises(InvalidInput, match="and the cluster file has ram: for its workers"):
        CaseCluster(file, Choices(ram="2GiB"), tmp_path / "seg.nii")


def test_weights_in_memory_are_refused(folder: Path) -> None:
    from znni.cases.case import predict
    from znni.inference.session import Session
    from znni.network.weights import random_weights

    net, out = load_network(Path("organs.yaml")), folder / "seg.nii"
    options = Options(limits=Choices(**LIMITS))
    case, cluster = Case((folder / "ct.nii.gz",), out), CaseCluster("local:2", options.limits, out)
    with pytest.raises(InvalidInput, match=r"random, seed 1\) are in memory, where workers"):
        predict(case, net, random_weights(net, 1), Session(), options, cluster=cluster)
