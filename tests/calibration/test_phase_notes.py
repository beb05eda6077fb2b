"""Notes of the fixed phases of runs: plans predict with what runs took on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import gpu

import znni
from znni.calibration import phase_notes
from znni.calibration.overhead_figures import SEARCHING_SECONDS, cuda_seconds
from znni.calibration.phase_notes import (
    AROUND,
    EXIT,
    FINISHING,
    MOST_NOTED,
    NOTES,
    FixedSeconds,
    note,
    noted_around,
    noted_cuda,
    noted_medians,
    with_noted,
)
from znni.engine.backends.cuda.device import START_SECONDS
from znni.engine.report import Report
from znni.inference.planning import as_here
from znni.inference.session import Session
from znni.machine.machine import Machine
from znni.plans.job_seconds import JobSeconds, SecondsAround
from znni.plans.plan import Plan

SPENT = SecondsAround(start=1.0, planning=0.5, finishing=7.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test's own notes."""
    monkeypatch.setattr(phase_notes, "NOTES", NOTES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "znni" / "phases"


@pytest.fixture
def plan(own_folder: Path, small_case: Path) -> Plan:
    """A plan for the small case, which is in the folder."""
    assert own_folder == small_case
    return znni.plan("tiny.yaml", (20, 20, 23), ram="1GiB", device="cpu")


def test_the_median_of_the_latest_runs_counts() -> None:
    assert noted_medians("cpu") == FixedSeconds()
    for start in (9.0, 9.0, 3.0, 0.5, 0.7, 0.6, 0.6):
        note("cpu", FixedSeconds(start=start))
    note("gpu", FixedSeconds(start=2.0, cuda=1.1))
    assert noted_medians("cpu") == FixedSeconds(start=0.6)
    assert noted_medians("gpu") == FixedSeconds(start=2.0, cuda=1.1)
    assert noted_medians("gpus") == FixedSeconds()


def test_what_plans_tell_of_starts_changes_only_with_the_median_and_by_a_tenth() -> None:
    assert noted_around("cpu") == FixedSeconds()
    told = []
    for start in (1.0, 1.09, 1.08, 0.93, 0.92, 0.91, 1.2, 1.2, 1.2, 1.2):
        note("cpu", FixedSeconds(start=start, planning=start / 100))
        told.append(noted_around("cpu").start)
    assert told == [1.0] * 8 + [1.2] * 2
    assert noted_medians("cpu").start == 1.2
    assert noted_around("cpu").planning == 0.01  # 0.002 s more change nothing
    assert noted_around("gpu") == FixedSeconds()


def test_after_two_runs_a_slow_first_one_does_not_count() -> None:
    note("cpu", FixedSeconds(start=5.0))
    assert noted_medians("cpu").start == 5.0
    note("cpu", FixedSeconds(start=0.5))
    assert noted_medians("cpu").start == 0.5


def test_damaged_notes_count_as_none_and_are_replaced(folder: Path) -> None:
    note("cpu", FixedSeconds(start=9.0))
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert noted_medians("cpu") == FixedSeconds()
    note("cpu", FixedSeconds(start=1.0))
    assert noted_medians("cpu") == FixedSeconds(start=1.0)


def test_plans_predict_what_runs_noted(plan: Plan) -> None:
    around = plan.time.around
    assert (around.start, around.planning) == (AROUND.start, AROUND.planning)
    note("cpu", FixedSeconds(start=3.0, planning=2.0, searching=1.0, finishing=0.5))
    again = znni.plan("tiny.yaml", (20, 20, 23), ram="1GiB", device="cpu")
    assert again.time.around == replace(around, start=3.0, planning=2.0, finishing=0.5)
    assert again.segments == plan.segments
    assert again.seconds == pytest.approx(plan.seconds + 5.5 - around.noted + around.exit)


def test_runs_on_gpus_are_predicted_to_take_longer_to_finish() -> None:
    with_a_pass = replace(AROUND, finishing=AROUND.finishing + 3.0)
    assert with_noted(with_a_pass, "cpu") == with_a_pass
    for kind in ("gpu", "gpus"):
        found = with_noted(with_a_pass, kind)
        assert found.finishing == pytest.approx(FINISHING[kind] + 3.0)
        assert found.exit == pytest.approx(EXIT[kind])
        assert FINISHING[kind] > FINISHING["cpu"]
        for seconds in (1.1, 0.9, 1.0):
            note(kind, FixedSeconds(finishing=seconds))
        assert with_noted(with_a_pass, kind).finishing == pytest.approx(1.0 + 3.0, abs=0.11)


def test_a_pass_over_all_blocks_is_not_noted_as_seconds_to_finish(plan: Plan) -> None:
    spent = JobSeconds(around=SPENT)
    longer = replace(plan.time.around, finishing=AROUND.finishing + 6.0)
    with_a_pass = replace(plan, time=replace(plan.time, around=longer))
    Session().note_phases(Report(with_a_pass, (), 1, spent, 0, {}, ""), with_a_pass, whole=True)
    assert noted_medians("cpu").finishing is None
    Session().note_phases(Report(plan, (), 1, spent, 0, {}, ""), plan, whole=True)
    assert noted_medians("cpu").finishing == 7.0


@pytest.mark.parametrize(("longer", "noted_by_it"), [(6.0, None), (0.0, 7.0)])
@pytest.mark.parametrize("others", [9.0, 0.01])
def test_what_other_processes_note_meanwhile_does_not_matter(
    plan: Plan, longer: float, noted_by_it: float | None, others: float
) -> None:
    finishing = AROUND.finishing + longer
    found = replace(plan, time=replace(plan.time, around=replace(AROUND, finishing=finishing)))
    note("cpu", FixedSeconds(finishing=0.5))
    report = Report(as_here(found), (), 1, JobSeconds(around=SPENT), 0, {}, "")
    for _ in range(MOST_NOTED):
        note("cpu", FixedSeconds(finishing=others))
    Session().note_phases(report, found, whole=True)
    assert noted_medians("cpu").start == SPENT.start
    assert phase_notes._read()["cpu"]["finishing"][-1] == (noted_by_it or others)


def test_a_search_is_predicted_to_take_longer_than_a_kept_plan(small_case: Path) -> None:
    report = znni.infer(small_case / "volume.h5", "tiny.yaml", "out.h5", ram="900MiB")
    more = report.plan.time.around.planning - AROUND.planning
    assert more == pytest.approx(SEARCHING_SECONDS)
    note("cpu", FixedSeconds(searching=7.0))
    for ram, searching in (("900MiB", 0.0), ("800MiB", 0.0), ("901MiB", 7.0)):  # smaller ones fit
        report = znni.infer(
            small_case / "volume.h5", "tiny.yaml", "out.h5", ram=ram, overwrite=True
        )
        assert report.plan.time.around.planning == pytest.approx(AROUND.planning + searching)


def test_a_run_of_the_command_line_notes_its_phases(small_case: Path) -> None:
    waited = SecondsAround(start=4.0, importing=9.0)
    volume = small_case / "volume.h5"
    report = znni.infer(volume, "tiny.yaml", "out.h5", ram="1001MiB", waited=waited)
    known = noted_medians("cpu")
    assert known.start == 4.0
    assert known.cuda is None
    assert known.searching is not None
    assert known.planning is not None
    both = known.planning + known.searching
    assert both == pytest.approx(report.time.around.planning, abs=0.003)
    assert report.time.around.importing == 9.0
    assert "importing" in str(report)
    znni.infer(volume, "tiny.yaml", "out.h5", ram="1001MiB", overwrite=True)
    assert noted_medians("cpu") == known  # nobody knows how long its process took to start


def test_a_given_plan_and_a_run_that_goes_on_note_nothing(small_case: Path, plan: Plan) -> None:
    znni.infer(small_case / "volume.h5", "tiny.yaml", "out.h5", plan=plan, waited=4.0)
    assert noted_medians("cpu") == FixedSeconds()


def test_starts_of_gpus_count_in_steps_and_for_this_machine_only() -> None:
    here = Machine(gpu(), (gpu(),))
    assert noted_cuda(here) is None
    assert cuda_seconds(here) == START_SECONDS
    note("gpu", FixedSeconds(cuda=1.1))
    assert cuda_seconds(here) == 1.0
    note("gpu", FixedSeconds(cuda=1.2))
    note("gpu", FixedSeconds(cuda=1.2))
    assert cuda_seconds(here) == 1.0
    note("gpus", FixedSeconds(cuda=7.8))
    assert cuda_seconds(replace(here, gpus=2 * here.gpus, used_gpus=2)) == 8.0
    assert cuda_seconds(replace(here, absent=True)) == START_SECONDS


def test_what_a_gpu_takes_to_start_is_building_less_all_else(plan: Plan) -> None:
    on_gpu = replace(
        plan,
        machine=replace(plan.machine, gpus=(gpu(),)),
        gpu_memory=plan.memory,
        time=replace(plan.time, building=START_SECONDS + 0.3),
    )
    spent = JobSeconds(building=1.5, around=SecondsAround(start=1.0, planning=0.5, finishing=0.7))
    report = Report(on_gpu, (), 1, spent, 0, {}, "")
    ready = Session()
    ready.note_phases(report, on_gpu, whole=False)
    ready.note_phases(replace(report, fallbacks=(plan,)), on_gpu, whole=True)
    assert noted_medians("gpu") == FixedSeconds()
    ready.note_phases(report, on_gpu, whole=True)
    assert noted_medians("gpu") == FixedSeconds(
        start=1.0, planning=0.5, cuda=pytest.approx(1.2), finishing=0.7
    )
