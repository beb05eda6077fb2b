"""The runner of steps on a GPU: they are queued on one stream, and their arrays lie in one arena.

If a convolution or a pooling cannot write a view with gaps, it makes its output in the workspace,
and the output is copied.

The work of a tiled network's block depends only on the place of its input, and on the part of it
that lies outside the volume. In a sweep, it also depends on the steps that are left out before a
column. So most blocks, and all windows, take one launch of recorded work. The steps of the first
blocks are launched one by one, and only these are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import numpy as np

from znni.core.shapes import Box
from znni.engine.backends.cuda.graphs import DeviceGraphs
from znni.engine.backends.cuda.packed_values import PackedValues
from znni.engine.backends.cuda.transfer import CopiedOnRead, Span
from znni.engine.executor import Array, BuiltStep, OutputMemory
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.device_arena import ALIGNMENT, SPARE, DeviceArena, device_workspace
from znni.machine.packed_arrays import PackedArray, groups_for, in_words, voxel_shape
from znni.network.layers import PackedLayer
from znni.network.network import Network
from znni.plans.array_layout import SECTOR, SECTOR_BYTES
from znni.plans.program import ArrayPlace, Carried, PlacedStep, Program, View
from znni.plans.segments import Step
from znni.plans.swept import KeptPlanes
from znni.primitives.gpu.common.clearing import clear_outside, clearing_kernel

# Bytes of each step for the alignment of the arrays in its workspace. Tiled networks have few.
STEP_SPARE = 32 * ALIGNMENT

# A function that copies some planes of an array to another one.
CopyPlanes: TypeAlias = Callable[[Any, Any], None]

# A function that exchanges planes of a packed value with those that are carried.
CarryPacked: TypeAlias = Callable[[PackedArray, PackedArray, KeptPlanes], None]


def spare_bytes(network: Network) -> int:
    """Return the bytes of each step for the alignment of the arrays in its workspace."""
    return STEP_SPARE if network.is_tiled else SPARE


class CudaStepRunner:
    """A GPU's memory for a program, and its stream.

    Args:
        program: the program. No step makes its output late.
        network: the network.
        stream: the stream that computes, which is the current one.
        copy_planes: the function that copies what a sweep carries. None: there are no sweeps.
        carry_packed: the same for packed values. None: no value that is carried is packed.

    Attributes:
        arrays: the arrays of the arena, by name.
        spans: takes each step with its work, unless the work is recorded.
    """

    def __init__(
        self,
        program: Program,
        network: Network,
        stream: Any,
        copy_planes: CopyPlanes | None = None,
        carry_packed: CarryPacked | None = None,
    ) -> None:
        late = [each.step.primitive for each in program.steps if each.late_at is not None]
        if late:
            raise ValueError(f"{late[0]} makes its output late, which primitives of a GPU may not")
        self._stream = stream
        self._copy = copy_planes
        self._carry_packed = carry_packed
        self._arena = DeviceArena(program.size, spare=0)
        self._graphs = DeviceGraphs(stream) if program.storage else None
        self._packed = PackedValues(program, network)
        self.spans: list[tuple[Step, Span]] | None = None
        self.arrays = {name: self._array(array) for name, array in program.arrays.items()}
        self._carried = {
            each.step.gives: self._planes(carried, program.arrays[each.writes.array])
            for each in program.steps
            if (carried := each.carried)
        }

    def _planes(self, carried: Carried, array: ArrayPlace) -> Any:
        """Return the memory for the planes of an array that a sweep carries.

        If they span the rows of the array, they lie with the same gaps between these.
        """
        start, passes, shape = carried.start, carried.kept.passes, carried.kept.shape
        if array.parts:
            voxels = self._arena.array_at(start, voxel_shape(shape, array.parts), np.float16)
            records = cupy().zeros((groups_for(shape.f), 2), np.uint32)
            return PackedArray(voxels, records, shape.f)
        pitch = array.rows.pitch if array.rows and shape.x == array.shape.x else shape.x
        return self._arena.array_at(start, (passes, *shape[:4], pitch))[..., : shape.x]

    def _array(self, array: ArrayPlace) -> Any:
        """Return an array at its place in the arena."""
        start, shape, rows = array.start, array.shape, array.rows
        if array.parts:
            return self._arena.array_at(start, voxel_shape(shape, array.parts), np.float16)
        if rows is None:
            return self._arena.array_at(start, shape)
        start += rows.first * SECTOR_BYTES // SECTOR
        return self._arena.array_at(start, (*shape[:4], rows.pitch))[..., : shape.x]

    def maps(self, view: View, array: Any) -> Any:
        """Return the maps of a value in its array, with all samples."""
        if self._packed.parts(view.array):
            return self._packed.maps(view, array)
        return array[:, view.first_map : view.first_map + view.maps]

    def within(self, maps: Any, box: Box) -> Any:
        """Return the samples of a value in a box."""
        if isinstance(maps, PackedArray | CopiedOnRead):
            return maps.within(box)
        return maps[:, :, *box.slices]

    def carry(self, array: Any, placed: PlacedStep, passed: int) -> None:
        """Queue the copies of the planes that a sweep carries: to an array, and then from it."""
        assert self._copy is not None
        assert placed.carried is not None
        carried, kept = self._carried[placed.step.gives], placed.carried.kept
        if isinstance(array, PackedArray):
            assert self._carry_packed is not None
            self._carry_packed(array, carried, kept)
            return
        first, last = kept.first_and_last
        self._copy(carried[passed], self.within(array, first))
        self._copy(self.within(array, last), carried[passed])

    def forget(self) -> None:
        """Queue the clearing of the planes that a sweep carries."""
        for carried in self._carried.values():
            if isinstance(carried, PackedArray):
                carried.voxels.fill(0)
                carried.records.fill(0)
            else:
                carried.fill(0)

    def launch(self, key: tuple[Array, Hashable], work: Callable[[], Array]) -> Array:
        """Queue work, or launch the recording of equal work."""
        if self._graphs is None:
            return work()

        def record() -> Array:
            spans, self.spans = self.spans, None
            try:
                return self._with_cleared_records(work)
            finally:
                self.spans = spans

        x, equal = key
        return self._graphs.launch(
            (x.data.ptr, equal), lambda: self._with_cleared_records(work), record
        )

    def _with_cleared_records(self, work: Callable[[], Array]) -> Array:
        """Queue work, after the clearing of what packed values noted for the block before."""
        self._packed.begin()
        return work()

    def call(self, built: BuiltStep, given: Sequence[Any], output: OutputMemory) -> Any:
        """Queue a step, and return its output."""
        placed, run = built
        step, into = placed.step, output.view
        assert into is not None
        if not (isinstance(step.operation, PackedLayer) and step.operation.sums):
            # Sums are those of a whole value, and this step may read a part of it.
            given = [
                value._replace(sums=None) if isinstance(value, PackedArray) else value
                for value in given
            ]
        with self._timed(step) if self.spans is not None else nullcontext():
            with self._arena.step(placed.room):
                if placed.staged:
                    apart = device_workspace(step.shape_out, np.float32)
                    with output_into(apart):
                        run(*given)
                    into[...] = apart
                else:
                    with output_into(into):
                        made = run(*given)
                    if isinstance(made, PackedArray):
                        self._packed.note(step.gives, made)
            if output.inside is not None:
                _clear_outside(output.maps, output.inside)
        return into

    @contextmanager
    def _timed(self, step: Step) -> Iterator[None]:
        """Note the work that is queued for a step within a ``with`` block."""
        before = self._stream.record()
        yield
        assert self.spans is not None
        self.spans.append((step, Span(before, self._stream.record())))


def load_clearing(program: Program) -> None:
    """Load the kernel that clears samples outside the volume, if the program needs it."""
    if any(placed.cleared for placed in program.steps):
        clearing_kernel()


def _clear_outside(maps: Any, inside: Box) -> None:
    """Set the samples of a value outside a box to zero."""
    if isinstance(maps, PackedArray):
        clear_outside(maps.words, in_words(inside))
    else:
        clear_outside(maps, inside)
