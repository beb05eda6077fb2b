"""Workers compute tiled networks and windows as one process does, wherever their blocks lie."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from fleet_cases import fleet_of, two_workers
from graphs import EVERY_KIND
from unet_text import UNET
from window_networks import network as windowed
from window_networks import volume
from worker_runners import NETWORK as SUMS
from worker_runners import VIEW, GoesOn, Sums, SumsPlan, TwoPlaces

from znni.core.resampling import Resampling
from znni.core.shapes import AXES, Axis, Vec3, resized
from znni.engine.block_reader import Block, BlockReader
from znni.engine.pipeline import run_volume
from znni.engine.run_state import RunState
from znni.engine.stages import share, stage_order
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Remaining, for_job, make_job
from znni.engine.workers.fleet import Fleet, Member
from znni.engine.workers.slots import SlotShape
from znni.engine.workers.worker import Worker
from znni.inference import api, session
from znni.inference.planning import search
from znni.network.geometry import with_window
from znni.network.input_scaling import InputScaling
from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.network.window import Window
from znni.volumes.array import ArrayOutput, ArrayVolume

ONE = Vec3(1, 1, 1)
OPTIONS: Any = {"device": "cpu", "costs": "built-in", "threads": 1, "border": "same"}


def both_ways(
    monkeypatch: pytest.MonkeyPatch,
    net: Network,
    x: Any,
    patch: Vec3,
    along: Axis | None = None,
    **more: Any,
) -> tuple[Any, Any]:
    """Return the output of a run in this process, and that of the same run by two workers.

    In a sweep along an axis, only the workers sweep.
    """
    size = Vec3(*x.shape[1:])
    written = net.window.resampled.target if net.window and net.window.resampled else size
    found = []
    for prepare in (session.prepare, two_workers):
        able = search(net, size, **OPTIONS)
        swept = along and prepare is two_workers
        plan = (able.sweeping(along) if swept else able).fastest_for(patch)
        assert plan is not None
        assert plan.patches > 8
        monkeypatch.setattr(session, "prepare", prepare)
        maps = 1 if more.get("labels") else net.out_features
        out = np.full((maps, *written), 77, np.uint8 if more.get("labels") else np.float32)
        weights = random_weights(net, 7)
        api.infer(x, net, out, weights=weights, plan=plan, **OPTIONS, **more)
        found.append(out)
    return found[0], found[1]


@pytest.mark.slow
@pytest.mark.parametrize("labels", [False, True])
def test_tiled_networks(monkeypatch: pytest.MonkeyPatch, labels: bool) -> None:
    net = network_from_text(EVERY_KIND, "unet.yaml")
    x = np.random.default_rng(0).standard_normal((net.in_features, 16, 28, 20), np.float32)
    alone, shared = both_ways(monkeypatch, net, x, Vec3(8, 8, 8), labels=labels)
    np.testing.assert_array_equal(shared, alone)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("axis", AXES)
def test_sweeps_of_tiled_networks(
    monkeypatch: pytest.MonkeyPatch, axis: Axis, masked: bool
) -> None:
    net = network_from_text(UNET, "unet.yaml")
    size = resized(Vec3(24, 24, 24), axis, 64)
    x = np.random.default_rng(0).standard_normal((1, *size), np.float32)
    mask = np.zeros(size, np.uint8)
    mask[5:20, 10:60, 15:] = mask[:, :, :4] = 1
    x[:, -20:, -20:, -20:] = 1  # constant
    more: Any = {"mask": mask} if masked else {}
    alone, shared = both_ways(monkeypatch, net, x, Vec3(8, 8, 8), axis, **more)
    np.testing.assert_allclose(shared, alone, rtol=0, atol=1e-5 * np.abs(alone).max())


@pytest.mark.slow
@pytest.mark.parametrize("axis", AXES)
def test_each_worker_takes_columns_of_its_own(axis: Axis) -> None:
    blocks = resized(Vec3(2, 2, 2), axis, 12)
    net = SUMS.sweeping(axis)
    plan: Any = SumsPlan(Vec3(2, 2, 2), net, is_swept=True)
    x = np.random.default_rng(0).random((1, *(blocks * 2 + VIEW - 1)), np.float32)
    job = make_job(net, Vec3(*x.shape[1:]), "valid", "reflect", None)
    found = np.full((2, *job.output), 7, np.float32)
    output = ArrayOutput(found, 2, job.output, "float32")
    reader = BlockReader(ArrayVolume(x), job, net, random_weights(net, 0))
    workers = fleet_of(partial(GoesOn, plan, axis), 2, plan)
    remaining = Remaining(job, swept=axis)
    run_volume(RunState(reader, output, "float32", remaining), workers, Stopwatch())
    begun = blocks.volume - int(found[0, ::2, ::2, ::2].sum())
    assert 4 <= begun <= 10, "of four columns, the last may be shared"


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "masked"), [(True, False), (False, True), (True, True)])
def test_windows(monkeypatch: pytest.MonkeyPatch, labels: bool, masked: bool) -> None:
    net = windowed(Window(Vec3(8, 8, 8), mirror="x"))
    x = volume(Vec3(13, 22, 19))
    mask = None
    if masked:
        mask = np.zeros(x.shape[1:], np.uint8)
        mask[2:9, 3:15, 4:11] = 1
    alone, shared = both_ways(monkeypatch, net, x, Vec3(8, 8, 8), labels=labels, mask=mask)
    np.testing.assert_array_equal(shared, alone)
    assert len(np.unique(shared)) > 2


@pytest.mark.slow
def test_labels_of_resampled_windows_come_from_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, target = Vec3(13, 22, 19), Vec3(26, 17, 19)
    net = windowed(Window(Vec3(8, 8, 8), resampled=Resampling(size, target, (1, 1, 1))))
    seen: list[SlotShape] = []
    made = Worker.compute

    def compute(worker: Worker, *arguments: Any) -> Any:
        seen.append(worker.slots[0].shape)
        return made(worker, *arguments)

    monkeypatch.setattr(Worker, "compute", compute)
    alone, shared = both_ways(monkeypatch, net, volume(size), Vec3(8, 8, 8), labels=True)
    np.testing.assert_array_equal(shared, alone)
    assert len(np.unique(shared)) > 2
    assert {(each.dense[0], each.dtype) for each in seen} == {(1, "uint8")}


def test_windows_are_computed_for_each_block_that_has_them() -> None:
    """Blocks of one process leave sums to the next; those of several do not."""
    net = windowed(Window(Vec3(8, 8, 8)))
    found = search(net, Vec3(8, 8, 32), **OPTIONS)
    plan = found.fastest_for(Vec3(8, 8, 8))
    assert plan is not None
    assert plan.windows == 7 / 4
    window = plan.network.window
    assert window is not None
    shared = replace(window, in_order=False)
    assert shared.a_block(plan.patch) == (2 + 3 + 3 + 2) / 4
    assert shared.tail(plan.patch) == 0 < window.tail(plan.patch)


def copied_by_windows(count: int) -> Stopwatch:
    """Copy a volume through windows of some workers; return where the time went."""
    net = Network.chain("copied", 1, (Conv("conv", 1, 1, ONE, "identity"),))
    net = with_window(net, Window(TwoPlaces.patch, overlap=0.0))
    x = np.random.default_rng(0).random((1, 4, 4, 64), np.float32)
    job = make_job(net, Vec3(*x.shape[1:]), "valid", "reflect", None)
    runner = TwoPlaces(for_job(net, job))
    reader = BlockReader(ArrayVolume(x), job, runner.network, random_weights(net, 0))
    found = np.zeros_like(x)
    output = ArrayOutput(found, 1, job.output, "float32")
    prepare, stopwatch = partial(TwoPlaces, runner.network), Stopwatch()
    workers = Fleet(runner, [Member("worker", prepare, {}) for _ in range(count)])
    workers.wait_until_ready()  # or one may compute most while the other starts
    run_volume(RunState(reader, output, "float32", Remaining(job)), workers, stopwatch)
    np.testing.assert_array_equal(found, x)
    return stopwatch


@pytest.mark.slow
@pytest.mark.parametrize("pad", ["valid", "constant"])
def test_blocks_of_stored_values_come_through_slots_of_as_many_bytes(pad: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (1, 22, 14, 13), np.uint8)
    net = replace(SUMS, scaling=InputScaling(scale=0.5))
    job = make_job(net, Vec3(*x.shape[1:]), "valid", "reflect", None)
    if pad == "constant":
        job = make_job(net, Vec3(*x.shape[1:]), "same", "constant", None)
    found = []
    for itemsize in (4, 1):
        plan: Any = SumsPlan(Vec3(5, 4, 3), net, input_itemsize=itemsize)
        workers = fleet_of(partial(Sums, plan), 2, plan)
        slot = workers._crew.workers[0].slots[0].shape
        assert slot.block_bytes == -(-prod(slot.block) * itemsize // 64) * 64
        made = np.zeros((2, *job.output), np.float32)
        output = ArrayOutput(made, 2, job.output, "float32")
        reader = BlockReader(ArrayVolume(x), job, net, random_weights(net, 0))
        run_volume(RunState(reader, output, "float32", Remaining(job)), workers, Stopwatch())
        found.append(made)
    np.testing.assert_array_equal(found[1], found[0])
    assert found[0].any()


def test_the_mean_of_windows_is_brought_before_its_place_is_used_again() -> None:
    copied_by_windows(1)


@pytest.mark.slow
def test_seconds_of_storing_at_the_same_time_are_not_added_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wait(block: Block) -> Block:
        time.sleep(0.1)
        return block

    slow = stage_order.StageEntry(share.model, lambda *_: wait, "computing")
    monkeypatch.setattr(stage_order, "STAGES", (*stage_order.STAGES, slow))
    spent = copied_by_windows(2).seconds
    # Those of workers, which work at the same time, are among them.
    assert spent.running / 2 < spent.busy.host_layers < 2 * spent.running
