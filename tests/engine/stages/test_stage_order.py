"""Every stage declares its bytes and seconds, and the plan has the sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from fake_stages import host_blocks, time_of
from fakes import machine

import znni
from planner.overhead import Load, Overhead
from znni.core.processors import Processors
from znni.core.shapes import Vec3
from znni.engine.run_state import RunState
from znni.engine.stage_chain import Work
from znni.engine.stages import stage_order
from znni.engine.stages.stage_order import stage_models
from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.plans.stage import Counts, Seconds, Setting, StageModel
from znni.plans.stored_values import AS_COMPUTED, Stored
from znni.plans.totals import Number

NETWORK = Network.chain("one", 1, (Conv("conv", 1, 2, Vec3(3, 3, 3), "relu"),))


@dataclass(frozen=True)
class Sharpen(StageModel):
    """A new stage: it takes 3 bytes and 1 us of writing for each output value."""

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        return {"writing": 1e-6 * run.network.out_features * each.voxels}

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        return 3 * run.network.out_features * each.voxels


def add_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the stage before the one that writes."""

    def work(_state: RunState, _network: Network) -> Work:
        return lambda block: block._replace(values=2 * block.values)

    *before, last = stage_order.STAGES
    sharpen = stage_order.StageEntry(lambda *_: Sharpen(), work)
    monkeypatch.setattr(stage_order, "STAGES", (*before, sharpen, last))


def test_a_new_stage_works_on_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    volume = np.random.default_rng(0).random((14, 15, 16), np.float32)
    inferer = znni.Inferer(NETWORK, random_weights(NETWORK, 0), threads=1, costs="built-in")
    before = inferer(volume)
    add_stage(monkeypatch)
    np.testing.assert_array_equal(inferer(volume), 2 * before)


@pytest.mark.usefixtures("fake_primitives")
def test_a_new_stage_is_planned_and_reported_without_another_edit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = znni.search(NETWORK, (20, 30, 40), threads=1).overhead
    add_stage(monkeypatch)
    after = znni.plan(NETWORK, (20, 30, 40), threads=1)
    values = 2 * after.patch.volume
    held = host_blocks(before, NETWORK, after.patch, "cpu")
    assert after.memory.blocks == held + 3 * values
    written = time_of(before, NETWORK, after.patch, {"cpu": Load(1.0, 0, 0)}).patch.writing
    assert after.time.patch.writing == pytest.approx(written + 1e-6 * values)
    assert f"writing {after.time.patch.writing:.3f} s" in str(after)


@pytest.mark.parametrize("processors", ["cpu", "gpu", "cpu+gpu"])
@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize("stored", [AS_COMPUTED, Stored("uint8", 1, scaled_on_gpu=True)])
def test_stages_hold_no_fewer_bytes_for_larger_blocks(
    processors: Processors, gpus: int, stored: Stored
) -> None:
    overhead = Overhead(0, stage_models(machine(), stored, None), workers=gpus, stored=stored)
    held = [host_blocks(overhead, NETWORK, Vec3.of(n), processors) for n in (1, 8, 16, 64)]
    assert held == sorted(held)
    assert held[0] > 0
