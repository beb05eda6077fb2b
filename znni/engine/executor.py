"""The order in which a patch goes through the nested segments of a side, on the host or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from znni.core.shapes import Box, Vec3, offsets
from znni.network.weights import Weights
from znni.plans.micro_batches import named
from znni.plans.primitive import Catalogue, Run
from znni.plans.segments import Segment, Step

ZERO = Vec3(0, 0, 0)

# Of the host or a GPU.
Array: TypeAlias = Any

# Runs a step on its input, and returns its output.
Call: TypeAlias = Callable[[Step, Run, Array], Array]


# Takes what the last step gives.
Place: TypeAlias = "Callable[[Fragments], None]"

# Is told each step that was run, and its seconds.
Measured: TypeAlias = Callable[[Step, float], None]


def not_measured(_step: Step, _seconds: float) -> None:
    """Tell nobody."""


class Fragments(NamedTuple):
    """Fragments of a patch, wherever they are.

    Attributes:
        values: (n, f, z, y, x).
        at: where in the patch's dense output each one's first voxel lies.
        stride: how far apart their voxels are there.
    """

    values: Array
    at: tuple[Vec3, ...]
    stride: Vec3


def whole(block: Array) -> Fragments:
    """A patch's input (f, z, y, x) as its only fragment."""
    return Fragments(block[None], (ZERO,), Vec3(1, 1, 1))


class Executor:
    """Takes patches through segments, depth first: each one's result before its next input.

    Args:
        segments: what to run; their primitives are made ready.
        catalogue: the primitives that they name.
        weights: of the network.
    """

    def __init__(
        self, segments: tuple[Segment, ...], catalogue: Catalogue, weights: Weights
    ) -> None:
        self._levels = tuple(
            (segment, tuple(_build(step, catalogue, weights) for step in segment.steps))
            for segment in segments
        )

    def __call__(self, given: Fragments, call: Call, place: Place) -> None:
        """Take all fragments of one patch through, some at a time.

        Args:
            given: the input; of its values, each part is asked for once, in order.
            call: runs each step.
            place: takes what the last one gives.
        """
        self._descend(0, given, call, place)

    def _descend(self, level: int, stored: Fragments, call: Call, place: Place) -> None:
        """Take a stored input, sub-batch by sub-batch, through the segments from ``level`` on."""
        segment, _ = self._levels[level]
        size = segment.sub_batch
        for first in range(0, len(stored.at), size):
            items = slice(first, first + size)
            some = Fragments(stored.values[items], stored.at[items], stored.stride)
            for chosen in product(*map(offsets, segment.plain_windows)):
                self._pass(level, some, chosen, call, place)

    def _pass(
        self, level: int, some: Fragments, chosen: tuple[Vec3, ...], call: Call, place: Place
    ) -> None:
        """Run a segment once, with one offset chosen for each of its plain pools."""
        segment, runs = self._levels[level]
        start = segment.shift(chosen)
        crop = Box(start, start + segment.steps[0].shape_in.size)
        y, at, stride = some.values[:, :, *crop.slices], some.at, some.stride
        remaining = iter(chosen)
        for step, run in zip(segment.steps, runs, strict=True):
            y = call(step, run, y)
            if step.pool:
                window = step.pool.window
                taken = [next(remaining)] if step.pools_plainly else list(offsets(window))
                at = tuple(first + stride * offset for first in at for offset in taken)
                stride *= window
        made = Fragments(y, at, stride)
        if level + 1 < len(self._levels):
            self._descend(level + 1, made, call, place)
        else:
            place(made)


def _build(step: Step, catalogue: Catalogue, weights: Weights) -> Run:
    parameters = weights[step.conv.name] if step.conv else None
    primitive = named(catalogue, step.primitive)
    return primitive.build(step.operation, step.shape_in, parameters)
