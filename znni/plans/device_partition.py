"""The parts of a plan: its segments on the host, and then its segments on a GPU.

A part takes a tensor of fragments. The first part takes a patch's input, as a single fragment. A
part gives dense output, or one tensor of all fragments for the next part. If it gives a tensor, its
last step writes directly into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from znni.core.processors import DeviceKind, has_own_memory
from znni.core.shapes import Shape5, extended, round_up
from znni.network.network import Network
from znni.network.node import INPUT
from znni.plans.array_layout import copied_bytes, packed_storages, storage_bytes
from znni.plans.block_storage import BlockStorage
from znni.plans.placement import ArrayUses, Placement, Use
from znni.plans.segments import Segment, Step, segment_runs
from znni.plans.swept import InputPlanes, Swept, SweptStep, input_planes, swept_steps


@dataclass(frozen=True)
class DevicePart:
    """Consecutive segments on one device.

    Attributes:
        segments: the segments, first to last.
        input_shape: the shape of the tensor that they take for a patch. In a sweep on a GPU, it is
            what a pass takes.
        hands_on: whether they hand a tensor on to the next part.
        storage: the arrays of a block, if the network is tiled.
        swept: the planes of a sweep, if there is one.
    """

    segments: tuple[Segment, ...]
    input_shape: Shape5
    hands_on: bool = False
    storage: BlockStorage | None = None
    swept: Swept | None = None

    @property
    def device(self) -> DeviceKind:
        """The device: ``cpu`` or ``gpu``."""
        return self.segments[0].device

    @property
    def has_own_memory(self) -> bool:
        """True if the arrays lie in the memory of a GPU."""
        return has_own_memory(self.device)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, first to last."""
        return tuple(step for segment in self.segments for step in segment.steps)

    @property
    def first_input(self) -> Shape5:
        """The shape that the first segment takes of the input at a time."""
        return self.input_shape._replace(n=self.segments[0].sub_batch)

    @property
    def output_shape(self) -> Shape5:
        """The shape of the last step's results for a patch, as one tensor."""
        *_, (_, runs) = self.runs()
        last = self.segments[-1].steps[-1].shape_out
        return last._replace(n=runs * last.n)

    def runs(self) -> Iterator[tuple[Segment, int]]:
        """Yield each segment with the number of times that it runs for one patch."""
        return segment_runs(self.segments, self.input_shape.n)

    @cached_property
    def inputs_kept(self) -> tuple[InputPlanes, ...]:
        """The planes that a sweep keeps for each step of a sliding network; else nothing."""
        if self.storage or self.swept is None:
            return ()
        return input_planes(self.segments, self.swept.axis)

    @cached_property
    def swept_steps(self) -> tuple[SweptStep, ...]:
        """Each step's part in a sweep: the planes behind it, and the planes kept."""
        if self.swept is None:
            return (SweptStep(),) * len(self.steps)
        return swept_steps(self.segments, self.storage, self.swept.axis)

    @property
    def first_planes(self) -> int:
        """The planes of its input that a sweep's first step takes beside the new ones."""
        if self.swept is None:
            return 0
        return self.swept.taken - self.swept.new if self.storage else self.inputs_kept[0].planes

    @property
    def kept_bytes(self) -> int:
        """The bytes that a sweep keeps from block to block."""
        return sum(it.kept.nbytes for it in self.swept_steps if it.kept)

    def step_runs(self) -> Iterator[tuple[Step, float]]:
        """Yield each step with its runs for one patch, on average over the columns of a sweep."""
        runs = [n for segment, n in self.runs() for _ in segment.steps]
        for step, n, it in zip(self.steps, runs, self.swept_steps, strict=True):
            yield step, n * (self.swept.share(it.behind) if self.swept else 1.0)

    @property
    def seconds(self) -> float:
        """The predicted seconds for one patch."""
        return sum(n * step.seconds for step, n in self.step_runs())

    @property
    def resident(self) -> int:
        """The bytes that the primitives keep between patches."""
        return sum(step.cost.memory.resident for step in self.steps)

    @property
    def uses_gpu(self) -> bool:
        """True if steps on the host compute on a GPU."""
        return any(step.uses_gpu for step in self.steps)

    @property
    def gpu_resident(self) -> int:
        """The GPU bytes that steps on the host keep between patches."""
        return sum(step.cost.memory.gpu_resident for step in self.steps)

    @property
    def gpu_working(self) -> int:
        """The most GPU bytes that a step on the host takes. Such steps run one at a time."""
        return max(step.cost.memory.gpu_working for step in self.steps)

    def held_beside(self) -> Iterator[tuple[Step, int]]:
        """Yield each step with the bytes alive during it beside its own.

        A segment's input is held while the segments after it run. For the first segment, this is
        the part of the input that it takes at a time. The tensor that is handed on is held, too.

        The bytes that a step takes include its input and output, which are subtracted here. The
        result is negative for a step whose input and output share memory.
        """
        outside = self._bytes_outside
        for step, alive in zip(self.steps, self.array_uses().alive(), strict=True):
            own = step.shape_in.nbytes + step.shape_out.nbytes
            yield step, outside + alive + self.staged_bytes(step) - own

    @property
    def _bytes_outside(self) -> int:
        """The bytes that are not placed: input, a tensor that is handed on, and what is kept."""
        if self.storage and not self.swept:
            return storage_bytes(INPUT, self.storage, self.device)
        return self._bytes_given + self.kept_bytes

    @property
    def _bytes_given(self) -> int:
        """The bytes that the first segment takes of the input, and of a tensor handed on."""
        return self.first_input.nbytes + (self.output_shape.nbytes if self.hands_on else 0)

    def writes_in_place(self, step: Step) -> bool:
        """Return whether a step's output has its place before the step begins.

        That is so in the tensor that is handed on, in the arrays of a tiled network's block, and
        in a sweep.
        """
        if self.storage or self.swept:
            return True
        return self.hands_on and step is self.segments[-1].steps[-1]

    def copied_bytes(self, step: Step) -> int:
        """Return the bytes beside ``held_beside`` if a step's output is copied to its place."""
        if self.storage:
            return copied_bytes(step, self.storage, self.device)
        is_copied = self.has_own_memory and self.array_of(step) != step.shape_out
        return step.shape_out.nbytes if is_copied else 0

    def staged_bytes(self, step: Step) -> int:
        """Return the bytes of workspace in which a step's output is made before it is copied."""
        return 0 if step.cost.writes_views else self.copied_bytes(step)

    def peaks(self) -> Iterator[tuple[Step, int]]:
        """Yield each step with the most bytes that arrays and workspace take during it."""
        for step, held in self.held_beside():
            yield step, held + step.peak_bytes(in_place=self.writes_in_place(step))

    def array_uses(self, alignment: int = 1, spare: int = 0) -> ArrayUses:
        """Return the arrays in the arena, and their uses.

        Args:
            alignment: every array begins at a multiple of so many bytes.
            spare: bytes of each step beside its workspace, for the alignment of the arrays in it.
        """
        if self.storage:
            return self._uses_of_block(self.storage, alignment, spare)
        sizes, uses, handed = {}, [], self.steps[-1] if self.hands_on else None
        for step in self.steps:
            in_place, memory = self.writes_in_place(step), step.cost.memory
            beside = max(0, memory.working - step.shape_in.nbytes - step.shape_out.nbytes)
            if step is not handed:
                sizes[step.gives] = round_up(self.array_of(step).nbytes, alignment)
            workspace = round_up(memory.workspace if in_place else beside, alignment)
            workspace += round_up(self.staged_bytes(step), alignment) + spare
            late = not in_place and step.makes_output_late
            uses.append(Use(step.takes, step.gives, workspace, late))
        stored = frozenset(segment.steps[-1].gives for segment in self.segments[:-1])
        return ArrayUses(sizes, uses, stored)

    def array_of(self, step: Step) -> Shape5:
        """Return the shape of the array that holds a step's output, with the planes kept."""
        if self.swept is None:
            return step.shape_out
        return extended(step.shape_out, self.swept.axis, self._planes_after.get(step.gives, 0))

    @cached_property
    def _planes_after(self) -> dict[str, int]:
        """The planes that a sweep keeps of each step's output, by its value, for the next step."""
        after = (kept.planes for kept in self.inputs_kept[1:])
        return dict(zip((it.gives for it in self.steps), after, strict=False))

    def _uses_of_block(self, storage: BlockStorage, alignment: int, spare: int) -> ArrayUses:
        """Return the arrays of a tiled network's block, and their uses."""
        packed = packed_storages(self.steps, storage)
        where = {name: location.storage for name, location in storage.locations.items()}
        sizes = {
            name: round_up(storage_bytes(name, storage, self.device, packed), alignment)
            for name in {where[step.gives] for step in self.steps}
        }
        uses = [
            Use(
                tuple(where[name] for name in step.takes),
                where[step.gives],
                round_up(step.cost.memory.workspace, alignment)
                + round_up(self.staged_bytes(step), alignment)
                + spare,
            )
            for step in self.steps
        ]
        return ArrayUses(sizes, uses, frozenset({where[self.steps[-1].gives]}))

    def placement(self, alignment: int = 1, spare: int = 0) -> Placement:
        """Return the places of all arrays in an arena, with the arguments of ``array_uses``."""
        return self.array_uses(alignment, spare).placement()

    def working_peak(self) -> tuple[int, Step]:
        """Return the peak bytes of arrays and workspace, and the step where the peak occurs.

        Gaps between values that cannot be placed without any are counted.
        """
        peak, step = max(((peak, step) for step, peak in self.peaks()), key=lambda item: item[0])
        return max(peak, self._bytes_given + self.kept_bytes + self.placement().size), step


def parts_of(
    segments: tuple[Segment, ...],
    patch_input: Shape5,
    storage: BlockStorage | None = None,
    swept: Swept | None = None,
) -> tuple[DevicePart, ...]:
    """Return the parts of a patch's segments, first to last.

    Args:
        segments: the segments of all layers.
        patch_input: the shape of a patch's input.
        storage: the arrays of a block, if the network is tiled. All its segments are one part.
        swept: the planes of a sweep, if there is one. All its segments are one part.
    """
    if storage or swept:
        part = DevicePart(segments, patch_input, storage=storage, swept=swept)
        if swept and part.has_own_memory:
            part = replace(part, input_shape=swept.brought(patch_input))
        return (part,)
    groups = [tuple(group) for _, group in groupby(segments, lambda segment: segment.device)]
    parts: list[DevicePart] = []
    for group in groups:
        given = parts[-1].output_shape if parts else patch_input
        parts.append(DevicePart(group, given, hands_on=group is not groups[-1]))
    return tuple(parts)


def bytes_of(parts: Iterable[DevicePart], device: DeviceKind) -> tuple[int, int]:
    """Return the bytes of a device that parts keep between patches, and the most within one patch.

    Layers of the host that compute on a GPU take bytes there. These are added to those of the GPU's
    own layers, whose arrays stay until the patch is done.
    """
    resident = working = 0
    for part in parts:
        if part.device == device:
            resident += part.resident
            working += part.working_peak()[0]
        elif has_own_memory(device):
            resident += part.gpu_resident
            working += part.gpu_working
    return resident, working


def locks_blocks(network: Network) -> bool:
    """Return whether the blocks that a GPU takes are read into page-locked memory.

    The layers of a sliding network take long, so that ordinary memory costs nothing. Windows are
    copied out of a block into page-locked memory of their own.
    """
    return network.is_tiled and network.window is None
