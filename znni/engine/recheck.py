"""Check that a resumed run computes what the runs before it computed."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.option_types import ACCURACIES, Accuracy, OutputType
from znni.core.shapes import ZERO, Box
from znni.core.volume import Output
from znni.engine.labels import LABELS_APART
from znni.engine.pipeline import Turn
from znni.engine.run_state import RunState, no_progress
from znni.engine.tiles import Job, Remaining
from znni.engine.volume_runner import Smaller, VolumeRunner
from znni.network.network import Network
from znni.plans.job_seconds import JobSeconds

log = logging.getLogger("znni")

# How much values may differ if nearly the same values were rounded to a type: as a share of them,
# and in addition to that.
ROUNDING: dict[OutputType, tuple[float, int]] = {
    "float32": (0.0, 0),
    "float16": (2.0**-10, 0),
    "uint8": (0.0, 1),
}

# The least scale of values, if a difference is given as a share of the largest of them.
LEAST_SCALE = 1e-6


class Stored(Protocol):
    """An output whose blocks can be read."""

    def read(self, box: Box) -> NDArray[Any]:
        """Return the values (f', z, y, x) of a box that was written."""


class Comparison:
    """Compares computed blocks with those that an output already holds.

    Args:
        output: the output.
        accepted: the difference that is not counted.
        labelled: whether values are labels: then the share of those that differ counts.

    Attributes:
        same: whether all values were the same, to the last bit.
    """

    def __init__(self, output: Stored, accepted: int, labelled: bool = False) -> None:
        self.same = True
        self._apart = 0.0
        self._scale = 0.0
        self._output = output
        self._accepted = accepted
        self._labelled = labelled

    @property
    def largest(self) -> float:
        """The largest difference counted so far, as a share of the largest value; NaN if one is.

        For labels it is the largest share of a block's voxels whose labels differ.
        """
        return self._apart / max(self._scale, LEAST_SCALE)

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Compare the values (f', z, y, x) of a box."""
        stored = self._output.read(box)
        if np.array_equal(stored, values):
            return
        self.same = False
        if self._labelled:
            self._apart, self._scale = max(self._apart, float((stored != values).mean())), 1.0
            return
        was, now = stored.astype(np.float64), values.astype(np.float64)
        with np.errstate(invalid="ignore"):  # the same infinity on both sides is no difference
            apart = np.where(was == now, 0.0, np.abs(was - now))
        self._apart = float(np.maximum(self._apart, apart.max() - self._accepted))  # keeps NaN
        self._scale = max(self._scale, float(np.abs(was[np.isfinite(was)]).max(initial=0)))


def recheck(
    runner: VolumeRunner,
    state: RunState,
    output: Output,
    job: Job,
    accuracy: Accuracy,
    smaller: Smaller,
    turn: Turn,
) -> JobSeconds:
    """Compute again the last finished block that had to be computed, if there is one.

    An earlier plan with other patches may have computed it. That computed the whole block if any
    voxel of it is inside the mask, and so does this.

    Args:
        runner: has the plan to go on with.
        state: what is left of the job.
        output: has the finished blocks.
        job: which output is wanted.
        accuracy: the class that primitives may have.
        smaller: finds the plan to go on with if memory runs out.
        turn: as for ``run_volume``.

    Returns:
        Where the time went.

    Raises:
        InvalidInput: the block comes out differently, by more than rounding.
    """
    finished = reversed(_finished(output.resume_state.history))
    block = next((block for block in finished if not state.reader.is_outside(block)), None)
    if block is None:
        return JobSeconds()
    again, check = state_of_block(block, state, output, job)
    spent = runner.run(again, smaller, turn=turn)
    network, labelled = runner.plans[-1].network, state.labels is not None
    if not check.largest <= allowed_difference(network, accuracy, state.dtype, labelled):
        of_what = "voxels" if labelled else "largest value"
        raise InvalidInput(
            f"the finished block {block} comes out differently now, by {check.largest:.1g} of its "
            f"{of_what}: the input, or something else that no run notes, is not what it was; "
            f"restore it, or give {option('resume', False)} to start afresh"
        )
    if not check.same:
        log.warning(
            "a finished block comes out the same but for rounding, as by another processor or "
            "library, or where a sweep begins: the output will be as accurate, and not the same "
            "bytes as one run's"
        )
    return spent


def state_of_block(
    block: Box, state: RunState, output: Stored, job: Job
) -> tuple[RunState, Comparison]:
    """Return the state of a run that computes one finished block again, and its comparison.

    Args:
        block: where the block lies.
        state: what is left of the job.
        output: has the block.
        job: which output is wanted.
    """
    only = Remaining(job, [(Box(ZERO, job.output), True), (block, False)])
    check = Comparison(output, ROUNDING[state.dtype][1], state.labels is not None)
    return replace(
        state,
        reader=state.reader.unmasked(),
        output=check,
        remaining=only,
        progress=no_progress,
    ), check


def allowed_difference(
    network: Network, accuracy: Accuracy, dtype: OutputType, labelled: bool = False
) -> float:
    """Return how far apart two plans' values may be, as ``Comparison.largest`` counts it.

    Args:
        network: what is computed.
        accuracy: the class that primitives may have.
        dtype: the type of the output values.
        labelled: whether they become labels.
    """
    if labelled:
        return LABELS_APART
    return len(network.convolutions) * ACCURACIES[accuracy] + ROUNDING[dtype][0]


def _finished(history: list[tuple[Box, bool]]) -> list[Box]:
    """Return the finished blocks, in the order in which they were finished."""
    finished: dict[Box, None] = {}
    for box, written in history:
        if written:
            finished[box] = None
        else:
            del finished[box]
    return list(finished)
