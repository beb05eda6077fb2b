"""Our own contestant: a plan's patch, for a child process."""

from __future__ import annotations

import time

from bench.accuracy import Corners, corners
from bench.noise import patch_input
from znni.inference.planning import prepare_alone
from znni.network.weights import random_weights
from znni.plans.plan import Plan

# Seconds of a patch that need not be warm: its first time takes one more, or two.
LONG = 30.0


class PlanPatch:
    """A plan with random weights, one patch at a time.

    Args:
        plan: its JSON.
    """

    def __init__(self, plan: str) -> None:
        made = Plan.from_json(plan)
        self._network = made.network
        self._runner = prepare_alone(made, random_weights(made.network, 0))
        self._x = patch_input(made.network, made.patch)
        self._corners: Corners | None = None

    def seconds(self) -> float:
        """Time one patch."""
        start = time.perf_counter()
        y = self._runner(self._x)
        seconds = time.perf_counter() - start
        self._corners = corners(self._network, y)
        return seconds

    def corners(self) -> Corners | None:
        """The output's corners in the last run."""
        return self._corners
