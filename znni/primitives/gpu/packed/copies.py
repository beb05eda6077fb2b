"""Nearest upsampling and concatenation of packed values: copies of voxels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from znni.core.shapes import Box, Shape5, Vec3
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.packed_arrays import PackedArray
from znni.network.layers import Concat, Layer, Upsample
from znni.network.weights import ConvWeights
from znni.plans.primitive import Run, upsampled
from znni.primitives.gpu.common.voxels import launch
from znni.primitives.gpu.packed.base import (
    GpuPackedPass,
    common_source,
    groups_of,
    of_axes,
    strided,
)

ONE = Vec3(1, 1, 1)


@dataclass(frozen=True)
class GpuPackedUpsampling(GpuPackedPass):
    """Nearest upsampling of packed values."""

    kind: ClassVar[type[Layer]] = Upsample
    family: ClassVar[str] = "gpu_packed_upsampling"

    def made(self, layer: Upsample, shape: Shape5) -> Shape5 | None:
        """Decline other modes."""
        return upsampled(layer, shape, "nearest")

    def prepare(self, layer: Upsample, out: Shape5, weights: ConvWeights | None) -> Run:  # noqa: ARG002 - it has none
        """Compile the kernel for the factors."""
        copy = _copying(layer.factor)

        def run(x: PackedArray, _inside: Box | None = None) -> Any:
            y = new_device_output(out)
            copy(x, y)
            return y

        return run


@dataclass(frozen=True)
class GpuPackedConcatenation(GpuPackedPass):
    """The maps of several packed values one after the other."""

    kind: ClassVar[type[Layer]] = Concat
    family: ClassVar[str] = "gpu_packed_concatenation"

    def made(self, layer: Concat, shape: Shape5) -> Shape5 | None:  # noqa: ARG002 - it has no choice
        """Return the joined shape."""
        return shape

    def prepare(self, layer: Concat, out: Shape5, weights: ConvWeights | None) -> Run:  # noqa: ARG002 - it has none
        """Compile the kernel that copies. An input that lies in its place is only noted."""
        copy = _copying(ONE)

        def run(*inputs: PackedArray) -> Any:
            y, first = new_device_output(out), 0
            for x in inputs:
                count = x.shape[1]
                place = y.maps(first, count)
                if place.voxels.data.ptr == x.voxels.data.ptr:
                    place.records[...] = x.records
                else:
                    copy(x, place)
                first += count
            return y

        return run


def _copying(factor: Vec3) -> Callable[[PackedArray, PackedArray], None]:
    """Return what copies a packed value, each voxel ``factor`` times along each axis."""
    kernel = compiled(upsampling_source(), upsampling_options(factor)).get_function("upsample")

    def copy(x: PackedArray, y: PackedArray) -> None:
        launch(kernel, groups_of(Shape5(*y.shape)), *strided(x), *strided(y))

    return copy


def upsampling_source() -> str:
    """Return the CUDA source of ``upsample``, compiled with ``upsampling_options``."""
    return common_source() + source_beside(__file__, "upsampling.cu")


def upsampling_options(factor: Vec3) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return of_axes("FACTOR", factor)
