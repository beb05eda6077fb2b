"""A task ends with one message, whatever happens."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import LONG_VOLUME, voxels

import znni
from znni.napari import child
from znni.napari.child import do
from znni.napari.task import (
    Began,
    Cancelled,
    Event,
    Failed,
    Finished,
    Planned,
    Progressed,
    StoredArray,
    Task,
    Warned,
)

LIMITS: dict[str, Any] = {"ram": "512.4MiB", "threads": 1}
TASK = Task("volume.h5", "tiny.yaml", "out.zarr", LIMITS)
RUN = Task("volume.h5", "tiny.yaml", "out.zarr", LIMITS, runs=True)

pytestmark = pytest.mark.usefixtures("long_case", "fake_primitives")


def told(task: Task) -> list[Event]:
    events: list[Event] = []
    do(task, events.append)
    return events


@pytest.fixture(autouse=True)
def every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told after each block."""
    monkeypatch.setattr(child, "TELL_EVERY_SECONDS", 0.0)


def test_a_plan_is_told_and_nothing_is_made() -> None:
    (planned,) = told(TASK)
    assert isinstance(planned, Planned)
    keys = [line.split()[0] for line in planned.summary.splitlines()]
    assert keys[:3] == ["time", "memory", "patch"]
    assert "throughput" in planned.details
    assert not planned.obstacles
    assert not list(Path().glob("out*"))


def test_a_run_tells_its_progress_and_its_report() -> None:
    *progress, finished = told(RUN)
    assert isinstance(finished, Finished)
    assert "voxels" in finished.report
    began, *progress = progress
    assert began == Began()
    shares = [event.done / event.total for event in progress if isinstance(event, Progressed)]
    assert len(shares) == len(progress) > 2
    assert shares == sorted(shares)
    assert shares[-1] == 1
    (planned,) = told(TASK)
    assert isinstance(planned, Planned)
    assert "exists; tick overwrite to replace it, or name another" in planned.obstacles[0]


def test_a_run_that_is_interrupted_goes_on() -> None:
    def stop(event: Event) -> None:
        events.append(event)
        if len(events) == 2:
            raise KeyboardInterrupt

    events: list[Event] = []
    do(RUN, stop)
    assert events[-1] == Cancelled()
    (planned,) = told(TASK)
    assert isinstance(planned, Planned)
    assert 0 < planned.finished < 1
    assert "by an earlier run" in planned.summary
    warned, *_, finished = told(RUN)
    assert isinstance(warned, Warned)
    assert "going on where an earlier run stopped" in warned.text
    assert isinstance(finished, Finished)


def test_a_cancelled_run_tells_how_much_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, progress: Any, **__: Any) -> None:
        progress(1, 9)
        progress(2, 9)
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "TELL_EVERY_SECONDS", 60.0)
    monkeypatch.setattr(znni, "infer", stopped, raising=False)
    assert told(RUN) == [Progressed(1, 9), Progressed(2, 9), Cancelled()]


def test_mistakes_are_told_without_a_traceback() -> None:
    (failed,) = told(Task("no.h5", "tiny.yaml", "out.zarr"))
    assert isinstance(failed, Failed)
    assert failed.text == "no.h5: no such file; check the path"
    (failed,) = told(Task("volume.h5", "tiny.yaml", "out.zarr", {"ram": "1MiB"}))
    assert isinstance(failed, Failed)
    assert "MiB" in failed.text


def test_faults_of_the_program_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    monkeypatch.setattr(znni, "infer", lambda *_, **__: {}["x"], raising=False)
    with pytest.raises(KeyError):
        do(RUN, events.append)
    (failed,) = events
    assert isinstance(failed, Failed)
    assert failed.text == "znni failed, which is a fault of znni: KeyError('x')"


def test_arrays_are_read_from_their_file_or_as_they_were_packed(tmp_path: Path) -> None:
    whole = voxels(LONG_VOLUME)
    np.save(tmp_path / "layer.npy", whole)
    packed = StoredArray(packed=pickle.dumps(whole))
    for number, source in enumerate((StoredArray(tmp_path / "layer.npy"), packed)):
        *_, finished = told(Task(source, "tiny.yaml", f"{number}.zarr", LIMITS, runs=True))
        assert isinstance(finished, Finished)
    assert isinstance(told(RUN)[-1], Finished)
    expected = np.asarray(znni.LazyArray("out.zarr"))
    for number in range(2):
        np.testing.assert_array_equal(np.asarray(znni.LazyArray(f"{number}.zarr")), expected)
