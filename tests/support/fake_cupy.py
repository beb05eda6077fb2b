"""Enough of CuPy to run a GPU's layers on the host; every operation runs at once."""

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

from znni.core.option_types import OutputType
from znni.core.shapes import Axis, Vec3
from znni.engine.backends.cuda import part_runner as device_part_runner
from znni.engine.backends.host.recombine import recombine
from znni.engine.scaling import StoredScaling
from znni.engine.stages.convert import convert
from znni.machine import cuda


class Array(np.ndarray[Any, Any]):
    """Array that only ``get``, or a copy from its memory, can bring back to the host."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def set(self, values: NDArray[Any], **_stream: object) -> None:
        assert values.shape == self.shape
        assert values.flags.c_contiguous
        self[...] = values

    def get(self, out: NDArray[Any] | None = None, **_stream: object) -> NDArray[Any]:
        if out is None:
            return np.array(self)
        assert out.shape == self.shape
        assert out.dtype == self.dtype
        out[...] = self
        return out


class Event:
    def __init__(self, block: bool = False) -> None:
        self.block = block
        self.time = 0.0

    def synchronize(self) -> None:
        assert self.time, "waits for what never comes to pass"


class Stream:
    ptr = 0

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
    """Memory full of NaN."""

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
    return memory.bytes[offset:] if offset else memory.bytes


def ndarray(shape: tuple[int, ...], dtype: DTypeLike = np.float32, memptr: Any = None) -> Any:
    if memptr is None:
        memptr = Memory(int(np.prod(shape)) * np.dtype(dtype).itemsize).bytes
    return np.frombuffer(memptr, dtype, int(np.prod(shape))).reshape(shape).view(Array)


class Failure(Exception):
    status = 700


class Device:
    id = 0

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Runtime:
    """Copies between memories, and locks that do nothing."""

    CUDARuntimeError = Failure
    memcpyHostToDevice = 1  # noqa: N815
    memcpyDeviceToHost = 2  # noqa: N815

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}

    def hostRegister(self, address: int, nbytes: int, _flags: int) -> None:  # noqa: N802
        self.locked[address] = nbytes

    def hostUnregister(self, address: int) -> None:  # noqa: N802
        del self.locked[address]

    def memcpyAsync(self, to: int, source: int, nbytes: int, *_: object) -> None:  # noqa: N802
        ctypes.memmove(to, source, nbytes)

    def memcpy2DAsync(  # noqa: N802
        self, to: int, to_pitch: int, source: int, pitch: int, width: int, rows: int, *_: object
    ) -> None:
        for row in range(rows):
            ctypes.memmove(to + row * to_pitch, source + row * pitch, width)


CUPY = SimpleNamespace(
    ndarray=ndarray,
    empty=ndarray,
    get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
    cuda=SimpleNamespace(
        Device=Device,
        Stream=Stream,
        Event=Event,
        Memory=Memory,
        UnownedMemory=UnownedMemory,
        MemoryPointer=pointer,
        PinnedMemory=Memory,
        PinnedMemoryPointer=pointer,
        get_elapsed_time=lambda before, after: (after.time - before.time) * 1e3,
        memory=SimpleNamespace(OutOfMemoryError=Failure),
        runtime=Runtime(),
        driver=SimpleNamespace(CUDADriverError=Failure),
    ),
)


class HostRecombination:
    """Stand-in for ``DeviceRecombination``."""

    def __init__(self, _patch: Vec3, dtype: OutputType) -> None:
        self._dtype: OutputType = dtype

    def __call__(self, fragments: Any, at: tuple[Vec3, ...], stride: Vec3, dense: Any) -> None:
        recombine(convert(np.asarray(fragments), self._dtype), at, stride, dense)


class HostScaling:
    """Stand-in for ``DeviceScaling``."""

    def __init__(self, _maps: int, _itemsize: int) -> None:
        pass

    def __call__(self, stored: Any, scaling: StoredScaling, given: Any) -> None:
        known = scaling.known.slices
        given[...] = 0
        given[0][:, *known] = scaling.scaled(np.asarray(stored[0])[:, *known])


class HostCopies:
    """Stand-in for ``PlaneCopies``."""

    def __init__(self, _axis: Axis) -> None:
        pass

    def __call__(self, planes: Any, into: Any) -> None:
        into[...] = planes


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Use the host as the GPU within a ``with`` block."""
    cuda.cupy.cache_clear()
    with (
        mock.patch.object(cuda, "import_module", return_value=CUPY),
        mock.patch.object(device_part_runner, "DeviceRecombination", HostRecombination),
        mock.patch.object(device_part_runner, "DeviceScaling", HostScaling),
        mock.patch.object(device_part_runner, "PlaneCopies", HostCopies),
    ):
        yield
    cuda.cupy.cache_clear()
