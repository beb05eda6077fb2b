"""Kernels of the catalogue give the same bits by themselves as through numba."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from layers import EXAMPLES, case_for, suited
from numba import njit

from znni.machine.detect import detect_host
from znni.network.layers import Conv
from znni.primitives.catalogue import catalogue
from znni.primitives.cpu.common.lazy_kernel import with_compiled
from znni.primitives.cpu.common.native_kernel import NativeKernel

# One thread: with several, each would see what the others write beside it.
ALONE = catalogue(detect_host(threads=1), "cpu")
ALIGNED = 64

# Primitives whose kernels are emitted for any activation of a pooled convolution.
EMITTED = ("_pooled", *(f"_pooled_{extent}" for extent in (12, 16, 20, 24, 32)))


def arrays_in(arguments: tuple[Any, ...]) -> Iterator[Any]:
    """All arrays among arguments, also those in tuples."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from arrays_in(argument)
        elif isinstance(argument, np.ndarray):
            yield argument


def bounds(array: Any) -> tuple[int, int]:
    """The addresses of an array's first byte and of the byte after its last."""
    first = array.__array_interface__["data"][0]
    if not array.size:
        return first, first
    steps = [s * (extent - 1) for s, extent in zip(array.strides, array.shape, strict=True)]
    low = first + sum(min(step, 0) for step in steps)
    return low, first + sum(max(step, 0) for step in steps) + array.itemsize


class Copies:
    """Copies of arguments. Arrays that overlap have copies that overlap in the same way."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._memory: list[tuple[int, int, Any]] = []
        joined: list[list[int]] = []
        for low, high in sorted(map(bounds, arrays_in(arguments))):
            if joined and low < joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], high)
            else:
                joined.append([low, high])
        for low, high in joined:
            memory = np.empty(high - low + ALIGNED, np.uint8)
            start = (low - memory.ctypes.data) % ALIGNED
            memory = memory[start : start + high - low]
            ctypes.memmove(memory.ctypes.data, low, high - low)
            self._memory.append((low, high, memory))
        self.arguments = tuple(map(self._copy, arguments))

    def _copy(self, argument: Any) -> Any:
        if isinstance(argument, tuple):
            items = map(self._copy, argument)
            return type(argument)(*items) if hasattr(argument, "_fields") else tuple(items)
        if not isinstance(argument, np.ndarray):
            return argument
        low, high = bounds(argument)
        start, memory = next(
            (start, memory) for start, stop, memory in self._memory if start <= low <= high <= stop
        )
        first = argument.__array_interface__["data"][0] - start
        layout = argument.shape, argument.dtype, memory, first, argument.strides
        made: Any = np.ndarray(*layout)
        made.flags.writeable = argument.flags.writeable
        return made


@cache
def through_numba(kernel: NativeKernel) -> Any:
    """The kernel as numba calls it."""
    return njit(**kernel.options)(with_compiled(kernel.function))


class Compared:
    """Calls of kernels, the first of each kernel also through numba."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels: set[NativeKernel] = set()
        self.changed = False
        self._call = NativeKernel.__call__
        compared = self
        monkeypatch.setattr(
            NativeKernel, "__call__", lambda kernel, *given: compared.call(kernel, given)
        )

    def call(self, kernel: NativeKernel, given: tuple[Any, ...]) -> None:
        if kernel in self.kernels:
            self._call(kernel, *given)
            return
        self.kernels.add(kernel)
        other = Copies(given).arguments
        before = [array.tobytes() for array in arrays_in(given)]
        self._call(kernel, *given)
        through_numba(kernel)(*other)
        made = [array.tobytes() for array in arrays_in(given)]
        assert made == [array.tobytes() for array in arrays_in(other)], kernel
        self.changed |= made != before


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", ALONE)
def test_bits_are_those_of_numba(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    primitive = ALONE[name]
    compared = Compared(monkeypatch)
    for layer, shape in EXAMPLES:
        fitted = suited(primitive, layer, shape)
        if fitted is None:
            continue
        case_for(primitive, layer, fitted).run(primitive)
        if isinstance(layer, Conv):  # its kernels for softmax, too
            ending = Conv(**{**vars(layer), "activation": "softmax"})
            case_for(primitive, ending, fitted).run(primitive)
    assert compared.changed or name.endswith(EMITTED)
