"""Enough of CuPy to run a GPU's layers on the host: what is asked for is done at once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni import cuda
from znni.engine import device_layers
from znni.engine.pipeline import convert
from znni.engine.recombine import place
from znni.options import OutputType
from znni.shapes import Vec3


class Array(np.ndarray[Any, Any]):
    """An array that only ``get`` brings back."""

    def set(self, values: NDArray[Any], **_stream: object) -> None:
        assert values.shape == self.shape
        assert values.flags.c_contiguous
        self[...] = values

    def get(self, **_stream: object) -> NDArray[Any]:
        return np.array(self)


class Event:
    def __init__(self, block: bool = False) -> None:
        self.block = block
        self.time = 0.0

    def synchronize(self) -> None:
        assert self.time, "waits for what never comes to pass"


class Stream:
    def __init__(self, non_blocking: bool) -> None:
        self.non_blocking = non_blocking

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.time = perf_counter()
        return event

    def wait_event(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Memory:
    """Bytes full of NaN."""

    device_id = 0

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.full(nbytes, 0xFF, np.uint8)
        self.ptr = self.bytes.ctypes.data


class UnownedMemory:
    def __init__(self, address: int, nbytes: int, owner: object, _device: int) -> None:
        class Bytes(ctypes.c_char * nbytes):  # type: ignore[misc,name-defined]
            pass

        self.bytes = Bytes.from_address(address)
        self.bytes.owner = owner


def pointer(memory: Any, offset: int) -> Any:
    assert offset == 0
    return memory.bytes


def ndarray(shape: tuple[int, ...], dtype: DTypeLike = np.float32, memptr: Any = None) -> Any:
    if memptr is None:
        memptr = Memory(int(np.prod(shape)) * np.dtype(dtype).itemsize).bytes
    return np.frombuffer(memptr, dtype, int(np.prod(shape))).reshape(shape).view(Array)


class Failure(Exception):
    status = 700


CUPY = SimpleNamespace(
    ndarray=ndarray,
    empty=ndarray,
    get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
    cuda=SimpleNamespace(
        Stream=Stream,
        Event=Event,
        Memory=Memory,
        UnownedMemory=UnownedMemory,
        MemoryPointer=pointer,
        PinnedMemory=Memory,
        PinnedMemoryPointer=pointer,
        get_elapsed_time=lambda before, after: (after.time - before.time) * 1e3,
        memory=SimpleNamespace(OutOfMemoryError=Failure),
        runtime=SimpleNamespace(CUDARuntimeError=Failure),
        driver=SimpleNamespace(CUDADriverError=Failure),
    ),
)


class HostRecombination:
    """As ``DeviceRecombination``."""

    def __init__(self, _patch: Vec3, dtype: OutputType) -> None:
        self._dtype: OutputType = dtype

    def __call__(self, fragments: Any, at: tuple[Vec3, ...], stride: Vec3, dense: Any) -> None:
        place(convert(np.asarray(fragments), self._dtype), at, stride, dense)


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Let the GPU be the host within a ``with`` block."""
    cuda.cupy.cache_clear()
    with (
        mock.patch.object(cuda, "import_module", return_value=CUPY),
        mock.patch.object(device_layers, "DeviceRecombination", HostRecombination),
    ):
        yield
    cuda.cupy.cache_clear()
