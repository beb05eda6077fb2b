"""The sides of a plan: its segments on the host, and those on a GPU, which go on from there.

A side takes a tensor of fragments (at first a patch's input, as the only one) and gives dense
output, or else one tensor of all fragments for the side after it. Its last step then writes each of
its results where it lies in that tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from znni.core.shapes import Shape5
from znni.machine.machine import DeviceKind
from znni.plans.segments import Segment, Step, segment_runs


@dataclass(frozen=True)
class DevicePart:
    """Segments that follow each other on one device.

    Attributes:
        segments: first to last.
        input_shape: of the tensor that a patch brings.
        hands_on: whether it gives a tensor to the side after it.
    """

    segments: tuple[Segment, ...]
    input_shape: Shape5
    hands_on: bool = False

    @property
    def device(self) -> DeviceKind:
        """``cpu`` or ``gpu``."""
        return self.segments[0].device

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them, first to last."""
        return tuple(step for segment in self.segments for step in segment.steps)

    @property
    def first_input(self) -> Shape5:
        """What the first segment takes of the input at a time."""
        return self.input_shape._replace(n=self.segments[0].sub_batch)

    @property
    def output_shape(self) -> Shape5:
        """Of all that the last step makes of a patch, as one tensor."""
        *_, (_, runs) = self.runs()
        last = self.segments[-1].steps[-1].shape_out
        return last._replace(n=runs * last.n)

    def runs(self) -> Iterator[tuple[Segment, int]]:
        """Each segment with the number of times that it runs for one patch."""
        return segment_runs(self.segments, self.input_shape.n)

    @property
    def seconds(self) -> float:
        """Predicted, for one patch."""
        return sum(n * step.seconds for segment, n in self.runs() for step in segment.steps)

    @property
    def resident(self) -> int:
        """Bytes that the primitives keep between patches."""
        return sum(step.cost.memory.resident for step in self.steps)

    @property
    def uses_gpu(self) -> bool:
        """Whether steps that run on the host compute on a GPU."""
        return any(step.uses_gpu for step in self.steps)

    @property
    def gpu_resident(self) -> int:
        """Bytes of a GPU that steps on the host keep between patches."""
        return sum(step.cost.memory.gpu_resident for step in self.steps)

    @property
    def gpu_working(self) -> int:
        """Bytes of a GPU that steps on the host take while they run: one at a time."""
        return max(step.cost.memory.gpu_working for step in self.steps)

    def held_beside(self) -> Iterator[tuple[Step, int]]:
        """Each step with the bytes alive during it beside its own.

        A segment's input is held while the segments after it run, of the first segment what it
        takes at a time. What a step takes counts its input, and that of a segment's first step is a
        view of what is held: it is taken off. So is the output that the last step writes into the
        tensor that is handed on, which is held throughout.
        """
        held = self.output_shape.nbytes if self.hands_on else 0
        stored = self.first_input.nbytes
        for segment in self.segments:
            alive = {segment.steps[0].takes[0]: stored}
            for step, dying in zip(segment.steps, segment.dying, strict=True):
                counted = step.shape_in.nbytes
                if self.writes_in_place(step):
                    counted += step.shape_out.nbytes
                yield step, held + sum(alive.values()) - counted
                alive[step.gives] = step.shape_out.nbytes
                for name in dying:
                    del alive[name]
            held += stored
            stored = segment.steps[-1].shape_out.nbytes

    def writes_in_place(self, step: Step) -> bool:
        """Whether a step's output has its place in the tensor that is handed on."""
        return self.hands_on and step is self.segments[-1].steps[-1]

    def peaks(self) -> Iterator[tuple[Step, int]]:
        """Each step with the most bytes that arrays and workspace take during it."""
        for step, held in self.held_beside():
            yield step, held + step.taken(in_place=self.writes_in_place(step))

    def working_peak(self) -> tuple[int, Step]:
        """Peak bytes of arrays and workspace, and the step where it occurs."""
        return max(((peak, step) for step, peak in self.peaks()), key=lambda item: item[0])


def parts_of(segments: tuple[Segment, ...], patch_input: Shape5) -> tuple[DevicePart, ...]:
    """The sides of a patch's segments, first to last.

    Args:
        segments: of all layers.
        patch_input: the shape of a patch's input.
    """
    groups = [tuple(group) for _, group in groupby(segments, lambda segment: segment.device)]
    parts: list[DevicePart] = []
    for group in groups:
        given = parts[-1].output_shape if parts else patch_input
        parts.append(DevicePart(group, given, hands_on=group is not groups[-1]))
    return tuple(parts)


def bytes_of(parts: Iterable[DevicePart], device: DeviceKind) -> tuple[int, int]:
    """Bytes of a device that sides keep between patches, and the most that they take within one.

    On a GPU, what layers of the host take while they compute there comes on top of what its own
    hold: the arrays of these stay where they are until the patch is done.
    """
    resident = working = 0
    for part in parts:
        if part.device == device:
            resident += part.resident
            working += part.working_peak()[0]
        elif device == "gpu":
            resident += part.gpu_resident
            working += part.gpu_working
    return resident, working
