"""Processes of workers start early, and none outlives its work."""

from __future__ import annotations

import os
import pickle
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from socket import socketpair
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from fleet_cases import PLAN, SIZE, Case, fleet
from forks import forked
from numpy.typing import NDArray
from waiting import until
from worker_runners import NETWORK, Sums, made_with

from znni.core import loading
from znni.core.shapes import Box
from znni.engine.last_blocks import LastBlocks, Passing
from znni.engine.tiles import Remaining, make_job
from znni.engine.workers.fleet import Fleet, Member
from znni.engine.workers.processes import WaitingProcesses
from znni.inference.prestart import PREPARES
from znni.volumes.array import ArrayOutput, ArrayVolume


def test_workers_that_nobody_refers_to_end() -> None:
    workers = fleet()
    processes = [worker.process_id for worker in workers._crew.workers]
    assert all(Path(f"/proc/{number}").exists() for number in processes)
    del workers
    assert not any(Path(f"/proc/{number}").exists() for number in processes)


@pytest.mark.slow
@pytest.mark.parametrize("waited_for", [False, True])
def test_a_fork_ends_no_process(waited_for: bool) -> None:
    """A thread may wait for one while the process forks. Then the fork does not know its own."""
    waiting, workers = WaitingProcesses([{}], ()), fleet()
    (left,) = waiting._waiting.values()
    processes = [left.process, *(worker._process for worker in workers._crew.workers)]
    if waited_for:
        for each in processes:
            each._waitpid_lock.acquire()  # type: ignore[attr-defined]
    child = forked()
    if child == 0:
        signal.alarm(20)
        del workers, waiting
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    if waited_for:
        for each in processes:
            each._waitpid_lock.release()  # type: ignore[attr-defined]
    assert all(each.poll() is None for each in processes)
    case = Case()
    case.run(workers)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["json", "no_such_module"])
def test_processes_start_before_they_are_needed(module: str) -> None:
    """Those that a fleet needs are taken, and the others end."""
    environments = [{"NUMBER": str(number)} for number in range(3)]
    waiting = WaitingProcesses(environments, (module,))
    started = {each.process.pid for each in waiting._waiting.values()}
    assert len(started) == 3
    prepare = partial(Sums, PLAN, "")
    members = [Member(f"worker {number}", prepare, environments[number]) for number in (0, 1)]
    workers = Fleet(PLAN, members, waiting=waiting)
    taken = {worker.process_id for worker in workers._crew.workers}
    assert taken < started
    case = Case()
    case.run(workers)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)
    del workers, waiting
    assert not any(Path(f"/proc/{number}").exists() for number in started)


@pytest.mark.slow
def test_blocks_are_read_before_workers_receive_large_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They receive nothing while they start CUDA; here, until the first block is read."""

    class Seen(ArrayVolume):
        def read(self, box: Box) -> NDArray[Any]:
            (tmp_path / "seen").touch()
            return super().read(box)

    seen, late = str(tmp_path / "seen"), str(tmp_path / "late")
    (tmp_path / "starts_cuda.py").write_text(
        "import os, time\nuntil = time.monotonic() + 60\n"
        f"while not os.path.exists({seen!r}):\n    time.sleep(0.01)\n"
        f"    if time.monotonic() > until:\n        open({late!r}, 'w').close()\n        break\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    waiting = WaitingProcesses([{}], ("starts_cuda",))
    made = partial(made_with, bytes(2**23), PLAN)
    workers = Fleet(PLAN, [Member("worker", made, {})], waiting=waiting)
    case = Case()
    case.volume = Seen(case.x)
    case.run(workers)
    assert not (tmp_path / "late").exists()
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)


def test_a_task_that_cannot_be_sent_ends_the_run() -> None:
    case = Case()
    made = partial(made_with, b"", PLAN, nothing=lambda: None)
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        case.run(Fleet(PLAN, [Member("worker", made, {})]))


@pytest.mark.slow
def test_waiting_processes_import_their_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noted.py").write_text(f"open({str(tmp_path / 'seen')!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("znni.engine.workers.processes.SLOTS", 0)
    waiting = WaitingProcesses([{}], ("noted",))
    until((tmp_path / "seen").exists)
    del waiting


def test_cuda_starts_before_a_waiting_process_imports_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module waits here until CUDA starts."""
    order: list[str] = []
    (tmp_path / "needs_cuda.py").write_text(
        "import time\nfrom znni.machine import gpus\nwhile not gpus.begin_cuda.calls:\n"
        "    time.sleep(0.01)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    begin = Mock(side_effect=lambda: order.append("begin"))
    begin.calls = order
    monkeypatch.setattr(loading, "_own", False)
    monkeypatch.setattr("znni.machine.gpus.begin_cuda", begin)
    monkeypatch.setattr("znni.machine.gpus.look_at_gpus", lambda: order.append("look"))
    monkeypatch.setattr("znni.engine.workers.serving.serve", lambda _: order.append("serve"))
    ours, theirs = socketpair()
    with ours:
        monkeypatch.setattr("sys.argv", ["workers", str(theirs.detach()), "needs_cuda"])
        runpy.run_module("znni.engine.workers", run_name="__main__")
    assert order == ["begin", "look", "serve"]
    assert sys.modules.pop("needs_cuda")


def modules_with(*names: str) -> list[str]:
    """Return the modules of a process that imports some."""
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_workers_start_before_numpy_is_loaded() -> None:
    """Loading it takes longer than all that is loaded before."""
    assert "numpy" not in modules_with("znni.inference.prestart", "znni.engine.workers.processes")


def test_what_workers_import_does_not_plan() -> None:
    found = modules_with(PREPARES)
    assert PREPARES in found
    others = ("planner", "znni.calibration", "znni.volumes", "h5py", "cupy")
    assert not [it for it in found if it.startswith(others)]


def test_a_start_that_fails_ends_those_before() -> None:
    started: list[int] = []

    def environments() -> Iterator[dict[str, str]]:
        before = set(psutil.Process().children())
        yield {}
        started.extend(each.pid for each in set(psutil.Process().children()) - before)
        yield {"NAME": "no variable holds \0"}

    with pytest.raises(ValueError, match="null byte"):
        WaitingProcesses(environments(), ())
    (number,) = started
    assert not Path(f"/proc/{number}").exists()


def test_processes_that_wait_end_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system takes a second to release the memory of each GPU."""
    waiting, called = WaitingProcesses([{"NUMBER": str(number)} for number in range(3)], ()), []
    for each in waiting._waiting.values():
        for name in ("kill", "wait"):
            call = getattr(each.process, name)
            noted = partial(lambda name, call: (called.append(name), call())[1], name, call)
            monkeypatch.setattr(each.process, name, noted)
    del waiting, each
    assert called[:3] == ["kill"] * 3
    assert called.count("wait") == 3


@pytest.mark.slow
def test_processes_without_a_member_end_with_the_preparation() -> None:
    """A fleet keeps no process that it did not need."""
    waiting = WaitingProcesses([{"NUMBER": "1"}], ())
    (left,) = [each.process.pid for each in waiting._waiting.values()]
    workers = Fleet(PLAN, [Member("worker", partial(Sums, PLAN, ""), {})], waiting=waiting)
    assert Path(f"/proc/{left}").exists()
    del waiting
    assert not Path(f"/proc/{left}").exists()
    case = Case()
    case.run(workers)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)


@pytest.mark.slow
def test_workers_end_while_the_last_block_of_the_last_run_is_written() -> None:
    class Waiting(ArrayOutput):
        def write(self, box: Box, values: NDArray[Any]) -> None:
            super().write(box, values)
            if case.remaining.voxels == box.size.volume:
                until(lambda: all(it.status() == psutil.STATUS_ZOMBIE for it in processes))

    case, workers = Case(), fleet()
    processes = [psutil.Process(worker.process_id) for worker in workers._crew.workers]
    case.run(workers, Waiting(case.found, 2, case.job.output), last=True)
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)
    assert case.stopwatch.seconds.busy.host_layers > 0
    assert workers.workers_memory > 2 * 2**20
    workers.end()()
    assert not any(each.is_running() for each in processes)


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
def test_a_log_says_what_the_processes_waited_for(
    last: bool, caplog: pytest.LogCaptureFixture
) -> None:
    case, workers = Case(), fleet()
    with caplog.at_level("INFO", "znni"):
        case.run(workers, last=last)
    told = [re.fullmatch(r"after (\d+\.\d\d) s: (.*)", each) for each in caplog.messages]
    seconds = [float(each[1]) for each in told if each]
    assert len(seconds) == len(caplog.messages)
    assert 0 < seconds[0] <= seconds[-1]
    found = [each[2] for each in told if each]
    of_each = ("has its first block", "has computed its first block", "has computed its last block")
    for number in (1, 2):
        assert [it for it in found if f"process {number} " in it] == [
            f"process {number} {what}" for what in of_each
        ]
    assert found[-1] == "all blocks are written"
    ready = found.index("all processes can compute")
    assert ready < min(found.index(f"process {number} {of_each[2]}") for number in (1, 2))


@pytest.mark.slow
def test_no_worker_ends_before_it_has_started_though_no_block_needs_it() -> None:
    case, workers = Case(), fleet()
    case.mask = ArrayVolume(np.zeros(case.x.shape, np.uint8))
    case.run(workers, last=True)
    assert not case.found.any()
    assert workers.workers_memory > 2 * 2**20


def test_a_process_is_told_once_when_its_last_block_is_taken_and_computed() -> None:
    told: list[tuple[Passing, int]] = []
    passings: tuple[Passing, ...] = ("taken", "computed")
    blocks = LastBlocks(
        {passing: partial(told.append, (passing, number)) for passing in passings}
        for number in range(3)
    )
    job = make_job(NETWORK, SIZE, "valid", None, None)
    tiles = blocks.handed_out(Remaining(job).columns(SIZE // 2))

    def passes(number: int, passing: Passing) -> None:
        block, seen = object(), list[int]()
        before = len(told)
        assert blocks.passing(number, passing, lambda: seen.append(len(told)))(block) is block
        assert seen == [before]

    next(tiles)
    next(tiles)
    blocks.begun(1)
    blocks.all_started()
    passes(1, "taken")
    passes(1, "computed")
    for _ in tiles:
        blocks.begun(2)
    assert not told  # the reading of one block has not begun: any process may have taken it
    blocks.begun(0)
    assert told == [("taken", 1), ("computed", 1)]
    passes(0, "taken")
    assert told[2:] == [("taken", 0)]
    passes(0, "computed")
    assert told[3:] == [("computed", 0)]
    while len(told) < 6:
        passes(2, "taken")
        passes(2, "computed")
    assert told[4:] == [("taken", 2), ("computed", 2)]


def test_workers_import_nothing_from_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.py").write_text("raise ImportError")
    monkeypatch.chdir(tmp_path)
    case = Case()
    case.run(fleet())
    np.testing.assert_allclose(case.found, case.expected, rtol=1e-5)


def test_a_process_whose_slots_cannot_be_made_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> Any:
        raise MemoryError

    waiting = WaitingProcesses([{}], ())
    (started,) = [each.process.pid for each in waiting._waiting.values()]
    monkeypatch.setattr("znni.engine.workers.worker.Slot", no_memory)
    with pytest.raises(MemoryError):
        Fleet(PLAN, [Member("worker", partial(Sums, PLAN, ""), {})], waiting=waiting)
    assert not Path(f"/proc/{started}").exists()
