"""Whole patches and volumes on a GPU, by the reference's convolutions and our own poolings."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from command_line import OUTPUT, attributes, read_main, succeeds
from fakes import FakeOnGpu, fake_catalogue
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import NETWORKS
from random_networks import networks
from random_plans import any_plan, random_volume, run

import znni
from bench.reference import sliding_output
from planner.search import Search
from znni.calibration.overhead_figures import run_overhead
from znni.core.memory_errors import OutOfDeviceMemory
from znni.core.option_types import Border, OutputType
from znni.core.shapes import Vec3
from znni.engine.backends.cuda import step_runner
from znni.engine.backends.cuda.part_runner import DevicePartRunner, Launched
from znni.engine.block import alone
from znni.engine.executor import Fragments
from znni.engine.patch_runner import PatchRunner
from znni.engine.stages.convert import convert
from znni.engine.stopwatch import Stopwatch
from znni.inference import planning
from znni.machine.cuda import cupy, device_errors
from znni.machine.detect import detect_machine
from znni.machine.device_arena import DEVICE_BYTES, DeviceArena
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.network.weights import Float32, random_weights
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue, convolved, on_device
from znni.plans.segments import Step
from znni.primitives.catalogue import catalogue

pytestmark = pytest.mark.gpu

# Patches of a run whose memory is watched.
PATCHES = 8


def primitives(machine: Machine) -> Catalogue:
    """The machine's, with a convolution that is sure to be there, and none else."""
    found = {name: p for name, p in catalogue(machine).items() if "pool" in name}
    if not machine.gpus:
        return found
    return found | {"gpu_conv": FakeOnGpu("gpu_conv", convolved, 1e-3, device=machine.gpus[0])}


@settings(max_examples=30)
@given(networks(), st.integers(0, 99), st.data())
def test_first_layers_on_the_host_change_nothing(
    network: Network, seed: int, data: st.DataObject
) -> None:
    """Patch after patch at a time, as in a run."""
    patch = network.total_pooling
    catalogue = {**on_device(primitives(detect_machine()), "gpu"), **fake_catalogue()}
    plan = any_plan(data.draw, network, patch * 2, patch, "auto", catalogue)
    weights, volume = random_weights(network, 7), random_volume(network, patch * 2, seed)
    expected = sliding_output(network, weights, volume * np.float32(0.5) + np.float32(0.25))
    found = run(PatchRunner(plan, catalogue, weights), weights, volume)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def planned(network: Network, output: Vec3, gpu_memory: int | str | None = None) -> Plan:
    here = detect_machine(gpu_memory=gpu_memory)
    on_gpu = on_device(primitives(here), "gpu")
    return Search(network, output, here, on_gpu, run_overhead(here)).fastest()[0]


def patch_of(plan: Plan, seed: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(plan.input_shape[1:], np.float32)


@settings(max_examples=30)
@given(networks(), st.integers(0, 99), st.booleans())
def test_any_network_is_the_reference(network: Network, seed: int, tight: bool) -> None:
    output = network.total_pooling * 2
    plan = planned(network, output)
    if tight:
        plan = planned(network, output, planned_least(network, output))
    weights = random_weights(network, 7)
    runner = PatchRunner(plan, primitives(plan.machine), weights)
    patches = [patch_of(plan, seed + index) for index in range(3)]
    launch, finish = runner.stages(Stopwatch())
    begun = [alone(patch).through(launch) for patch in patches[:2]]
    found = [*(block.through(finish).values for block in begun), runner(patches[2])]
    for x, y in zip(patches, found, strict=True):
        np.testing.assert_allclose(y, sliding_output(network, weights, x), rtol=1e-4, atol=1e-5)


def planned_least(network: Network, output: Vec3) -> int:
    """Bytes of the GPU that the smallest plan takes."""
    here = detect_machine()
    on_gpu = on_device(primitives(here), "gpu")
    overhead = run_overhead(here)
    return Search(network, output, here, on_gpu, overhead).smallest().device_memory.total


@pytest.mark.parametrize("dtype", get_args(OutputType))
def test_the_gpu_converts_as_the_host_does(dtype: OutputType) -> None:
    network = znni.load_network(NETWORKS / "boundaries.yaml")
    plan = planned(network, network.total_pooling * 2)
    weights = random_weights(network, 3)
    x = 3 * patch_of(plan, 1)
    values = PatchRunner(plan, primitives(plan.machine), weights)(x)
    stored = PatchRunner(plan, primitives(plan.machine), weights, dtype=dtype)(x)
    assert stored.dtype == dtype
    np.testing.assert_array_equal(stored, convert(values, dtype))


@pytest.mark.whole_gpu
def test_memory_is_what_the_plan_says_and_the_same_in_every_patch() -> None:
    network = znni.load_network(NETWORKS / "boundaries.yaml")
    plan = planned(network, network.total_pooling * 6)
    arenas: list[DeviceArena] = []

    class Kept(DeviceArena):
        def __init__(self, capacity: int, spare: int) -> None:
            super().__init__(capacity, spare)
            arenas.append(self)

    calls: list[Step] = []
    left: list[int] = []
    pooled: set[int] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_runner, "DeviceArena", Kept)
        before = free_bytes()
        runner = PatchRunner(
            plan,
            primitives(plan.machine),
            random_weights(network, 0),
            lambda step, seconds: calls.append(step) if seconds > 0 else None,
        )
        for seed in range(PATCHES):
            runner(patch_of(plan, seed))
            left.append(free_bytes())
            pooled.add(cupy().get_default_memory_pool().total_bytes())
    assert len(pooled) == 1
    # The driver takes a few KiB more for its own events in one of the first patches.
    assert len(set(left[3:])) == 1, left
    (arena,) = arenas
    assert arena.peak <= plan.device_memory.working - plan.input_shape.nbytes + 2**20
    assert before - left[-1] <= plan.device_memory.total
    runs = sum(n * len(segment.steps) for segment, n in plan.runs())
    assert len(calls) == PATCHES * runs


def free_bytes() -> int:
    return int(cupy().cuda.Device().mem_info[0])


def test_too_little_memory_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    network = znni.load_network(NETWORKS / "boundaries.yaml")
    plan = planned(network, network.total_pooling)
    monkeypatch.setattr(step_runner, "DeviceArena", lambda _, **__: DeviceArena(2**50))
    with pytest.raises(OutOfDeviceMemory, match=r"has too little memory left .* gpu_memory='4GiB'"):
        PatchRunner(plan, primitives(plan.machine), random_weights(network, 0))


@pytest.mark.usefixtures("small_case")
def test_a_run_goes_on_where_the_memory_of_the_gpu_ran_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = np.random.default_rng(0).random((60, 61, 70), np.float32)
    expected = znni.Inferer("tiny.yaml", device="cpu")(x)
    monkeypatch.setattr(planning, "catalogue", primitives)
    launch, failing = DevicePartRunner.launch, [True]

    def fails_once(layers: DevicePartRunner, given: Fragments, **options: Any) -> Launched:
        if failing and failing.pop():
            with device_errors("the GPU"):
                DeviceArena(2**50)
        return launch(layers, given, **options)

    monkeypatch.setattr(DevicePartRunner, "launch", fails_once)
    found = np.empty_like(expected)
    report = znni.infer(x, "tiny.yaml", found, device="gpu")
    assert len(report.fallbacks) == 1
    assert "memory of the GPU ran out under a plan of" in caplog.text
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("small_case")
def test_a_volume_through_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ("infer", "volume.h5", "--net", "tiny.yaml", "--overwrite", "--costs", "built-in")
    expected = {}
    for dtype in get_args(OutputType):
        succeeds(*run, "--dtype", dtype, "--device", "cpu", "--out", "cpu.h5")
        expected[dtype] = read_main("cpu.h5").astype(np.float64)
    monkeypatch.setattr(planning, "catalogue", primitives)
    for dtype, values in expected.items():
        said = succeeds(*run, "--dtype", dtype, "--device", "gpu", "--out", "gpu.h5")
        assert "voxels in" in said
        noted = attributes("gpu.h5")
        taken, promised = noted["gpu_peak_memory_bytes"], noted["predicted_gpu_memory_bytes"]
        assert (promised - DEVICE_BYTES) / 2 < taken <= promised
        found = read_main("gpu.h5")
        assert found.shape == OUTPUT
        assert found.dtype == dtype
        step = 1 if dtype == "uint8" else 2e-3 if dtype == "float16" else 1e-5
        np.testing.assert_allclose(found.astype(np.float64), values, rtol=0, atol=step)


@pytest.mark.usefixtures("small_case")
def test_the_inferer_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).random((12, 21, 30), np.float32)
    expected = znni.Inferer("tiny.yaml", device="cpu")(x)
    monkeypatch.setattr(planning, "catalogue", primitives)
    inferer = znni.Inferer("tiny.yaml", device="gpu", gpu_memory="1GiB")
    for _ in range(2):
        np.testing.assert_allclose(inferer(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["boundaries", "cells-unet"])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
@pytest.mark.parametrize("border", ["valid", "same"])
def test_stored_integers_are_scaled_there_to_the_bits_of_the_host(
    name: str, dtype: str, border: Border
) -> None:
    network = znni.load_network(NETWORKS / f"{name}.yaml")
    ends = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(ends.min, ends.max, (130, 140, 150), dtype)
    options: Any = {"device": "gpu", "border": border, "costs": "built-in"}
    plan = znni.plan(network, x.shape, gpu_memory="512MiB", **options)
    inferer = znni.Inferer(network, random_weights(network, 0), plan=plan, **options)
    found, expected = inferer(x), inferer(x.astype(np.float32))
    np.testing.assert_array_equal(found, expected)
    assert expected.std() > 0


def test_what_is_there() -> None:
    here = detect_machine(gpu_memory="2GiB")
    gpu = here.gpus[0]
    assert gpu.kind == "gpu"
    assert gpu.memory == 2**31
    assert gpu.capability >= 50
    assert 1e12 < gpu.flops < 1e15
    assert 1e11 < gpu.bandwidth < 1e14
