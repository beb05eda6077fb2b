"""The program of a device's part of a plan: steps in loops, and a place for each value.

A segment becomes a loop. One pass takes some items of the input, and one offset for each plain
pooling. It runs the loop's steps. The next loop then runs on their last result. A block of a
tiled network is a loop that runs once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import NamedTuple

from znni.core.shapes import ZERO, Box, Shape5, Vec3, extent, offsets, resized, round_up
from znni.network.layers import Concat
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.plans.array_layout import Rows, device_rows, packed_storages
from znni.plans.block_storage import BlockStorage
from znni.plans.device_partition import DevicePart
from znni.plans.segments import Segment, Step
from znni.plans.swept import KeptPlanes, Swept


class ArrayPlace(NamedTuple):
    """The place of an array in the arena.

    Attributes:
        start: its first byte.
        shape: its shape.
        rows: the place of its rows. None: there are no gaps.
        parts: the parts of its numbers, if its values are packed; 0: they are float32.
    """

    start: int
    shape: Shape5
    rows: Rows | None = None
    parts: int = 0


class Carried(NamedTuple):
    """The memory for the planes of an array that a sweep keeps until it is filled again.

    Attributes:
        start: the first byte of the arena for it.
        kept: the planes.
    """

    start: int
    kept: KeptPlanes


class View(NamedTuple):
    """The part of an array that a step reads or writes.

    Attributes:
        value: the name of the value that it is a part of.
        array: the name of the array.
        first_map: the value's first map in the array.
        maps: the number of maps.
        box: the samples. None: all.
    """

    value: str
    array: str
    first_map: int
    maps: int
    box: Box | None = None

    @property
    def all_samples(self) -> View:
        """All samples of its maps, whatever value is there."""
        return self._replace(value="", box=None)

    def overlaps(self, other: View) -> bool:
        """Return whether two views have maps in common."""
        common = range(
            max(self.first_map, other.first_map),
            min(self.first_map + self.maps, other.first_map + other.maps),
        )
        return self.array == other.array and len(common) > 0


class PlacedStep(NamedTuple):
    """A step with the places of its arrays.

    Attributes:
        step: the step.
        reads: the views that it reads.
        writes: the view that it writes. If its array is not in the arena, the tensor that is handed
            on takes the output.
        room: the first byte of the arena for its workspace, and the one after the last.
        late_at: the first byte of its output, if it makes the output late. Its workspace may lie
            there before. None: the output exists from the beginning.
        staged: whether it makes its output in the workspace, from where it is copied.
        cleared: whether samples of its output outside the volume are set to zero.
        carried: what a sweep keeps of the array of its output; None: nothing.
        behind: the planes before the block's, in voxels, that later steps of a sweep need of
            its output.
    """

    step: Step
    reads: tuple[View, ...]
    writes: View
    room: tuple[int, int]
    late_at: int | None = None
    staged: bool = False
    cleared: bool = False
    carried: Carried | None = None
    behind: int = 0


class Loop(NamedTuple):
    """Steps that run on some items of an input at a time.

    Attributes:
        segment: the segment of the plan that it runs.
        steps: the steps in order.
        takes: the name of the array that it takes a part of.
    """

    segment: Segment
    steps: tuple[PlacedStep, ...]
    takes: str

    def batches(self, items: int) -> Iterator[slice]:
        """Yield the items of the input that are taken at a time."""
        size = self.segment.sub_batch
        for first in range(0, items, size):
            yield slice(first, first + size)

    def choices(self) -> Iterator[tuple[Vec3, ...]]:
        """Yield an offset for each plain pooling, in all combinations: one pass for each."""
        return product(*map(offsets, self.segment.plain_windows))

    def crop(self, chosen: tuple[Vec3, ...]) -> Box | None:
        """Return the samples of its input that a pass takes.

        None: the network is tiled, and the view of each step has a box.
        """
        if self.segment.is_tiled:
            return None
        start = self.segment.shift(chosen)
        return Box(start, start + self.segment.steps[0].shape_in.size)


class Edges(NamedTuple):
    """The samples of a step's arrays that lie within the volume, for a block.

    Attributes:
        whole: the box of the whole input, counted from the first sample that the step reads;
            None: its work does not depend on it.
        seen: the part of that box which the step reads.
        inside: the samples of the output's array, outside of which the step sets zeros. None: no
            later step reads samples outside, or these are zeros already.
    """

    whole: Box | None
    seen: Box | None
    inside: Box | None


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        loops: the loops, each within the one before.
        arrays: the arrays of the arena, by name.
        size: the bytes of the arena.
        output: the view of the last value, which may lie where its joined inputs were written.
        storage: the arrays of a block, if the network is tiled.
        strides: the voxels of the network's input between neighbouring samples of each value.
        swept: the planes of a sweep, if there is one.
        first_planes: the planes of the input that the first step takes in a sweep.
    """

    loops: tuple[Loop, ...]
    arrays: Mapping[str, ArrayPlace]
    size: int
    output: View
    storage: BlockStorage | None
    strides: Mapping[str, Vec3]
    swept: Swept | None = None
    first_planes: int = 0

    @property
    def steps(self) -> tuple[PlacedStep, ...]:
        """All steps, in order."""
        return tuple(each for loop in self.loops for each in loop.steps)

    def edges(self, start: Vec3) -> dict[str, Edges]:
        """Return what each step of a tiled network reads and makes of a block, by what it gives.

        Steps of a sliding network have no edges.

        Args:
            start: the voxel of the whole output at which the block begins.
        """
        storage, found = self.storage, dict[str, Edges]()
        if storage is None:
            return found
        zeros: dict[View, Box] = {}  # maps of arrays, which are zero outside of a box
        for placed in self.steps:
            step, maps, written = placed.step, placed.writes.all_samples, placed.writes.box
            joined = step.takes if isinstance(step.layers[0], Concat) else ()
            inside = storage.inside(step.gives, start // self.strides[step.gives], joined)
            before = zeros.get(maps)
            zeros = {it: box for it, box in zeros.items() if not it.overlaps(maps)}
            clears = placed.cleared
            if clears and not self.swept:  # a sweep also reads planes that it has kept
                later = self._read_later[step.gives]
                clears = any(box is None or not box.within(inside) for box in later)
                if clears:
                    zeros[maps] = inside
                    assert written is not None
                    clears = before != inside or not written.within(inside)
            whole = seen = None
            if step.layers[0].sees_edges:
                (view,) = placed.reads
                assert view.box is not None
                whole = storage.whole(view.value, start // self.strides[view.value])
                whole = whole.shifted(ZERO - view.box.start)
                seen = whole.intersection(Box(ZERO, view.box.size))
            found[step.gives] = Edges(whole, seen, inside if clears else None)
        return found

    @cached_property
    def _read_later(self) -> dict[str, frozenset[Box | None]]:
        """By the name of a value: the boxes of its array that steps read after the value is made.

        They are those of the value's maps, even if other values are made there before.
        """
        found = {}
        steps = self.steps
        for number, placed in enumerate(steps):
            views = chain.from_iterable(later.reads for later in steps[number + 1 :])
            found[placed.step.gives] = frozenset(
                it.box for it in views if it.overlaps(placed.writes)
            )
        return found


def program_of(network: Network, part: DevicePart, alignment: int, spare: int) -> Program:
    """Return the program of one device's part of a plan.

    Args:
        network: the network.
        part: the part.
        alignment: every array begins at a multiple of so many bytes.
        spare: bytes of each step for the alignment of the arrays in its workspace.
    """
    arrays = part.array_uses(alignment, spare)
    placed = arrays.placement()
    carried, size = _carried(part, placed.size, alignment)
    views, storage = _Views(network, part.storage), part.storage
    placed_steps = [
        PlacedStep(
            step,
            views.reads(step),
            views.view_of(step.gives) if storage else views.new(step, sweeps),
            room,
            placed.starts[use.writes] if use.late else None,
            part.staged_bytes(step) > 0,
            storage is not None and step.gives in storage.cleared,
            *sweeps,
        )
        for step, use, room, sweeps in zip(
            part.steps, arrays.uses, placed.room, carried, strict=True
        )
    ]
    remaining = iter(placed_steps)
    loops = tuple(
        Loop(
            segment,
            tuple(next(remaining) for _ in segment.steps),
            INPUT if part.storage else segment.steps[0].takes[0],
        )
        for segment in part.segments
    )
    return Program(
        loops,
        _arrays(part, placed.starts),
        size,
        views.view_of(network.output if part.storage else part.steps[-1].gives),
        part.storage,
        network.strides if part.storage else {},
        part.swept,
        part.first_planes,
    )


def _carried(
    part: DevicePart, start: int, alignment: int
) -> tuple[list[tuple[Carried | None, int]], int]:
    """Return what each step carries of its output's array, and where the arena ends.

    With each comes ``PlacedStep.behind``: the planes that later steps need of its output.

    Args:
        part: the part.
        start: the first byte of the arena after the arrays.
        alignment: every array begins at a multiple of so many bytes.
    """
    if not part.swept:
        return [(None, 0)] * len(part.steps), start
    planes: list[tuple[Carried | None, int]] = []
    start = round_up(start, alignment)
    for behind, kept in part.swept_steps:
        planes.append((kept and Carried(start, kept), behind))
        start += round_up(kept.nbytes, alignment) if kept else 0
    return planes, start


def _arrays(part: DevicePart, starts: Mapping[str, int]) -> dict[str, ArrayPlace]:
    """Return the arrays of the arena, by name."""
    storage, steps = part.storage, part.steps
    if storage is None:
        shapes = {step.gives: part.array_of(step) for step in steps}
        return {name: ArrayPlace(start, shapes[name]) for name, start in starts.items()}
    packed = packed_storages(steps, storage)
    return {
        name: ArrayPlace(
            start,
            storage.storages[name].shape,
            device_rows(name, steps, storage) if part.has_own_memory else None,
            packed.get(name, 0),
        )
        for name, start in starts.items()
    }


class _Views:
    """The views of a network's values.

    Args:
        network: the network.
        storage: the arrays of a block, if the network is tiled. Else each value has its own array.
    """

    def __init__(self, network: Network, storage: BlockStorage | None) -> None:
        self._nodes: dict[str, Node] = {node.name: node for node in network.nodes}
        self._maps = network.maps
        self._axis = network.sweep_axis
        self._storage = storage

    def reads(self, step: Step) -> tuple[View, ...]:
        """Return the views that a step reads."""
        if self._storage is None:
            return tuple(map(self.view_of, step.takes))
        counts = Counter[tuple[str, str]]()
        views = []
        for reader, name in step.reads:
            node = self._nodes[reader]
            places = [i for i, taken in enumerate(node.inputs) if taken == name]
            box = self._storage.read(node, places[counts[reader, name]])
            views.append(self.view_of(name)._replace(box=box))
            counts[reader, name] += 1
        return tuple(views)

    def new(self, step: Step, sweeps: tuple[Carried | None, int]) -> View:
        """Return the view that a step of a sliding network writes, behind the carried planes."""
        view, (carried, _) = self.view_of(step.gives), sweeps
        if carried is None:
            return view
        start = resized(ZERO, self._axis, extent(carried.kept.shape, self._axis))
        return view._replace(box=Box(start, start + step.shape_out.size))

    def view_of(self, name: str) -> View:
        """Return the view of all that is computed of a value."""
        maps = self._maps[name]
        if self._storage is None:
            return View(name, name, 0, maps)
        at = self._storage.locations[name]
        box = None if name == INPUT else self._storage.computed_box(name)
        return View(name, at.storage, at.first_map, maps, box)
