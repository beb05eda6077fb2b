"""Blending: the outputs of windows are added up, and divided by the sums of their weights.

``engine/windows.py`` does so, on the host or on a GPU. Then the means become what is stored: labels
or converted values (``engine/after_blending.py``). The last layer may be applied to the means.
"""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import FLOAT_BYTES
from znni.engine.after_blending import BlendedBlock, clear_unwanted
from znni.engine.block import Block
from znni.engine.run_state import RunState
from znni.engine.stage_chain import Work
from znni.engine.stages.convert import convert
from znni.engine.stages.download import bytes_returned
from znni.engine.stages.layers import placed_seconds
from znni.engine.workers.processes import SLOTS
from znni.machine.handling_times import HandlingTimes
from znni.machine.machine import Machine
from znni.network.geometry import cut_for_gpu
from znni.network.network import Network
from znni.network.window import Window
from znni.plans.stage import Counts, Seconds, Setting, StageModel, larger
from znni.plans.stored_values import Stored
from znni.plans.totals import Number

MASK_COPIES = 3  # of a block's mask: in the writer, in a message, and in the worker


def work(state: RunState, network: Network) -> Work | None:
    """Return what makes a block of windows what is stored; None without windows.

    The conversion needs little memory. It frees the sums of windows before the next block.
    """

    def as_stored(block: Block) -> Block:
        if block.form != "in_progress":
            return block
        blended: BlendedBlock = block.values
        if state.labels:
            stored = blended.labels(state.labels)
        else:
            stored = convert(blended.maps(), state.dtype)
        clear_unwanted(stored, blended.wanted)
        return block._replace(values=stored, form="stored")

    return as_stored if network.window else None


@dataclass(frozen=True)
class BlendModel(StageModel):
    """The bytes and seconds of blending.

    Attributes:
        added: the seconds per value to add it to a sum on the host.
    """

    added: float = 0.0

    def seconds(self, run: Setting, each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds for a block."""
        network, window = run.network, run.network.window
        if not window:
            return {}
        applied = network.out_features if network.head else 0
        head = applied * each.voxels * self.added
        if run.on_gpu:
            return {} if run.labels_on_gpu else {"host_layers": head}
        added = each.runs * (network.blended_features * window.size.volume) * self.added
        return {"host_layers": added + head}

    def host_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of the input of windows, of their sums and of the mask.

        The stored values are made of the sums before the next block begins. A GPU holds the sums
        itself, and returns the means, or the labels that they give. Sums for the next block along x
        lie beside those of the block, and are copied for that block. Output in float32 is written
        from the array of the sums.
        """
        network, window = run.network, run.network.window
        if not window:
            return 0 * each.voxels
        if run.workers:
            masks = SLOTS * MASK_COPIES * each.voxels
            returned = bytes_returned(run, each)
            return run.workers * (FLOAT_BYTES * _cut(run, window, each) + returned + masks)
        seen = larger(each.values_in, _cut(run, window, each))
        if run.on_gpu and run.labels_on_gpu:
            return FLOAT_BYTES * (seen + window.size.volume) + each.voxels
        tail = 0 if run.uses_gpu else each.tail
        a_sum = (network.blended_features + 1) * FLOAT_BYTES
        sums = a_sum * (each.blended + 2 * tail) + each.voxels
        written = 0 if run.stored.label_maps or network.head else a_sum * tail
        return FLOAT_BYTES * (seen + window.size.volume) + sums + written

    def gpu_bytes(self, run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of sums, weights, the means of two blocks, and the last layer.

        The sums are those of a block, with the voxels that the next block takes over.
        """
        network, window = run.network, run.network.window
        if not window:
            return 0 * each.voxels
        sums = (network.blended_features + 1) * (each.blended + 2 * each.tail)
        means = 2 * network.blended_features * each.blended
        head = (network.blended_features + 1) * network.out_features if network.head else 0
        return FLOAT_BYTES * (sums + means + window.size.volume + head)


def _cut(run: Setting, window: Window, each: Counts[Number]) -> Number:
    """Return the values that are cut out of a block for the windows that are computed at once."""
    if run.on_gpu and window.mirrored_by_gpu:
        return cut_for_gpu(run.network).elements + 0 * each.voxels
    return each.at_once


def model(machine: Machine, _stored: Stored, measured: HandlingTimes | None) -> BlendModel:
    """Return the model of blending."""
    return BlendModel(placed_seconds(machine, measured))
