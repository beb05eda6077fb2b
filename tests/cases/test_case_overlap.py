"""Parts of a case, and of cases in a folder, work at the same time and give the same labels."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from case_reference import OPTIONS, network, run
from case_scans import nibabel, scan, weights_file, write
from waiting import PATIENCE, until

from znni.cases import concurrency as concurrency_module
from znni.cases import folder as folder_module
from znni.cases import network_runs
from znni.cases.case import CaseRun, predict
from znni.cases.case_folder import Case, held, open_folder
from znni.cases.case_report import CaseReport
from znni.cases.concurrency import THREE_EACH, Concurrency
from znni.cases.folder import cases_in, predict_cases
from znni.cases.networks import alone
from znni.core.errors import InvalidInput
from znni.engine.pipeline import PreparedHere
from znni.inference import session as session_module
from znni.inference.open_run import OpenRun
from znni.inference.plan_choice import given_or_found
from znni.inference.prepared_plans import PreparedPlans
from znni.inference.session import Session
from znni.network.network import Network
from znni.network.weights import random_weights


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that searched for a plan."""
    threads: list[threading.Thread] = []

    def noted(*given: Any, **further: Any) -> Any:
        threads.append(threading.current_thread())
        return given_or_found(*given, **further)

    monkeypatch.setattr(session_module, "given_or_found", noted)
    return threads


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each plan was made ready ahead, by calls that made one ready."""
    found: list[bool] = []
    ahead, take = PreparedPlans.build_ahead, PreparedPlans.take

    def build_ahead(self: PreparedPlans, *given: Any) -> None:
        ahead(self, *given)
        found.append(bool(self._kept))

    def taken(self: PreparedPlans, *given: Any) -> Any:
        kept = list(self._kept.values())
        made = take(self, *given)
        assert kept in ([], [made])
        return made

    monkeypatch.setattr(PreparedPlans, "build_ahead", build_ahead)
    monkeypatch.setattr(PreparedPlans, "take", taken)
    return found


def test_a_plan_is_found_and_made_ready_while_the_scan_is_read(
    tmp_path: Path, searches: list[threading.Thread], builds: list[bool]
) -> None:
    values = scan()
    values[values == 0] = 1  # nothing is cropped
    net, file = network(), write(tmp_path / "scan.nii", values)
    run(net, (file,), tmp_path / "labels.nii")
    assert len(searches) == 1
    assert searches[0] is not threading.main_thread()
    assert builds == [True]


def test_a_cropped_scan_has_another_plan(
    tmp_path: Path, searches: list[threading.Thread], builds: list[bool]
) -> None:
    run(network(), (write(tmp_path / "scan.nii", scan()),), tmp_path / "labels.nii")
    assert len(searches) == 2
    assert threading.main_thread() not in searches
    assert builds == [True]


@pytest.mark.parametrize("name", ["plan_ahead", "build_ahead"])
def test_what_fails_ahead_is_left_to_the_run(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, file = network(), write(tmp_path / "scan.nii", scan())
    expected = run(net, (file,), tmp_path / "expected.nii")

    def failing(*_: object) -> None:
        raise InvalidInput("no plan")

    monkeypatch.setattr(Session, name, failing)
    np.testing.assert_array_equal(run(net, (file,), tmp_path / "labels.nii"), expected)


def test_a_user_does_not_wait_for_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, case = network(), Case((write(tmp_path / "a.nii", scan()),), tmp_path / "labels.nii")
    asked = threading.Event()
    monkeypatch.setattr(Session, "plan_ahead", lambda *_: asked.wait(2 * PATIENCE))

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        predict(case, net, random_weights(net, 7), Session(), OPTIONS, stopped)
    assert time.monotonic() - begun < PATIENCE
    asked.set()


def folder_of_cases(folder: Path, names: str = "abc") -> tuple[Network, list[Case]]:
    """Return a network, and cases in a folder."""
    net = network()
    weights_file(folder / "organs.npz", net)
    net = replace(net, weights=folder / "organs.npz")
    for name in ("scans", "out"):
        (folder / name).mkdir()
    for name in names:
        write(folder / "scans" / f"{name}_0000.nii.gz", scan(seed=ord(name)))
    assert net.case is not None
    return net, cases_in(folder / "scans", folder / "out", net.case)


@pytest.mark.slow
def test_the_next_case_is_prepared_while_a_network_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The labels of the case before are written meanwhile. The case in the middle is damaged."""
    net, cases = folder_of_cases(tmp_path, "abcd")
    expected = {
        case.out.name: run(net, case.files, tmp_path / f"alone-{case.out.name}") for case in cases
    }
    damaged = cases[1].files[0]
    damaged.write_bytes(damaged.read_bytes()[:300])
    events: list[str] = []
    compute = OpenRun.compute

    def slow(self: OpenRun) -> Any:
        """Run a network once the next case is prepared, and the one before is being written."""
        name = Path(self._request.out).parent.name[0]
        made = compute(self)
        if name == "c":
            until((tmp_path / "out/d.nii.gz.case/input.npy").exists)
            events.append("d is prepared")
        if name == "d":
            until((tmp_path / "out/c.nii.gz").exists)
            events.append("c is written")
        events.append(f"{name} is computed")
        return made

    monkeypatch.setattr(OpenRun, "compute", slow)
    report = predict_cases(cases, net, OPTIONS)
    assert events[:-1] == ["a is computed", "d is prepared", "c is computed", "c is written"]
    assert [failure.source for failure in report.failures] == [str(damaged)]
    for path in report.reports:
        found = np.asarray(nibabel.load(path).dataobj).T
        np.testing.assert_array_equal(found, expected[path.name])
    assert len(report.reports) == 3


def test_a_case_ahead_waits_if_there_is_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, cases = folder_of_cases(tmp_path)
    taking, memory = PreparedPlans.taking, list[int]()

    def tight(self: PreparedPlans, nbytes: int, process: int, _allowed: int) -> Any:
        return taking(self, nbytes, process, process + nbytes)

    compute = OpenRun.compute

    def watched(self: OpenRun) -> Any:
        self._progress = lambda *_: memory.append(self._session.prepared._beside)
        return compute(self)

    monkeypatch.setattr(PreparedPlans, "taking", tight)
    monkeypatch.setattr(OpenRun, "compute", watched)
    report = predict_cases(cases, net, OPTIONS)
    assert not report.failures
    assert len(memory) >= len(cases)
    assert not any(memory)


@pytest.mark.slow
def test_networks_of_two_cases_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: while the blocks of a case are written, those of the next one are computed."""
    net, cases = folder_of_cases(tmp_path, "abcde")
    expected = {
        case.out.name: run(net, case.files, tmp_path / f"alone-{case.out.name}") for case in cases
    }
    damaged = cases[2].files[0]
    damaged.write_bytes(damaged.read_bytes()[:300])
    monkeypatch.setattr(folder_module, "computed_at_once", lambda _: 2)
    threads = set[str]()
    compute = OpenRun.compute

    def noted(self: OpenRun) -> Any:
        threads.add(threading.current_thread().name)
        return compute(self)

    monkeypatch.setattr(OpenRun, "compute", noted)
    report = predict_cases(cases, net, OPTIONS)
    assert [failure.source for failure in report.failures] == [str(damaged)]
    assert list(report.reports) == [case.out for case in (*cases[:2], *cases[3:])]
    for path in report.reports:
        found = np.asarray(nibabel.load(path).dataobj).T
        np.testing.assert_array_equal(found, expected[path.name])
    assert all(name.startswith("znni-network") for name in threads)


def test_a_run_that_may_measure_is_opened_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would measure beside the network of another case."""
    net, cases = folder_of_cases(tmp_path, "abc")
    monkeypatch.setattr(folder_module, "computed_at_once", lambda _: 2)
    monkeypatch.setattr(network_runs, "may_be_measured", lambda _: True)
    had_turns: list[bool] = []
    find = Session.plan_for

    def noted(self: Session, *given: Any) -> Any:
        had_turns.append(threading.get_ident() in self.prepared._running)
        return find(self, *given)

    monkeypatch.setattr(Session, "plan_for", noted)
    assert not predict_cases(cases, net, OPTIONS).failures
    assert had_turns == [True] * 3


def test_several_cases_are_prepared_and_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports come in the order of the cases, though the first is written last."""
    net, cases = folder_of_cases(tmp_path, "abcd")
    prepared, written = threading.Barrier(2), threading.Event()
    prepare, write = CaseRun.prepare, CaseRun.write

    def together(self: CaseRun) -> None:
        prepared.wait(PATIENCE)
        prepare(self)

    def first_is_last(self: CaseRun) -> CaseReport:
        if self.case is cases[0]:
            assert written.wait(PATIENCE)
        made = write(self)
        written.set()
        return made

    monkeypatch.setattr(CaseRun, "prepare", together)
    monkeypatch.setattr(CaseRun, "write", first_is_last)
    monkeypatch.setattr(folder_module, "concurrency", lambda _limits, most: most)
    report = predict_cases(cases, net, OPTIONS, most=Concurrency(2, 2))
    assert not report.failures
    assert list(report.reports) == [case.out for case in cases]


@pytest.mark.parametrize(
    ("threads", "memory", "expected"),
    [(2, 16, (1, 1)), (16, 64, (3, 3)), (8, 64, (2, 2)), (16, 2, (3, 2)), (16, 0.5, (3, 1))],
)
def test_cores_and_memory_bound_the_cases_at_once(
    threads: int, memory: float, expected: Concurrency, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = SimpleNamespace(threads=threads, memory=int(memory * 2**30))
    monkeypatch.setattr(concurrency_module, "machine_here", lambda _: SimpleNamespace(host=host))
    assert concurrency_module.concurrency(OPTIONS.limits, THREE_EACH) == expected
    assert concurrency_module.concurrency(OPTIONS.limits, Concurrency(0, 0)) == (1, 1)


def test_only_several_cases_keep_their_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, cases = folder_of_cases(tmp_path)
    sessions: list[Session] = []

    def noted(*given: Any, **options: Any) -> Session:
        sessions.append(Session(*given, **options))
        return sessions[-1]

    monkeypatch.setattr(folder_module, "Session", noted)
    assert not predict_cases(cases[:1], net, OPTIONS).failures
    assert not predict_cases(cases, net, OPTIONS, skip_finished=True).failures
    assert [session.keeps for session in sessions] == [False, True]


@pytest.mark.slow_cases
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_stopped_folder_lets_its_cases_go(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "computed_at_once", lambda _: at_once)
    net, cases = folder_of_cases(tmp_path)

    def stopped(_case: Case, step: str, _done: int, _total: int) -> None:
        if step == "network":
            until((cases[1].folder / "input.npy").exists)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_cases(cases, net, OPTIONS, progress=stopped)
    for case in cases[:2]:
        with held(case):
            pass
    report = predict_cases(cases, net, OPTIONS)
    assert len(report.reports) == 3


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_plan_under_which_memory_ran_out_is_not_tried_again(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next case is open already then. If two take turns, its first block may be read, too."""
    monkeypatch.setattr(folder_module, "computed_at_once", lambda _: at_once)
    net, cases = folder_of_cases(tmp_path)
    for case in cases:
        write(case.files[0], scan())
    prepare, ready = CaseRun.prepare, PreparedHere.wait_until_ready
    second_is_open, tried = threading.Event(), list[int]()

    def opened(self: CaseRun) -> None:
        prepare(self)
        if self.case is cases[1]:
            second_is_open.set()

    def short(self: PreparedHere) -> None:
        tried.append(self.plan.memory.total)
        if tried[-1] == tried[0]:
            assert second_is_open.wait(PATIENCE)
            raise MemoryError
        ready(self)

    monkeypatch.setattr(CaseRun, "prepare", opened)
    monkeypatch.setattr(PreparedHere, "wait_until_ready", short)
    monkeypatch.setattr(PreparedPlans, "build_ahead", lambda *_: None)
    report = predict_cases(cases, net, OPTIONS)
    assert not report.failures
    assert len(report.reports) == 3
    assert tried.count(tried[0]) == 1
    assert len(set(tried)) == 2


def test_a_folder_in_use_is_not_emptied(tmp_path: Path) -> None:
    net, case = network(), Case((write(tmp_path / "a.nii", scan()),), tmp_path / "labels.nii")
    with open_folder(case, alone(net), [random_weights(net, 7)], OPTIONS):
        (case.folder / "input.npy").touch()
        with pytest.raises(InvalidInput, match="is in use"):
            predict(case, net, random_weights(net, 8), Session(), OPTIONS)
        assert (case.folder / "input.npy").exists()
