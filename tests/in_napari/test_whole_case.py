"""The window runs whole cases too."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_scans import NET, nibabel, scan, weights_file, write

from znni.napari.child import do
from znni.napari.task import Event, Finished, Planned, Progressed, Task
from znni.network.network_file import load_network


def events_of(task: Task) -> list[Event]:
    events: list[Event] = []
    do(task, events.append)
    return events


def test_a_whole_case_is_planned_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "organs.yaml").write_text(
        NET.replace("name: organs", "name: organs\nweights: w.npz")
    )
    weights_file(tmp_path / "w.npz", load_network(tmp_path / "organs.yaml"))
    write(tmp_path / "ct.nii.gz", scan())
    task = Task(("ct.nii.gz",), "organs.yaml", "seg.nii.gz", {"device": "cpu"})
    (planned,) = events_of(task)
    assert isinstance(planned, Planned)
    assert "at most" in planned.summary
    *progress, finished = events_of(
        Task(task.source, task.network, task.out, task.options, runs=True)
    )
    assert isinstance(finished, Finished)
    steps = {event.step for event in progress if isinstance(event, Progressed)}
    assert {"network", "writing"} <= steps
    assert nibabel.load("seg.nii.gz").shape == scan().T.shape
