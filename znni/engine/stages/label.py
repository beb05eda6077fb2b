"""Labelling: values become labels, on the host or on a GPU.

``engine/labels.py`` has the rule. Labels of windows are made from their means, piece by piece, so
that their maps are never stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import FLOAT_BYTES, Vec3
from znni.engine.after_blending import LABEL_PIECE
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.plans.stage import Counts, Setting, StageModel, larger
from znni.plans.stored_values import Stored
from znni.plans.totals import Number

GPU_PIECE_BYTES = 2**26  # of resampled values on a GPU at a time, unless a row has more
LABEL_COPIES = 3  # of a block's labels: one computed, one being written, and a copy as it is stored


@dataclass(frozen=True)
class LabelModel(StageModel):
    """The bytes of labels, which take no measurable time."""

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of a block's labels, and of the values that become labels.

        The labels of dense output are counted where it is written as float32. Each worker makes
        labels itself.
        """
        if not run.stored.label_maps or not (run.network.window or run.workers):
            return 0 * each.voxels
        return max(1, run.workers) * _bytes_of_labels(run, each)

    def gpu_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of a block's labels, and of a piece of resampled values.

        A piece and its labels lie beside those of the piece before.
        """
        labels = run.stored.label_maps * run.stored.label_itemsize * each.voxels
        if not run.resampled:
            return labels
        row = FLOAT_BYTES * run.network.blended_features * each.row
        return labels + 4 * larger(row, GPU_PIECE_BYTES)


def piece_extents(size: Vec3, maps: int) -> Vec3:
    """Return the extents of the pieces in which a GPU resamples a block: of ``GPU_PIECE_BYTES``.

    Args:
        size: the extents of the block.
        maps: the maps that are resampled.
    """
    rows = max(1, GPU_PIECE_BYTES // (FLOAT_BYTES * maps * size.x))
    return Vec3(max(1, min(size.z, rows // size.y)), min(size.y, rows), size.x)


def _bytes_of_labels(run: Setting, each: Counts[Number]) -> Number:
    """Return the bytes of labels, of a piece of maps and its copy, and of indices of 8 bytes."""
    labels = LABEL_COPIES * run.stored.label_maps * run.stored.label_itemsize * each.voxels
    piece = larger(run.network.out_features * each.row, LABEL_PIECE)
    return labels + 4 * FLOAT_BYTES * piece


def model(_machine: Machine, _stored: Stored, _measured: HandlingTimes | None) -> LabelModel:
    """Return the model of labels."""
    return LabelModel()
