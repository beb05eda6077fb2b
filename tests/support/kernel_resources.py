"""Resources that kernels take, by the compiler's report. No device is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from znni.machine.nvrtc import compile_with_log, compiler

# From this version on, NVRTC keeps compiled code where there is a driver. It reports nothing about
# code that it finds there.
KEEPS_CODE = 12, 9

_ENTRY = re.compile(r"Compiling entry function '(?P<kernel>\w+)'")
_SPILLS = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(?P<bytes>\d+) bytes smem")


# Two kernels to compile. The option ``-DWIDTH=`` sets the size of the second one's shared memory.
KERNELS = """
#include <cuda_fp16.h>

extern "C" __global__ void doubled(float* x) { x[threadIdx.x] *= 2.0f; }

extern "C" __global__ void reversed(__half* x) {
    __shared__ __half staged[WIDTH];
    staged[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = staged[WIDTH - 1 - threadIdx.x];
}
"""


@dataclass(frozen=True)
class ResourceUsage:
    """Resources that a kernel takes, by the compiler's report.

    Attributes:
        registers: registers per thread.
        spills: bytes of registers that a thread stores to memory, plus bytes that it loads back.
        shared: bytes of shared memory per block, without those requested at launch.
    """

    registers: int
    spills: int
    shared: int


def resource_usage(
    source: str, architecture: str = "sm_90a", options: tuple[str, ...] = ()
) -> dict[str, ResourceUsage]:
    """Return the resources that each kernel of a module takes, by name; no device is needed.

    Raises:
        InvalidInput, RuntimeError: as ``compile_offline``.
    """
    anew = ("-no-cache",) if compiler().getVersion() >= KEEPS_CODE else ()
    _, report = compile_with_log(source, architecture, (*options, *anew, "-Xptxas=-v"))
    return parsed_usage(report)


def parsed_usage(report: str) -> dict[str, ResourceUsage]:
    """Return the resources of each kernel, by name, from the output of ``ptxas -v``."""
    pieces = _ENTRY.split(report)[1:]
    if not pieces:
        raise RuntimeError(f"the compiler's report names no kernel: {report.strip()!r}")
    usage = {}
    for kernel, text in zip(pieces[::2], pieces[1::2], strict=True):
        spills, registers, shared = (p.search(text) for p in (_SPILLS, _REGISTERS, _SHARED))
        if spills is None or registers is None:
            raise RuntimeError(f"ptxas does not say what kernel {kernel} takes: {text.strip()}")
        usage[kernel] = ResourceUsage(
            registers=int(registers["registers"]),
            spills=int(spills["stores"]) + int(spills["loads"]),
            shared=int(shared["bytes"]) if shared else 0,
        )
    return usage
