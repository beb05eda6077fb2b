"""Calibration of GPUs: measurements, their separation from the CPU's, and plans made with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from calibration_cases import QUICK_HANDLING
from command_line import refused, succeeds
from fakes import Lazy, fake_catalogue, fake_gpu_catalogue, gpu
from gpu_layers import H200
from layers import does

from planner.cost_model import BUILT_IN
from znni.calibration.campaign import Campaign
from znni.calibration.choice import cost_model, of_measured_devices
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.device_measure import DeviceWorkbench
from znni.calibration.effort import GPU_FULL, GPU_QUICK
from znni.calibration.measure import Workbench, memory_for
from znni.calibration.record import record, refine
from znni.calibration.shapes import Call, designed_calls
from znni.core.child_process import command_of_program
from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Shape5, Vec3
from znni.machine.detect import detect_host, detect_machine
from znni.machine.gpus_option import VISIBLE
from znni.machine.machine import Machine
from znni.machine.timing import Timing
from znni.network.layers import Conv
from znni.plans.plan import Plan
from znni.plans.primitive import Primitive, cache_key_of, on_device
from znni.primitives.catalogue import catalogue

ON_GPU = on_device(catalogue(Machine(detect_host().host, (H200,))), "gpu")
BOTH = fake_catalogue() | fake_gpu_catalogue()
CONVOLUTION = Call(Conv("conv", 1, 1, Vec3.of(3), "relu"), Shape5(1, 1, 90, 90, 90))
pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def few_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A primitive that no call suits is soon known as one: to draw 40,000 takes seconds."""
    monkeypatch.setattr("znni.calibration.shapes.MOST_DRAWN", 2000)


@pytest.fixture
def both_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fakes of a host and a GPU, which take three and five times the predicted time."""
    here = Machine(BOTH["conv"].device, (gpu(),))
    for module in ("inference.planning", "calibration.campaign", "calibration.record"):
        monkeypatch.setattr(f"znni.{module}.catalogue", lambda _machine: BOTH)
    for module in ("inference.plan_checks", "calibration.campaign", "inference.plan_choice"):
        monkeypatch.setattr(f"znni.{module}.detect_for", lambda *_, **__: here)
    for module in ("inference.planning", "machine.machine_choice"):
        monkeypatch.setattr(f"znni.{module}.machine_for", lambda *_: here)
    monkeypatch.setattr("znni.calibration.io_rates.measure_handling", lambda _: QUICK_HANDLING)
    for workbench, factor in ((Workbench, 3), (DeviceWorkbench, 5)):

        def pretend(
            _: object, primitive: Primitive, call: Call, repeats: int, factor: int = factor
        ) -> Timing:
            seconds = BUILT_IN.estimate(primitive, *call, primitive.cost(*call)).seconds
            return Timing((factor * seconds,) * repeats)

        monkeypatch.setattr(workbench, "__init__", lambda _self, _calls: None)
        monkeypatch.setattr(workbench, "measure", pretend)


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", ON_GPU)
def test_calls_for_a_gpu_keep_it_busy_and_fit(name: str) -> None:
    primitive = ON_GPU[name]
    found = designed_calls(primitive, GPU_QUICK, H200.memory)
    assert len(found) == GPU_QUICK.calls
    for call in found:
        seconds = BUILT_IN.estimate(primitive, *call, primitive.cost(*call)).seconds
        assert GPU_QUICK.shortest <= seconds <= GPU_QUICK.longest
    elements, beside = memory_for([(primitive, call) for call in found])
    assert 4 * elements + beside <= H200.memory


@pytest.mark.slow_cases
@pytest.mark.usefixtures("few_are_drawn")
@pytest.mark.parametrize("name", ON_GPU)
def test_no_call_for_a_gpu_fits_little_memory(name: str) -> None:
    assert designed_calls(ON_GPU[name], GPU_FULL, 2**20) == []


def test_conditions_of_a_gpu_are_its_own() -> None:
    here = Conditions.of(H200)
    assert here.device == "NVIDIA H200 (compute capability 9.0)"
    assert (here.caches, here.threads) == ("", 0)
    assert "numba" not in here.libraries
    assert "thread" not in str(here)
    assert Conditions.of(replace(H200, capability=80)) != here


@pytest.mark.usefixtures("both_here")
def test_each_device_is_measured_or_both(database: CostDatabase) -> None:
    assert rows("--device", "gpu") == [name for name in BOTH if name.startswith("gpu_")]
    assert database.measured(Conditions.of(BOTH["conv"].device)) == []
    assert len(database.measured(Conditions.of(gpu()))) == 3 * GPU_QUICK.calls
    assert rows("--device", "cpu") == [name for name in BOTH if not name.startswith("gpu_")]
    assert rows() == list(BOTH)
    assert rows("--only", "gpu_conv", "--forget") == ["gpu_conv"]
    assert "no primitive 'conv'" in refused("calibrate", "--device", "gpu", "--only", "conv")


# Measures its primitives, and says which GPU it sees; or fails on the second one.
MEASURES = """
import os, sys
from fakes import fake_gpu_catalogue
from znni.calibration.campaign import Campaign
from znni.calibration.database import CostDatabase
from znni.calibration.effort import GPU_QUICK
from znni.calibration.record import record

gpu, fails, arguments = os.environ["CUDA_VISIBLE_DEVICES"], sys.argv[1], sys.argv[2:]
if gpu == fails:
    sys.exit("znni: error: out of memory")
assert arguments[:4] == ["calibrate", "--device", "gpu", "--quick"]
names = [name for name in arguments[4:] if name != "--only"]
found = fake_gpu_catalogue()
for calls in Campaign([found[name] for name in names], GPU_QUICK).rounds:
    record([(primitive, call, 1.0 + int(gpu)) for primitive, call in calls], CostDatabase())
"""


@pytest.fixture
def two_gpus(both_here: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Two GPUs that are alike, whose processes only pretend; one of them may fail."""
    assert both_here is None
    here = Machine(BOTH["conv"].device, (gpu(), gpu()))
    monkeypatch.setattr("znni.calibration.campaign.detect_for", lambda *_, **__: here)
    monkeypatch.delenv(VISIBLE, raising=False)

    def fails(number: str) -> None:
        def command(_module: str, *arguments: str) -> list[str]:
            return [*command_of_program(MEASURES), number, *arguments]

        monkeypatch.setattr("znni.calibration.several_gpus.command_of", command)

    fails("none")
    return fails


@pytest.mark.usefixtures("two_gpus")
def test_gpus_share_the_measurements(database: CostDatabase) -> None:
    names = [name for name in BOTH if name.startswith("gpu_")]
    assert rows("--device", "gpu", "--gpus", "all") == names
    found = database.measured(Conditions.of(gpu()))
    assert len(found) == len(names) * GPU_QUICK.calls
    seconds = {it.primitive: it.seconds for it in found}
    assert seconds == {name: 1.0 + place % 2 for place, name in enumerate(names)}
    assert rows("--gpus", "0,1", "--only", "gpu_conv", "--forget") == ["gpu_conv"]


def test_gpus_that_cannot_share_are_errors(
    two_gpus: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, database: CostDatabase
) -> None:
    said = refused("calibrate", "--quick", "--gpus", "3")
    assert said == "--gpus 3: this machine has 2 GPUs, numbered from 0"
    said = refused("calibrate", "--net", "n337", "--gpus", "all")
    assert said == "--gpus all is for all primitives; leave out either this or --net"
    two_gpus("1")
    said = refused(
        "calibrate", "--quick", "--device", "gpu", "--gpus", "all", code=RunFailed.exit_code
    )
    assert said == "measuring on GPU 1 failed (exit code 1): out of memory"
    mixed = Machine(BOTH["conv"].device, (gpu(), replace(gpu(), name="another")))
    monkeypatch.setattr("znni.calibration.campaign.detect_for", lambda *_, **__: mixed)
    assert "these are of 2 kinds" in refused("calibrate", "--quick", "--gpus", "all")
    assert database.measured(Conditions.of(mixed.gpus[1])) == []


def rows(*options: str) -> list[str]:
    """Return the primitives in the table of a quick calibration."""
    table, *_ = succeeds("calibrate", "--quick", *options).split("\n\n")
    return [row.split()[0] for row in table.splitlines()[1:]]


@pytest.mark.usefixtures("both_here")
def test_what_one_device_has_in_common_says_nothing_of_the_other() -> None:
    succeeds("calibrate", "--quick")
    model = cost_model(BOTH, "measured")
    for name, factor in (("conv", 3), ("gpu_conv", 5)):
        cost = BOTH[name].cost(*CONVOLUTION)
        built_in = BUILT_IN.estimate(BOTH[name], *CONVOLUTION, cost).seconds
        measured = model.estimate(BOTH[name], *CONVOLUTION, cost).seconds
        assert measured == pytest.approx(factor * built_in, rel=0.1)


@pytest.mark.usefixtures("both_here")
def test_measured_devices_are_told_apart() -> None:
    """So plans of theirs are kept, and not mixed up."""
    late = Lazy(BOTH, "both")
    assert of_measured_devices(late) is late
    succeeds("calibrate", "--quick", "--device", "gpu")
    found = of_measured_devices(late)
    assert list(found) == [name for name in BOTH if name.startswith("gpu_")]
    assert cache_key_of(found) == "both, measured on gpu"
    succeeds("calibrate", "--quick", "--device", "cpu")
    assert list(of_measured_devices(late)) == list(BOTH)
    assert cache_key_of(of_measured_devices(late)) == "both, measured on cpu and gpu"


@pytest.mark.usefixtures("both_here", "small_case")
def test_plans_for_a_gpu_are_made_from_what_was_measured_of_it() -> None:
    show = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5")
    assert "run znni calibrate with --device gpu" in refused(
        *show, "--device", "gpu", "--costs", "measured"
    )
    succeeds("calibrate", "--quick", "--device", "cpu")
    assert "gpu_conv" not in succeeds(*show, "--costs", "measured")
    succeeds("calibrate", "--quick", "--device", "gpu")
    table = succeeds(*show, "--device", "gpu", "--costs", "measured")
    assert "gpu_conv" in table
    assert "predicted (measured on this machine on 20" in table


@pytest.mark.usefixtures("both_here")
def test_runs_on_a_gpu_refine_its_calibration_without_looking_at_it_again(
    small_case: Path, database: CostDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.machine.detect.detect_gpus", lambda: pytest.fail("looked again"))
    show = ("plan", "--net", "tiny.yaml", "--volume", "volume.h5", "--device", "gpu")
    succeeds(*show, "--out", "plan.json")
    made = Plan.from_json((small_case / "plan.json").read_bytes())
    steps, machine = made.steps, made.machine
    timings = [(step, 0.25) for step in steps]
    refine(timings, machine, "gpu")
    assert database.measured(Conditions.of(gpu())) == []
    record([(BOTH["conv"], CONVOLUTION, 0.5)], database)
    refine(timings, machine, "gpu")
    assert database.measured(Conditions.of(gpu())) == []
    record([(BOTH["gpu_conv"], CONVOLUTION, 0.5)], database)
    refine(timings, machine, "gpu")
    calibrated, *refined = database.measured(Conditions.of(gpu()))
    assert calibrated.seconds == 0.5
    assert [(m.primitive, m.seconds) for m in refined] == [(s.primitive, 0.25) for s in steps]


def test_a_machine_without_a_gpu_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.calibration.campaign.detect_for", lambda *_, **__: detect_host())
    monkeypatch.setattr("znni.calibration.campaign.why_no_gpu", lambda: "CUDA finds no GPU")
    said = refused("calibrate", "--device", "gpu")
    assert said == "--device gpu: CUDA finds no GPU; give --device cpu"
    with pytest.raises(InvalidInput, match="nothing was measured yet on fake GPU"):
        cost_model(fake_gpu_catalogue(), "measured")


@pytest.fixture
def here() -> dict[str, Primitive]:
    """Return the primitives of this machine's GPU."""
    return on_device(catalogue(detect_machine()), "gpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gpu_direct", "gpu_direct_pooled", "gpu_max_pooling_fragments"])
def test_a_call_is_built_and_timed_by_the_gpu(here: dict[str, Primitive], name: str) -> None:
    primitive = here[name]
    call = Call(*does(primitive))
    timing = DeviceWorkbench([(primitive, call)]).measure(primitive, call, repeats=3)
    assert len(timing.seconds) == 3
    assert 0 < timing.median < 1


@pytest.mark.gpu
def test_a_campaign_on_the_gpu(here: dict[str, Primitive]) -> None:
    few = replace(GPU_QUICK, calls=1, longest=5e-3)
    measured = list(Campaign([here["gpu_direct"], here["gpu_max_pooling"]], few).run())
    assert [primitive.name for primitive, _, _ in measured] == ["gpu_direct", "gpu_max_pooling"]
    assert all(few.shortest / 5 < seconds < 5 * few.longest for *_, seconds in measured)
