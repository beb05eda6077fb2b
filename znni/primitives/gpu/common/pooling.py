"""What the poolings of a GPU have in common: all but the offsets that they pool at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from znni.cost import Cost, Memory
from znni.cuda import compiled
from znni.device_arena import new_device_output
from znni.machine import Device
from znni.network import Operation, Pool
from znni.primitive import Run
from znni.shapes import Shape5, Vec3
from znni.weights import ConvWeights

THREADS = 256

# Blocks that a launch has at least, where the input has as many: each of a GPU's multiprocessors
# then has many in turn, so that their last ones end at about the same time.
ENOUGH_BLOCKS = 8192

# Output planes that a block computes at least: it reads the planes of a window beyond them twice.
LEAST_PLANES = 8

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
        """One comparison for every voxel; a pass over the input and one over the output."""
        _, out = self._checked(layer, shape)
        return Cost(
            flops=float(shape.elements),
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
        window, out = self._checked(layer, shape)
        module = compiled(source(), constants(window, self.offsets(window)))
        kernel = module.get_function("max_pooling")
        planes = planes_of_block(shape, out)
        blocks = blocks_of_plane(out) * -(-out.z // planes) * shape.f * shape.n

        def run(x: Any) -> Any:
            y = new_device_output(out)
            strides = (np.int64(stride // x.itemsize) for stride in x.strides[:-1])
            sizes = (np.int32(size) for size in (shape.f, *out.size, planes))
            kernel((blocks,), (THREADS,), (x, y, *strides, *sizes))
            return y

        return run

    def _checked(self, layer: Operation, shape: Shape5) -> tuple[Vec3, Shape5]:
        out = self.out_shape(layer, shape)
        if not isinstance(layer, Pool) or out is None:
            raise ValueError(f"{self.name} does not apply to {layer} on an input of {shape}")
        return layer.window, out


@cache
def source() -> str:
    """The kernel, in CUDA C++."""
    return files(__package__).joinpath("max_pooling.cu").read_text()


def constants(window: Vec3, offsets: Vec3) -> tuple[str, ...]:
    """The kernel's constants, as options of the compiler."""
    return (
        f"-DTHREADS={THREADS}",
        *(f"-DWINDOW_{axis}={extent}" for axis, extent in zip("ZYX", window, strict=True)),
        *(f"-DOFFSETS_{axis}={extent}" for axis, extent in zip("ZYX", offsets, strict=True)),
    )


def blocks_of_plane(out: Shape5) -> int:
    """Blocks of threads that have a cell each of an output plane."""
    return -(-out.y * out.x // THREADS)


def planes_of_block(shape: Shape5, out: Shape5) -> int:
    """Output planes that a block computes: few enough that there are enough blocks."""
    columns = blocks_of_plane(out) * shape.f * shape.n
    return max(LEAST_PLANES, -(-out.z * columns // ENOUGH_BLOCKS))
