"""What this machine can do at most, measured, and the least time of given work at that rate.

Two ceilings, as in the roofline model (Williams, Waterman and Patterson, "Roofline: an insightful
visual performance model for multicore architectures", 2009): float32 arithmetic and memory
traffic, with a number of threads. Both are measured in the session whose results they judge.

A floor is that of the operations and bytes that one algorithm declares. Another algorithm may need
fewer of them, and what fits the caches may move its bytes faster than a large copy does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
from threadpoolctl import threadpool_limits

from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter
from znni.primitives.cpu.common.workers import even_slices
from znni.primitives.cpu.direct.register_tile import registers

LOOP_STEPS = 2_000_000  # some tens of milliseconds
MATRIX_SIZE = 2048
COPY_BYTES = 512 << 20  # far beyond any cache
REPEATS = 9


@dataclass(frozen=True)
class Ceilings:
    """Measured limits of a machine, each the best of a few runs.

    Attributes:
        threads: used for all of them.
        register_flops: float32 operations per second of fused multiply-adds on registers alone.
        sgemm_flops: the same in NumPy's product of two large float32 matrices.
        copy_bandwidth: bytes per second read plus bytes per second written of a large copy.
    """

    threads: int
    register_flops: float
    sgemm_flops: float
    copy_bandwidth: float

    @property
    def flops(self) -> float:
        """The arithmetic ceiling: the higher of the two that were measured."""
        return max(self.register_flops, self.sgemm_flops)

    def floor(self, flops: float, bytes_moved: float) -> Floor:
        """The least time for so many float32 operations and bytes to and from memory."""
        arithmetic, traffic = flops / self.flops, bytes_moved / self.copy_bandwidth
        return Floor(max(arithmetic, traffic), "flops" if arithmetic >= traffic else "bytes")

    def record(self) -> dict[str, float]:
        """The figures, for a saved result."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"ceilings with {self.threads} threads: {self.register_flops / 1e9:,.0f} Gflop/s on "
            f"registers, {self.sgemm_flops / 1e9:,.0f} in sgemm, "
            f"{self.copy_bandwidth / 1e9:,.1f} GB/s copied (read plus written)"
        )


@dataclass(frozen=True)
class Floor:
    """The least time of declared work at the ceilings, in seconds, and which of the two binds."""

    seconds: float
    bound: str

    def share(self, measured: float) -> float:
        """How much of the ceiling was reached, from 0 to 1."""
        return self.seconds / measured


def measure_ceilings(threads: int) -> Ceilings:
    """The ceilings of this machine with so many threads; takes a few seconds."""
    return Ceilings(
        threads, _register_flops(threads), _sgemm_flops(threads), _copy_bandwidth(threads)
    )


def _register_flops(threads: int) -> float:
    kernel, sums = _multiply_adds(), _sums()
    memory = np.zeros((threads, LANES), np.float32)

    def work(worker: int) -> None:
        kernel(memory[worker].ctypes.data, LOOP_STEPS)

    seconds = _best_in_parallel(work, threads)
    return threads * LOOP_STEPS * sums * LANES * 2 / seconds


def _sums() -> int:
    """How many vectors of sums fill the registers that hold them."""
    return registers().sums * registers().lanes // LANES


@cache
def _multiply_adds() -> Kernel:
    """A loop of independent multiply-adds, whose numbers never leave the registers."""
    code = Emitter("multiply_adds", floats=Argument.FLOATS, steps=Argument.INDEX)
    factor = code.load(code["floats"])
    sums = [code.variable(code.constant(float(i))) for i in range(_sums())]
    with code.loop(code["steps"]):
        for one in sums:
            one.set(code.multiply_add(one.get(), factor, factor))
    total = sums[0].get()
    for one in sums[1:]:
        total = code.add(total, one.get())
    code.store(total, code["floats"])
    return code.compile()


def _sgemm_flops(threads: int) -> float:
    a, b, c = (np.ones((MATRIX_SIZE, MATRIX_SIZE), np.float32) for _ in range(3))
    with threadpool_limits(threads, user_api="blas"):
        seconds = min(_seconds(lambda: np.matmul(a, b, out=c)) for _ in range(1 + REPEATS))
    return 2 * MATRIX_SIZE**3 / seconds


def _copy_bandwidth(threads: int) -> float:
    source, target = (np.ones(COPY_BYTES // 4, np.float32) for _ in range(2))
    parts = list(even_slices(source.size, threads))
    seconds = _best_in_parallel(lambda i: np.copyto(target[parts[i]], source[parts[i]]), threads)
    return 2 * source.nbytes / seconds


def _best_in_parallel(work: Callable[[int], object], threads: int) -> float:
    """Seconds of the fastest of some rounds, in which each thread works once."""
    with ThreadPoolExecutor(threads) as pool:
        return min(
            _seconds(lambda: list(pool.map(work, range(threads)))) for _ in range(1 + REPEATS)
        )


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
