"""Transforms of many lines in place by cuFFT, which takes no memory but the work area it is given.

CuPy's plans allocate their own work areas, so this module calls cuFFT's C interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Literal, TypeAlias
from weakref import finalize

from znni.core.errors import InvalidInput
from znni.machine.cuda import CUDA_ERROR_OUT_OF_MEMORY, INSTALL, LibraryFailed, cupy

Kind: TypeAlias = Literal["forward", "inverse", "real_to_complex", "complex_to_real"]

CODES: dict[Kind, int] = {
    "forward": 0x29,
    "inverse": 0x29,
    "real_to_complex": 0x2A,
    "complex_to_real": 0x2C,
}
FORWARD, INVERSE = -1, 1

ALLOC_FAILED = 2  # cuFFT's status if it lacks the little memory that it takes beside the work area
NUMBER_BYTES = 8


class Lines:
    """One-dimensional transforms of adjacent lines, in place, some of them at a time.

    A line of ``length`` real numbers takes the place of its ``length // 2 + 1`` frequencies.

    Args:
        kind: the transform, which does not scale.
        length: numbers of a line.
        count: how many lines there are.
        lines_bytes: bytes of the lines that are transformed at a time, at most.
        work_bytes: bytes of the work area. If cuFFT wants more, it gets fewer lines at a time.
    """

    def __init__(
        self, kind: Kind, length: int, count: int, lines_bytes: int, work_bytes: int
    ) -> None:
        real = kind in {"real_to_complex", "complex_to_real"}
        self._line_bytes = NUMBER_BYTES * (length // 2 + 1 if real else length)
        self._count = count
        together = max(1, min(count, lines_bytes // self._line_bytes))
        while (plan := _Plan(kind, length, together)).work_bytes > work_bytes and together > 1:
            together //= 2
        self._together, self._plan = together, plan
        rest = count % together
        self._rest = _Plan(kind, length, rest) if rest else None
        wanted = max(part.work_bytes for _, part in self._parts())
        if wanted > work_bytes:
            raise LibraryFailed(
                f"cuFFT wants {wanted} bytes to transform lines of {length}, and has {work_bytes}"
            )

    def run(self, lines: int, work: int) -> None:
        """Transform all lines, on the current stream.

        Args:
            lines: address of the first line.
            work: address of the work area.
        """
        for start, plan in self._parts():
            plan.run(lines + start * self._line_bytes, work)

    def _parts(self) -> Iterator[tuple[int, _Plan]]:
        whole = self._count - self._count % self._together
        for start in range(0, whole, self._together):
            yield start, self._plan
        if self._rest:
            yield whole, self._rest


class _Plan:
    """A plan of cuFFT's for some adjacent lines."""

    def __init__(self, kind: Kind, length: int, count: int) -> None:
        self._kind = kind
        self._handle = ctypes.c_int()
        self._library = _library()
        _check(self._library.cufftCreate(ctypes.byref(self._handle)))
        # The library frees what is left when the process ends.
        finalize(self, self._library.cufftDestroy, self._handle).atexit = False
        _check(self._library.cufftSetAutoAllocation(self._handle, 0))
        half = length // 2 + 1
        distances = {
            "real_to_complex": (2 * half, half),
            "complex_to_real": (half, 2 * half),
        }.get(kind, (length, length))
        embedded = [(ctypes.c_longlong * 1)(distance) for distance in distances]
        work = ctypes.c_size_t()
        _check(
            self._library.cufftMakePlanMany64(
                self._handle,
                1,
                (ctypes.c_longlong * 1)(length),
                embedded[0],
                ctypes.c_longlong(1),
                ctypes.c_longlong(distances[0]),
                embedded[1],
                ctypes.c_longlong(1),
                ctypes.c_longlong(distances[1]),
                CODES[kind],
                ctypes.c_longlong(count),
                ctypes.byref(work),
            )
        )
        self.work_bytes = int(work.value)

    def run(self, lines: int, work: int) -> None:
        stream = ctypes.c_void_p(cupy().cuda.get_current_stream().ptr)
        address = ctypes.c_void_p(lines)
        _check(self._library.cufftSetStream(self._handle, stream))
        _check(self._library.cufftSetWorkArea(self._handle, ctypes.c_void_p(work)))
        if self._kind == "real_to_complex":
            _check(self._library.cufftExecR2C(self._handle, address, address))
        elif self._kind == "complex_to_real":
            _check(self._library.cufftExecC2R(self._handle, address, address))
        else:
            direction = FORWARD if self._kind == "forward" else INVERSE
            _check(self._library.cufftExecC2C(self._handle, address, address, direction))


@cache
def _library() -> ctypes.CDLL:
    """Return the library.

    Raises:
        InvalidInput: cuFFT is not installed.
    """
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    try:
        return ctypes.CDLL(load_nvidia_dynamic_lib("cufft").abs_path)
    except DynamicLibNotFoundError as error:
        raise InvalidInput(f"a GPU needs cuFFT ({error}); {INSTALL}") from None


def _check(status: int) -> None:
    """Raise an error if cuFFT reports a failure.

    Raises:
        LibraryFailed: the status is not success.
    """
    if status:
        code = CUDA_ERROR_OUT_OF_MEMORY if status == ALLOC_FAILED else 0
        raise LibraryFailed(f"cuFFT reports status {status}", code)
