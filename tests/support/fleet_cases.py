"""Volumes that workers compute, and workers that sum."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from worker_runners import NETWORK, Sums, SumsPlan, sums

from znni.core.option_types import OutputType
from znni.core.shapes import Vec3
from znni.engine.block_reader import BlockReader
from znni.engine.executor import not_measured
from znni.engine.pipeline import ALONE, Turn, run_volume
from znni.engine.run_state import RunState
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Remaining, make_job
from znni.engine.workers.fleet import Fleet, Member
from znni.inference.build_runner import prepare_alone
from znni.inference.planning import shared_out
from znni.network.weights import Weights, random_weights
from znni.plans.plan import Plan
from znni.plans.stored_values import AS_COMPUTED, Stored
from znni.volumes.array import ArrayOutput, ArrayVolume

SIZE = Vec3(22, 14, 13)
PATCH = Vec3(5, 4, 3)
PLAN = SumsPlan(PATCH)


def fleet_of(prepare: Any, count: int = 2, plan: Any = PLAN, stored: Stored = AS_COMPUTED) -> Fleet:
    """Return workers that are prepared by a function."""
    members = [Member(f"worker {number + 1}", prepare, {}) for number in range(count)]
    return Fleet(plan, members, stored)


def fleet(count: int = 2, fate: str = "", dtype: OutputType = "float32") -> Fleet:
    """Return workers that sum, each with a fate."""
    return fleet_of(partial(Sums, PLAN, fate), count, stored=Stored(dtype))


def two_workers(
    plan: Plan,
    weights: Weights,
    _measured: Any = not_measured,
    stored: Stored = AS_COMPUTED,
    _waiting: None = None,
) -> Fleet:
    """Have two processes compute on the host, as others do on a GPU each."""
    shared = replace(plan, network=shared_out(plan.network, 2))
    return fleet_of(partial(prepare_alone, shared, weights), 2, plan, stored)


class Case:
    """A volume, what is wanted of it, and what was written."""

    def __init__(self, dtype: OutputType = "float32", size: Vec3 = SIZE) -> None:
        self.x = np.random.default_rng(0).random(size, np.float32) / 30
        self.job = make_job(NETWORK, Vec3(*self.x.shape), "valid", "reflect", None)
        self.expected = np.stack([sums(self.x), -sums(self.x)])
        self.found: NDArray[Any] = np.zeros(self.expected.shape, dtype)
        self.remaining = Remaining(self.job)
        self.stopwatch = Stopwatch()
        self.told: list[int] = []
        self.volume = ArrayVolume(self.x)
        self.mask: ArrayVolume | None = None

    def run(
        self,
        workers: Fleet,
        output: Any = None,
        *,
        last: bool = False,
        turn: Turn = ALONE,
    ) -> None:
        """Run the volume."""
        features, dtype = len(self.found), self.found.dtype
        weights = random_weights(NETWORK, 0)
        state = RunState(
            BlockReader(self.volume, self.job, NETWORK, weights, self.mask),
            output or ArrayOutput(self.found, features, self.job.output, dtype),
            dtype.name,  # type: ignore[arg-type]
            self.remaining,
            lambda done, _: self.told.append(done),
        )
        run_volume(state, workers, self.stopwatch, last=last, turn=turn)

    def check_finished_blocks(self) -> None:
        """Check that all that is written is right, and that the rest is still to be done."""
        left = np.ones(self.found.shape[1:], bool)
        for tile in self.remaining.tiles(PATCH):
            left[tile.written.slices] = False
        np.testing.assert_allclose(self.found[:, left], self.expected[:, left], rtol=1e-5)
        assert not self.found[:, ~left].any()
