"""What a GPU can do at most, measured, as ``ceilings`` has it for a CPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import numpy as np

from bench.ceilings import Floor
from bench.gpu_timing import seconds_of
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled
from znni.plans.cost import Cost

COPY_BYTES = 4 * 2**30  # far beyond any cache
MATRIX = 8192  # rows and columns of a product that matrix units are busy with
REPEATS = 9

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

    def floor(self, cost: Cost) -> Floor:
        """The least time for a price's operations and bytes to and from memory.

        Operations are float32's, on registers, unless so many a second are counted upon that only
        matrix units have them. Those of a tiled FFT are both, and may take less than all on
        registers.
        """
        rate = self.flops if cost.efficiency <= 1 else self.matrix_flops
        arithmetic, traffic = cost.flops / rate, cost.bytes_moved / self.copy_bandwidth
        return Floor(max(arithmetic, traffic), "flops" if arithmetic >= traffic else "bytes")

    def record(self) -> dict[str, Any]:
        """The figures, for a saved result."""
        return asdict(self)

    def __str__(self) -> str:
        measured = self.matrix_flops < inf
        matrix = f"{self.matrix_flops / 1e12:,.0f} of float16 matrices, " if measured else ""
        return (
            f"ceilings of {self.device}: {self.flops / 1e12:,.1f} Tflop/s on registers, "
            f"{matrix}{self.copy_bandwidth / 1e12:,.2f} TB/s copied (read plus written)"
        )


def measure_gpu_ceilings() -> GpuCeilings:
    """The ceilings of the current GPU; takes some seconds."""
    properties = cupy().cuda.runtime.getDeviceProperties(cupy().cuda.Device().id)
    return GpuCeilings(
        properties["name"].decode(),
        _register_flops(properties["multiProcessorCount"]),
        _copy_bandwidth(),
        _matrix_flops(),
    )


def _register_flops(processors: int) -> float:
    blocks = processors * BLOCKS_PER_PROCESSOR
    kernel = compiled(MULTIPLY_ADDS).get_function("multiply_adds")
    out = cupy().empty(blocks * THREADS, np.float32)
    best = min(
        seconds_of(lambda: kernel((blocks,), (THREADS,), (out, np.float32(0.5))))
        for _ in range(1 + REPEATS)
    )
    return 2 * SUMS * STEPS * blocks * THREADS / best


def _copy_bandwidth() -> float:
    source, target = (cupy().ones(COPY_BYTES // 4, np.float32) for _ in range(2))
    best = min(seconds_of(lambda: cupy().copyto(target, source)) for _ in range(1 + REPEATS))
    return 2 * COPY_BYTES / best


def _matrix_flops() -> float:
    values = np.random.default_rng(0).standard_normal((MATRIX, MATRIX), np.float32)
    matrix = cupy().asarray(values.astype(np.float16))
    out = cupy().empty((MATRIX, MATRIX), np.float16)
    best = min(
        seconds_of(lambda: cupy().matmul(matrix, matrix, out=out)) for _ in range(1 + REPEATS)
    )
    return 2 * MATRIX**3 / best
