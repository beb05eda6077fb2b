"""The order in which a patch goes through the nested segments of a side, on the host or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from znni.core.shapes import Box, Vec3, offsets
from znni.network.weights import Weights
from znni.plans.device_partition import DevicePart
from znni.plans.micro_batches import named
from znni.plans.placement import StepPlace, placement
from znni.plans.primitive import Catalogue, Run
from znni.plans.segments import Step

ZERO = Vec3(0, 0, 0)

# Of the host or a GPU.
Array: TypeAlias = Any


class Prepared(NamedTuple):
    """A step that is ready to run.

    Attributes:
        step: what is computed.
        run: computes it.
        place: the memory of the arena that it uses.
    """

    step: Step
    run: Run
    place: StepPlace


# Runs a step on its input, and returns its output.
Call: TypeAlias = Callable[[Prepared, Array], Array]

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
    """Takes patches through segments, depth first: each result goes on before the next input.

    Args:
        part: segments to run; their primitives are made ready.
        catalogue: the primitives that they name.
        weights: the network's.
        alignment: bytes that every array in the arena begins at a multiple of.

    Attributes:
        arena_size: bytes of the arena that the steps' places are in.
    """

    def __init__(
        self, part: DevicePart, catalogue: Catalogue, weights: Weights, alignment: int
    ) -> None:
        placed = placement(part, alignment)
        self.arena_size = placed.size
        self._levels = tuple(
            (
                segment,
                tuple(
                    Prepared(step, _build(step, catalogue, weights), place)
                    for step, place in zip(segment.steps, places, strict=True)
                ),
            )
            for segment, places in zip(part.segments, placed.places, strict=True)
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
        segment, steps = self._levels[level]
        start = segment.shift(chosen)
        crop = Box(start, start + segment.steps[0].shape_in.size)
        given = some._replace(values=some.values[:, :, *crop.slices])
        alive = {segment.steps[0].takes[0]: given}
        remaining = iter(chosen)
        for prepared, dying in zip(steps, segment.dying, strict=True):
            step = prepared.step
            (taken,) = (alive[name] for name in step.takes)
            at, stride = taken.at, taken.stride
            if step.pool:
                window = step.pool.window
                shifts = [next(remaining)] if step.pools_plainly else list(offsets(window))
                at = tuple(first + stride * offset for first in at for offset in shifts)
                stride *= window
            alive[step.gives] = Fragments(call(prepared, taken.values), at, stride)
            for name in dying:
                del alive[name]
        made = alive[segment.steps[-1].gives]
        if level + 1 < len(self._levels):
            self._descend(level + 1, made, call, place)
        else:
            place(made)


def _build(step: Step, catalogue: Catalogue, weights: Weights) -> Run:
    parameters = weights[step.conv.name] if step.conv else None
    primitive = named(catalogue, step.primitive)
    return primitive.build(step.operation, step.shape_in, parameters)
