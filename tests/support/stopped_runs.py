"""Runs of a plan that stop after some blocks and go on, and whose steps are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from znni.core.shapes import Box, Vec3
from znni.engine.block_reader import BlockReader
from znni.engine.patch_runner import PatchRunner
from znni.engine.pipeline import PreparedHere, run_volume
from znni.engine.run_state import RunState
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Remaining, make_job
from znni.network.network import Network
from znni.network.weights import Float32, random_weights
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue
from znni.volumes.array import ArrayOutput, ArrayVolume


class Stopped(Exception):
    """A run that is killed."""


class StoppingOutput(ArrayOutput):
    """An output that takes some blocks, and then stops the run."""

    def __init__(self, values: Float32, blocks: int) -> None:
        super().__init__(values, len(values), Vec3(*values.shape[1:]))
        self.written: list[Box] = []
        self._blocks = blocks

    def write(self, box: Box, values: Float32) -> None:
        if len(self.written) == self._blocks:
            raise Stopped
        super().write(box, values)
        self.written.append(box)


class Counting:
    """Runs of a plan over one job, whose steps are counted by name."""

    def __init__(
        self,
        network: Network,
        plan: Plan,
        volume: Float32,
        catalogue: Catalogue,
        **region: Any,
    ) -> None:
        self.calls: Counter[str] = Counter()
        self._catalogue = catalogue
        self.weights = random_weights(network, 7)
        region = {"border": "valid", "pad": None, "roi": None} | region
        self.job = make_job(network, Vec3(*volume.shape[1:]), **region)
        self.network, self.plan, self.volume = network, plan, ArrayVolume(volume)
        self.values = np.zeros((network.out_features, *self.job.output), np.float32)

    def run(
        self,
        finished: Sequence[Box] = (),
        mask: Float32 | None = None,
        blocks: int = 2**31,
    ) -> list[Box]:
        """Compute what is left, as a new process would, and return the boxes that are written."""
        runner = PatchRunner(
            self.plan,
            self._catalogue,
            self.weights,
            lambda step, _seconds: self.calls.update([step.gives]),
        )
        axis = self.plan.network.swept_along
        remaining = Remaining(self.job, [(box, True) for box in finished], swept=axis)
        output = StoppingOutput(self.values, blocks)
        masked = None if mask is None else ArrayVolume(mask[None])
        found = BlockReader(self.volume, self.job, self.network, self.weights, masked)
        state = RunState(found, output, "float32", remaining)
        try:
            run_volume(state, PreparedHere(self.plan, lambda: runner), Stopwatch())
        except Stopped:
            pass
        else:
            assert remaining.voxels == 0
        return output.written
