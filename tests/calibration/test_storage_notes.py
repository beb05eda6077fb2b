"""Notes of how long reading and writing took: plans predict with what runs took on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import machine

import znni
from znni.calibration import storage_notes
from znni.calibration.storage_notes import (
    LEAST_SECONDS,
    NOTES,
    note_storage,
    storage_factors,
)
from znni.core import user_cache
from znni.core.options import Costs, InputChunks, Stored
from znni.core.shapes import Vec3
from znni.engine.report import Report
from znni.engine.skipping import Skipped
from znni.inference.ready import KeptReadiness, Readiness
from znni.inference.request import Choices
from znni.machine.machine import Machine
from znni.plans.job_seconds import AS_MODELLED, JobSeconds, StageSeconds, StorageFactors
from znni.plans.plan import Plan

PLAIN = Stored("float32", input_itemsize=4)
GZIP = replace(PLAIN, input_chunks=InputChunks("hdf5", "gzip", Vec3.of(64), Vec3.of(100)))
PREDICTED = StageSeconds(reading=1.0, host_layers=5.0, writing=2.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test's own notes."""
    monkeypatch.setattr(storage_notes, "NOTES", NOTES)
    monkeypatch.setattr(user_cache, "user_cache", lambda: tmp_path)
    return tmp_path / "storage"


@pytest.fixture
def plan(own_folder: Path, small_case: Path) -> Plan:
    """A plan for the small case, which is in the folder."""
    assert own_folder == small_case
    return znni.plan("tiny.yaml", (20, 20, 23), ram="1GiB", device="cpu")


def factors(
    stored: Stored = PLAIN, costs: Costs = "auto", there: Machine | None = None, *, by: bool = False
) -> StorageFactors:
    return storage_factors(there or machine(), stored, costs, calibrated=by)


def took(
    reading: float, writing: float, stored: Stored = PLAIN, predicted: StageSeconds = PREDICTED
) -> None:
    """Note a run."""
    measured = StageSeconds(reading=reading, host_layers=5.0, writing=writing)
    note_storage(stored, measured, predicted, calibrated=False)


def test_what_a_run_took_is_predicted_for_the_same_kind_of_storage_on_this_machine() -> None:
    took(3.0, 1.0)
    assert factors() == (3.0, 0.5)
    assert factors(replace(PLAIN, input_itemsize=2)) == (1.0, 0.5)
    assert factors(GZIP) == (1.0, 0.5)
    assert factors(replace(PLAIN, dtype="uint8")) == (3.0, 1.0)
    assert factors(replace(PLAIN, label_maps=1)) == (3.0, 1.0)
    assert factors(replace(PLAIN, compression="zstd", chunk_files=True)) == (3.0, 1.0)
    assert factors(costs="built-in") == AS_MODELLED
    assert factors(there=replace(machine(), absent=True)) == AS_MODELLED
    assert factors(by=True) == AS_MODELLED


def test_runs_are_compared_with_what_their_plans_told() -> None:
    """A run that takes as long as predicted changes nothing."""
    took(3.0, 1.0)
    took(3.0, 1.0, predicted=StageSeconds(reading=3.0, writing=1.0))
    assert factors() == (3.0, 0.5)
    for _ in range(3):
        took(6.0, 1.0, predicted=StageSeconds(reading=3.0, writing=1.0))
    assert factors() == (6.0, 0.5)


def test_factors_stay_while_they_are_close_to_the_median_of_the_latest() -> None:
    told = []
    for seconds in (1.2, 1.21, 1.24, 1.3, 1.5, 9.0, 1.4, 0.3, 1.4):
        took(seconds, 2.0, predicted=replace(PREDICTED, reading=factors().reading))
        told.append(factors().reading)
    assert told == [1.0, 1.0, 1.0, 1.0, 1.0, 1.3, 1.3, 1.3, 1.3]


def test_short_times_do_not_count() -> None:
    short = LEAST_SECONDS / 2
    took(short, LEAST_SECONDS, predicted=StageSeconds(reading=short / 2, writing=short))
    assert factors() == (1.0, 2.0)
    took(0.0, 4.0, predicted=StageSeconds(reading=4.0, writing=0.0))
    assert factors() == (1.0, 2.0)


@pytest.mark.parametrize("damaged", ["", "[]", "3", '{"read": 3}', '{"told read": [0]}'])
def test_damaged_notes_count_as_none_and_are_replaced(damaged: str, folder: Path) -> None:
    took(3.0, 4.0)
    (file,) = folder.iterdir()
    file.write_text(damaged)
    assert factors() == AS_MODELLED
    took(3.0, 4.0)
    assert factors() == (3.0, 2.0)


def test_plans_predict_with_what_is_noted(plan: Plan) -> None:
    took(3.0, 1.0)
    before = plan.time
    after = znni.plan("tiny.yaml", (20, 20, 23), ram="1GiB", device="cpu").time
    for name, factor in (("reading", 3.0), ("writing", 0.5)):
        for stages in ("patch", "beside"):
            taken, known = (getattr(getattr(it, stages), name) for it in (after, before))
            assert taken == pytest.approx(factor * known)
            assert taken > 0
    assert after.patch.host_layers == before.patch.host_layers


def test_outputs_note_the_plan_without_what_runs_noted(small_case: Path) -> None:
    """So a run that goes on later, or is repeated, has the same plan."""
    chunked = InputChunks("hdf5", None, Vec3.of(1), Vec3.of(1))
    for chunks in (None, chunked, replace(chunked, codec="gzip")):
        took(3.0, 1.0, replace(PLAIN, input_itemsize=1, input_chunks=chunks))
    found, volume = [], small_case / "volume.h5"
    for costs in ("auto", "built-in"):
        out = f"{costs}.h5"
        found.append(znni.infer(volume, "tiny.yaml", out, ram="1GiB", device="cpu", costs=costs))
    told, plain = (report.attributes for report in found)
    assert Plan.from_json(told["plan"]).time == Plan.from_json(plain["plan"]).time
    assert told["predicted_reading_seconds"] == pytest.approx(
        3.0 * plain["predicted_reading_seconds"]
    )


def test_a_run_notes_what_it_took(small_case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_notes, "LEAST_SECONDS", 0.0)
    noted: list[tuple[float, float]] = []

    def note(stored: Stored, measured: StageSeconds, predicted: StageSeconds, **_: bool) -> None:
        assert (stored.dtype, stored.input_itemsize) == ("float16", 1)
        noted.append((measured.reading / predicted.reading, measured.writing / predicted.writing))
        note_storage(stored, measured, predicted, calibrated=False)

    monkeypatch.setattr("znni.inference.ready.note_storage", note)
    run = {"dtype": "float16", "ram": "1GiB", "device": "cpu", "overwrite": True}
    volume = small_case / "volume.h5"
    report = znni.infer(volume, "tiny.yaml", "out.h5", **run)  # type: ignore[arg-type]
    while report.compiling:
        report = znni.infer(volume, "tiny.yaml", "out.h5", **run)  # type: ignore[arg-type]
    assert all(factor > 0 for factor in noted[-1])
    count = len(noted)
    znni.infer(volume, "tiny.yaml", "out.h5", costs="built-in", **run)  # type: ignore[arg-type]
    znni.infer(volume, "tiny.yaml", "out.h5", plan=report.plan, **run)  # type: ignore[arg-type]
    assert len(noted) == count


def test_only_whole_runs_are_noted(plan: Plan) -> None:
    spent = JobSeconds(running=50.0, busy=StageSeconds(reading=9.0, host_layers=9.0, writing=9.0))
    report = Report(plan, (), 1, spent, 0, {}, "")
    for other in (
        replace(report, fallbacks=(plan,)),
        replace(report, voxels=0),
        replace(report, finished_before=1),
        replace(report, skipped=Skipped(outside_mask=1)),
        replace(report, compiling=1.0),
    ):
        assert not other.is_whole
        Readiness().note_storage(other, PLAIN, "auto")
    KeptReadiness(Choices()).note_storage(report, PLAIN, "auto")
    assert factors() == AS_MODELLED
    Readiness().note_storage(report, PLAIN, "auto")
    assert min(factors()) > 1
