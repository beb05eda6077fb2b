"""A GPU that the host emulates: primitives build and run unchanged.

It is one of compute capability 8.0, or one of 9.0 for direct convolution on tensor cores.

CuPy is replaced by arrays of the host, and kernels are compiled by the host's compiler
(``emulation``). Every array is full of NaN at first and ends where nobody may read.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import WeakSet

import numpy as np
import pytest
from emulation.kernels_on_host import Kernel, Order, compiled, compiler, runtime
from fake_cupy import CUPY, Array, Device, Runtime
from gpu_layers import AS_AMPERE, H200
from numpy.typing import DTypeLike, NDArray

from znni.engine.backends.cuda import graphs as device_graphs
from znni.machine import cuda, cuda_kernels
from znni.primitives.gpu.common import activation, clearing
from znni.primitives.gpu.common.hardware import HOPPER, processors_of

EMULATED = AS_AMPERE

# Few, so that blocks take one place after another even of small layers.
MULTIPROCESSORS = 3

# One with products of warpgroups, and a rate of so few multiprocessors.
EMULATED_HOPPER = replace(H200, flops=H200.flops / processors_of(H200, HOPPER) * MULTIPROCESSORS)

needs_emulation = pytest.mark.skipif(
    compiler() is None or (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="needs g++ on Linux on x86-64 to run kernels on the host",
)

# Threads in their order with late copies, and the other way round: a right kernel cannot tell.
ORDERS = Order(), Order(descending=True, copies_at_once=True)


class Memory:
    """Memory that ends where nobody may read.

    Attributes:
        taken: the bytes of all that exist.
    """

    device_id = 0
    taken = 0

    def __init__(self, nbytes: int) -> None:
        self.size = max(1, nbytes)
        Memory.taken += nbytes
        self._nbytes = nbytes
        self.ptr: int = runtime().allocate(self.size)
        self._release = runtime().release

    def __del__(self) -> None:
        Memory.taken -= self._nbytes
        self._release(self.ptr, self.size)


class UnownedMemory:
    """A part of memory that another object owns."""

    device_id = 0

    def __init__(self, address: int, nbytes: int, owner: object, _device: int) -> None:
        self.ptr, self.size, self.owner = address, nbytes, owner


class Pointer:
    """A place in memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem = mem
        self.ptr: int = mem.ptr + offset

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.mem, self.ptr + offset - self.mem.ptr)


class EmulatedArray(Array):
    """An array in the emulated GPU's memory."""

    def __array_finalize__(self, obj: object) -> None:
        self.memory = getattr(obj, "memory", None)

    @property
    def data(self) -> Any:
        if self.memory is None:
            raise TypeError("an array of the host was given to the GPU")
        return Pointer(self.memory, self.ctypes.data - self.memory.ptr)


def ndarray(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = np.float32,
    memptr: Pointer | None = None,
    strides: tuple[int, ...] | None = None,
) -> Any:
    """Return an array of the GPU."""
    shape, dtype = (shape,) if isinstance(shape, int) else tuple(shape), np.dtype(dtype)
    memory = memptr or Pointer(Memory(prod(shape) * dtype.itemsize), 0)
    contiguous = (dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))
    steps: tuple[int, ...] | None = tuple(contiguous) if strides is None else strides
    reaches = [(extent - 1) * step for extent, step in zip(shape, steps, strict=True)]
    low, high = sum(min(0, reach) for reach in reaches), sum(max(0, reach) for reach in reaches)
    if not prod(shape):
        low, high, steps = 0, -dtype.itemsize, None
    span = (ctypes.c_char * (high - low + dtype.itemsize)).from_address(memory.ptr + low)
    made = np.ndarray(shape, dtype, span, -low, steps).view(EmulatedArray)
    made.memory = memory.mem
    return made


def asarray(values: Any, dtype: DTypeLike = None) -> Any:
    """Return a copy of an array on the GPU."""
    given: NDArray[Any] = np.asarray(values, dtype)
    made = ndarray(given.shape, given.dtype)
    np.copyto(made, given)
    return made


def full(shape: Any, value: float, dtype: DTypeLike = np.float32) -> Any:
    """Return an array of one value."""
    made = ndarray(shape, dtype)
    made.fill(value)
    return made


class EmulatedDevice(Device):
    """The current GPU."""

    compute_capability = str(EMULATED.capability)
    attributes = {"MultiProcessorCount": MULTIPROCESSORS}  # noqa: RUF012 - as CuPy has it


EMULATED_CUPY = SimpleNamespace(
    **vars(CUPY)
    | {
        "ndarray": ndarray,
        "empty": ndarray,
        "asarray": asarray,
        "full": full,
        "zeros": lambda shape, dtype=np.float32: full(shape, 0, dtype),
        "isnan": np.isnan,
    }
)
EMULATED_CUPY.cuda = SimpleNamespace(
    **vars(CUPY.cuda)
    | {
        "Device": EmulatedDevice,
        "Memory": Memory,
        "UnownedMemory": UnownedMemory,
        "MemoryPointer": Pointer,
        "runtime": Runtime(),
        "using_allocator": lambda _allocator: nullcontext(),
    }
)


class Module:
    """A module of kernels."""

    def __init__(self, source: str, options: tuple[str, ...], order: Order) -> None:
        self._library, self._order = compiled(source, options), order

    def get_function(self, name: str) -> Kernel:
        """Return a kernel."""
        return Kernel(self._library, name, self._order)


@contextmanager
def emulated_gpu(order: Order = ORDERS[0]) -> Iterator[None]:
    """Run what asks for a GPU on the host within a ``with`` block.

    Args:
        order: the order in which threads run.
    """

    def loaded(source: str, _architecture: str, options: tuple[str, ...], _device: int) -> Module:
        return Module(source, options, order)

    def stored(source: str, _architecture: str, options: tuple[str, ...]) -> None:
        compiled(source, options)

    kept = cuda.cupy, activation._softmax, clearing.clearing_kernel
    with ExitStack() as patches:
        for each in kept:
            each.cache_clear()
            patches.callback(each.cache_clear)
        for where, name, value in (
            (cuda, "import_module", lambda _name: EMULATED_CUPY),
            (cuda_kernels, "_loaded", loaded),
            (cuda_kernels, "stored", stored),
            (cuda_kernels, "_waiting", []),
            (cuda_kernels, "_waiting_kernels", WeakSet()),
            (cuda_kernels, "_file", lambda *_code: Path()),
            (cuda_kernels, "load", lambda _file: b"loaded"),
            (device_graphs, "PLAIN_RUNS", sys.maxsize),
        ):
            patches.enter_context(mock.patch.object(where, name, value))
        yield
