"""Places of a convolution's taps in rows of input that are copied end to end.

With a stride, neighbouring outputs see inputs that lie a stride apart. So rows are copied by phase:
first all samples whose index leaves no remainder, then those that leave 1, and so on. Within a
phase, neighbouring outputs see neighbouring samples, whatever stride and dilation are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3
from znni.network.layers import Conv
from znni.primitives.cpu.common.numba_kernel import numba_kernel
from znni.primitives.cpu.common.strided import take_every


class Axis(NamedTuple):
    """The taps of a kernel along one axis.

    Attributes:
        phases: the remainders of the taps' positions by the stride, ascending.
        taps: for each tap the number of its phase, and its sample there, counted from the output's.
    """

    phases: tuple[int, ...]
    taps: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, taps: int, stride: int, dilation: int) -> Axis:
        """Return the places of the taps for a stride and a dilation."""
        places = [divmod(tap * dilation, stride) for tap in range(taps)]
        phases = sorted({phase for _, phase in places})
        return cls(tuple(phases), tuple((phases.index(phase), at) for at, phase in places))

    @property
    def more(self) -> int:
        """The samples of a phase beyond one for each output."""
        return max(at for _, at in self.taps)


class Packing(NamedTuple):
    """The layout of a map's copied rows: (tap along z, phase of y, phase of x, row, sample).

    Attributes:
        planes: the taps along z, each of which has copies of its own.
        y: the taps along y.
        x: the taps along x.
        height: the rows of a phase.
        pitch: the samples of a row, which lie end to end.
    """

    planes: int
    y: Axis
    x: Axis
    height: int
    pitch: int

    @classmethod
    def of(cls, layer: Conv, rows: int, width: int) -> Packing:
        """Return the layout for so many rows of output of some width."""
        axes = zip(layer.kernel, layer.stride, layer.dilation, strict=True)
        _, y, x = (Axis.of(*axis) for axis in axes)
        return cls(layer.kernel.z, y, x, rows + y.more, width + x.more)

    @property
    def floats(self) -> int:
        """The floats of a map's copied rows."""
        return self.planes * len(self.y.phases) * len(self.x.phases) * self.height * self.pitch

    def tap_offsets(self, features: int, kernel: Vec3) -> NDArray[np.int64]:
        """Return the offset of each tap in copied maps, from the position that it adds to."""
        phases = len(self.y.phases), len(self.x.phases)
        shape = (features, self.planes, *phases, self.height, self.pitch)
        index = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
        offsets = np.empty((features, *kernel), np.int64)
        for i, (y_phase, y) in enumerate(self.y.taps):
            for j, (x_phase, x) in enumerate(self.x.taps):
                offsets[:, :, i, j] = index[:, :, y_phase, x_phase, y, x]
        return offsets.ravel()


@numba_kernel
def pack_map(  # type: ignore[no-untyped-def]
    memory, start, strides, shape, corner, steps, planes, phases, rows, height, pitch, packed,
):  # fmt: skip
    """Copy the rows of a map under a band end to end, by phase, from ``corner`` (f, z, y).

    Each phase takes ``height`` rows of ``pitch``, of which ``rows`` are needed. Others, and samples
    beyond the input, keep their old values. The loops over phases lie outside those over rows: a
    division for each row would take as long as its copy.
    """
    size = height * pitch
    for z in range(planes):
        plane = start + corner[0] * strides[1] + (corner[1] * steps[0] + z * steps[3]) * strides[2]
        for phase_y in range(len(phases[0])):
            top = corner[2] * steps[1] + phases[0][phase_y]
            present = min(rows, (shape[3] - 1 - top) // steps[1] + 1)
            for phase_x in range(len(phases[1])):
                first = phases[1][phase_x]
                width = min(pitch, (shape[4] - 1 - first) // steps[2] + 1)
                to = ((z * len(phases[0]) + phase_y) * len(phases[1]) + phase_x) * size
                for y in range(present):
                    source = memory[plane + (top + y * steps[1]) * strides[3] + first :]
                    target = packed[to + y * pitch :]
                    if steps[2] == 1:
                        for x in range(width):
                            target[x] = source[x]
                    else:
                        take_every(steps[2], source, target, width)
