"""Runs with workers take no more host memory than is declared, and little less."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any, get_args

import numpy as np
import pytest
from fake_stages import host_blocks
from fakes import gpu, machine
from fleet_cases import fleet_of
from numpy.typing import NDArray
from worker_runners import SumsPlan, TwoPlaces

from planner.overhead import Overhead
from znni.calibration.overhead_figures import run_overhead
from znni.core.option_types import OutputType
from znni.core.shapes import Box, Vec3
from znni.engine.block import Block
from znni.engine.block_reader import BlockReader
from znni.engine.labels import Labels
from znni.engine.pipeline import run_volume
from znni.engine.run_state import RunState
from znni.engine.stages import write
from znni.engine.stages.convert import convert
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Remaining, Tile, for_job, make_job
from znni.engine.workers.fleet import Fleet
from znni.machine.arena import map_pages
from znni.machine.arrays import high_water_mark, peak_memory
from znni.network.geometry import with_window
from znni.network.input_scaling import InputScaling
from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.plans.stored_values import Stored
from znni.volumes.array import ArrayVolume

SLACK = 8 * 2**20  # what the allocators and threads of three processes may add or hide
NETWORK = replace(
    Network.chain("three", 1, (Conv("conv", 1, 3, Vec3(3, 3, 3), "identity"),)),
    scaling=InputScaling(scale=1 / 255),
)


@dataclass(frozen=True)
class Filling:
    """Fills two places in turn, as a GPU copies its outputs back, and computes nothing."""

    plan: Any
    dtype: str

    def stages(self, _stopwatch: Stopwatch, _labels: Labels | None = None) -> list[Any]:
        shape = (3, *self.plan.patch)
        places = cycle([np.zeros(shape, self.dtype) for _ in range(2)])

        def fill(_given: Any) -> NDArray[Any]:
            place = next(places)
            place.fill(1)
            return place

        return [fill, lambda block: block.values]


class Writing:
    """Holds a copy of each block for a moment, in pages that malloc does not keep."""

    def write(self, _box: Box, values: NDArray[Any]) -> None:
        """Copy the values."""
        np.frombuffer(map_pages(values.nbytes), values.dtype).reshape(values.shape)[...] = values


def overhead(dtype: OutputType, *, as_stored: bool) -> Overhead:
    """Return what two workers take on GPUs, without their processes."""
    there = replace(machine(), gpus=(gpu(10**10),) * 2, used_gpus=2)
    found = run_overhead(there, Stored(dtype, 1, scaled_on_gpu=as_stored))
    return replace(found, process=0, cuda=0, worker=0)


def taken_by(workers: Fleet, state: RunState) -> int:
    """Return the bytes that a run takes beside those of its processes before their first block.

    Slots count once, because workers do not count them.
    """
    with peak_memory() as peak:
        workers.wait_until_ready()
        before = workers.workers_memory
        run_volume(state, workers, Stopwatch())
        return high_water_mark() - peak.before + workers.workers_memory - before


@pytest.mark.slow
@pytest.mark.parametrize("dtype", get_args(OutputType))
def test_two_workers_take_what_is_declared(dtype: OutputType) -> None:
    patch = Vec3(150, 160, 180)
    x = np.random.default_rng(0).integers(0, 256, patch * Vec3(4, 2, 1) + 2, np.uint8)
    job = make_job(NETWORK, Vec3(*x.shape), "valid", "reflect", None)
    plan: Any = SumsPlan(patch, NETWORK, patches=8, input_itemsize=1)
    workers = fleet_of(partial(Filling, plan, dtype), 2, plan, Stored(dtype))
    reader = BlockReader(ArrayVolume(x), job, NETWORK, random_weights(NETWORK, 0))
    taken = taken_by(workers, RunState(reader, Writing(), dtype, Remaining(job)))
    declared = host_blocks(overhead(dtype, as_stored=True), NETWORK, patch, "gpu")
    assert declared / 1.25 - SLACK < taken <= declared + SLACK


class LargeMeans(TwoPlaces):
    """Gives blocks of windows as they are, from two places in turn."""

    patch = Vec3(120, 200, 200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "labels"),
    [("float32", Labels(threshold=0.5)), *((each, None) for each in get_args(OutputType))],
)
def test_two_workers_take_no_more_than_declared_for_windows(
    dtype: OutputType, labels: Labels | None
) -> None:
    patch = LargeMeans.patch
    net = Network.chain("copied", 1, (Conv("conv", 1, 1, Vec3(1, 1, 1), "identity"),))
    net = with_window(net, Window(patch, overlap=0.0))
    x = np.random.default_rng(0).random(patch * Vec3(8, 1, 1), np.float32)
    job = make_job(net, Vec3(*x.shape), "valid", "reflect", None)
    plan: Any = LargeMeans(for_job(net, job))
    stored = Stored(dtype, label_maps=int(bool(labels)))
    workers = fleet_of(partial(LargeMeans, plan.network), 2, plan, stored)
    reader = BlockReader(ArrayVolume(x), job, plan.network, random_weights(net, 0))
    state = RunState(reader, Writing(), dtype, Remaining(job), labels=labels)
    taken = taken_by(workers, state)
    found = overhead(dtype, as_stored=False)
    found = replace(found, stored=replace(found.stored, label_maps=stored.label_maps))
    assert taken <= host_blocks(found, plan.network, patch, "gpu") + SLACK


class Compared:
    """An output that is compared with what is expected, after its memory is measured."""

    def __init__(self) -> None:
        self.found: NDArray[Any] = np.empty(0)
        self.taken = 0

    def write(self, _box: Box, values: NDArray[Any]) -> None:
        """Note the values, and the most memory until now."""
        _, self.taken = tracemalloc.get_traced_memory()
        self.found = values


@pytest.mark.parametrize(("extents", "copies"), [((1, 1, 1), 0), ((2, 1, 4), 1)])
@pytest.mark.parametrize("labels", [None, Labels(threshold=0.5)], ids=["maps", "labels"])
@pytest.mark.parametrize("dtype", get_args(OutputType))
def test_a_block_of_constant_input_is_repeated_as_it_is_stored(
    dtype: OutputType, labels: Labels | None, extents: tuple[int, int, int], copies: int
) -> None:
    """Its output may vary with the phase of a network's lattices. Else it takes no memory."""
    values = np.random.default_rng(0).random((2, *extents), np.float32)
    patch = Vec3(60, 64, 80)
    written = Box(Vec3(3, 7, 5), Vec3(59, 64, 74))
    output = Compared()
    nothing: Any = None
    state = RunState(nothing, output, dtype, nothing, labels=labels)
    tracemalloc.start()
    try:
        tile = Tile(Box(Vec3(0, 0, 0), patch), written)
        write.work(state, NETWORK)(Block(tile, values, form="known"))
    finally:
        tracemalloc.stop()
    whole = np.tile(values, (1, *patch // Vec3(*extents)))[:, *written.slices]
    expected = labels.apply(whole) if labels else convert(whole, dtype)
    np.testing.assert_array_equal(output.found, expected)
    assert output.found.dtype == expected.dtype
    assert output.taken <= copies * expected.nbytes + 2**18  # and buffers of NumPy
