"""The first layers on the host, the others on a GPU: the same numbers wherever that changes."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from fake_cupy import fake_gpu
from hypothesis import given, settings
from hypothesis import strategies as st
from left_behind import threads_here
from random_networks import chain, networks
from random_plans import CATALOGUE, any_plan, plan_of, random_volume, run

from bench.reference import sliding_output
from planner.partition import cut_network
from planner.segmentations import segmentations
from znni.core.shapes import AXES, Shape5, Vec3, offsets
from znni.engine.backends.cuda import recombine as device_recombine
from znni.engine.backends.cuda import step_runner
from znni.engine.backends.cuda.part_runner import DevicePartRunner
from znni.engine.backends.host.part_runner import HostPartRunner
from znni.engine.backends.host.recombine import recombine
from znni.engine.block import alone
from znni.engine.block_reader import BlockReader
from znni.engine.patch_runner import PatchRunner
from znni.engine.pipeline import PreparedHere, run_volume
from znni.engine.run_state import RunState
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Remaining, make_job
from znni.machine import arena
from znni.machine.device_arena import ALIGNMENT, DeviceArena
from znni.network.input_scaling import InputScaling
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.plans.plan import Plan
from znni.volumes.array import ArrayOutput, ArrayVolume

NETWORK = chain(("conv", 2), ("pool", (1, 2, 2)), ("conv", 2), ("pool", (1, 3, 2)), ("conv", 2))
PLACES = {
    "reading": (ArrayVolume, "read"),
    "layers on the host": (HostPartRunner, "tensor"),
    "asking the GPU": (DevicePartRunner, "launch"),
    "waiting for the GPU": (DevicePartRunner, "finish"),
    "writing": (ArrayOutput, "write"),
}


@pytest.fixture(autouse=True)
def on_host() -> Iterator[None]:
    with fake_gpu():
        yield


def test_fragments_start_where_the_host_places_them() -> None:
    patch, stride = Vec3(4, 6, 8), Vec3(2, 3, 4)
    at = tuple(offsets(stride))
    fragments = np.arange(len(at) * 3 * 8, dtype=np.float32).reshape(len(at), 3, 2, 2, 2)
    dense = np.zeros((3, *patch), np.float32)
    recombine(fragments, at, stride, dense)
    firsts = device_recombine.starts(at, patch)
    np.testing.assert_array_equal(dense.reshape(3, -1)[:, firsts], fragments[:, :, 0, 0, 0].T)


@pytest.mark.slow
@settings(max_examples=80)
@given(st.data(), networks(), st.tuples(*[st.integers(1, 5)] * 3), st.integers(0, 99))
def test_any_plan_equals_single_windows(
    data: st.DataObject, network: Network, extents: tuple[int, int, int], seed: int
) -> None:
    output, patch = Vec3(*extents), network.total_pooling
    plan = any_plan(data.draw, network, output, patch, "auto")
    assert Plan.from_json(plan.to_json()) == plan
    weights, volume = random_weights(network, 7), random_volume(network, output, seed)
    expected = sliding_output(network, weights, volume * np.float32(0.5) + np.float32(0.25))
    runner = PatchRunner(plan, CATALOGUE, weights)
    np.testing.assert_allclose(run(runner, weights, volume), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data(), networks(), st.sampled_from(("uint8", "int16")), st.booleans())
def test_blocks_of_stored_values_give_the_bits_of_those_that_the_host_scales(
    data: st.DataObject, network: Network, dtype: str, padded: bool
) -> None:
    network = replace(network, scaling=InputScaling(1 / 77, -0.7))
    output = network.total_pooling * Vec3(2, 2, 1)
    computed = network.sweeping(data.draw(st.sampled_from([None, *AXES])))
    plan = any_plan(data.draw, computed, output, network.total_pooling, "gpu")
    ends = np.iinfo(dtype)
    size = output + network.field_of_view - 1
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))
    volume: Any = numbers.integers(ends.min, ends.max, (network.in_features, *size), dtype)
    job: dict[str, Any] = {"border": "same", "pad": "constant"} if padded else {}
    weights = random_weights(network, 7)
    found = [
        run(PatchRunner(each, CATALOGUE, weights), weights, volume, **job)
        for each in (plan, replace(plan, input_itemsize=ends.bits // 8))
    ]
    np.testing.assert_array_equal(found[1], found[0])


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data(), networks())
def test_every_patch_finds_room_in_what_the_plan_takes_of_each_device(
    data: st.DataObject, network: Network
) -> None:
    patch = network.total_pooling
    network = network.sweeping(data.draw(st.sampled_from([None, *AXES])))
    plan = any_plan(data.draw, network, patch * Vec3(1, 1, 2), patch, "auto")
    weights, volume = random_weights(network, 7), random_volume(network, plan.output, 1)
    aligned = 2 * len(plan.steps) * network.is_swept  # arrays that are there all the time
    mapped, arenas = list[int](), list[DeviceArena]()

    def map_pages(nbytes: int) -> Any:
        mapped.append(nbytes)
        return pages(nbytes)

    class Kept(DeviceArena):
        def __init__(self, capacity: int, spare: int) -> None:
            super().__init__(capacity, spare)
            arenas.append(self)

    pages = arena.map_pages
    with (
        mock.patch.object(arena, "SMALL", 1),
        mock.patch.object(arena, "map_pages", map_pages),
        mock.patch.object(step_runner, "DeviceArena", Kept),
    ):
        run(PatchRunner(plan, CATALOGUE, weights), weights, volume)
    if part := plan.part("cpu"):
        beside = part.first_input.nbytes + (part.output_shape.nbytes if part.hands_on else 0)
        *handed, capacity = mapped  # what is handed on, the arena, and no more
        assert len(handed) == 2 * part.hands_on
        assert all(one <= part.output_shape.nbytes + 2 * mmap.PAGESIZE for one in handed)
        padding = 2 * mmap.PAGESIZE + 64 * aligned
        assert capacity <= plan.memory.working - beside + padding
    if plan.gpu_memory and (part := plan.part("gpu")):
        (kept,) = arenas
        padding = (8 + aligned) * ALIGNMENT  # of the arrays that are there at a time
        assert kept.peak <= plan.gpu_memory.working - part.first_input.nbytes + padding


def test_the_stages_tell_what_they_do() -> None:
    plan, watch = plan_with(2, NETWORK.total_pooling), Stopwatch()
    runner = PatchRunner(plan, CATALOGUE, random_weights(NETWORK, 7))
    block = alone(random_volume(NETWORK, plan.output, 0))
    for work in runner.stages(watch):
        block = block.through(work)
    busy = watch.seconds.busy
    assert min(busy.host_layers, busy.transfer, busy.gpu_layers) > 0
    assert busy.reading == busy.writing == 0


@pytest.mark.parametrize("some", [1, 2, 4])
def test_the_gpu_takes_what_it_is_given_in_parts(some: int) -> None:
    plan = plan_with(2, NETWORK.total_pooling, some)
    on_gpu = plan.part("gpu")
    assert on_gpu is not None
    assert plan.gpu_memory is not None
    assert on_gpu.first_input.n == some
    assert on_gpu.input_shape == Shape5(4, 2, *on_gpu.first_input.size)
    volume, weights = random_volume(NETWORK, plan.output, 0), random_weights(NETWORK, 7)
    expected = sliding_output(NETWORK, weights, volume)
    found = PatchRunner(plan, CATALOGUE, weights)(volume)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def plan_with(on_host: int, output: Vec3, sub_batch: int = 1) -> Plan:
    """All undivided, but for what the GPU takes at a time."""
    patch = NETWORK.total_pooling
    segments = []
    for part in cut_network(NETWORK, NETWORK.shapes(patch), on_host).partitions:
        given = part.input_shape._replace(n=sub_batch if part.device == "gpu" else 1)
        segments += next(segmentations(part.nodes, given, device=part.device))
    return plan_of(segments, NETWORK, output, patch)


@pytest.mark.parametrize("error", [OSError("as it is"), MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize("stage", PLACES)
def test_what_fails_in_a_stage_ends_all_and_what_was_past_it_is_written(
    stage: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, passing = NETWORK.total_pooling * 2, 4
    plan = plan_with(2, output)
    weights, volume = random_weights(NETWORK, 7), random_volume(NETWORK, output, 0)
    runner = PatchRunner(plan, CATALOGUE, weights)
    job = make_job(NETWORK, output + NETWORK.field_of_view - 1, "valid", "reflect", None)
    values = np.full((NETWORK.out_features, *output), np.nan, np.float32)
    owner, name = PLACES[stage]
    works = getattr(owner, name)
    calls: list[int] = []

    def fails(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > passing:
            raise error
        return works(self, *arguments, **options)

    monkeypatch.setattr(owner, name, fails)
    remaining, threads = Remaining(job), threads_here()
    with pytest.raises(type(error)) as raised:
        run_volume(
            RunState(
                BlockReader(ArrayVolume(volume), job, NETWORK, weights),
                ArrayOutput(values, NETWORK.out_features, output),
                "float32",
                remaining,
            ),
            PreparedHere(plan, lambda: runner),
            Stopwatch(),
        )
    assert raised.value is error
    assert len(calls) == passing + 1
    assert threads_here() <= threads
    assert remaining.voxels == output.volume - passing * plan.patch.volume
    assert np.isfinite(values).sum() == NETWORK.out_features * passing * plan.patch.volume
