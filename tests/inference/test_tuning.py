"""The calibration of a network: what is measured, when it ends, and the plan that it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import exp
from random import Random

import pytest
from emulated_gpu import emulated_gpu, needs_emulation
from emulated_plans import MACHINE, primitives
from fakes import GPU, Fake, FakeOnGpu, fake_catalogue, fake_gpu_catalogue, machine
from planner_cases import NETWORK, NO_OVERHEAD

from planner.cost_model import BUILT_IN
from planner.repricing import repriced
from planner.search import Search
from znni.calibration import device_measure
from znni.calibration.choice import cost_model
from znni.calibration.database import CostDatabase
from znni.calibration.device_measure import DeviceWorkbench
from znni.calibration.measure import Workbench
from znni.calibration.overhead_figures import run_overhead
from znni.calibration.plan_measurement import measure
from znni.calibration.shapes import Call
from znni.core.shapes import Vec3
from znni.inference import tuning
from znni.inference.tuning import Tuned, tune, tuning_text
from znni.machine.machine import Machine
from znni.machine.timing import Timing
from znni.plans.accuracy import filter_by_class
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, Primitive, convolved


@dataclass(frozen=True)
class Near(Fake):
    """A primitive of another kind, which may be about as fast."""


@dataclass(frozen=True)
class Far(Fake):
    """A primitive of a third kind, which is much slower."""


CATALOGUE = fake_catalogue(Near("near", convolved, 120.0), Far("far", convolved, 400.0))

Factor = Callable[[Primitive, Call], float]

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Call]]:
    """Measurements that only pretend to run; return what was measured.

    A fake of the kind ``Near`` is faster than it says. All others are as fast.
    """
    return pretending(monkeypatch, lambda it, _: 0.75 if isinstance(it, Near) else 1.0)


def pretending(monkeypatch: pytest.MonkeyPatch, factor: Factor) -> list[tuple[str, Call]]:
    """Pretend to measure calls that take ``factor`` times as long as predicted."""
    found: list[tuple[str, Call]] = []

    def pretend(_: object, primitive: Primitive, call: Call, repeats: int) -> Timing:
        found.append((primitive.name, call))
        seconds = BUILT_IN.estimate(primitive, *call, primitive.cost(*call)).seconds
        return Timing((factor(primitive, call) * seconds,) * repeats)

    monkeypatch.setattr(Workbench, "measure", pretend)
    monkeypatch.setattr(DeviceWorkbench, "__init__", lambda _self, _calls: None)
    monkeypatch.setattr(DeviceWorkbench, "measure", pretend)
    return found


def search_for(catalogue: Catalogue = CATALOGUE, on: Machine | None = None) -> Search:
    on = on or machine(10**6)
    return Search(NETWORK, Vec3(12, 20, 24), on, catalogue, NO_OVERHEAD, cost_model(catalogue))


def tuned(search: Search, seconds: float = 1e9) -> Tuned:
    return tune(search, search.fastest()[0], seconds, lambda _done, _planned, _beside: None)


def convolutions(plan: Plan) -> set[str]:
    return {str(step.primitive) for step in plan.steps if step.conv}


def test_only_what_may_change_the_choice_is_measured(measured: list[tuple[str, Call]]) -> None:
    result = tuned(search_for())
    assert convolutions(result.before) == {"conv"}
    assert convolutions(result.after) == {"near"}
    assert result.after.seconds < result.before_now.seconds
    assert {"conv", "near"} <= {name for name, _ in measured} <= {*CATALOGUE} - {"far"}
    assert (result.measured, result.left) == (len(measured), 0)
    times = Counter(measured)
    own = {(step.primitive, Call(step.operation, step.shape_in)) for step in result.after.steps}
    assert {times[call] for call in own} == {2}, "they were measured on their own images"
    assert max(times.values()) == 2
    before = len(measured)
    again = tuned(search_for())
    assert (again.measured, len(measured)) == (0, before)
    assert again.after == result.after
    assert "all layers keep their primitives" in tuning_text(again)


@pytest.mark.slow_cases
@pytest.mark.parametrize("seed", range(8))
def test_the_plan_is_that_of_a_search_in_which_all_was_measured(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    kinds = {kind: random.uniform(-0.25, 0.25) for kind in (Fake, Near, Far)}

    def factor(primitive: Primitive, call: Call) -> float:
        own = Random(f"{seed} {primitive.name} {call.operation}").uniform(-0.05, 0.05)
        return exp(kinds[type(primitive)] + own)

    some = pretending(monkeypatch, factor)
    result = tuned(search_for())
    needed = len(some)
    for plan in search_for().fastest(40):
        for step in plan.steps:
            for primitive in CATALOGUE.values():
                if primitive.out_shape(step.operation, step.shape_in) == step.shape_out:
                    measure(primitive, Call(step.operation, step.shape_in))
    everything = search_for()
    best = everything.fastest()[0]
    assert convolutions(result.after) == convolutions(best)
    assert repriced(result.after, everything).seconds == pytest.approx(best.seconds, rel=0.01)
    assert needed < len(some) / 3


def test_a_gpu_is_measured_in_the_same_way(measured: list[tuple[str, Call]]) -> None:
    @dataclass(frozen=True)
    class NearOnGpu(Near, FakeOnGpu):
        """A primitive of a GPU that is faster than it says."""

    near = NearOnGpu("gpu_near", convolved, 11.0, device=GPU)
    here = Machine(machine(10**6).host, (GPU,))
    result = tuned(search_for({**CATALOGUE, **fake_gpu_catalogue(), near.name: near}, here))
    assert convolutions(result.after) == {"gpu_near"}
    assert {name for name, _ in measured} >= {"gpu_conv", "gpu_near"}


@pytest.mark.slow
@needs_emulation
def test_the_kernels_of_a_gpu_run_when_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    run = DeviceWorkbench.measure
    found: list[str] = []

    def once(call: Callable[[], object], repeats: int) -> Timing:
        call()
        return Timing((1.0,) * repeats)

    def pretend(bench: DeviceWorkbench, primitive: Primitive, call: Call, repeats: int) -> Timing:
        run(bench, primitive, call, 1)
        found.append(primitive.name)
        seconds = BUILT_IN.estimate(primitive, *call, primitive.cost(*call)).seconds
        return Timing((Random(primitive.name).uniform(0.8, 1.3) * seconds,) * repeats)

    monkeypatch.setattr(device_measure, "timed_on_device", once)
    monkeypatch.setattr(DeviceWorkbench, "measure", pretend)
    known = filter_by_class(primitives(), "float32")
    overhead = run_overhead(MACHINE)
    search = Search(NETWORK, Vec3(4, 6, 6), MACHINE, known, overhead, device="gpu")
    with emulated_gpu():
        result = tuned(search)
    assert not result.left
    assert {str(step.primitive) for step in result.after.steps} <= set(found)


def test_no_call_is_begun_when_the_time_is_up(
    measured: list[tuple[str, Call]], monkeypatch: pytest.MonkeyPatch, database: CostDatabase
) -> None:
    monkeypatch.setattr(tuning, "perf_counter", count(0.0, 1.0).__next__)
    result = tuned(search_for(), 3.0)
    assert result.measured == len(measured) == 2
    assert result.left == len({step.operation for step in result.before.steps}) - 2
    assert f"the time is up, and {result.left} other calls may change" in tuning_text(result)
    assert database.there


@pytest.mark.parametrize(("kernels", "counted"), [(0.0, 2), (0.5, 4)])
def test_compiling_the_kernels_of_a_plan_does_not_count_as_time(
    kernels: float,
    counted: int,
    measured: list[tuple[str, Call]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "perf_counter", count(0.0, 1.0).__next__)
    monkeypatch.setattr(tuning, "compiled_seconds", count(0.0, kernels).__next__)
    search = search_for()
    tune(search, search.fastest()[0], 3.0, lambda *_: None)
    assert len(measured) == counted


def test_progress_names_the_layer_and_its_primitive(measured: list[tuple[str, Call]]) -> None:
    shown: list[tuple[int, int, str]] = []
    search = search_for()
    tune(search, search.fastest()[0], 1e9, lambda *said: shown.append(said))
    names = [f"{call.operation.name} by {name}" for name, call in measured]
    assert [beside for _, _, beside in shown if beside != "searching"] == names
    assert all(done <= planned for done, planned, _ in shown)


def test_a_machine_that_is_busy_is_told(
    measured: list[tuple[str, Call]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tuning, "slowdown", lambda: 1.5)
    tuned(search_for())
    assert measured
    assert "other programs slow measurements down 1.5 times" in caplog.text


@pytest.mark.parametrize("memory", [10**6, 150_000])
def test_a_plan_has_the_same_time_when_it_is_priced_again(memory: int) -> None:
    search = search_for(on=machine(memory))
    for plan in search.fastest(5):
        assert repriced(plan, search) == plan


@pytest.mark.usefixtures("measured")
def test_layers_that_changed_are_shown() -> None:
    done, _, *times, _, header, first, _, _ = tuning_text(tuned(search_for())).splitlines()
    assert done.endswith("no other plan can be faster within the error of its time")
    assert [line.split("  ")[0] for line in times] == ["before", "before, by times of now", "now"]
    assert header.split() == ["layer", "before", "now"]
    assert first.split() == ["conv1", "conv", "near"]
