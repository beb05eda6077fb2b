"""Kernels that numba compiles when they are first needed."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from paths import NETWORKS

from znni.primitives.cpu.common.lazy_kernel import LazyKernel, compiling, lazy_njit
from znni.primitives.cpu.common.numba_kernel import numba_kernel


@lazy_njit(nogil=True)
def _twice(value):  # type: ignore[no-untyped-def]
    return 2 * value


@lazy_njit(nogil=True)
def _four_times(value):  # type: ignore[no-untyped-def]
    return _twice(_twice(value))


def test_a_kernel_is_made_with_those_that_it_names() -> None:
    assert isinstance(_four_times, LazyKernel)
    assert _four_times(3) == 12
    assert isinstance(_twice, LazyKernel)  # its name still means the same
    assert _twice(4) == 8
    assert _four_times.__name__ == "_four_times"


def test_a_kernel_is_made_with_those_around_it() -> None:
    @lazy_njit(nogil=True)
    def add(x, y):  # type: ignore[no-untyped-def]
        return x + y

    @numba_kernel
    def total(values, out):  # type: ignore[no-untyped-def]
        for i in range(values.size):
            out[0] = add(out[0], values[i])

    out = np.zeros(1, np.float32)
    total(np.arange(5, dtype=np.float32), out)
    assert out[0] == 10


def test_threads_that_call_at_once_make_one_kernel() -> None:
    made: list[Any] = []

    def compiled(function: Any) -> Any:
        made.append(function)
        return function

    kernel = LazyKernel(lambda x: x + 1, compiled, {})
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(kernel, range(50))) == list(range(1, 51))
    assert len(made) == 1


@pytest.mark.slow
def test_a_kept_plan_imports_no_compiler_and_no_format() -> None:
    """It is shown in half a second, a fifth of which numba would take."""
    code = (
        f"import sys; from znni.inference.planning import fastest, search\n"
        f"fastest(search({str(NETWORKS / 'n337.yaml')!r}, (99, 99, 99), device='cpu', ram=2**30))\n"
        f"print(*{{'numba', 'h5py', 'scipy.fft', 'pyfftw'}} & sys.modules.keys())"
    )
    for _ in range(2):  # the first process keeps the plan, if there is none
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert done.stdout == "\n"


def test_an_interrupt_waits_until_a_kernel_is_compiled() -> None:
    """In a function that LLVM calls, it would be dropped."""
    called = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
    ended = False
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), compiling():  # noqa: PT012
        called()
        ended = True
    assert ended
    assert signal.getsignal(signal.SIGINT) is before


def test_signals_that_are_ignored_stay_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with compiling():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
