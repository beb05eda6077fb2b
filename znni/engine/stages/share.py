"""Sharing: the blocks of several workers lie in memory that they share with reader and writer.

``engine/workers/slots.py`` has that memory. The first process reads into a slot, a worker computes,
and the first process writes from the slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.engine.workers.processes import SLOTS
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.plans.stage import Counts, Setting, StageModel
from znni.plans.stored_values import Stored
from znni.plans.totals import Number


@dataclass(frozen=True)
class ShareModel(StageModel):
    """The bytes of slots."""

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of all slots. Each holds a block's input and output."""
        a_slot = each.values_in * run.itemsize_in + run.value_bytes * each.voxels
        return run.workers * SLOTS * a_slot


def model(_machine: Machine, _stored: Stored, _measured: HandlingTimes | None) -> ShareModel:
    """Return the model of slots."""
    return ShareModel()
