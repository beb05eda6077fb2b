"""Stages of a plan for tests of workers; it can fail in several ways."""

from __future__ import annotations

from typing import Any

from worker_runners import meet

from znni.engine.block import Block
from znni.engine.labels import Labels
from znni.engine.stopwatch import Stopwatch
from znni.inference.build_runner import prepare_alone
from znni.network.weights import Weights
from znni.plans.plan import Plan


class Doomed:
    """Computes a plan on the host until its fifth patch, when its fate befalls it.

    By then blocks of two patches are written.
    """

    def __init__(self, plan: Plan, weights: Weights, fate: str) -> None:
        self.plan = plan
        self._runner = prepare_alone(plan, weights)
        self._begun = 0
        self._fate = fate

    def stages(self, stopwatch: Stopwatch, labels: Labels | None = None) -> list[Any]:
        def count(block: Block) -> Any:
            self._begun += 1
            if self._begun == 5:
                meet(self._fate)
            return block.values

        return [count, *self._runner.stages(stopwatch, labels)]
