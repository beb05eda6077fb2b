"""What the poolings of a GPU have in common: all but the offsets that they pool at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from znni.core.shapes import Shape5, Vec3
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import new_device_output
from znni.machine.machine import Device
from znni.network.network import Operation, Pool
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Run, applied_to, fragmented, pooled
from znni.primitives.gpu.common.larger import larger_source
from znni.primitives.gpu.common.strides import strides_in_elements

# Threads of a block, by the maxima that each of them keeps, for which there must be registers.
MOST_THREADS = {32: 512, 64: 256}
FEWEST_THREADS = 128
WARP = 32

# Share of the nominal operations per second: the bytes take longer.
EFFICIENCY = 0.2


@dataclass(frozen=True)
class GpuPooling(ABC):
    """Max-pooling on a GPU, at one or at all offsets of its window."""

    device: Device
    name: str
    accuracy: float = 0.0
    version = 1

    @abstractmethod
    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Shape of the output, or None where this pooling does not apply."""

    @abstractmethod
    def offsets(self, window: Vec3) -> Vec3:
        """How many offsets of the window are pooled at, per axis."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Comparisons for every window; a pass over the input and one over the output."""
        layer, out = applied_to(Pool, self, layer, shape)
        return Cost(
            flops=float(out.elements * layer.window.volume),
            bytes_moved=shape.nbytes + out.nbytes,
            memory=Memory.beside(shape.nbytes + out.nbytes, workspace=0),
            efficiency=EFFICIENCY,
        )

    def build(
        self,
        layer: Operation,
        shape: Shape5,
        weights: ConvWeights | None,  # noqa: ARG002 - a pooling has none
    ) -> Run:
        """Compile the kernel for the window."""
        layer, out = applied_to(Pool, self, layer, shape)
        window, offsets = layer.window, self.offsets(layer.window)
        kernel = compiled(source(), constants(window, offsets)).get_function("max_pooling")
        threads, blocks, planes = division(shape, out, window, most_threads(window, offsets))

        def run(x: Any) -> Any:
            y = new_device_output(out)
            sizes = (np.int32(size) for size in (shape.f, *out.size, planes))
            kernel((blocks,), (threads,), (x, y, *strides_in_elements(x), *sizes))
            return y

        return run


def source() -> str:
    """The kernel, in CUDA C++."""
    return larger_source() + source_beside(__file__, "max_pooling.cu")


def constants(window: Vec3, offsets: Vec3) -> tuple[str, ...]:
    """The kernel's constants, as options of the compiler."""
    return (
        f"-DMOST_THREADS={most_threads(window, offsets)}",
        *(f"-DWINDOW_{axis}={extent}" for axis, extent in zip("ZYX", window, strict=True)),
        *(f"-DOFFSETS_{axis}={extent}" for axis, extent in zip("ZYX", offsets, strict=True)),
    )


def most_threads(window: Vec3, offsets: Vec3) -> int:
    """Threads that a block may have, for the maxima that each keeps."""
    kept = window.z * offsets.y * offsets.x
    return next((threads for most, threads in MOST_THREADS.items() if kept <= most), FEWEST_THREADS)


def division(shape: Shape5, out: Shape5, window: Vec3, most: int) -> tuple[int, int, int]:
    """How a pooling is divided among blocks: their threads, their number, and planes of each.

    The more output planes a block computes, the fewer planes of input are read by two blocks; the
    fewer, the closer together in memory is what all blocks are at. A plane that was just read
    comes from the second-level cache, so that few are best.

    Args:
        shape: of the input.
        out: of the output.
        window: of the pooling.
        most: threads that a block may have.
    """
    planes = 2 * (window.z - 1) or 4
    cells = out.y * out.x
    columns = -(-cells // most)
    threads = -(-cells // (columns * WARP)) * WARP
    return threads, columns * -(-out.z // planes) * shape.f * shape.n, planes


@dataclass(frozen=True)
class GpuMaxPooling(GpuPooling):
    """Max-pooling on a GPU. Voxels beyond the last whole window are dropped."""

    name: str = "gpu_max_pooling"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Any pooling whose window fits."""
        return pooled(layer, shape)

    def offsets(self, window: Vec3) -> Vec3:  # noqa: ARG002 - the same for any
        """The first one alone."""
        return Vec3(1, 1, 1)


@dataclass(frozen=True)
class GpuMaxPoolingFragments(GpuPooling):
    """All fragments of a max-pooling on a GPU."""

    name: str = "gpu_max_pooling_fragments"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Only sizes that give fragments of one size."""
        return fragmented(layer, shape)

    def offsets(self, window: Vec3) -> Vec3:
        """All of them."""
        return window


def primitives(device: Device) -> tuple[GpuMaxPooling, GpuMaxPoolingFragments]:
    """Return plain max-pooling and max-pooling fragments."""
    return GpuMaxPooling(device), GpuMaxPoolingFragments(device)
