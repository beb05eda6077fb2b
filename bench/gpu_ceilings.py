"""What a GPU can do at most, measured, as ``ceilings`` has it for a CPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.ceilings import Floor
from bench.gpu_timing import seconds_of
from znni.cuda import cupy
from znni.cuda_kernels import compiled

COPY_BYTES = 4 * 2**30  # far beyond any cache
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
    """

    device: str
    flops: float
    copy_bandwidth: float

    def floor(self, flops: float, bytes_moved: float) -> Floor:
        """The least time for so many float32 operations and bytes to and from memory.

        Products on matrix units are not float32 operations, and may take less.
        """
        arithmetic, traffic = flops / self.flops, bytes_moved / self.copy_bandwidth
        return Floor(max(arithmetic, traffic), "flops" if arithmetic >= traffic else "bytes")

    def record(self) -> dict[str, Any]:
        """The figures, for a saved result."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"ceilings of {self.device}: {self.flops / 1e12:,.1f} Tflop/s on registers, "
            f"{self.copy_bandwidth / 1e12:,.2f} TB/s copied (read plus written)"
        )


def measure_gpu_ceilings() -> GpuCeilings:
    """The ceilings of the current GPU; takes some seconds."""
    properties = cupy().cuda.runtime.getDeviceProperties(cupy().cuda.Device().id)
    return GpuCeilings(
        properties["name"].decode(),
        _register_flops(properties["multiProcessorCount"]),
        _copy_bandwidth(),
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
