"""One patch through a plan, on the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from znni.arena import Arena
from znni.engine.checks import check_runnable
from znni.engine.recombine import place
from znni.engine.traversal import Measured, Traversal, not_measured
from znni.plans import Plan, Step
from znni.primitive import Catalogue, Run
from znni.shapes import Vec3
from znni.weights import Float32, Weights


class Runner(Protocol):
    """Runs patch after patch through a plan."""

    @property
    def plan(self) -> Plan:
        """What it runs."""

    def begin(self, x: Float32) -> Callable[[], NDArray[Any]]:
        """Start with one input patch (f, z, y, x).

        Returns:
            A function that waits for the dense output (f', Z, Y, X): float32, or as it is stored.
            It is called before the second patch after this one is begun, in any thread.
        """


class PatchRunner:
    """Runs patch after patch through a plan, with all that can be prepared once prepared.

    Its arena holds what a patch takes beside its input, which is the caller's.

    Args:
        plan: what to run.
        catalogue: the primitives that it names.
        weights: of its network.
        measured: told of each call of a step, once it is done.
    """

    def __init__(
        self,
        plan: Plan,
        catalogue: Catalogue,
        weights: Weights,
        measured: Measured = not_measured,
    ) -> None:
        check_runnable(plan, catalogue)
        self.plan = plan
        self._measured = measured
        self._arena = Arena(plan.memory.working - plan.input_shape.nbytes)
        self._traversal = Traversal(plan, catalogue, weights)

    def __call__(self, x: Float32) -> Float32:
        """The dense output (f', Z, Y, X) of one input patch (f, z, y, x)."""
        dense = np.empty((self.plan.network.out_features, *self.plan.patch), np.float32)

        def put(fragments: Float32, at: tuple[Vec3, ...], stride: Vec3) -> None:
            place(fragments, at, stride, dense)

        with self._arena.in_use():
            self._traversal(x[np.newaxis], self._call, put)
        return dense

    def begin(self, x: Float32) -> Callable[[], Float32]:
        """Compute it now."""
        dense = self(x)
        return lambda: dense

    def _call(self, step: Step, run: Run, x: Float32) -> Float32:
        begun = time.perf_counter()
        y = run(x)
        self._measured(step, time.perf_counter() - begun)
        return y
