"""Max-pooling on a GPU: plain, or all fragments. They differ in the offsets that they pool at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import ONE, Shape5, Vec3
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.layers import Operation, Pool
from znni.network.weights import ConvWeights
from znni.plans.primitive import Run, fragmented, pooled
from znni.primitives.gpu.common.base import ShapedPrimitive, Work
from znni.primitives.gpu.common.hardware import LANES
from znni.primitives.gpu.common.kernels import (
    common_code,
    compiler_options,
    of_axes,
    strides_in_elements,
)
from znni.primitives.gpu.common.number_formats import NumberFormat

# Threads of a block, by the maxima that each of them keeps in registers.
MOST_THREADS = {32: 512, 64: 256}
FEWEST_THREADS = 128

# Cells of an output plane: kernels count them, with those of a last block, in 32 bits.
MOST_CELLS = 2**31 - max(MOST_THREADS.values())

# The maximum of float32 numbers is one of them: there is no error.
EXACT = NumberFormat("float32", accuracy=0.0)


@dataclass(frozen=True)
class PoolingWork(Work):
    """A max-pooling.

    Attributes:
        window: extents of the window.
        offsets: offsets of the window that are pooled at, along each axis.
    """

    window: Vec3
    offsets: Vec3

    # The bytes take longer than the comparisons at this share.
    efficiency: ClassVar[float] = 0.2
    writes_views: ClassVar[bool] = True

    @property
    def flops(self) -> float:
        """Comparisons of all windows."""
        return float(self.out.elements * self.window.volume)


@dataclass(frozen=True)
class GpuMaxPooling(ShapedPrimitive[PoolingWork]):
    """Max-pooling on a GPU. Voxels beyond the last whole window are dropped.

    Attributes:
        fragments: whether it pools at all offsets of its window, rather than at the first alone.
    """

    numbers: NumberFormat = EXACT
    family: ClassVar[str] = "gpu_max_pooling"
    fragments: ClassVar[bool] = False

    def work(self, layer: Operation, shape: Shape5) -> PoolingWork | None:
        """Decline windows that do not fit, fragments of different sizes, and too large planes."""
        out = fragmented(layer, shape) if self.fragments else pooled(layer, shape)
        if out is None or not isinstance(layer, Pool) or not is_countable(out):
            return None
        return PoolingWork(shape, out, layer.window, layer.window if self.fragments else ONE)

    def prepare(
        self,
        work: PoolingWork,
        weights: ConvWeights | None,  # noqa: ARG002 - a pooling has none
    ) -> Run:
        """Compile the kernel for the window."""
        shape, out, window, offsets = work.shape, work.out, work.window, work.offsets
        kernel = compiled(source(), constants(window, offsets)).get_function("max_pooling")
        threads, blocks, planes = division(shape, out, window, most_threads(window, offsets))

        def run(x: Any) -> Any:
            y = new_device_output(out)
            sizes = (np.int32(size) for size in (shape.f, *out.size, planes))
            arrays = (x, *strides_in_elements(x), y, *strides_in_elements(y))
            kernel((blocks,), (threads,), (*arrays, *sizes))
            return y

        return run


def source() -> str:
    """Return the CUDA source of ``max_pooling``."""
    return common_code("larger.cuh") + source_beside(__file__, "max_pooling.cu")


def constants(window: Vec3, offsets: Vec3) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    most = {"MOST_THREADS": most_threads(window, offsets)}
    return compiler_options(most | of_axes("WINDOW", window) | of_axes("OFFSETS", offsets))


def most_threads(window: Vec3, offsets: Vec3) -> int:
    """Return the threads that a block may have, given the maxima that each keeps."""
    kept = window.z * offsets.y * offsets.x
    return next((threads for most, threads in MOST_THREADS.items() if kept <= most), FEWEST_THREADS)


def is_countable(out: Shape5) -> bool:
    """Return whether the kernel can count the cells of a plane, with those of its last block."""
    return out.y * out.x <= MOST_CELLS


def division(shape: Shape5, out: Shape5, window: Vec3, most: int) -> tuple[int, int, int]:
    """Return the division of a pooling: threads of a block, blocks, and output planes of a block.

    If a block computes many output planes, few planes of the input are read by two blocks. If it
    computes few, all blocks read close together in memory. Few are best, because a plane that
    another block has just read comes from the second-level cache.

    Args:
        shape: the shape of the input.
        out: the shape of the output.
        window: extents of the window.
        most: threads that a block may have.
    """
    planes = 2 * (window.z - 1) or 4
    cells = out.y * out.x
    columns = -(-cells // most)
    threads = -(-cells // (columns * LANES)) * LANES
    return threads, columns * -(-out.z // planes) * shape.f * shape.n, planes


@dataclass(frozen=True)
class GpuMaxPoolingFragments(GpuMaxPooling):
    """All fragments of a max-pooling on a GPU."""

    family: ClassVar[str] = "gpu_max_pooling_fragments"
    fragments: ClassVar[bool] = True


def primitives(device: Device) -> tuple[GpuMaxPooling, GpuMaxPoolingFragments]:
    """Return plain max-pooling and max-pooling fragments."""
    return GpuMaxPooling(device), GpuMaxPoolingFragments(device)
