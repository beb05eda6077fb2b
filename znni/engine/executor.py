"""The executor: it takes a patch through the nested segments of a part, on the host or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from znni.core.shapes import Box, Vec3, offsets
from znni.engine.scaling import StoredScaling
from znni.network.weights import Weights
from znni.plans.device_partition import DevicePart
from znni.plans.micro_batches import named
from znni.plans.placement import StepPlace
from znni.plans.primitive import Catalogue, Run
from znni.plans.segments import Step

ZERO = Vec3(0, 0, 0)

# An array of the host or a GPU.
Array: TypeAlias = Any


class Prepared(NamedTuple):
    """A step that is ready to run.

    Attributes:
        step: the step.
        run: the function that computes it.
        place: the memory of the arena that it uses.
    """

    step: Step
    run: Run
    place: StepPlace


# A function that runs a step on its input and returns its output.
Call: TypeAlias = Callable[[Prepared, Array], Array]

# A function that takes the results of the last step.
Place: TypeAlias = "Callable[[Fragments], None]"

# A function that takes each step that was run, and its seconds.
Measured: TypeAlias = Callable[[Step, float], None]


def not_measured(_step: Step, _seconds: float) -> None:
    """Ignore a measured step."""


class Fragments(NamedTuple):
    """Fragments of a patch, on the host or a GPU.

    Attributes:
        values: the values (n, f, z, y, x).
        at: the position of each fragment's first voxel in the patch's dense output.
        stride: the distance between neighbouring voxels of a fragment in that output.
        scaling: the scaling that stored values still need; None: they are what the network sees.
    """

    values: Array
    at: tuple[Vec3, ...]
    stride: Vec3
    scaling: StoredScaling | None = None


def whole(block: Array | Fragments) -> Fragments:
    """Return a patch's input (f, z, y, x) as its only fragment."""
    return block if isinstance(block, Fragments) else placed(block, ZERO)


def placed(block: Array, start: Vec3, scaling: StoredScaling | None = None) -> Fragments:
    """Return a block's input (f, z, y, x) as its only fragment, at its place in a whole output."""
    return Fragments(block[None], (start,), Vec3(1, 1, 1), scaling)


class Executor:
    """The segments of a part, ready for patches, depth first.

    Each result goes through the segments after it before the next input is taken.

    Args:
        part: the segments to run. Their primitives are prepared.
        catalogue: the primitives that the part names.
        weights: the network's weights.
        alignment: the bytes of which every array's beginning in the arena is a multiple.
        spare: bytes of each step for the alignment of the arrays in its workspace.

    Attributes:
        arena_size: the bytes of the arena that holds the steps' places.
    """

    def __init__(
        self, part: DevicePart, catalogue: Catalogue, weights: Weights, alignment: int, spare: int
    ) -> None:
        placed = part.placed(alignment, spare)
        self.arena_size = placed.size
        self._levels = tuple(
            (
                segment,
                tuple(
                    Prepared(step, built(step, catalogue, weights), place)
                    for step, place in zip(segment.steps, places, strict=True)
                ),
            )
            for segment, places in zip(part.segments, placed.places, strict=True)
        )

    def __call__(self, given: Fragments, call: Call, place: Place) -> None:
        """Take all fragments of one patch through the segments, some at a time.

        Args:
            given: the input. Each part of its values is read once, in order.
            call: the function that runs each step.
            place: the function that takes the results of the last step.
        """
        self._descend(0, given, call, place)

    def _descend(self, level: int, stored: Fragments, call: Call, place: Place) -> None:
        """Take a stored input through the segments from ``level`` on, one sub-batch at a time."""
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


def built(step: Step, catalogue: Catalogue, weights: Weights) -> Run:
    """Return the function that computes a step, prepared."""
    parameters = weights[name] if (name := step.layers[0].name) in weights.layers else None
    primitive = named(catalogue, step.primitive)
    return primitive.build(step.operation, step.shape_in, parameters)
