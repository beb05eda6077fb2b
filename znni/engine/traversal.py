"""The order in which a patch goes through nested segments, on the host or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, TypeAlias

from znni.micro_batches import named
from znni.plans import Plan, Step
from znni.primitive import Catalogue, Run
from znni.shapes import Box, Vec3, offsets
from znni.weights import Weights

ZERO = Vec3(0, 0, 0)

# Of the host or a GPU.
Array: TypeAlias = Any

# Runs a step on its input, and returns its output.
Call: TypeAlias = Callable[[Step, Run, Array], Array]

# Takes fragments (n, f, z, y, x), where each starts in the dense output, and how far apart its
# voxels are there.
Place: TypeAlias = Callable[[Array, tuple[Vec3, ...], Vec3], None]

# Is told each step that was run, and its seconds.
Measured: TypeAlias = Callable[[Step, float], None]


def not_measured(_step: Step, _seconds: float) -> None:
    """Tell nobody."""


class Traversal:
    """Takes patches through a plan, depth first: each segment's result before its next input.

    Args:
        plan: what to run; its primitives are made ready.
        catalogue: the primitives that it names.
        weights: of its network.
    """

    def __init__(self, plan: Plan, catalogue: Catalogue, weights: Weights) -> None:
        self._stages = tuple(
            (segment, tuple(_build(step, catalogue, weights) for step in segment.steps))
            for segment in plan.segments
        )

    def __call__(self, x: Array, call: Call, place: Place) -> None:
        """Take one patch (1, f, z, y, x) to its dense output, piece by piece.

        Args:
            x: the input.
            call: runs each step.
            place: takes what the last one gives.
        """
        self._descend(0, x, (ZERO,), Vec3(1, 1, 1), call, place)

    def _descend(
        self,
        level: int,
        stored: Array,
        at: tuple[Vec3, ...],
        stride: Vec3,
        call: Call,
        place: Place,
    ) -> None:
        """Take a stored input, sub-batch by sub-batch, through the segments from ``level`` on.

        ``at`` is each item's first position in the dense output; its voxels are ``stride`` apart.
        """
        segment, _ = self._stages[level]
        size = segment.sub_batch
        for first in range(0, len(stored), size):
            items = slice(first, first + size)
            for chosen in product(*map(offsets, segment.plain_windows)):
                self._pass(level, stored[items], at[items], stride, chosen, call, place)

    def _pass(
        self,
        level: int,
        items: Array,
        at: tuple[Vec3, ...],
        stride: Vec3,
        chosen: tuple[Vec3, ...],
        call: Call,
        place: Place,
    ) -> None:
        """Run a segment once, with one offset chosen for each of its plain pools."""
        segment, runs = self._stages[level]
        start = segment.shift(chosen)
        crop = Box(start, start + segment.steps[0].shape_in.size)
        y = items[:, :, *crop.slices]
        remaining = iter(chosen)
        for step, run in zip(segment.steps, runs, strict=True):
            y = call(step, run, y)
            if step.pool:
                window = step.pool.window
                taken = [next(remaining)] if step.pools_plainly else list(offsets(window))
                at = tuple(first + stride * offset for first in at for offset in taken)
                stride *= window
        if level + 1 < len(self._stages):
            self._descend(level + 1, y, at, stride, call, place)
        else:
            place(y, at, stride)


def _build(step: Step, catalogue: Catalogue, weights: Weights) -> Run:
    parameters = weights[step.conv.name] if step.conv else None
    primitive = named(catalogue, step.primitive)
    return primitive.build(step.operation, step.shape_in, parameters)
