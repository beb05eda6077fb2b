"""Tests of runs over many volumes: outputs, names, failures, resuming, and what is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Semaphore
from typing import Any
from unittest.mock import MagicMock

import h5py
import numpy as np
import pytest
from command_line import VOLUME, voxels
from random_plans import twice_as_slow
from tiny_network import close, expected

import znni
import znni.inference.open_run
import znni.inference.planning
import znni.inference.session
from znni.core.errors import InvalidInput, in_one_line
from znni.core.plan_options import Choices
from znni.inference.many import Failure
from znni.inference.request import Request
from znni.inference.session import Session
from znni.network.network import Network
from znni.network.weights import Weights
from znni.volumes.partial_file import PartialFile

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")

SHAPES = {"a.npy": VOLUME, "b.npy": (9, 20, 23), "c.npy": VOLUME, "d.npy": (9, 20, 23)}


@pytest.fixture
def files() -> list[str]:
    for name, shape in SHAPES.items():
        np.save(name, voxels(shape) + np.uint8(len(name)))
    return list(SHAPES)


def test_each_volume_gets_its_output_and_shapes_are_planned_and_prepared_once(
    files: list[str], network: Network, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Any] = []
    prepared: list[Any] = []
    search, prepare = znni.inference.planning.fastest, znni.inference.session.prepare
    monkeypatch.setattr(
        znni.inference.planning, "fastest", lambda *a: planned.append(a) or search(*a)
    )
    monkeypatch.setattr(
        znni.inference.session, "prepare", lambda *a: prepared.append(a) or prepare(*a)
    )
    done: list[tuple[int, int]] = []
    report = znni.infer_many(
        files, network, "out", weights=weights, progress=lambda *at: done.append(at)
    )
    assert not report.failures
    assert report.exit_code == 0
    assert done == [(number, 4) for number in (1, 2, 3, 4)]
    assert (len(planned), len(prepared)) == (2, 2)
    assert report.voxels == sum(each.voxels for each in report.reports.values()) > 0
    for name, out in report.outputs.items():
        assert out == Path("out") / f"{Path(name).stem}-{network.name}.h5"
        with h5py.File(out) as file:
            assert close(file["main"][()], expected(np.load(name)))


def test_an_output_may_be_a_volume_after_it(network: Network, weights: Weights) -> None:
    x = voxels(VOLUME)
    np.save("a.npy", x[np.newaxis])
    first = f"out/a-{network.name}.h5"
    report = znni.infer_many(["a.npy", first], network, "out", weights=weights, channel=0)
    assert not report.failures
    with h5py.File(report.outputs[first]) as file:
        assert close(file["main"][()], expected(expected(x)[0]))


def test_weights_are_checked_once(
    files: list[str], network: Network, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Any] = []
    check = znni.inference.session.weights_for
    monkeypatch.setattr(
        znni.inference.session, "weights_for", lambda *a: checked.append(a) or check(*a)
    )
    report = znni.infer_many(files, network, "out", weights=weights)
    assert not report.failures
    assert len(checked) == 1
    again = znni.infer_many(files, network, "out", weights=weights)
    assert len(again.finished_before) == len(files)
    assert len(checked) == 2
    other = znni.random_weights(network, 1)
    ready = Session(Choices())
    found = [ready.weights_for(network, each, None) for each in (weights, other, weights)]
    assert [each.sha256 for each in found] == [each.sha256 for each in (weights, other, weights)]


def test_what_all_volumes_of_a_shape_have_in_common_is_worked_out_once(
    network: Network, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}.npy" for number in range(5)]
    for name in names:
        np.save(name, voxels((10, 21, 24)))  # no other test has this shape
    asked: dict[str, list[object]] = {}
    for place, name in (
        ("znni.engine.reading", "_source"),
        ("znni.volumes.ledger_entries", "plan_entry"),
    ):
        function = getattr(sys.modules[place], name)
        calls = asked[name] = list[object]()

        def noted(*given: object, calls: Any = calls, function: Any = function) -> object:
            calls.append(given)
            return function(*given)

        monkeypatch.setattr(f"{place}.{name}", noted)
    assert not znni.infer_many(names[:1], network, "out", weights=weights).failures
    before = {name: len(calls) for name, calls in asked.items()}
    assert not znni.infer_many(names[1:2], network, "out", weights=weights).failures
    of_one = {name: len(calls) - before[name] for name, calls in asked.items()}
    before = {name: len(calls) for name, calls in asked.items()}
    assert not znni.infer_many(names[2:], network, "out", weights=weights).failures
    assert {name: len(calls) - before[name] for name, calls in asked.items()} == of_one


def test_outputs_are_those_of_single_runs(
    files: list[str], network: Network, weights: Weights
) -> None:
    report = znni.infer_many(files, network, "out", weights=weights, suffix=".npy")
    for name, out in report.outputs.items():
        znni.infer(name, network, "single.npy", weights=weights, overwrite=True)
        np.testing.assert_array_equal(np.load(out), np.load("single.npy"))


def test_a_volume_that_fails_does_not_stop_the_others(
    files: list[str], network: Network, weights: Weights
) -> None:
    Path("b.npy").write_bytes(b"no array")
    np.save("c.npy", np.zeros((2, 2, 2), np.uint8))
    report = znni.infer_many([*files, "gone.npy"], network, "out", weights=weights)
    assert list(report.reports) == ["a.npy", "d.npy"]
    assert [failure.source for failure in report.failures] == ["b.npy", "c.npy", "gone.npy"]
    assert all(failure.source in str(failure) for failure in report.failures)
    assert report.exit_code == InvalidInput.exit_code
    assert sorted(path.name for path in Path("out").iterdir()) == ["a-tiny.h5", "d-tiny.h5"]


def test_an_output_reaches_the_disk_while_the_next_volume_is_opened(
    files: list[str], network: Network, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is told as done before the disk has it and it has its name."""
    opened, synced = Semaphore(0), list[Path]()
    open_all, sync, name = znni.inference.open_run.open_faster, os.fsync, PartialFile.take_name

    def noted(request: Request) -> Any:
        if request.source != files[0]:
            opened.release()
        return open_all(request)

    def late(file: PartialFile) -> None:
        if len(synced) < len(files) - 1:
            assert opened.acquire(timeout=20)
        sync(file)
        synced.append(file.place)

    def named(file: PartialFile) -> None:
        assert file.place == synced[-1]
        name(file)

    def told(done: int, _all: int) -> None:
        assert len(synced) == done
        assert all(path.exists() for path in synced)

    monkeypatch.setattr(znni.inference.open_run, "open_faster", noted)
    monkeypatch.setattr("znni.volumes.partial_file.os.fsync", late)
    monkeypatch.setattr(PartialFile, "take_name", named)
    report = znni.infer_many(files, network, "out", weights=weights, progress=told)
    assert list(report.outputs.values()) == synced
    assert list(report.reports) == files


@pytest.mark.parametrize("step", ["settle", "take_name"])
def test_an_output_that_the_disk_refuses_is_a_failure_of_its_volume(
    step: str,
    files: list[str],
    network: Network,
    weights: Weights,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    do = getattr(PartialFile, step)

    def refused(file: PartialFile) -> None:
        if file.place.name.startswith("b-"):
            raise OSError(28, "No space left on device")
        do(file)

    monkeypatch.setattr(PartialFile, step, refused)
    done: list[int] = []
    report = znni.infer_many(
        files, network, "out", weights=weights, progress=lambda *at: done.append(at[0])
    )
    assert done == [1, 2, 3, 4]
    assert list(report.reports) == ["a.npy", "c.npy", "d.npy"]
    (failure,) = report.failures
    assert failure.source == "b.npy"
    assert "b-tiny.h5.partial: cannot be written: No space left on device" in str(failure)
    assert "b-tiny.h5 was not made" in str(failure)
    assert "No space left" in caplog.text
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "a-tiny.h5", "c-tiny.h5", "d-tiny.h5",
    ]  # fmt: skip


def test_a_stop_while_a_volume_is_opened_waits_for_the_one_before(
    files: list[str], network: Network, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_all = znni.inference.open_run.open_faster

    def stopped(request: Request) -> Any:
        if request.source == "c.npy":
            raise KeyboardInterrupt
        return open_all(request)

    monkeypatch.setattr(znni.inference.open_run, "open_faster", stopped)
    with pytest.raises(KeyboardInterrupt) as stop:
        znni.infer_many(files, network, "out", weights=weights)
    assert "2 of 4 volumes are finished" in in_one_line(stop.value)
    assert sorted(path.name for path in Path("out").iterdir()) == ["a-tiny.h5", "b-tiny.h5"]


def test_an_error_of_the_progress_is_no_failure_of_a_volume(
    files: list[str], network: Network, weights: Weights
) -> None:
    def gone(_done: int, _all: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError) as stop:
        znni.infer_many(files, network, "out", weights=weights, progress=gone)
    assert "1 of 4 volumes are finished" in in_one_line(stop.value)
    assert [path.name for path in Path("out").iterdir()] == ["a-tiny.h5"]


def test_finished_outputs_are_left_alone_and_others_refused(
    files: list[str], network: Network, weights: Weights
) -> None:
    znni.infer_many(files[:2], network, "out", weights=weights)
    before = Path("out/a-tiny.h5").stat().st_mtime_ns
    report = znni.infer_many(files, network, "out", weights=weights)
    assert report.finished_before == ["a.npy", "b.npy"]
    assert list(report.reports) == ["c.npy", "d.npy"]
    assert Path("out/a-tiny.h5").stat().st_mtime_ns == before
    other = znni.random_weights(network, 9)
    report = znni.infer_many(files, network, "out", weights=other)
    assert len(report.failures) == 4
    assert "differs in the weights" in str(report.failures[0])
    assert Path("out/a-tiny.h5").stat().st_mtime_ns == before
    assert not znni.infer_many(files, network, "out", weights=other, overwrite=True).failures


def test_less_accurate_outputs_are_refused(
    files: list[str], network: Network, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    znni.infer_many(files[:1], network, "out", weights=weights)
    monkeypatch.setattr(znni.inference.many, "accuracy_of", lambda _plan: "bfloat16")
    report = znni.infer_many(files[:1], network, "out", weights=weights)
    assert "differs in the accuracy (then: bfloat16; now: float32)" in str(report.failures[0])
    report = znni.infer_many(files[:1], network, "out", weights=weights, accuracy="bfloat16")
    assert report.finished_before == files[:1]


def test_memory_is_kept_to_if_no_plan_was_asked_for(
    network: Network, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs that were begun before bring their plans."""
    held = {"cpu": 2**30, "gpu": 0}
    monkeypatch.setattr(
        "znni.inference.prepared_plans._idle_memory", lambda _plan, device: held[device]
    )
    ready = Session(Choices(ram="2GiB"))
    for extent in range(20, 26):
        plan = znni.plan(network, (9, 20, extent))
        ready.prepared.get(plan, weights.sha256, lambda plan: MagicMock(plan=plan))
        assert len(ready.prepared._kept) <= 2
    assert len(ready.prepared._kept) == 2


def test_processes_are_kept_for_plans_that_differ_only_in_predicted_seconds(
    network: Network, weights: Weights
) -> None:
    ready = Session(Choices(ram="2GiB"))
    plan = znni.plan(network, (9, 20, 20))
    first, again = (
        ready.prepared.get(it, weights.sha256, lambda plan: MagicMock(plan=plan))
        for it in (plan, twice_as_slow(plan))
    )
    assert again == first


def test_other_weights_get_processes_of_their_own(network: Network, weights: Weights) -> None:
    ready, other = Session(Choices(ram="2GiB")), znni.random_weights(network, 9)
    plan = znni.plan(network, (9, 20, 20))
    first, second, again = (
        ready.prepared.get(plan, each.sha256, lambda plan: MagicMock(plan=plan))
        for each in (weights, other, weights)
    )
    assert again == first != second


def test_a_failure_is_logged_at_once_and_holds_no_frames(
    files: list[str], network: Network, weights: Weights, caplog: pytest.LogCaptureFixture
) -> None:
    Path("b.npy").write_bytes(b"no array")
    said: list[str] = []
    report = znni.infer_many(
        files, network, "out", weights=weights, progress=lambda *_: said.append(caplog.text)
    )
    assert "b.npy" not in said[0]
    assert "b.npy" in said[1]
    error: BaseException | None = report.failures[0].error
    while error is not None:
        assert error.__traceback__ is None
        error = error.__cause__ or error.__context__
    assert "memory ran out; free some" in str(Failure("a.npy", MemoryError()))


def test_names_that_clash_are_refused_before_anything_is_computed(
    files: list[str], network: Network, weights: Weights
) -> None:
    Path("other").mkdir()
    np.save("other/a.npy", voxels())
    for sources, suffix, folder, said in (
        (["a.npy", "other/a.npy"], None, "out", "would both be written to out/a-tiny.h5"),
        (["a.npy", "a.npy"], None, "out", "would both be written"),
        (["a.npy", "b.npy"], ".npy", ".", "is the input a.npy"),
        (files, ".png", "out", "no format with this ending"),
        (files, "/x.h5", "out", "without /"),
        (files, None, "s3://bucket/out", "local folder"),
        ([], None, "out", "no volume"),
        ([voxels()], None, "out", "list of files"),
    ):
        with pytest.raises(InvalidInput, match=said):
            znni.infer_many(sources, network, folder, suffix=suffix, weights=weights)
    assert not Path("out").exists()
