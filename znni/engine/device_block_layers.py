"""The layers of an exact network on a GPU, which blocks go through.

All arrays of a block lie in one arena, at places that the plan decided. Each step reads views of
them and writes into a view. Samples outside the volume are then set to zero, as padding. If a
convolution or a pooling cannot write a view with gaps, it makes its output in the workspace, and
the output is copied.

Packed values have records beside the arena, which are zero at the beginning of each block. Some
also have sums of their maps, or a norm that the next step applies.

The work of a block depends only on the place of its input, and on the part of it that lies outside
the volume. So most blocks, and all windows, take one launch of recorded work. The steps of the
first blocks are launched one by one, and only these are timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from znni.core.shapes import Box, Vec3
from znni.engine.block_layers import boxes_read
from znni.engine.device_graphs import DeviceGraphs
from znni.engine.device_layers import DeviceLayers
from znni.engine.executor import ZERO, Fragments, built
from znni.engine.transfer import Span
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.device_arena import ALIGNMENT, device_workspace
from znni.machine.packed_arrays import (
    GROUP,
    LeftNorm,
    PackedArray,
    groups_for,
    in_words,
    stored,
    voxel_shape,
)
from znni.network.layers import PackedLayer
from znni.network.network import INPUT
from znni.network.weights import Weights
from znni.plans.device_partition import DevicePart
from znni.plans.packed import packed_storages
from znni.plans.placement import StepPlace
from znni.plans.primitive import Catalogue, Run
from znni.plans.segments import Step
from znni.plans.storage_placement import SECTOR, SECTOR_BYTES, device_rows, is_staged
from znni.primitives.gpu.common.clearing import clear_outside, clearing_kernel

# Bytes of each step for the alignment of the arrays in its workspace, of which there are few.
STEP_SPARE = 32 * ALIGNMENT


class _Ready(NamedTuple):
    """A step that is ready to run.

    Attributes:
        step: the step.
        run: the function that computes it.
        place: the memory of the arena that it uses.
        reads: the samples that it reads of each input's storage.
        staged: whether its output is made in the workspace, and then copied.
        cleared: whether samples of its output outside the volume are set to zero.
    """

    step: Step
    run: Run
    place: StepPlace
    reads: tuple[Box, ...]
    staged: bool
    cleared: bool


class _Edges(NamedTuple):
    """The samples of a step's arrays that lie within the volume, for a block.

    Attributes:
        whole: the box of the whole input, counted from the first sample that the step reads; None:
            the step's work does not depend on it.
        seen: the part of that box which the step reads.
        inside: the samples of the output's storage.
    """

    whole: Box | None
    seen: Box | None
    inside: Box


class DeviceBlockLayers(DeviceLayers):
    """The layers of a plan for an exact network on the first GPU, with everything prepared."""

    def _prepare(self, part: DevicePart, catalogue: Catalogue, weights: Weights) -> int:
        """Prepare the steps, and return the bytes of the arena."""
        if part.storage is None:
            raise ValueError("the network is dense; use DeviceLayers")
        storage = self._storage = part.storage
        network = self._network
        placed = part.placed(ALIGNMENT, STEP_SPARE)
        made = {storage.locations[step.gives].storage for step in part.steps}
        self._rows = {name: device_rows(name, part.steps, storage) for name in made}
        nodes = {node.name: node for node in network.nodes}
        self._ready = [
            _Ready(
                step,
                built(step, catalogue, weights),
                place,
                boxes_read(step, nodes, storage),
                is_staged(step, storage, part.device),
                step.gives in storage.cleared,
            )
            for step, place in zip(part.steps, placed.places[0], strict=True)
        ]
        if storage.cleared:
            clearing_kernel()
        self._packed = packed_storages(part.steps, storage)
        self._records = self._new_records()
        self._graphs = DeviceGraphs(self._compute)
        self._latest: tuple[Vec3, list[_Edges], int] | None = None
        self._numbers: dict[object, int] = {}
        return placed.size

    def _new_records(self) -> _Records:
        """Return the records of all packed values.

        A value that a later one joins without a step has a part of the later one's records.
        """
        groups = {name: groups_for(maps) for name, maps in self._storage.maps.items()}
        stepped = {node.name for node in self._storage.steps_of(self._network.nodes)}
        first: dict[str, int] = {}
        count = 0
        for node in reversed(self._network.nodes):
            if self._storage.locations[node.name].storage not in self._packed:
                continue
            if node.name not in first:
                first[node.name] = count
                count += groups[node.name]
            if node.name not in stepped:
                at = first[node.name]
                for name in node.inputs:
                    first[name] = at
                    at += groups[name]
        return _Records(cupy().zeros((count, 2), np.uint32), first)

    def _queue(self, given: Fragments, dense: Any, steps: list[tuple[Step, Span]]) -> None:
        """Queue all steps of a block, and copy its output to ``dense``."""
        self._recombine(self._made(given, steps), (ZERO,), Vec3(1, 1, 1), dense)

    def _made(self, given: Fragments, steps: list[tuple[Step, Span]]) -> Any:
        """Queue all steps of a block, or of windows that are computed at once.

        Returns:
            the outputs (n, f', z, y, x), which the next call overwrites.
        """
        (start,) = given.at
        x = given.values[:]
        edges, number = self._edges_from(start)
        return self._graphs.launch(
            (x.data.ptr, number),
            lambda: self._made_by_steps(x, edges, steps),
            lambda: self._made_by_steps(x, edges, None),
        )

    def _edges_from(self, start: Vec3) -> tuple[list[_Edges], int]:
        """Return what all steps read and make of a block that begins at a voxel of the output.

        Small volumes have one block, and windows begin at the same voxel, so the latest is kept.

        Returns:
            The edges of each step, and a number that blocks of the same work share.
        """
        if self._latest is None or self._latest[0] != start:
            edges = [self._edges(ready, start) for ready in self._ready]
            work = tuple((of_step.seen, of_step.inside) for of_step in edges)
            number = self._numbers.setdefault(work, len(self._numbers))
            self._latest = start, edges, number
        return self._latest[1:]

    def _edges(self, ready: _Ready, start: Vec3) -> _Edges:
        """Return what a step reads and makes of a block that begins at a voxel of the output."""
        step, storage, strides = ready.step, self._storage, self._network.strides
        inside = storage.inside(step.gives, start // strides[step.gives])
        if not step.layers[0].sees_edges:
            return _Edges(None, None, inside)
        (name,), (box,) = step.takes, ready.reads
        whole = storage.whole(name, start // strides[name]).shifted(ZERO - box.start)
        return _Edges(whole, whole.intersection(Box(ZERO, box.size)), inside)

    def _made_by_steps(
        self, x: Any, edges: list[_Edges], steps: list[tuple[Step, Span]] | None
    ) -> Any:
        """Queue step after step, and return the output.

        Args:
            x: the input.
            edges: what lies within the volume, for each step.
            steps: takes each step with its work, if that is to be timed.
        """
        arrays = {INPUT: x}
        self._beside: dict[str, tuple[Any, LeftNorm | None]] = {}
        if self._packed:
            self._records.all.fill(0)
        for ready, of_step in zip(self._ready, edges, strict=True):
            timed = nullcontext() if steps is None else self._timed(ready.step, steps)
            with timed:
                self._run(ready, arrays, of_step)
        name = self._network.output
        return _within(self._maps(name, arrays), self._storage.made(name))

    def _run(self, ready: _Ready, arrays: dict[str, Any], edges: _Edges) -> None:
        """Queue a step."""
        step, storage = ready.step, self._storage
        given = [
            _within(self._maps(name, arrays), box)
            for name, box in zip(step.takes, ready.reads, strict=True)
        ]
        if not (isinstance(step.operation, PackedLayer) and step.operation.sums):
            # Sums are those of a whole value, and this step may read a part of it.
            given = [
                value._replace(sums=None) if isinstance(value, PackedArray) else value
                for value in given
            ]
        if edges.whole is not None:
            given.append(edges.whole)
        at = storage.locations[step.gives].storage
        if at not in arrays and ready.place.output is not None:
            arrays[at] = self._array(at, ready.place.output)
        held = self._maps(step.gives, arrays)
        view = _within(held, storage.made(step.gives))
        with self._arena.step(step.shape_out, None, ready.place.free):
            if ready.staged:
                apart = device_workspace(step.shape_out, np.float32)
                with output_into(apart):
                    ready.run(*given)
                view[...] = apart
            else:
                with output_into(view):
                    made = ready.run(*given)
                if isinstance(made, PackedArray):
                    self._beside[step.gives] = made.sums, made.norm
        if not ready.cleared:
            return
        if isinstance(held, PackedArray):
            clear_outside(held.words, in_words(edges.inside))
        else:
            clear_outside(held, edges.inside)

    def _array(self, name: str, start: int) -> Any:
        """Return the array of a storage whose place begins at a byte of the arena."""
        rows, shape = self._rows[name], self._storage.storages[name].shape
        if name in self._packed:
            return self._arena.array_at(start, voxel_shape(shape, self._packed[name]), np.float16)
        start += rows.first * SECTOR_BYTES // SECTOR
        whole = self._arena.array_at(start, (*shape[:4], rows.pitch))
        return whole[..., : shape.x]

    def _maps(self, name: str, arrays: dict[str, Any]) -> Any:
        """Return the maps of a value in its storage."""
        at, count = self._storage.locations[name], self._network.maps[name]
        array = arrays[at.storage]
        if at.storage not in self._packed:
            return array[:, at.first_map : at.first_map + count]
        first, groups = at.first_map // GROUP, groups_for(count)
        records = self._records.of(name, groups)
        voxels = array[:, stored(slice(first, first + groups), self._packed[at.storage])]
        return PackedArray(voxels, records, count, *self._beside.get(name, ()))


class _Records(NamedTuple):
    """The records of the packed values.

    Attributes:
        all: the records (group, largest number or scale).
        first: the first group of each value, by name.
    """

    all: Any
    first: Mapping[str, int]

    def of(self, name: str, groups: int) -> Any:
        """Return the records of a value that has a number of groups."""
        first = self.first[name]
        return self.all[first : first + groups]


def _within(array: Any, box: Box) -> Any:
    """Return the samples of an array in a box."""
    if isinstance(array, PackedArray):
        return array.within(box)
    return array[:, :, *box.slices]
