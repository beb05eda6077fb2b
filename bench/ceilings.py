"""Measured limits of a CPU or a GPU, and the least time that given work takes at these rates.

Two ceilings, as in the roofline model (Williams, Waterman and Patterson, "Roofline: an insightful
visual performance model for multicore architectures", 2009): arithmetic and memory traffic. Both
are measured in the session whose results they judge.

A floor holds for the operations and bytes that one algorithm declares. Another algorithm may need
fewer. Data that fits the caches may move faster than a large copy does.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from bench.rounds import seconds_of
from znni.machine.cuda import compute_capability, cupy, stands_in
from znni.machine.cuda_kernels import compiled
from znni.machine.timing import seconds_on_device
from znni.plans.cost import Cost
from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter
from znni.primitives.cpu.common.workers import even_slices
from znni.primitives.cpu.direct.register_tile import registers

REPEATS = 9

LOOP_STEPS = 2_000_000  # some tens of milliseconds
MATRIX_SIZE = 2048
COPY_BYTES = 512 << 20  # far beyond any cache

GPU_COPY_BYTES = 4 << 30
GPU_MATRIX_SIZE = 8192  # enough to keep matrix units busy

# Independent sums of a thread, each a multiply-add a step; threads that fill every scheduler.
SUMS, STEPS, THREADS, BLOCKS_PER_PROCESSOR = 16, 4096, 256, 8

MULTIPLY_ADDS = f"""
extern "C" __global__ void multiply_adds(float *out, float factor) {{
    float sums[{SUMS}];
    for (int i = 0; i < {SUMS}; ++i) sums[i] = i * factor;
#pragma unroll 4
    for (int step = 0; step < {STEPS}; ++step)
#pragma unroll
        for (int i = 0; i < {SUMS}; ++i) sums[i] = fmaf(sums[i], factor, factor);
    float total = 0.0f;
    for (int i = 0; i < {SUMS}; ++i) total += sums[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = total;
}}
"""


@dataclass(frozen=True)
class Floor:
    """The least time of declared work at the ceilings.

    Attributes:
        seconds: the time.
        bound: which ceiling binds, ``flops`` or ``bytes``.
    """

    seconds: float
    bound: str

    def share(self, measured: float) -> float:
        """Return the share of the ceiling that was reached, from 0 to 1."""
        return self.seconds / measured


def _floor(cost: Cost, flops: float, bandwidth: float) -> Floor:
    arithmetic, traffic = cost.flops / flops, cost.bytes_moved / bandwidth
    return Floor(max(arithmetic, traffic), "flops" if arithmetic >= traffic else "bytes")


@dataclass(frozen=True)
class Ceilings:
    """Measured limits of a CPU, each the best of a few runs.

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

    @property
    def about(self) -> dict[str, Any]:
        """The entry of a row that names these ceilings."""
        return {"threads": self.threads}

    def floor(self, cost: Cost) -> Floor:
        """Return the least time of a call's operations and of its bytes to and from memory."""
        return _floor(cost, self.flops, self.copy_bandwidth)

    def __str__(self) -> str:
        return (
            f"ceilings with {self.threads} threads: {self.register_flops / 1e9:,.0f} Gflop/s on "
            f"registers, {self.sgemm_flops / 1e9:,.0f} in sgemm, "
            f"{self.copy_bandwidth / 1e9:,.1f} GB/s copied (read plus written)"
        )


@dataclass(frozen=True)
class GpuCeilings:
    """Measured limits of a GPU, each the best of a few runs.

    Attributes:
        device: its name.
        flops: float32 operations per second of fused multiply-adds on registers alone.
        copy_bandwidth: bytes per second read plus bytes per second written of a large copy.
        matrix_flops: operations per second of a large product in float16 by the GPU's library.
    """

    device: str
    flops: float
    copy_bandwidth: float
    matrix_flops: float = inf

    @property
    def about(self) -> dict[str, Any]:
        """The entry of a row that names these ceilings."""
        return {"device": self.device}

    def floor(self, cost: Cost) -> Floor:
        """Return the least time of a call's operations and of its bytes to and from memory.

        Operations are float32's, on registers. Only if the cost counts on more of them per second
        are they those of matrix units. A tiled FFT has both kinds, and may take less time than
        all of them would on registers.
        """
        rate = self.flops if cost.efficiency <= 1 else self.matrix_flops
        return _floor(cost, rate, self.copy_bandwidth)

    def __str__(self) -> str:
        measured = self.matrix_flops < inf
        matrix = f"{self.matrix_flops / 1e12:,.0f} of float16 matrices, " if measured else ""
        return (
            f"ceilings of {self.device}: {self.flops / 1e12:,.1f} Tflop/s on registers, "
            f"{matrix}{self.copy_bandwidth / 1e12:,.2f} TB/s copied (read plus written)"
        )


AnyCeilings: TypeAlias = Ceilings | GpuCeilings


def measure_ceilings(threads: int) -> Ceilings:
    """Measure this machine's CPU with so many threads; takes a few seconds."""
    return Ceilings(
        threads, _register_flops(threads), _sgemm_flops(threads), _copy_bandwidth(threads)
    )


def measure_gpu_ceilings() -> GpuCeilings:
    """Measure the current GPU; takes some seconds."""
    gpu = cupy().cuda.Device()
    properties = cupy().cuda.runtime.getDeviceProperties(gpu.id)
    stood_for = f" as {compute_capability(gpu) / 10:.1f}" if stands_in() else ""
    measured = GpuCeilings(
        properties["name"].decode() + stood_for,
        _gpu_register_flops(properties["multiProcessorCount"]),
        _gpu_copy_bandwidth(),
        _gpu_matrix_flops(),
    )
    cupy().get_default_memory_pool().free_all_blocks()  # other processes may need it
    return measured


def _register_flops(threads: int) -> float:
    kernel, sums = _multiply_adds(), _sums()
    memory = np.zeros((threads, LANES), np.float32)

    def work(worker: int) -> None:
        kernel(memory[worker].ctypes.data, LOOP_STEPS)

    seconds = _best_in_parallel(work, threads)
    return threads * LOOP_STEPS * sums * LANES * 2 / seconds


def _sums() -> int:
    """Return how many vectors of sums fill the registers that hold them."""
    return registers().sums * registers().lanes // LANES


@cache
def _multiply_adds() -> Kernel:
    """Compile a loop of independent multiply-adds whose numbers never leave the registers."""
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
        seconds = _best(lambda: np.matmul(a, b, out=c), seconds_of)
    return 2 * MATRIX_SIZE**3 / seconds


def _copy_bandwidth(threads: int) -> float:
    source, target = (np.ones(COPY_BYTES // 4, np.float32) for _ in range(2))
    parts = list(even_slices(source.size, threads))
    seconds = _best_in_parallel(lambda i: np.copyto(target[parts[i]], source[parts[i]]), threads)
    return 2 * source.nbytes / seconds


def _best_in_parallel(work: Callable[[int], object], threads: int) -> float:
    """Return the seconds of the fastest round, in which each thread works once."""
    with ThreadPoolExecutor(threads) as pool:
        return _best(lambda: list(pool.map(work, range(threads))), seconds_of)


def _gpu_register_flops(processors: int) -> float:
    blocks = processors * BLOCKS_PER_PROCESSOR
    kernel = compiled(MULTIPLY_ADDS).get_function("multiply_adds")
    out = cupy().empty(blocks * THREADS, np.float32)
    seconds = _best(
        lambda: kernel((blocks,), (THREADS,), (out, np.float32(0.5))), seconds_on_device
    )
    return 2 * SUMS * STEPS * blocks * THREADS / seconds


def _gpu_copy_bandwidth() -> float:
    source, target = (cupy().ones(GPU_COPY_BYTES // 4, np.float32) for _ in range(2))
    return 2 * GPU_COPY_BYTES / _best(lambda: cupy().copyto(target, source), seconds_on_device)


def _gpu_matrix_flops() -> float:
    size = (GPU_MATRIX_SIZE, GPU_MATRIX_SIZE)
    values = np.random.default_rng(0).standard_normal(size, np.float32)
    matrix, out = cupy().asarray(values.astype(np.float16)), cupy().empty(size, np.float16)
    seconds = _best(lambda: cupy().matmul(matrix, matrix, out=out), seconds_on_device)
    return 2 * GPU_MATRIX_SIZE**3 / seconds


def _best(work: Callable[[], object], seconds_of: Callable[[Callable[[], object]], float]) -> float:
    """Return the seconds of the fastest run, after one that warms up."""
    return min(seconds_of(work) for _ in range(1 + REPEATS))
