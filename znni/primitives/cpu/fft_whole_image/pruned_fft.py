"""Pruned 3D real FFTs, which transform only lines that are not zero or whose result is wanted.

A map of n voxels is transformed at N >= n voxels per axis (ZNNi, section III). The forward
transform takes x along the n_z n_y lines that hold voxels, y within the n_z planes that do, and z
everywhere. The inverse takes z everywhere, y in the n'_z wanted planes, and x on their n'_y wanted
lines. Between the two steps a map is *half transformed*: (z, N_y * columns) complex numbers, where
``columns = N_x // 2 + 1``. One-dimensional transforms come from FFTW or, if it is not installed,
from SciPy.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from math import log2
from threading import Lock
from types import ModuleType
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3
from znni.machine.arrays import empty_aligned
from znni.network.weights import Float32
from znni.primitives.cpu.fft_whole_image.transform_sizes import fast_size

Complex64: TypeAlias = NDArray[np.complex64]
Transform: TypeAlias = Callable[[], None]
Direction: TypeAlias = Literal["forward", "inverse"]

# Bytes of a slab of planes, which stays in the second-level cache.
SLAB_BYTES = 256 * 1024
# Seconds of FFTW's search for the best plan of one transform; a build has six.
PLANNING_SECONDS = 0.3
# Bytes that FFTW keeps for one plan: its twiddle factors and the plan itself.
PLAN_BYTES = 16 * 1024

_planner = Lock()  # FFTW's planner is not thread-safe; running its plans is


@dataclass(frozen=True)
class PrunedShape:
    """The extents of an image and of its transform.

    Attributes:
        image: voxels that may be other than zero: n.
        output: voxels wanted from the inverse, from the first on: n'.
    """

    image: Vec3
    output: Vec3

    @cached_property
    def size(self) -> Vec3:
        """Size N of the transform, per axis."""
        return Vec3(*map(fast_size, self.image))

    @property
    def columns(self) -> int:
        """Number of complex numbers in a line along x."""
        return self.size.x // 2 + 1

    @cached_property
    def plane(self) -> int:
        """Number of complex numbers in a plane."""
        return self.size.y * self.columns

    @property
    def slab(self) -> int:
        """Number of planes that are transformed together."""
        return min(self.image.z, max(1, SLAB_BYTES // (8 * self.plane)))

    @property
    def forward_flops(self) -> float:
        """Operations of one map's transform, with 5 N log2 N for a complex line of N."""
        z, y, _ = self.image
        return self._flops(z, y)

    @property
    def inverse_flops(self) -> float:
        """Operations of one map's inverse transform."""
        z, y, _ = self.output
        return self._flops(z, y)

    def _flops(self, planes: int, lines: int) -> float:
        def line(size: int) -> float:
            return 5.0 * size * log2(size) if size > 1 else 0.0

        along_x = planes * lines * line(self.size.x) / 2
        along_y = planes * self.columns * line(self.size.y)
        return along_x + along_y + self.plane * line(self.size.z)


class Backend(Protocol):
    """A source of one-dimensional transforms; none of them scales."""

    def in_place(self, array: Complex64, direction: Direction) -> Transform:
        """Return a complex transform along the last axis but one."""

    def real_forward(self, real: Float32, half: Complex64) -> Transform:
        """Return a real-to-complex transform along the last axis."""

    def real_inverse(self, half: Complex64, real: Float32) -> Transform:
        """Return a complex-to-real transform along the last axis; it overwrites ``half``."""

    def resident_bytes(self) -> int:
        """Return an upper bound of the bytes that one worker's six transforms keep."""

    def transient_bytes(self, largest: int) -> int:
        """Return the bytes that a transform of an array of ``largest`` bytes allocates in a run."""


class FftwBackend:
    """FFTW's plans; each is for one thread and for the arrays with which it was made."""

    def in_place(self, array: Complex64, direction: Direction) -> Transform:
        """Return a plan for a strided batch."""
        return self._plan(array, array, -2, direction)

    def real_forward(self, real: Float32, half: Complex64) -> Transform:
        """Return a plan for a batch of lines."""
        return self._plan(real, half, -1, "forward")

    def real_inverse(self, half: Complex64, real: Float32) -> Transform:
        """Return a plan for a batch of lines, which FFTW overwrites."""
        return self._plan(half, real, -1, "inverse")

    def resident_bytes(self) -> int:
        """Return the bytes of six plans."""
        return 6 * PLAN_BYTES

    def transient_bytes(self, largest: int) -> int:  # noqa: ARG002
        """Return 0: FFTW allocates nothing."""
        return 0

    def _plan(
        self, source: NDArray[Any], target: NDArray[Any], axis: int, direction: Direction
    ) -> Transform:
        import pyfftw

        with _planner:
            plan = pyfftw.FFTW(
                source,
                target,
                axes=(axis,),
                direction="FFTW_FORWARD" if direction == "forward" else "FFTW_BACKWARD",
                flags=("FFTW_MEASURE", "FFTW_DESTROY_INPUT"),
                threads=1,
                planning_timelimit=PLANNING_SECONDS,
            )
        return plan.execute  # type: ignore[no-any-return]


class ScipyBackend:
    """SciPy's transforms: slower than FFTW, but under a permissive licence."""

    def in_place(self, array: Complex64, direction: Direction) -> Transform:
        """Return a transform that copies its result back, if SciPy does not overwrite its input."""
        import scipy.fft

        def transform() -> None:
            if direction == "forward":
                result = scipy.fft.fft(array, axis=-2, overwrite_x=True)
            else:
                result = scipy.fft.ifft(array, axis=-2, norm="forward", overwrite_x=True)
            if not np.shares_memory(result, array):
                array[...] = result

        return transform

    def real_forward(self, real: Float32, half: Complex64) -> Transform:
        """Return a transform that copies a result of the size of ``half``."""
        import scipy.fft

        def transform() -> None:
            half[...] = scipy.fft.rfft(real, axis=-1)

        return transform

    def real_inverse(self, half: Complex64, real: Float32) -> Transform:
        """Return a transform that copies a result of the size of ``real``."""
        import scipy.fft

        def transform() -> None:
            real[...] = scipy.fft.irfft(half, real.shape[-1], axis=-1, norm="forward")

        return transform

    def resident_bytes(self) -> int:
        """Return the bytes of twiddle factors, which SciPy keeps for the last few sizes."""
        return PLAN_BYTES

    def transient_bytes(self, largest: int) -> int:
        """Return the bytes of the result before it is copied."""
        return largest


@cache
def backend() -> Backend:
    """Return FFTW if pyfftw is installed, else SciPy."""
    try:
        _import_pyfftw()
    except ImportError:
        logging.getLogger(__name__).info(
            "pyfftw is not installed: FFT convolution uses scipy.fft, which is slower"
        )
        return ScipyBackend()
    return FftwBackend()


_importing = Lock()  # held by the thread that imports pyfftw


def _import_pyfftw() -> None:
    """Import pyfftw, but its interfaces to other libraries only when somebody uses them.

    We use none of them. Importing them takes most of pyfftw's time: they import SciPy's FFTs and,
    where Dask is installed, Dask with CuPy and PyArrow. That is 0.4 s, and 300 MiB on a machine
    with a GPU, even if everything runs on the CPU.

    Raises:
        ImportError: pyfftw is not installed, or cannot be loaded.
    """
    name = "pyfftw.interfaces"

    def interfaces(wanted: str) -> ModuleType:
        if wanted == "interfaces":
            return import_module(name)
        raise AttributeError(f"module 'pyfftw' has no attribute {wanted!r}")

    with _importing:
        if sys.modules.get("pyfftw"):
            return
        sys.modules[name] = ModuleType(name)  # stands in for them while pyfftw imports them
        try:
            package = import_module("pyfftw")
        finally:
            del sys.modules[name]
        vars(package).pop("interfaces", None)
        vars(package)["__getattr__"] = interfaces  # called for what a module lacks


class PrunedTransforms:
    """One worker's transforms on its own scratch memory.

    Attributes:
        columns: lines along z of a few maps (maps, N_z, width). Fill it before ``forward_columns``
            or ``inverse_columns``, which transform it in place, and read it afterwards.
    """

    def __init__(self, shape: PrunedShape, maps: int, width: int, library: Backend) -> None:
        size, lines = shape.size, shape.output.y
        self._shape = shape
        self._rows = empty_aligned((shape.slab, shape.image.y, size.x), np.float32)
        self._planes = empty_aligned((shape.slab, size.y, shape.columns), np.complex64)
        self.columns: Complex64 = empty_aligned((maps, size.z, width), np.complex64)
        filled = self._planes[:, : shape.image.y]
        wanted = self._planes[:, :lines]
        self._x_forward = library.real_forward(self._rows, filled)
        self._y_forward = library.in_place(self._planes, "forward")
        self.forward_columns = library.in_place(self.columns, "forward")
        self.inverse_columns = library.in_place(self.columns, "inverse")
        self._y_inverse = library.in_place(self._planes, "inverse")
        self._x_inverse = library.real_inverse(wanted, self._rows[:, :lines])

    @staticmethod
    def scratch_bytes(shape: PrunedShape, maps: int, width: int) -> tuple[int, int]:
        """Return the bytes of one worker's scratch memory, and of its largest array."""
        rows = 4 * shape.slab * shape.image.y * shape.size.x
        planes = 8 * shape.slab * shape.plane
        columns = 8 * maps * shape.size.z * width
        return rows + planes + columns, max(planes, columns)

    def forward_planes(self, image: Float32, half: Complex64) -> None:
        """Transform (z, n_y, n_x) along x and y into ``half`` (z, plane); at most a slab."""
        count, height, width = image.shape
        self._rows[:count, :, :width] = image
        self._rows[:count, :, width:] = 0
        self._rows[count:] = 0
        self._x_forward()
        self._planes[:, height:] = 0
        self._y_forward()
        half[...] = self._planes[:count].reshape(count, -1)

    def inverse_planes(self, half: Complex64, output: Float32) -> None:
        """Transform ``half`` (z, plane) back along y and x into (z, n'_y, n'_x)."""
        count, height, width = output.shape
        self._planes[:count].reshape(count, -1)[...] = half
        self._planes[count:] = 0
        self._y_inverse()
        self._x_inverse()
        output[...] = self._rows[:count, :height, :width]
