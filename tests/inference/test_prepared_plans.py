"""Plans that are kept, and other work, stay within the memory together."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from znni.core.plan_options import Choices
from znni.core.processors import GPU, HOST
from znni.inference import prepared_plans
from znni.inference.prepared_plans import PreparedPlans

ALLOWED = 1000
PROCESS = 100


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> PreparedPlans:
    here = SimpleNamespace(host=SimpleNamespace(memory=ALLOWED), gpus=())
    monkeypatch.setattr(prepared_plans, "machine_here", lambda _choices: here)
    monkeypatch.setattr(prepared_plans, "prepared_as", lambda plan: plan.memory.total)
    found = PreparedPlans(Choices())
    found.look_up_limits()
    return found


def plan_of(nbytes: int) -> Any:
    """Return a plan that takes so many bytes beside the process."""
    memory = SimpleNamespace(total=PROCESS + nbytes, process=PROCESS, weights=0)
    return SimpleNamespace(memory=memory, gpu_memory=None, workers=1)


def ready(kept: PreparedPlans, name: str, nbytes: int) -> None:
    kept.get(plan_of(nbytes), name, lambda plan: SimpleNamespace(plan=plan))  # type: ignore[arg-type, return-value]


class Taker(threading.Thread):
    """Takes memory until it is told to give it back."""

    def __init__(self, kept: PreparedPlans, nbytes: int) -> None:
        super().__init__(daemon=True)
        self._kept, self._nbytes = kept, nbytes
        self.has_it, self.enough = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self._kept.taking(self._nbytes, PROCESS, ALLOWED):
            self.has_it.set()
            self.enough.wait(60)


def test_other_work_goes_on_beside_a_plan_if_it_fits(kept: PreparedPlans) -> None:
    ready(kept, "idle", 300)
    with kept.running():
        ready(kept, "runs", 400)
        assert kept.held(HOST) == 700
        taker = Taker(kept, 500)
        assert taker.has_it.wait(60)
        assert kept.held(HOST) == 400  # what runs is never released
        taker.enough.set()
    taker.join()
    assert kept.held(GPU) == 0


def test_other_work_waits_for_the_plan_that_runs(kept: PreparedPlans) -> None:
    with ExitStack() as running:
        running.enter_context(kept.running())
        ready(kept, "runs", 600)
        taker = Taker(kept, 500)
        assert not taker.has_it.wait(0.2)
        running.close()
        assert taker.has_it.wait(60)
    assert kept.held(HOST) == 0
    taker.enough.set()
    taker.join()


def test_the_next_run_begins_its_blocks_while_this_one_finishes(kept: PreparedPlans) -> None:
    order: list[str] = []
    ready(kept, "both", 500)
    begun = threading.Event()

    def next_run() -> None:
        with kept.running() as turn:
            ready(kept, "both", 500)
            turn.wait_to_compute()
            order.append("next begins")
            begun.set()
            turn.wait_to_finish()
            order.append("next finishes")

    other = threading.Thread(target=next_run, daemon=True)
    with kept.running() as turn:
        turn.wait_to_compute()
        turn.wait_to_finish()
        turn.all_read()
        other.start()
        assert not begun.wait(0.1)
        order.append("finishing")
        turn.finishing()
        assert begun.wait(60)
        other.join(0.1)
        order.append("computed")
        turn.computed()
        other.join(60)
    assert order == ["finishing", "next begins", "computed", "next finishes"]


@pytest.mark.parametrize("next_fails", [False, True])
def test_runs_go_on_after_memory_ran_out_in_the_last_stage(
    kept: PreparedPlans, next_fails: bool
) -> None:
    """The next run has begun by then. Neither waits for the other without end."""
    order: list[str] = []
    ready(kept, "large", 900)
    begun, failed = threading.Event(), threading.Event()

    def smaller() -> None:
        kept.clear()
        ready(kept, "small", 400)

    def next_run() -> None:
        with kept.running() as turn:
            ready(kept, "large", 900)
            turn.wait_to_compute()
            begun.set()
            assert failed.wait(60)
            if next_fails:
                smaller()
            turn.wait_to_compute()
            turn.wait_to_finish()
            order.append("next has finished")

    other = threading.Thread(target=next_run, daemon=True)
    with kept.running() as turn:
        turn.wait_to_compute()
        turn.wait_to_finish()
        turn.finishing()
        other.start()
        assert begun.wait(60)
        failed.set()
        smaller()
        turn.wait_to_compute()
        turn.wait_to_finish()
        order.append("this has finished")
        turn.computed()
    other.join(60)
    assert sorted(order) == ["next has finished", "this has finished"]


def test_the_next_run_reads_and_computes_when_this_one_has(kept: PreparedPlans) -> None:
    """A plan that is still written from is not released for the next one."""
    order: list[str] = []
    begun, computes = threading.Event(), threading.Event()

    def next_run() -> None:
        with kept.running() as turn:
            order.append("next reads")
            begun.set()
            turn.wait_to_compute()
            turn.wait_to_compute()
            order.append("next computes")
            computes.set()
            ready(kept, "next", 600)
            order.append("next is ready")

    other = threading.Thread(target=next_run, daemon=True)
    with kept.running() as turn:
        turn.wait_to_compute()
        ready(kept, "runs", 500)
        other.start()
        assert not begun.wait(0.1)
        order.append("all are read")
        turn.all_read()
        assert begun.wait(60)
        assert not computes.wait(0.1)
        order.append("all are computed")
        turn.computed()
        assert computes.wait(60)
        other.join(0.2)
        assert other.is_alive()
        assert kept.held(HOST) == 500
        order.append("all are written")
    other.join(60)
    assert order == [
        "all are read", "next reads", "all are computed", "next computes", "all are written",
        "next is ready",
    ]  # fmt: skip
    assert kept.held(HOST) == 600


def test_a_run_that_fails_ends_its_turn(kept: PreparedPlans) -> None:
    def fail() -> None:
        with kept.running() as turn:
            turn.wait_to_compute()
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()


def test_a_run_goes_on_after_memory_ran_out_while_the_next_one_waits(kept: PreparedPlans) -> None:
    """The next run, whose plan does not fit beside this one's, takes no memory meanwhile."""
    order: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    def next_run() -> None:
        with kept.running():
            begun.set()
            ready(kept, "next", 700)
            order.append("next is ready")

    def first_run() -> None:
        with kept.running() as turn:
            ready(kept, "first", 800)
            turn.wait_to_compute()
            turn.all_read()
            other.start()
            assert begun.wait(60)
            other.join(0.1)
            kept.clear()
            other.join(0.1)
            ready(kept, "smaller", 400)
            order.append("smaller is ready")
        ended.set()

    other = threading.Thread(target=next_run, daemon=True)
    threading.Thread(target=first_run, daemon=True).start()
    assert ended.wait(60)
    other.join(60)
    assert order == ["smaller is ready", "next is ready"]


def test_other_work_releases_no_plan_that_is_written_from(kept: PreparedPlans) -> None:
    def later_run() -> None:
        with kept.running():
            ready(kept, "later", 300)

    def not_again(_plan: Any) -> Any:
        raise AssertionError

    with kept.running() as turn:
        ready(kept, "runs", 300)
        turn.computed()
        later = threading.Thread(target=later_run, daemon=True)
        later.start()
        later.join(60)
        taker = Taker(kept, 500)
        assert taker.has_it.wait(60)
        kept.get(plan_of(300), "runs", not_again)
        taker.enough.set()
        taker.join()


def test_a_plan_waits_for_other_work(kept: PreparedPlans) -> None:
    taker = Taker(kept, 500)
    assert taker.has_it.wait(60)
    begun = time.monotonic()
    threading.Timer(0.3, taker.enough.set).start()
    ready(kept, "runs", 600)
    assert time.monotonic() - begun >= 0.2
    assert kept.held(HOST) == 600


def test_a_kept_plan_counts_while_it_waits(kept: PreparedPlans) -> None:
    ready(kept, "runs", 400)
    taker = Taker(kept, 300)
    assert taker.has_it.wait(60)
    kept._allowed[HOST] = 700  # other programs took memory since then
    running = threading.Thread(target=ready, args=(kept, "runs", 400), daemon=True)
    running.start()
    running.join(0.2)
    assert running.is_alive()
    assert kept.held(HOST) == 400
    taker.enough.set()
    running.join(60)
    assert not running.is_alive()


def test_work_does_not_wait_for_a_plan_that_waits_for_it(kept: PreparedPlans) -> None:
    """A case ahead may build while the network of the case before waits for its memory."""
    taker = Taker(kept, 500)
    assert taker.has_it.wait(60)
    running = threading.Thread(target=ready, args=(kept, "runs", 600), daemon=True)
    running.start()
    running.join(0.2)
    assert running.is_alive()
    building = threading.Thread(
        target=kept.build_ahead, args=(plan_of(1), "ahead", None, ALLOWED), daemon=True
    )
    building.start()
    building.join(60)
    assert not building.is_alive()
    taker.enough.set()
    running.join(60)
    assert kept.held(HOST) == 600


def test_work_that_is_alone_goes_on(kept: PreparedPlans) -> None:
    with kept.taking(10 * ALLOWED, PROCESS, ALLOWED):
        pass
    ready(kept, "large", 10 * ALLOWED)


@pytest.mark.parametrize(("beside", "built"), [(300, True), (301, False)])
def test_a_plan_is_built_ahead_if_it_fits(kept: PreparedPlans, beside: int, built: bool) -> None:
    made = []

    def prepare(plan: Any) -> Any:
        made.append(plan)
        return SimpleNamespace(plan=plan, wait_until_ready=lambda: None)

    with kept.taking(beside, PROCESS, ALLOWED):
        kept.build_ahead(plan_of(600), "first", prepare, ALLOWED)
    assert bool(made) == built
    kept.get(plan_of(600), "first", prepare)
    kept.build_ahead(plan_of(1), "second", prepare, ALLOWED)  # not after the first run
    assert len(made) == 1
