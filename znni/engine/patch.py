"""One patch through a plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np

from znni.arena import Arena
from znni.engine.recombine import place
from znni.errors import PLAN_AGAIN, InvalidInput
from znni.micro_batches import found, named
from znni.plans import Plan, Segment, Step, working_peak
from znni.primitive import Catalogue, Run
from znni.shapes import Box, Vec3, offsets
from znni.units import counted
from znni.weights import Float32, Weights

ZERO = Vec3(0, 0, 0)

# Is told each step that was run, and its seconds.
Measured: TypeAlias = Callable[[Step, float], None]


def not_measured(_step: Step, _seconds: float) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class _Stage:
    """A segment with its steps made ready to run."""

    segment: Segment
    runs: tuple[Run, ...]


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
        self._stages = tuple(
            _Stage(segment, tuple(_build(step, catalogue, weights) for step in segment.steps))
            for segment in plan.segments
        )

    def __call__(self, x: Float32) -> Float32:
        """The dense output (f', Z, Y, X) of one input patch (f, z, y, x)."""
        dense = np.empty((self.plan.network.out_features, *self.plan.patch), np.float32)
        with self._arena.in_use():
            self._descend(0, x[np.newaxis], (ZERO,), Vec3(1, 1, 1), dense)
        return dense

    def _descend(
        self, level: int, stored: Float32, at: tuple[Vec3, ...], stride: Vec3, dense: Float32
    ) -> None:
        """Take a stored input, sub-batch by sub-batch, through the segments from ``level`` on.

        ``at`` is each item's first position in the dense output; its voxels are ``stride`` apart.
        """
        stage = self._stages[level]
        size = stage.segment.sub_batch
        for first in range(0, len(stored), size):
            items = slice(first, first + size)
            for chosen in product(*map(offsets, stage.segment.plain_windows)):
                self._pass(level, stored[items], at[items], stride, chosen, dense)

    def _pass(
        self,
        level: int,
        items: Float32,
        at: tuple[Vec3, ...],
        stride: Vec3,
        chosen: tuple[Vec3, ...],
        dense: Float32,
    ) -> None:
        """Run a segment once, with one offset chosen for each of its plain pools."""
        segment, runs = self._stages[level].segment, self._stages[level].runs
        start = segment.shift(chosen)
        crop = Box(start, start + segment.steps[0].shape_in.size)
        y = items[:, :, *crop.slices]
        remaining = iter(chosen)
        for step, run in zip(segment.steps, runs, strict=True):
            begun = time.perf_counter()
            y = run(y)
            self._measured(step, time.perf_counter() - begun)
            if step.pool:
                window = step.pool.window
                taken = [next(remaining)] if step.pools_plainly else list(offsets(window))
                at = tuple(first + stride * offset for first in at for offset in taken)
                stride *= window
        if level + 1 < len(self._stages):
            self._descend(level + 1, y, at, stride, dense)
        else:
            place(y, at, stride, dense)


def check_runnable(plan: Plan, catalogue: Catalogue) -> None:
    """Check that this machine's primitives do what the plan says.

    Raises:
        InvalidInput: an unknown primitive, shapes that it would not produce, or other memory
            than it takes.
    """
    expected = plan.input_shape
    for segment in plan.segments:
        first = segment.steps[0]
        if expected.n % segment.sub_batch or first.shape_in.n != segment.sub_batch:
            raise InvalidInput(
                f"the plan takes {segment.sub_batch} of {counted(expected.n, 'item')} at layer "
                f"{first.operation.name}; {PLAN_AGAIN}"
            )
        last_shift = segment.shift(tuple(window - 1 for window in segment.plain_windows))
        if first.shape_in.size + last_shift != expected.size:
            raise InvalidInput(
                f"the plan's layer {first.operation.name} takes {first.shape_in} of {expected}; "
                f"{PLAN_AGAIN}"
            )
        shape = first.shape_in
        for step in segment.steps:
            primitive = found(catalogue, step.primitive)
            if primitive is None:
                raise InvalidInput(
                    f"the plan uses primitive {step.primitive!r}, which this machine does not "
                    f"have; it has {', '.join(sorted(catalogue))}; {PLAN_AGAIN}"
                )
            made = primitive.out_shape(step.operation, shape)
            if step.shape_in != shape or step.shape_out != made:
                raise InvalidInput(
                    f"the plan's layer {step.operation.name} does not take {step.shape_in} to "
                    f"{step.shape_out} by {step.primitive}; {PLAN_AGAIN}"
                )
            needed = primitive.cost(step.operation, shape).memory
            if step.cost.memory != needed:
                raise InvalidInput(
                    f"the plan has {step.cost.memory} for layer {step.operation.name} by "
                    f"{step.primitive}, which takes {needed} here; {PLAN_AGAIN}"
                )
            shape = step.shape_out
        expected = shape
    _check_memory(plan)


def _check_memory(plan: Plan) -> None:
    working, _ = working_peak(plan.segments, plan.input_shape)
    resident = sum(step.cost.memory.resident for step in plan.steps)
    if (plan.memory.working, plan.memory.resident) != (working, resident):
        raise InvalidInput(
            f"the plan promises {plan.memory.resident} resident and {plan.memory.working} working "
            f"bytes, and its steps take {resident} and {working}; {PLAN_AGAIN}"
        )


def _build(step: Step, catalogue: Catalogue, weights: Weights) -> Run:
    parameters = weights[step.conv.name] if step.conv else None
    primitive = named(catalogue, step.primitive)
    return primitive.build(step.operation, step.shape_in, parameters)
