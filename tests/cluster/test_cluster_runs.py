"""Runs on clusters of processes: outputs, faults of workers, and errors."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import psutil
import pytest
import zarr
from command_line import refused
from hand_started import HandStarted
from memory_nodes import write_nodes
from paths import ROOT
from s3_server import S3, never, serve

from bench.same_output import difference
from znni.cluster import dask_clusters, schedule
from znni.cluster.cluster_plan import plan_to_share
from znni.cluster.run import ClusterReport, infer_on_cluster
from znni.cluster.workers import LOOK_EVERY
from znni.core.errors import InvalidInput, RunFailed, ZnniError
from znni.core.shapes import Vec3
from znni.inference import api, planning
from znni.inference.parts import finish
from znni.inference.plan_choice import given_or_found
from znni.inference.request import open_request, request_for
from znni.machine import numa
from znni.machine.gpus import detect_gpus
from znni.network.network_file import load_network
from znni.network.weights import random_weights
from znni.plans.plan import Plan
from znni.volumes.locate import read_ledger

pytest.importorskip("distributed")

from distributed import Client

NET = """\
name: tiny
weights: tiny.npz
layers:
  - conv: {features: 8, kernel: 3, activation: relu}
  - conv: {features: 2, kernel: 3, activation: sigmoid}
"""
CORES = sorted(getattr(os, "sched_getaffinity", lambda _process: ())(0))[:2]
BLOCKS = 4  # along each axis
PATCH = 12
SECONDS = 120  # until a run counts as hanging
ALONE = 2.0  # seconds after each block while others start: or one worker computes all
OPTIONS: Any = {"device": "cpu", "costs": "built-in"}
ARGUMENTS = ("infer", "volume.npy", "--net", "tiny.yaml", "--plan", "plan.json", "--device", "cpu",
             "--costs", "built-in")  # fmt: skip


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a volume, a network, a plan of 64 blocks, and the undisturbed output."""
    folder = tmp_path_factory.mktemp("case")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("tiny.yaml").write_text(NET)
        network = load_network(Path("tiny.yaml"))
        weights, arrays = random_weights(network, 3), {}
        for conv in network.convolutions:
            arrays[f"{conv.name}.weight"] = weights[conv.name].weight
            arrays[f"{conv.name}.bias"] = weights[conv.name].bias
        np.savez("tiny.npz", **arrays)  # type: ignore[arg-type]
        size = BLOCKS * PATCH + 4
        values = np.random.default_rng(4).standard_normal((size, size, size), np.float32)
        np.save("volume.npy", values)
        plan = planning.plan(network, Vec3.of(PATCH + 4), ram="513MiB", threads=1, **OPTIONS)
        assert plan.patch == Vec3.of(PATCH)
        Path("plan.json").write_text(plan.to_json())
        api.infer("volume.npy", "tiny.yaml", "out.zarr", plan="plan.json", part="0/1", **OPTIONS)
        finish("out.zarr")
        Path("whole").mkdir()
        Path("out.zarr").rename("whole/out.zarr")
    return folder


@pytest.fixture(autouse=True)
def here(case: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The case's folder, in which each test runs, and where it leaves no output."""
    monkeypatch.chdir(case)
    yield case
    for path in case.glob("out.zarr*"):
        shutil.rmtree(path)


@pytest.fixture
def machines(here: Path) -> Iterator[HandStarted]:
    with HandStarted(here) as started:
        yield started


def compute(cluster: str | Path, **options: Any) -> ClusterReport:
    given = {"plan": "plan.json", **OPTIONS, **options}
    return infer_on_cluster("volume.npy", "tiny.yaml", "out.zarr", cluster=cluster, **given)


def assert_undisturbed() -> None:
    whole = Path("whole/out.zarr")
    assert difference(whole, Path("out.zarr"), frozenset({"command"})) == ""
    assert read_ledger("out.zarr").checksums == read_ledger(str(whole)).checksums
    assert [path for path in Path().iterdir() if ".partial" in path.name] == []


@pytest.mark.slow
def test_processes_of_this_machine_give_what_one_part_gives() -> None:
    told: list[tuple[int, int, str]] = []

    def note(done: int, total: int, state: str) -> None:
        told.append((done, total, state))
        if state.startswith("1"):
            time.sleep(ALONE)

    report = compute("local:2", ram="1538MiB", threads=2, progress=note)
    assert report.finished.blocks == BLOCKS**3
    assert report.tally.most == 2
    below = [" ".join(each.cmdline()) for each in psutil.Process().children(recursive=True)]
    assert [line for line in below if "resource_tracker" not in line] == []  # Python's own stays
    voxels = (BLOCKS * PATCH) ** 3
    assert told[0] == (0, voxels, "")
    assert told[-1] == (voxels, voxels, "2 workers")
    assert_undisturbed()


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="two nodes need two cores that are chosen")
def test_processes_of_this_machine_keep_to_the_cores_of_their_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa, "NODES", write_nodes(tmp_path / "nodes", *map(str, CORES)))
    seen: set[tuple[int, ...]] = set()

    def look(_done: int, _all: int, _state: str) -> None:
        for process in psutil.Process().children(recursive=True):
            if "znni.cluster.child" in process.cmdline():
                seen.add(tuple(process.cpu_affinity()))

    compute("local:2", ram="1538MiB", threads=2, progress=look)
    assert seen == {(core,) for core in CORES}
    assert_undisturbed()


def test_every_worker_gets_blocks() -> None:
    """One worker alone would compute this volume in fewer."""
    network, workers = load_network(Path("tiny.yaml")), 16
    volume = np.zeros((200, 200, 200), np.float32)
    asked = open_request(request_for(volume, network, "out.zarr", threads=1, ram="4GiB", **OPTIONS))
    alone = given_or_found(None, asked)
    shared = plan_to_share(alone, workers, asked)
    assert shared.patches >= workers
    assert shared.output == alone.output
    assert shared.memory.total <= 4 * 2**30
    assert alone.patches < workers


@pytest.mark.slow
def test_a_plan_is_made_for_all_workers() -> None:
    compute("local:2", plan=None, ram="1538MiB", threads=2)
    assert Plan.from_json(read_ledger("out.zarr").plan).patches >= 2
    whole, found = (zarr.open_array(f"{at}out.zarr/0", mode="r")[:] for at in ("whole/", ""))
    np.testing.assert_allclose(found, whole, atol=1e-5)


@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on() -> None:
    """Each worker sweeps columns of its own, and begins anew where another one stopped."""
    size = Vec3.of(BLOCKS * PATCH + 4)
    able = planning.search(
        load_network(Path("tiny.yaml")), size, ram="513MiB", threads=1, **OPTIONS
    )
    plan = able.sweeping("y").fastest_for(Vec3.of(PATCH))

    def stop(done: int, total: int, _state: str) -> None:
        if done > total // 3:
            raise InterruptedError

    options: Any = {"ram": "1538MiB", "threads": 2}
    with pytest.raises(InterruptedError):
        compute("local:2", plan=plan, progress=stop, **options)
    report = compute("local:2", plan=None, **options)
    assert report.finished.blocks == BLOCKS**3
    assert report.voxels < size.volume
    assert Plan.from_json(read_ledger("out.zarr").plan).network.swept_along == "y"
    whole, found = (zarr.open_array(f"{at}out.zarr/0", mode="r")[:] for at in ("whole/", ""))
    np.testing.assert_allclose(found, whole, atol=1e-5)


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced(
    machines: HandStarted, caplog: pytest.LogCaptureFixture
) -> None:
    worker = machines.start(nanny=True)
    killed: list[int] = []

    def kill(done: int, _all: int, state: str) -> None:
        # Until it had a block in hand.
        child = machines.child_of(worker) if done and "failed" not in state else None
        if child and child.pid not in killed:
            killed.append(child.pid)
            child.kill()

    report = compute(machines.file, progress=kill)
    assert report.tally.failures >= 1
    assert report.tally.refused == 0
    assert "was killed by SIGKILL" in caplog.text
    assert_undisturbed()


def expect_answers_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers be overdue after two seconds. Before one is stopped, a busy machine is not."""
    monkeypatch.setattr(schedule, "OVERDUE_SECONDS", 2.0)
    monkeypatch.setattr(schedule, "OVERDUE_TIMES", 1)


@pytest.mark.slow
def test_a_worker_that_hangs_is_done_without(
    machines: HandStarted, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    first = machines.start(nanny=True)
    machines.start()
    stopped: list[psutil.Process] = []

    def stop(done: int, _all: int, state: str) -> None:
        child = machines.child_of(first) if state.startswith("2") and not stopped else None
        if child:
            expect_answers_soon(monkeypatch)
            stopped.append(child)
            child.suspend()
        elif done and not stopped:
            time.sleep(ALONE)

    compute(machines.file, progress=stop)
    assert "does not answer" in caplog.text
    assert_undisturbed()
    assert psutil.wait_procs(stopped, 10)[1] == []


@pytest.mark.slow
def test_a_worker_that_comes_back_late_does_no_harm(
    machines: HandStarted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = machines.start(nanny=True)
    machines.start()
    stopped: list[psutil.Process] = []
    resumed = False

    def stop(done: int, _all: int, state: str) -> None:
        nonlocal resumed
        child = machines.child_of(first) if state.startswith("2") and not stopped else None
        if child:
            expect_answers_soon(monkeypatch)
            stopped.extend([child, child.parents()[0]])  # nobody there can end the process now
            for process in stopped:
                process.suspend()
        elif done and not stopped:
            time.sleep(ALONE)
        elif stopped and not resumed and "does not answer" in caplog.text:
            for process in stopped:
                process.resume()
            resumed = True

    compute(machines.file, progress=stop)
    assert resumed
    assert_undisturbed()


@pytest.mark.slow
def test_a_worker_that_is_lost_and_found_again_goes_on(
    machines: HandStarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask may lose sight of a worker whose process has begun, and has blocks in hand."""
    machines.start()
    sync, begun, lost = Client.sync, False, False

    def answer(client: Client, asked: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal lost
        found = sync(client, asked, *arguments, **options)
        if begun and not lost and isinstance(found, dict) and "workers" in found:
            lost = True
            return {**found, "workers": {}}
        return found

    def lose(done: int, _all: int, _state: str) -> None:
        nonlocal begun
        begun = done > 0
        if not lost:
            time.sleep(LOOK_EVERY / 3)  # or the worker computes all before anybody looks

    monkeypatch.setattr(Client, "sync", answer)
    report = compute(machines.file, progress=lose)
    assert (report.tally.lost, report.tally.refused) == (1, 0)
    assert_undisturbed()


FAULTS = {
    "wrong values": "differ from the output's, by ",
    "other versions": "it does not compute the same bits as the others: numpy 0.0.1, not ",
    "full disk": "No space left on device",
    "odd error": "TwoPartError: two parts",
}


def shut_out(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "is shut out: " in each.getMessage()]


@pytest.mark.slow
def test_workers_that_cannot_compute_are_shut_out(
    machines: HandStarted, caplog: pytest.LogCaptureFixture
) -> None:
    machines.start()
    begun = False

    def join(done: int, _all: int, _state: str) -> None:
        nonlocal begun
        if done and not begun:
            begun = True
            for altered in FAULTS:
                machines.start(altered)
        elif len(shut_out(caplog)) < len(FAULTS):
            time.sleep(ALONE)

    report = compute(machines.file, progress=join)
    said = "\n".join(shut_out(caplog))
    assert [fault for fault in FAULTS if FAULTS[fault] not in said] == []
    assert report.tally.refused == len(FAULTS)
    assert_undisturbed()


@pytest.mark.slow
def test_when_no_worker_is_left_the_run_ends(machines: HandStarted) -> None:
    workers = [machines.start("no file") for _ in range(2)]
    with pytest.raises(ZnniError, match="/elsewhere"):
        compute(machines.file)
    for worker in workers:
        machines.kill(worker)
    machines.start()
    compute(machines.file)
    assert_undisturbed()


@pytest.mark.slow
def test_bits_of_a_class(machines: HandStarted) -> None:
    machines.start()
    begun = False

    def join(done: int, _all: int, state: str) -> None:
        nonlocal begun
        if done and not begun:
            begun = True
            machines.start("another machine")
        elif state.startswith("1"):
            time.sleep(ALONE)

    report = compute(machines.file, progress=join, bits="class")
    assert report.tally.refused == 0
    makers = read_ledger("out.zarr").makers
    assert len(makers) == BLOCKS**3
    assert len(set(makers.values())) == 2
    assert "Another 9000" in makers.values()


@pytest.mark.slow
def test_ctrl_c_ends_all_and_the_same_command_goes_on() -> None:
    command = [sys.executable, "-m", "znni", *ARGUMENTS, "--out", "out.zarr", "--cluster",
               "local:2", "--ram", "1538MiB", "--threads", "2"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(10):
        run = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        chunks = Path("out.zarr.partial/0/c")
        while run.poll() is None and not chunks.exists():
            time.sleep(0.02)
        below = psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []
        run.send_signal(signal.SIGINT)
        _, err = run.communicate()
        if run.returncode:
            break
    assert run.returncode == 130
    assert "is not finished; the same command goes on from there" in err
    _, alive = psutil.wait_procs(below, 10)
    assert alive == []
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "blocks complete" in done.stdout
    assert_undisturbed()


@pytest.mark.slow
def test_a_scheduler_that_is_gone(machines: HandStarted) -> None:
    machines.start()

    def kill(done: int, _all: int, _state: str) -> None:
        if done:
            machines.kill_scheduler()

    with pytest.raises(RunFailed, match="the cluster's scheduler is gone"):
        compute(machines.file, progress=kill)
    compute("local:1", ram="769MiB", threads=1)
    assert_undisturbed()


@pytest.mark.slow
def test_two_runs_on_one_output(machines: HandStarted) -> None:
    machines.start()
    second: list[str] = []

    def begin(done: int, _all: int, _state: str) -> None:
        if done and not second:
            with pytest.raises(InvalidInput) as raised:
                compute("local:1")
            second.append(str(raised.value))

    compute(machines.file, progress=begin)
    assert second == [
        f"out.zarr: process {os.getpid()} on {os.uname().nodename} is computing it; wait until "
        f"that process ends, or end it"
    ]
    assert_undisturbed()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--cluster", "local:0"], "local:0"),
        (["--cluster", "missing.yaml"], "missing.yaml"),
        (["--cluster", "local:2", "--part", "0/2"], "--cluster and --part"),
        (["--cluster", "local:2", "--out", "out.h5"], ".zarr"),
        (["--cluster", "local:2", "--dry-run"], "znni plan --cluster"),
        (["--bits", "class"], "--cluster"),
        (["--recheck", "all"], "--cluster"),
        (["--cluster", "nobody.yaml"], "no Dask scheduler answers at tcp://127.0.0.1:1"),
        (["--cluster", "local:2", "--mask", "missing.h5"], "missing.h5"),
        (["--cluster", "local:2", "--overwrite"], "--overwrite"),
        (["--cluster", "local:200", "--ram", "8GiB"], "memory"),
        (["--cluster", "local:2", "--gpus", "2"], "--gpus 2 is about one machine; leave it out"),
        (["--cluster", "limits.yaml", "--ram", "3GiB"], "the cluster file has ram: for its work"),
        (["--cluster", "limits.yaml", "--threads", "1"], "the cluster file has cores: for its wo"),
    ],
)
def test_errors_are_one_line(more: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("znni.cluster.dask_engine")  # it keeps the usual seconds for later tests
    monkeypatch.setattr(dask_clusters, "CONNECT_SECONDS", 0.5)
    Path("limits.yaml").write_text(
        "kind: local\ngroups: [{name: a, count: 1, cores: 1, ram: 600MiB}]\n"
    )
    Path("nobody.yaml").write_text("kind: address\naddress: tcp://127.0.0.1:1\n")
    out = [] if "--out" in more else ["--out", "out.zarr"]
    logging.getLogger("znni").setLevel(logging.CRITICAL)
    try:
        assert said in refused(*ARGUMENTS, *out, *more)
    finally:
        logging.getLogger("znni").setLevel(logging.NOTSET)
    assert not Path("out.zarr").exists()


def test_workers_of_one_machine_are_alike() -> None:
    Path("two.yaml").write_text("kind: local\ngroups: [{name: a, count: 1}, {name: b, count: 1}]\n")
    said = refused(*ARGUMENTS, "--out", "out.zarr", "--cluster", "two.yaml")
    assert "a local cluster has 2 groups, and its workers are all alike; give one group" in said


@pytest.mark.slow
def test_too_little_memory_for_a_worker_names_what_all_need() -> None:
    few = [argument for argument in ARGUMENTS if argument not in ("--plan", "plan.json")]
    more = ("--out", "out.zarr", "--cluster", "local:2", "--ram", "600MiB")
    said = refused(*few, *more, code=3)
    assert "44 MiB are allowed; give all workers together --ram 1538MiB" in said


@pytest.mark.slow
def test_gpus_that_no_machine_has_are_refused() -> None:
    Path("gpu.yaml").write_text("kind: local\ngroups: [{name: a, count: 1, gpus: 1}]\n")
    few = ["infer", "volume.npy", "--net", "tiny.yaml", "--out", "out.zarr"]
    said = refused(*few, "--device", "gpu", "--cluster", "local:2")
    assert "no group of the cluster has GPUs; give gpus: in the cluster file" in said
    if not detect_gpus():
        assert "its machine has no GPU" in refused(*few, "--cluster", "gpu.yaml")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    application = S3()
    environment, stop = serve(application)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    fsspec.filesystem("s3").mkdir("clusters")
    yield application
    application.faults = never
    stop()


@pytest.mark.slow
def test_an_output_at_a_url_is_stopped_throttled_and_complete(store: S3) -> None:
    place = "s3://clusters/out.zarr"
    command = [sys.executable, "-m", "znni", *ARGUMENTS, "--out", place, "--cluster", "local:1",
               "--ram", "769MiB", "--threads", "1"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    left, enough = 9, threading.Event()

    def stop(method: str, path: str, _count: int) -> str | None:
        nonlocal left
        left -= method == "PUT" and "/0/c/" in path
        if left == 0:
            run.suspend()
            enough.set()
        return None

    store.faults = stop
    with psutil.Popen(command, env=environment) as run:
        try:
            assert enough.wait(SECONDS)
            assert refused(*command[3:]).startswith(f"out.zarr: process {run.pid} on ")
            run.resume()
            run.send_signal(signal.SIGINT)
            assert run.wait(SECONDS) == 130
        finally:
            with suppress(psutil.NoSuchProcess):
                run.kill()
    requests = 0

    def throttle(_method: str, _path: str, _count: int) -> str | None:
        nonlocal requests
        requests += 1
        return None if requests % 50 else "SlowDown"

    store.faults = throttle
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "blocks complete" in done.stdout
    assert "going on where an earlier run stopped" in done.stderr
    store.faults = never
    files = fsspec.filesystem("s3")
    assert [name.rpartition("/")[2] for name in files.ls("clusters")] == ["out.zarr"]
    files.get("clusters/out.zarr", "out.zarr", recursive=True)
    assert_undisturbed()
