"""The model of a stage: the memory that it holds for blocks, and the seconds that it takes.

A block of a run goes from stage to stage: it is read, computed and written. Each stage of the
engine declares what it takes. The planner adds up the declarations. It knows nothing else of
stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias

import numpy as np

from znni.core.shapes import FLOAT_BYTES
from znni.network.network import Network
from znni.plans.job_seconds import ReportStage
from znni.plans.stored_values import AS_COMPUTED, Stored
from znni.plans.totals import Number

Seconds: TypeAlias = Mapping[ReportStage, Number]


class Counts(NamedTuple, Generic[Number]):
    """The numbers that describe a patch, or each of several patches.

    Attributes:
        values_in: the values of the input block.
        voxels: the output voxels.
        row: the output voxels along x.
        blended: the voxels at which the layers' values are needed. Only resampled output has
            another number of voxels.
        at_once: the values of the input of all windows that are computed at once. Without windows,
            these are the patch's.
        tail: the voxels after a block, along x, to whose sums its windows add; 0 without windows.
        runs: how often the layers run, on average.
        idle: how many of the last blocks along x find all their windows computed.
        read: the values that are read from the volume, on average. Others lie beyond its edges.
        chunks: the chunks of the input that a block overlaps, on average.
        files: the files that a block is written as, for each map.
        first_input: the values that the first layers on a GPU take at a time.
        handed: the bytes of the tensor that layers on the host hand on to a GPU.
        brought: the bytes that are copied to the GPU, as float32.
        host_seconds: the seconds of the layers on the host, for each run.
        gpu_seconds: the seconds of the layers on the GPU, likewise.
        kept: the bytes that a sweep keeps for the next block.
    """

    values_in: Number
    voxels: Number
    row: Number
    blended: Number
    at_once: Number
    tail: Number
    runs: Number
    idle: Number
    read: Number
    chunks: Number
    files: Number
    first_input: Number
    handed: Number
    brought: Number
    host_seconds: Number
    gpu_seconds: Number
    kept: Number


@dataclass(frozen=True)
class Setting:
    """The setting of a run: where its layers are computed, and how values are stored.

    Attributes:
        network: the network to run.
        on_host: whether layers run on the host.
        on_gpu: whether layers run on a GPU.
        host_uses_gpu: whether layers on the host compute on the GPU.
        gpus: the GPUs, each of which has a process of its own if there are several.
        stored: how values are stored at both ends.
    """

    network: Network
    on_host: bool
    on_gpu: bool
    host_uses_gpu: bool = False
    gpus: int = 1
    stored: Stored = AS_COMPUTED

    @property
    def uses_gpu(self) -> bool:
        """True if a GPU computes anything."""
        return self.on_gpu or self.host_uses_gpu

    @property
    def workers(self) -> int:
        """The processes that compute beside the one that reads and writes; 0 if that one does."""
        return self.gpus if self.uses_gpu and self.gpus > 1 else 0

    @property
    def itemsize_in(self) -> int:
        """The bytes of an input value in a block. A GPU may take values as they are stored."""
        return itemsize_in(self.stored, on_host=self.on_host)

    @property
    def resampled(self) -> bool:
        """True if the output is resampled to other voxels."""
        return bool(self.network.window and self.network.window.resampled)

    @property
    def labels_on_gpu(self) -> bool:
        """True if a GPU makes labels of its outputs."""
        return bool(self.stored.label_maps) and self.stored.made_on_gpu

    @property
    def takes_float32(self) -> bool:
        """True if the writing process gets dense output as float32, and converts it."""
        if self.network.window or self.workers:
            return False
        on_gpu = not self.on_host and self.stored.made_on_gpu
        return not on_gpu or bool(self.stored.label_maps)

    @property
    def itemsize_back(self) -> int:
        """The bytes of an output value that a GPU gives back."""
        return self.itemsize_out if self.stored.made_on_gpu else FLOAT_BYTES

    @property
    def itemsize_out(self) -> int:
        """The bytes of a stored output value."""
        return np.dtype(self.stored.dtype).itemsize

    @property
    def value_bytes(self) -> int:
        """The bytes that are stored for an output voxel: of its labels, or of its values."""
        if self.stored.label_maps:
            return self.stored.label_maps * self.stored.label_itemsize
        return self.network.out_features * self.itemsize_out

    @property
    def maps_written(self) -> int:
        """The maps that are stored: of labels, or of values."""
        return self.stored.label_maps or self.network.out_features


def itemsize_in(stored: Stored, *, on_host: bool) -> int:
    """Return the bytes of an input value in a block.

    Args:
        stored: how values are stored.
        on_host: whether the first layers run on the host.
    """
    is_float = on_host or not stored.scaled_on_gpu
    return FLOAT_BYTES if is_float else stored.input_itemsize


def larger(one: Number, other: Number | int) -> Number:
    """Return the larger of two counts, for each patch."""
    if isinstance(one, np.ndarray):
        return np.maximum(one, other)
    return max(one, other)  # NumPy's scalars would make the search slower


@dataclass(frozen=True)
class StageModel:
    """A stage's declaration. A stage overrides what it needs; the rest takes nothing.

    Seconds are by the stage of the report in which they count. Models that count under the same
    report stage work one after the other. Models of different report stages work at the same time,
    each on a block of its own.
    """

    def seconds(self, _run: Setting, _each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds for a block if no other stage works."""
        return {}

    def lost(self, _run: Setting, _each: Counts[Number], /) -> Seconds[Number]:
        """Return the seconds that layers on the host lose to this stage, as all share the cores."""
        return {}

    def delays(self, _run: Setting, _each: Counts[Number], /) -> Seconds[Number]:
        """Return the further seconds that this stage waits while layers keep all cores busy."""
        return {}

    def host_bytes(self, _run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of the host, in all processes together."""
        return 0 * each.voxels

    def locked_bytes(self, _run: Setting, each: Counts[Number], /) -> Number:
        """Return the page-locked bytes of a process, from or to which a GPU copies."""
        return 0 * each.voxels

    def gpu_bytes(self, _run: Setting, each: Counts[Number], /) -> Number:
        """Return the bytes of a GPU."""
        return 0 * each.voxels
