"""Upsampling and concatenation of packed values: voxels are copied, or lie between others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import ONE, ZERO, Box, Shape5, Vec3
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.packed_arrays import PackedArray
from znni.network.layers import Concat, Layer, Upsample
from znni.network.weights import ConvWeights
from znni.plans.primitive import Run, upsampled
from znni.primitives.gpu.common.kernels import compiler_options, of_axes
from znni.primitives.gpu.common.number_formats import TensorFormat
from znni.primitives.gpu.common.voxels import launch
from znni.primitives.gpu.packed.base import GpuPackedPass, common_source, groups_of, strided
from znni.primitives.gpu.upsampling.primitive import FLOPS, neighbours_source


@dataclass(frozen=True)
class _Copying(GpuPackedPass):
    """The base of layers whose voxels are copies."""

    def _copying(self, factor: Vec3) -> Callable[[PackedArray, PackedArray], None]:
        """Return what copies a packed value, each voxel ``factor`` times along each axis."""
        kernel = self._kernel(factor, "upsample")

        def copy(x: PackedArray, y: PackedArray) -> None:
            launch(kernel, groups_of(Shape5(*y.shape)), *strided(x), *strided(y))

        return copy

    def _kernel(self, factor: Vec3, name: str) -> Any:
        source = upsampling_source(self.numbers)
        return compiled(source, upsampling_options(factor)).get_function(name)


@dataclass(frozen=True)
class GpuPackedUpsampling(_Copying):
    """Nearest and trilinear upsampling of packed values."""

    kind: ClassVar[type[Layer]] = Upsample
    family: ClassVar[str] = "gpu_packed_upsampling"

    def output_of(self, layer: Upsample, shape: Shape5) -> Shape5 | None:
        """Return the upsampled shape."""
        return upsampled(layer, shape, layer.mode)

    def flops(self, layer: Upsample) -> float:
        """Return more operations for voxels between others."""
        return FLOPS[layer.mode]

    def prepare(self, layer: Upsample, out: Shape5, weights: ConvWeights | None) -> Run:  # noqa: ARG002 - it has none
        """Compile the kernel for the factors."""
        copy = self._copying(layer.factor)
        interpolate = self._kernel(layer.factor, "interpolate")

        def copied(x: PackedArray, _inside: Box | None = None) -> Any:
            y = new_device_output(out)
            copy(x, y)
            return y

        def interpolated(x: PackedArray, inside: Box | None = None) -> Any:
            y, whole = new_device_output(out), Box(ZERO, Vec3(*x.shape[2:]))
            seen = whole.intersection(inside or whole)
            if seen is None:
                y.voxels.fill(0)
                y.records[...] = x.records
                return y
            edges = map(np.int32, (*seen.start, *seen.stop))
            launch(interpolate, groups_of(out), *strided(x), *strided(y), *edges)
            return y

        return interpolated if layer.mode == "trilinear" else copied


@dataclass(frozen=True)
class GpuPackedConcatenation(_Copying):
    """The maps of several packed values one after the other."""

    kind: ClassVar[type[Layer]] = Concat
    family: ClassVar[str] = "gpu_packed_concatenation"

    def output_of(self, layer: Concat, shape: Shape5) -> Shape5 | None:  # noqa: ARG002 - it has no choice
        """Return the joined shape."""
        return shape

    def prepare(self, layer: Concat, out: Shape5, weights: ConvWeights | None) -> Run:  # noqa: ARG002 - it has none
        """Compile the kernel that copies. An input that lies in its place is only noted."""
        copy = self._copying(ONE)

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


def upsampling_source(numbers: TensorFormat) -> str:
    """Return the CUDA source of both kinds of upsampling, compiled with ``upsampling_options``."""
    return common_source(numbers) + neighbours_source() + source_beside(__file__, "upsampling.cu")


def upsampling_options(factor: Vec3) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return compiler_options(of_axes("FACTOR", factor))
