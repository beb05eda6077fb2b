"""Labelling: values become labels, on the host or on a GPU.

``engine/labels.py`` has the rule. Labels of windows are made from their means, piece by piece, so
that their maps are never stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.options import Stored
from znni.core.shapes import FLOAT_BYTES
from znni.engine.blended import LABEL_PIECE
from znni.engine.workers.processes import SLOTS
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.plans.stage import Counts, Setting, StageModel, larger
from znni.plans.totals import Number

LABEL_COPIES = 3  # of a block's labels: one computed, one being written, and a copy as it is stored


@dataclass(frozen=True)
class Label(StageModel):
    """The bytes of labels, which take no measurable time."""

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of a block's labels, and of the values that become labels.

        The labels of dense output are counted where it is written as float32. Each slot makes
        labels of windows itself. One block of all workers is written at a time.
        """
        if not run.stored.label_maps or not (run.network.window or run.workers):
            return 0 * each.voxels
        blocks = SLOTS * run.workers if run.network.window and run.workers else 1
        return blocks * _bytes_of_labels(run, each)

    def gpu_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of a block's labels."""
        return run.stored.label_maps * run.stored.label_itemsize * each.voxels


def _bytes_of_labels(run: Setting, each: Counts[Number]) -> Number:
    """Return the bytes of labels, of a piece of maps and its copy, and of indices of 8 bytes."""
    labels = LABEL_COPIES * run.stored.label_maps * run.stored.label_itemsize * each.voxels
    piece = larger(run.network.out_features * each.row, LABEL_PIECE)
    return labels + 4 * FLOAT_BYTES * piece


def model(_machine: Machine, _stored: Stored, _measured: HandlingTimes | None) -> Label:
    """Return the model of labels."""
    return Label()
