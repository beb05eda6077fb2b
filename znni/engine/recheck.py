"""Whether a run that goes on computes what the runs before it computed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.engine.endurance import EnduringRunner
from znni.engine.pipeline import no_progress
from znni.engine.remaining import Remaining
from znni.engine.skipping import Blocks
from znni.engine.tiles import Job
from znni.errors import InvalidInput, option
from znni.job_seconds import JobSeconds
from znni.machine import DeviceKind
from znni.options import ACCURACIES, Accuracy, OutputType
from znni.plans import Plan
from znni.shapes import Box, Vec3
from znni.volume import Output

log = logging.getLogger("znni")

# How far apart values of a type may be that were rounded from nearly the same: as a share of them,
# and beside that.
ROUNDING: dict[OutputType, tuple[float, int]] = {
    "float32": (0.0, 0),
    "float16": (2.0**-10, 0),
    "uint8": (0.0, 1),
}


class Comparison:
    """Takes what is computed, and holds it to what an output has already.

    Args:
        output: has it.
        accepted: the difference that is not counted.

    Attributes:
        same: whether all was the same, to the last bit.
        largest: difference counted, as a share of the largest value of its block.
    """

    def __init__(self, output: Output, accepted: int) -> None:
        self.same = True
        self.largest = 0.0
        self._output = output
        self._accepted = accepted

    def write(self, box: Box, values: NDArray[Any]) -> None:
        """Compare the values (f', z, y, x) of a box."""
        stored = self._output.read(box)
        if np.array_equal(stored, values):
            return
        self.same = False
        apart = np.abs(stored.astype(np.float32) - values).max() - self._accepted
        self.largest = max(self.largest, float(apart / np.abs(stored).max(initial=1e-30)))


def recheck(
    runner: EnduringRunner,
    blocks: Blocks,
    job: Job,
    output: Output,
    dtype: OutputType,
    accuracy: Accuracy,
    smaller: Callable[[Plan, DeviceKind], Plan],
) -> JobSeconds:
    """Compute once more the block that was finished last, if there is one.

    Args:
        runner: with the plan to go on with.
        blocks: the input.
        job: which output is wanted.
        output: with the blocks that are finished.
        dtype: of its values.
        accuracy: the class that primitives may have.
        smaller: as ``EnduringRunner.run`` takes it.

    Returns:
        Where the time went.

    Raises:
        InvalidInput: the block comes out differently, by more than rounding.
    """
    block = _last_finished(output.begun.history)
    if block is None:
        return JobSeconds()
    whole = Box(Vec3(0, 0, 0), job.output)
    only = Remaining(job.output, [(whole, True), (block, False)])
    share, accepted = ROUNDING[dtype]
    found = Comparison(output, accepted)
    spent = runner.run(blocks, job, found, dtype, no_progress, smaller, only)
    layers = len(runner.plans[-1].network.convolutions)
    if not found.largest <= layers * ACCURACIES[accuracy] + share:
        raise InvalidInput(
            f"the finished block {block} comes out differently now, by {found.largest:.1g} of its "
            f"largest value: the input, or something else that no run notes, is not what it was; "
            f"restore it, or give {option('resume', False)} to start afresh"
        )
    if not found.same:
        log.warning(
            "a finished block comes out the same but for rounding, as by another processor or "
            "library: the output will be as accurate, and not the same bytes as one run's"
        )
    return spent


def _last_finished(history: list[tuple[Box, bool]]) -> Box | None:
    finished: dict[Box, None] = {}
    for box, written in history:
        if written:
            finished[box] = None
        else:
            del finished[box]
    return next(reversed(finished), None)
