"""A GPU's three streams: two copy, one computes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import device_workspace
from znni.network.layers import Activation
from znni.network.weights import Float32
from znni.plans.primitive import Run
from znni.primitives.gpu.common.activation import activate_over_maps, activation_source

THREADS = 256

# The largest distance of rows, in bytes, that CUDA copies.
MOST_PITCH = 2**31 - 1


class CudaLanes:
    """Streams of the current GPU, for the pieces of one layer.

    Copies run beside the host and beside each other if the host's memory is page-locked. Otherwise
    the driver copies through memory of its own.

    Args:
        activation: the layer's activation.

    Attributes:
        device: the GPU. A ``with`` block of it makes it the current one.
    """

    def __init__(self, activation: Activation) -> None:
        self.device = cupy().cuda.Device()
        self.uploading, self.computing, self.downloading = _streams(self.device.id)
        self._activation = activation
        self._add, self._add_last = (_adding(found) for found in ("identity", activation))

    def buffer(self, shape: Shape5) -> Any:
        """Return an array, in the memory of the arena in use, if there is one."""
        return device_workspace(shape, np.float32)

    def upload(self, x: Float32, into: Any) -> None:
        """Start to copy an array to the GPU."""
        _copy(x, into, cupy().cuda.runtime.memcpyHostToDevice, self.uploading)

    def download(self, y: Any, into: Float32) -> None:
        """Start to copy an array to the host."""
        _copy(into, y, cupy().cuda.runtime.memcpyDeviceToHost, self.downloading)

    def call(self, run: Run, x: Any, into: Any) -> None:
        """Start the kernels of a primitive."""
        with self.computing, output_into(into):
            run(x)

    def add(self, partial: Any, into: Any, *, last: bool) -> None:
        """Add a partial sum, in one pass over both arrays; softmax follows the last."""
        kernel = self._add_last if last else self._add
        blocks = -(-into.size // THREADS)
        with self.computing:
            kernel((blocks,), (THREADS,), (partial, into, np.int64(into.size)))
            if last:
                activate_over_maps(into, self._activation)

    def wait(self) -> None:
        """Wait until all work is done."""
        for stream in (self.uploading, self.computing, self.downloading):
            stream.synchronize()


def _copy(here: Float32, there: Any, kind: int, stream: Any) -> None:
    """Copy between an array of the host and a C-contiguous one of the GPU, in few calls.

    Args:
        here: the host's array, whose last axis is contiguous. If all axes but the first are, as in
            a slab of all maps, one call copies all of it.
        there: the GPU's array.
        kind: the direction, as CUDA names it.
        stream: the stream that copies.
    """
    runtime = cupy().cuda.runtime
    host, gpu, row = here.ctypes.data, there.data.ptr, here[0].nbytes
    to_gpu = kind == runtime.memcpyHostToDevice
    if here.flags.c_contiguous:
        target, source = (gpu, host) if to_gpu else (host, gpu)
        runtime.memcpyAsync(target, source, here.nbytes, kind, stream.ptr)
    elif here[0].flags.c_contiguous and row <= (pitch := here.strides[0]) <= MOST_PITCH:
        rows = (gpu, row, host, pitch) if to_gpu else (host, pitch, gpu, row)
        runtime.memcpy2DAsync(*rows, row, len(here), kind, stream.ptr)
    else:
        for part, place in zip(here, there, strict=True):
            _copy(part, place, kind, stream)


def adding_source(activation: Activation) -> str:
    """Return the CUDA source of ``add_partial``."""
    return activation_source(activation) + source_beside(__file__, "add_partial.cu")


def _adding(activation: Activation) -> Any:
    return compiled(adding_source(activation)).get_function("add_partial")


@cache
def _streams(device: int) -> tuple[Any, Any, Any]:  # noqa: ARG001 - each device has its own
    upload, compute, download = (cupy().cuda.Stream(non_blocking=True) for _ in range(3))
    return upload, compute, download
