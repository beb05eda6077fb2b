"""Sweeps of tiled networks on a GPU: values of all formats go on from block to block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from emulated_gpu import ORDERS, emulated_gpu, needs_emulation
from emulated_plans import ERRORS, MACHINE, mostly_packed, primitives
from numpy.typing import NDArray
from stopped_runs import Counting
from test_emulated_tiled_networks import RESIDUAL, UNET, VALID_UNET
from test_tiled_sweeps import Case

from bench.unet_networks import UNETS
from planner.cost_model import BUILT_IN
from planner.search import GAIN_OF_SWEEPS, Search
from znni.calibration.overhead_figures import run_overhead
from znni.core.option_types import Accuracy
from znni.core.shapes import AXES, Axis, Vec3, extent, resized
from znni.engine.backends.cuda.graphs import DeviceGraphs
from znni.engine.backends.cuda.step_runner import CudaStepRunner
from znni.engine.executor import BuiltStep
from znni.engine.tiles import for_job, make_job
from znni.inference.planning import search
from znni.machine.detect import detect_machine
from znni.machine.machine import Machine
from znni.network.input_scaling import InputScaling
from znni.network.layers import PackedLayer
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import Float32
from znni.plans.accuracy import filter_by_class
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, on_device
from znni.plans.program import program_of
from znni.plans.rewrites.network_rules import as_given
from znni.plans.rewrites.split_convolution import split, splittable
from znni.primitives.catalogue import catalogue
from znni.primitives.reference import Float64

OPTIONS: dict[str, Any] = {"border": "same", "pad": "constant"}


def search_on(
    machine: Machine, known: Catalogue, network: Network, size: Vec3, *, splits: bool = False
) -> Search:
    """The search for plans of a network on a GPU, over a volume of a size."""
    job = make_job(network, size, roi=None, **OPTIONS)
    overhead = run_overhead(machine)
    placed = for_job(network, job)
    placed = split(placed, splittable(placed)) if splits else placed
    return Search(placed, job.output, machine, known, overhead, BUILT_IN, "none", "gpu")


def uneven(maps: int, size: Vec3, axis: Axis) -> Float32:
    """Values that grow along an axis, and fall again, so that the scale of packed ones does too."""
    values = np.random.default_rng(0).standard_normal((maps, *size), np.float32)
    factors = 0.01 ** np.abs(np.linspace(-1, 1, extent(size, axis), dtype=np.float32))
    return values * factors.reshape(resized(Vec3(1, 1, 1), axis, extent(size, axis)))


class Noted:
    """The steps that are queued for each recording, by the key that equal work shares."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work: defaultdict[Hashable, set[tuple[str, ...]]] = defaultdict(set)
        steps: list[str] = []
        call = CudaStepRunner.call

        def noted(runner: CudaStepRunner, built: BuiltStep, *arguments: Any) -> Any:
            steps.append(built.placed.step.gives)
            return call(runner, built, *arguments)

        def launch(
            _graphs: object, key: Hashable, queue: Callable[[], Any], _record: object
        ) -> Any:
            steps.clear()
            made = queue()
            self.work[key].add(tuple(steps))
            return made

        monkeypatch.setattr(CudaStepRunner, "call", noted)
        monkeypatch.setattr(DeviceGraphs, "launch", launch)


def run(
    plan: Plan, known: Catalogue, volume: NDArray[Any], stop: int = 0
) -> tuple[Float32, Float64]:
    """Run a plan over a volume; if it is to stop after some blocks, it then goes on.

    Returns:
        the output, and that of one evaluation over the whole volume.
    """
    runs = Counting(plan.network, plan, volume, known, **OPTIONS)
    runs.run(finished=runs.run(blocks=stop) if stop else ())
    whole = replace(plan, network=as_given(plan.network))
    return runs.values, Case(volume, whole, OPTIONS | {"roi": None}).expected


@pytest.mark.slow
@needs_emulation
@pytest.mark.parametrize(
    ("text", "accuracy", "axis", "splits"),
    [
        (UNET, "float32", "z", False),
        (UNET, "tf32", "x", True),
        (RESIDUAL, "float32", "y", False),
        (VALID_UNET, "tf32", "z", False),
        (VALID_UNET, "float32", "x", False),
    ],
)
def test_packed_values_go_on_from_block_to_block(
    text: str, accuracy: Accuracy, axis: Axis, splits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, known = network_from_text(text, "network"), mostly_packed(accuracy)
    size, patch = resized(Vec3(8, 8, 12), axis, 16), resized(Vec3(8, 8, 12), axis, 4)
    found = search_on(MACHINE, known, network, size, splits=splits)
    plan = found.sweeping(axis).fastest_for(patch)
    assert plan is not None
    assert bool(plan.network.split) == splits
    assert Plan.from_json(plan.to_json()) == plan
    assert any(isinstance(step.operation, PackedLayer) for step in plan.steps)
    noted = Noted(monkeypatch)
    with emulated_gpu(ORDERS[1]):
        values, expected = run(plan, known, uneven(network.in_features, size, axis), stop=2)
    bound = 2 * ERRORS[accuracy] * np.abs(expected).max()
    np.testing.assert_allclose(values, expected, rtol=0, atol=bound)
    # Recordings of equal work have the same steps, and those before a column have fewer.
    assert all(len(each) == 1 for each in noted.work.values())
    assert len({steps for each in noted.work.values() for steps in each}) > 2


@pytest.mark.slow
@needs_emulation
@pytest.mark.parametrize("axis", AXES)
def test_values_go_on_from_block_to_block(axis: Axis) -> None:
    """The host scales them, or the GPU."""
    network = replace(network_from_text(UNET, "unet"), scaling=InputScaling(1 / 77, -0.7))
    known = filter_by_class(primitives(lambda it: not it.startswith("gpu_packed")), "float32")
    size, patch = resized(Vec3(8, 8, 12), axis, 12), resized(Vec3(8, 8, 12), axis, 4)
    plan = search_on(MACHINE, known, network, size).sweeping(axis).fastest_for(patch)
    assert plan is not None
    volume = np.random.default_rng(0).integers(0, 255, (1, *size), np.uint8)
    with emulated_gpu(ORDERS[1]):
        values, expected = run(plan, known, volume, stop=1)
        scaled, _ = run(replace(plan, input_itemsize=1), known, volume, stop=1)
    bound = ERRORS["float32"] * np.abs(expected).max()
    np.testing.assert_allclose(values, expected, rtol=0, atol=bound)
    np.testing.assert_array_equal(scaled, values)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("accuracy", ERRORS)
def test_planes_that_are_kept_are_a_part_of_the_memory(accuracy: Accuracy, axis: Axis) -> None:
    network, known = network_from_text(UNET, "unet"), mostly_packed(accuracy)
    size = Vec3(64, 64, 64)
    found = search_on(MACHINE, known, network, size).sweeping(axis)
    plan = found.fastest_for(resized(size, axis, 8))
    assert plan is not None
    (part,) = plan.parts
    program = program_of(plan.network, part, 1, 0)
    given = part.input_shape.nbytes
    assert extent(part.input_shape, axis) < extent(plan.input_shape, axis)
    assert program.size + given <= part.working_peak()[0]
    ends = sorted((it.start, it.kept.nbytes) for step in program.steps if (it := step.carried))
    assert len(ends) > 3
    assert sum(nbytes for _, nbytes in ends) == part.kept_bytes == program.size - ends[0][0]


@pytest.mark.slow
def test_a_long_job_of_a_tiled_network_sweeps_on_a_gpu_where_borders_cost_most() -> None:
    found = search(
        UNETS["nnunet"](), Vec3.of(1024), border="same", machine="rtx4090", device="gpu",
        labels=True, input_itemsize=1, costs="built-in",
    )  # fmt: skip
    plain, chosen = replace(found, sweeps=False).fastest()[0], found.fastest()[0]
    assert chosen.is_swept
    assert chosen.gpu_memory is not None
    assert GAIN_OF_SWEEPS * chosen.seconds < plain.seconds
    assert chosen.wasted_work < plain.wasted_work


@pytest.mark.gpu
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("text", [UNET, RESIDUAL, VALID_UNET], ids=["unet", "residual", "valid"])
@pytest.mark.parametrize("accuracy", ERRORS)
def test_tiled_sweeps_on_a_gpu(
    text: str, axis: Axis, accuracy: Accuracy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two columns of 16 blocks, most of which are launched as recordings."""
    here, network = detect_machine(), network_from_text(text, "network")
    known = filter_by_class(on_device(catalogue(here), "gpu"), accuracy)
    across: Axis = "x" if axis == "y" else "y"
    size = resized(resized(Vec3(24, 24, 24), across, 48), axis, 128)
    found = search_on(here, known, network, size)
    patch = resized(Vec3(24, 24, 24), axis, 8)
    recorded: list[object] = []
    record = DeviceGraphs._record

    def noted(graphs: DeviceGraphs, queue: Callable[[], Any]) -> Any:
        recorded.append(queue)
        return record(graphs, queue)

    monkeypatch.setattr(DeviceGraphs, "_record", noted)
    volume = uneven(network.in_features, size, axis)
    for each in (found.sweeping(axis), found):
        recorded.clear()
        plan = each.fastest_for(patch)
        assert plan is not None
        values, expected = run(plan, known, volume, stop=5)
        assert recorded
        bound = 2 * ERRORS[accuracy] * np.abs(expected).max()
        np.testing.assert_allclose(values, expected, rtol=0, atol=bound)
