"""NVRTC, the compiler of CUDA C++ kernels.

It compiles for one architecture, and needs no GPU. So kernels can be checked on any machine.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from znni.core.errors import InvalidInput
from znni.machine.cuda import INSTALL, OWN_INSTRUCTIONS, cupy

STANDARD = "-std=c++17"

# Targets whose names begin so are translated by the driver, for any later GPU.
VIRTUAL = "compute_"


def compile_offline(
    source: str, architecture: str = "sm_90a", options: tuple[str, ...] = ()
) -> bytes:
    """Return the machine code (cubin) of a module of kernels; no device is needed.

    For an architecture such as ``compute_80``, return the PTX.

    Raises:
        InvalidInput: CuPy, NVRTC or the headers of CUDA are not installed.
        RuntimeError: NVRTC does not compile it; the message has its log.
    """
    return compile_with_log(source, architecture, options)[0]


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


def compile_with_log(source: str, architecture: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Return the machine code, or the PTX of a virtual architecture, and the compiler's log.

    Raises:
        InvalidInput, RuntimeError: as ``compile_offline``.
    """
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
