"""NVRTC, the compiler of CUDA C++ kernels, and its report of what they take.

It compiles for one architecture, and needs no GPU. So kernels can be checked on any machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from znni.core.errors import InvalidInput
from znni.machine.cuda import INSTALL, OWN_INSTRUCTIONS, cupy

STANDARD = "-std=c++17"

# Targets whose names begin so are translated by the driver, for any later GPU.
VIRTUAL = "compute_"

# From this version on, NVRTC keeps compiled code where there is a driver. It reports nothing about
# code that it finds there.
KEEPS_CODE = 12, 9

_ENTRY = re.compile(r"Compiling entry function '(?P<kernel>\w+)'")
_SPILLS = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(?P<bytes>\d+) bytes smem")


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


def compile_offline(
    source: str, architecture: str = "sm_90a", options: tuple[str, ...] = ()
) -> bytes:
    """Return the machine code (cubin) of a module of kernels; no device is needed.

    For an architecture such as ``compute_80``, return the PTX.

    Raises:
        InvalidInput: CuPy, NVRTC or the headers of CUDA are not installed.
        RuntimeError: NVRTC does not compile it; the message has its log.
    """
    return _compile(source, architecture, options)[0]


def resource_usage(
    source: str, architecture: str = "sm_90a", options: tuple[str, ...] = ()
) -> dict[str, ResourceUsage]:
    """Return the resources that each kernel of a module takes, by name; no device is needed.

    Raises:
        InvalidInput, RuntimeError: as ``compile_offline``.
    """
    anew = ("-no-cache",) if compiler().getVersion() >= KEEPS_CODE else ()
    _, report = _compile(source, architecture, (*options, *anew, "-Xptxas=-v"))
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


def why_no_compiler() -> str:
    """Return what is missing to compile kernels, with a remedy; nothing if they can be compiled."""
    try:
        compiler()
        _headers()
    except InvalidInput as error:
        return str(error)
    return ""


def architecture_of(capability: int) -> str:
    """Return NVRTC's name of the architecture of a compute capability, such as 90 for 9.0."""
    return f"sm_{capability}" + ("a" if capability >= OWN_INSTRUCTIONS else "")


def _compile(source: str, architecture: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Return the machine code, or the PTX of a virtual architecture, and the compiler's log."""
    nvrtc = compiler()
    program = nvrtc.createProgram(source, "kernels.cu", [], [])
    try:
        nvrtc.compileProgram(
            program, [f"-arch={architecture}", STANDARD, f"-I{_headers()}", *options]
        )
        code = (nvrtc.getPTX if architecture.startswith(VIRTUAL) else nvrtc.getCUBIN)(program)
        return code, nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise RuntimeError(
            f"NVRTC cannot compile for {architecture} ({error}):\n{log.strip()}"
        ) from None
    finally:
        nvrtc.destroyProgram(program)


@cache
def compiler() -> Any:
    """Return CuPy's binding of NVRTC.

    Raises:
        InvalidInput: CuPy or NVRTC is not installed.
    """
    nvrtc = cupy().cuda.nvrtc
    try:
        nvrtc.getVersion()
    except Exception as error:  # library loaders raise errors of any class
        raise InvalidInput(f"a GPU needs CUDA's compiler NVRTC ({error}); {INSTALL}") from None
    return nvrtc


@cache
def _headers() -> str:
    """Return the folder of CUDA's headers, such as ``cuda_fp16.h``.

    Raises:
        InvalidInput: the headers are not installed.
    """
    from cuda.pathfinder import find_nvidia_header_directory

    folder = find_nvidia_header_directory("cudart")
    if folder is None:
        raise InvalidInput(f"a GPU needs the headers of CUDA's runtime; {INSTALL}")
    return str(folder)
