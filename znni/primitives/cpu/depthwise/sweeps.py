"""Sweeps over the output of a depthwise layer, each of which makes rows that see the same taps.

A convolution is one sweep. A transposed one has a sweep for each phase along z and y. The phases
along x are made together, and interleaved.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Conv, ConvTranspose
from znni.network.weights import Float32
from znni.primitives.cpu.depthwise.row_kernel import RowTaps
from znni.primitives.cpu.transposed.phases import AxisTap, axis_taps


class Sweep(NamedTuple):
    """Rows of output that see the same taps.

    Attributes:
        rows: the taps along y, and the steps along y and x.
        z_taps: the taps along z: their places in the kernel, and the planes of input that they see.
        y_taps: the places in the kernel of the taps along y.
        x_taps: the taps along x, for each phase: their places in the kernel, and the samples of
            input that they see.
        z_step: the planes of input from one plane of output to the next.
        first: the first sample of the output.
        step: the samples of the output from one plane or row to the next.
    """

    rows: RowTaps
    z_taps: tuple[AxisTap, ...]
    y_taps: tuple[int, ...]
    x_taps: tuple[tuple[AxisTap, ...], ...]
    z_step: int
    first: Vec3
    step: Vec3

    @property
    def taps(self) -> int:
        """The multiplications for a position: for one sample of each phase along x."""
        return len(self.z_taps) * len(self.y_taps) * sum(map(len, self.x_taps))

    def positions(self, out: Shape5) -> tuple[int, int]:
        """Return the rows that the sweep makes, and their positions."""
        z, y, x = out.size // self.step
        return out.n * out.f * z * y, x

    def weights(self, kernels: Float32) -> Float32:
        """Return kernels (f, z, y, x) by map, phase, tap along z, tap along x, and tap along y."""
        seen = kernels[:, [tap for tap, _ in self.z_taps]][:, :, list(self.y_taps)]
        parts = [
            seen[..., [tap for tap, _ in phase]].swapaxes(2, 3).reshape(len(kernels), -1)
            for phase in self.x_taps
        ]
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    def places(self, plane: int) -> NDArray[np.int64]:
        """Return the place of each tap along z and x, for planes that lie so many floats apart."""
        places = [z * plane + x for phase in self.x_taps for _, z in self.z_taps for _, x in phase]
        return np.array(places, np.int64)

    def arguments(self, x: Float32, y: Float32, out: Shape5) -> dict[str, int]:
        """Return the arguments of the kernel that depend on input and output."""
        read, written = ([stride // array.itemsize for stride in array.strides] for array in (x, y))
        planes, rows, width = out.size // self.step
        taps, *later = (len(self.z_taps) * len(phase) for phase in self.x_taps)
        at = y[:, :, self.first.z :, self.first.y :]
        return {
            "source": x.ctypes.data, "target": at.ctypes.data, "taps": taps,
            "later_taps": sum(later),
            "planes": planes, "maps": out.f, "rows": rows, "width": width,
            "source_item": read[0], "source_map": read[1],
            "source_plane": read[2] * self.z_step, "source_row": read[3],
            "target_item": written[0], "target_map": written[1],
            "target_plane": written[2] * self.step.z, "target_row": written[3] * self.step.y,
        }  # fmt: skip


@lru_cache(maxsize=256)
def sweeps_of(layer: Conv | ConvTranspose) -> tuple[Sweep, ...]:
    """Return the sweeps of a depthwise layer."""
    if isinstance(layer, Conv):
        z, y, x = (
            tuple((tap, tap * apart) for tap in range(kernel))
            for kernel, apart in zip(layer.kernel, layer.dilation, strict=True)
        )
        return (_sweep(z, y, (x,), layer.stride, Vec3(0, 0, 0), Vec3(1, 1, 1)),)
    by_axis = zip(layer.kernel, layer.stride, layer.padding, strict=True)
    z_phases, y_phases, x_phases = (
        [tuple(phase) for phase in axis_taps(*axis)] for axis in by_axis
    )
    return tuple(
        _sweep(z, y, tuple(x_phases), Vec3(1, 1, 1), Vec3(z_phase, y_phase, 0), layer.stride)
        for z_phase, z in enumerate(z_phases)
        for y_phase, y in enumerate(y_phases)
    )


def _sweep(
    z: tuple[AxisTap, ...],
    y: tuple[AxisTap, ...],
    x: tuple[tuple[AxisTap, ...], ...],
    stride: Vec3,
    first: Vec3,
    step: Vec3,
) -> Sweep:
    """Return a sweep from its taps along each axis, those along x by phase.

    Args:
        z: the taps along z.
        y: the taps along y.
        x: the taps along x, for each phase.
        stride: the samples of input from one position to the next.
        first: the first sample of the output.
        step: the samples of the output from one position to the next.
    """
    rows = RowTaps(tuple(at for _, at in y), stride.y, len(x), stride.x)
    return Sweep(rows, z, tuple(tap for tap, _ in y), x, stride.z, first, step)
