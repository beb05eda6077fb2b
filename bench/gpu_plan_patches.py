"""Our own contestant on a GPU: a plan's patches, one after the other as in a run."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import pairwise
from statistics import mean
from typing import Any

from numpy.typing import NDArray

from bench.noise import patch_input
from znni.core.options import OutputType
from znni.engine.stages import run_stages
from znni.engine.stopwatch import Stopwatch
from znni.inference.planning import prepare_alone
from znni.machine.cuda import cupy
from znni.network.weights import random_weights
from znni.plans.plan import Plan
from znni.plans.segments import Step


class GpuPlanPatches:
    """A plan with random weights, prepared.

    Args:
        plan: whose layers are on the GPU.
        dtype: of its output, that it was planned for.

    Attributes:
        output: of the last patch (f', Z, Y, X).
        peak: bytes of the GPU that preparing and running took.
    """

    def __init__(self, plan: Plan, dtype: OutputType) -> None:
        self._plan = plan
        self._layer_seconds: dict[str, list[float]] = defaultdict(list)
        self._free = free_bytes()
        weights = random_weights(plan.network, 0)
        self._runner = prepare_alone(plan, weights, self._measured, dtype)
        self._x = patch_input(plan.network, plan.patch)
        self.output: NDArray[Any] | None = None
        self.peak = 0

    def seconds(self, repeats: int) -> tuple[float, ...]:
        """From one patch's output to the next one's, each in the host's memory.

        While one is computed the next is brought to the GPU and the last one back, as in a run. The
        first is not counted.
        """
        done: list[float] = []

        def note(output: NDArray[Any]) -> None:
            self.output = output
            done.append(time.perf_counter())
            if len(done) == 1:
                self._layer_seconds.clear()

        stages = [lambda _: self._x, *self._runner.stages(Stopwatch()), note]
        run_stages(range(repeats + 1), stages, here=1)
        self.peak = self._free - free_bytes()
        return tuple(after - before for before, after in pairwise(done))

    def layer_seconds(self) -> dict[str, float]:
        """Of a patch in each layer, by the GPU's clock: the means of all patches but the first."""
        return {
            step.operation.name: runs * mean(self._layer_seconds[step.operation.name])
            for segment, runs in self._plan.runs()
            for step in segment.steps
        }

    def _measured(self, step: Step, seconds: float) -> None:
        self._layer_seconds[step.operation.name].append(seconds)


def free_bytes() -> int:
    """Of the current GPU."""
    return int(cupy().cuda.Device().mem_info[0])
