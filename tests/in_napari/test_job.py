"""A task in a process of its own: what it tells, and how it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import LONG_VOLUME, voxels
from paths import SUPPORT

import znni
from znni.core.child_process import command_of_program
from znni.napari import job as jobs
from znni.napari.job import Job, stored_array
from znni.napari.task import Cancelled, Event, Failed, Finished, Planned, Progressed, Task

OPTIONS: dict[str, Any] = {"ram": "512.4MiB", "threads": 1}
PLAN = Task("volume.h5", "tiny.yaml", "out.zarr", OPTIONS)
RUN = Task("volume.h5", "tiny.yaml", "out.zarr", OPTIONS, runs=True)

pytestmark = pytest.mark.usefixtures("long_case")


@pytest.fixture(autouse=True)
def slow_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process computes a slow network of fakes, each of whose blocks it tells."""
    command = [sys.executable, str(SUPPORT / "slow_child.py")]
    monkeypatch.setattr(jobs, "command_of", lambda _module, number: [*command, number])


def happens(job: Job) -> Iterator[Event]:
    """Yield the events of a job without the moments in which nothing happens."""
    return (event for event in job.events() if event is not None)


@pytest.mark.slow
def test_a_plan_and_a_run() -> None:
    (planned,) = happens(Job(PLAN))
    assert isinstance(planned, Planned)
    *progress, finished = happens(Job(RUN))
    assert isinstance(finished, Finished)
    assert len(progress) > 2
    assert Path("out.zarr").is_dir()


@pytest.mark.slow
def test_moments_in_which_nothing_happens_are_told() -> None:
    assert None in list(Job(PLAN).events())


@pytest.mark.slow
def test_a_cancelled_run_goes_on(held: Path) -> None:
    job = Job(RUN)
    events = []
    for event in happens(job):
        events.append(event)
        if isinstance(event, Progressed):
            job.stop()
            assert job.is_stopping
    assert isinstance(events[-1], Cancelled)
    (planned,) = happens(Job(PLAN))
    assert isinstance(planned, Planned)
    assert 0 < planned.finished < 1
    held.unlink()
    assert isinstance(list(happens(Job(RUN)))[-1], Finished)


def test_a_job_may_be_stopped_before_its_process_has_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(PLAN)
    job.stop()
    assert [type(event) for event in happens(job)] == [Cancelled]
    start = jobs.start_with

    def stopped_meanwhile(*args: Any, **given: Any) -> Any:
        process = start(*args, **given)
        later.stop()
        return process

    monkeypatch.setattr(jobs, "start_with", stopped_meanwhile)
    later = Job(RUN)
    assert isinstance(list(happens(later))[-1], Cancelled)


@pytest.mark.usefixtures("held")
def test_a_run_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE_SECONDS", 0.0)
    job = Job(RUN)
    events = []
    for event in happens(job):
        events.append(event)
        if isinstance(event, Progressed):
            job.stop()
    assert isinstance(events[-1], Cancelled)
    assert Path("out.zarr.partial").is_dir()


def test_a_job_is_given_less_time_to_stop_before_its_first_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "GRACE_SECONDS", 0.0)
    silent = command_of_program("import time; time.sleep(600)")
    monkeypatch.setattr(jobs, "command_of", lambda *_: silent)
    job = Job(RUN)
    events = job.events()
    assert next(events) is None
    job.stop()
    assert job.is_killed
    assert list(filter(None, events)) == [Cancelled()]


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_a_run_whose_events_nobody_takes_is_stopped() -> None:
    with closing(Job(RUN).events()) as events:  # type: ignore[type-var]
        assert next(event for event in events if isinstance(event, Progressed))
    assert Path("out.zarr.partial").is_dir()
    (planned,) = happens(Job(PLAN))
    assert isinstance(planned, Planned)
    assert not planned.obstacles  # nobody holds the output


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_a_run_outlives_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process of the window had been killed."""
    job = Job(RUN)
    monkeypatch.setattr(job, "stop", lambda: None)
    events = happens(job)
    assert next(event for event in events if isinstance(event, Progressed))
    job._window.close()
    with pytest.raises(OSError, match="closed"):
        next(events)
    (planned,) = happens(Job(PLAN))
    assert isinstance(planned, Planned)
    assert 0 < planned.finished < 1


@pytest.mark.usefixtures("held")
def test_a_sudden_end_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    popen = jobs.subprocess.Popen

    def noted(*args: Any, **given: Any) -> Any:
        process = popen(*args, **given)
        started.append(process.pid)
        return process

    monkeypatch.setattr(jobs.subprocess, "Popen", noted)
    events = []
    for event in happens(Job(RUN)):
        events.append(event)
        if len(events) == 1:
            os.kill(started[0], signal.SIGKILL)
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert "ended by SIGKILL, maybe because memory ran out" in failed.text
    assert "goes on from there" in failed.text


@pytest.mark.slow
def test_an_array_is_handed_over() -> None:
    whole = voxels(LONG_VOLUME)
    for out, array in (("memory.zarr", whole), ("lazy.zarr", znni.LazyArray("volume.h5"))):
        task = Task("", "tiny.yaml", out, OPTIONS, runs=True)
        assert isinstance(list(happens(Job(task, array)))[-1], Finished)
    memory, lazy = (np.asarray(znni.LazyArray(name)) for name in ("memory.zarr", "lazy.zarr"))
    np.testing.assert_array_equal(memory, lazy)


def test_an_array_that_cannot_be_handed_over_is_an_error() -> None:
    with h5py.File("volume.h5") as file:  # an open file is of one process
        (failed,) = happens(Job(PLAN, file["raw"]))
    assert isinstance(failed, Failed)
    assert "cannot be handed to a process" in failed.text


def test_lazy_arrays_are_handed_over_without_their_values(tmp_path: Path) -> None:
    da = pytest.importorskip("dask.array")
    lazy = da.map_blocks(lambda part: part + 1, da.zeros((10**4, 10**4, 10**3), np.uint8))
    stored = stored_array(lazy, tmp_path)
    assert stored.file is None
    assert len(stored.packed) < 2**24
