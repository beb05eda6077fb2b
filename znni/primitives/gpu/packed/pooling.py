"""Pooling of packed values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import ZERO, Box, Shape5, Vec3
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.packed_arrays import PackedArray
from znni.network.layers import Layer, Pool
from znni.network.weights import ConvWeights
from znni.plans.primitive import Run
from znni.primitives.gpu.common.kernels import common_code, compiler_options
from znni.primitives.gpu.common.number_formats import TensorFormat
from znni.primitives.gpu.common.voxels import launch
from znni.primitives.gpu.packed.base import GpuPackedPass, common_source, groups_of, strided
from znni.primitives.gpu.window_pooling.primitive import window_macros


@dataclass(frozen=True)
class GpuPackedPooling(GpuPackedPass):
    """Maxima and averages of windows of packed values."""

    kind: ClassVar[type[Layer]] = Pool
    family: ClassVar[str] = "gpu_packed_pooling"

    def output_of(self, layer: Pool, shape: Shape5) -> Shape5 | None:
        """Decline windows that do not fit."""
        if layer != layer.local or not layer.reach.within(shape.size):
            return None
        return Shape5.of(shape.n, shape.f, layer.local_size(shape.size))

    def prepare(self, layer: Pool, out: Shape5, weights: ConvWeights | None) -> Run:  # noqa: ARG002 - it has none
        """Compile the kernel for the window."""
        kernel = compiled(pooling_source(self.numbers), pooling_options(layer)).get_function("pool")

        def run(x: PackedArray, inside: Box | None = None) -> Any:
            y = new_device_output(out)
            size = Vec3(*x.shape[2:])
            # A box without samples leaves every window empty.
            seen = Box(ZERO, size)
            if inside is not None:
                low = inside.start.maximum(seen.start).minimum(seen.stop)
                seen = Box(low, inside.stop.minimum(seen.stop).maximum(low))
            edges = map(np.int32, (*seen.start, *seen.stop))
            launch(kernel, groups_of(out), *strided(x), *strided(y), *edges)
            return y

        return run


def pooling_source(numbers: TensorFormat) -> str:
    """Return the CUDA source of ``pool``, compiled with ``pooling_options``."""
    common = common_source(numbers) + common_code("larger.cuh")
    return common + source_beside(__file__, "pooling.cu")


def pooling_options(pool: Pool) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return compiler_options(window_macros(pool))
