"""Launching transforms of maps to spectra and back: cuFFT's lines, and transpositions between."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import Vec3
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import device_workspace
from znni.network.layers import Activation
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.hardware import MOST_GRID_ROWS
from znni.primitives.gpu.common.kernels import definitions, strides_in_elements
from znni.primitives.gpu.fft_pruned.cufft import Kind, Lines
from znni.primitives.gpu.fft_pruned.work import IMAGES_TOGETHER, LINES_BYTES, WORK_BYTES, Spectrum

THREADS = 256
SIDE, ROWS = 32, 8


def source(activation: Activation) -> str:
    """Return the CUDA source of the kernels between transforms."""
    macros = definitions({"IMAGES": IMAGES_TOGETHER})
    return macros + activation_source(activation) + source_beside(__file__, "spectra.cu")


def transpose_grid(batch: int, columns: int, to_pitch: int) -> tuple[int, int]:
    """Return the blocks of a transposition: tiles of a plane of any size, parts of the batch."""
    return -(-columns // SIDE) * -(-to_pitch // SIDE), min(batch, MOST_GRID_ROWS)


class Kernels:
    """The kernels between transforms, for one activation, on the current GPU."""

    def __init__(self, activation: Activation) -> None:
        module = compiled(source(activation))
        self._embed = module.get_function("embed")
        self._transpose = module.get_function("transpose")
        self._multiply = module.get_function("multiply")
        self._extract = module.get_function("extract")

    def embed(self, maps: Any, lines: Any, pitch: int) -> None:
        """Write lines of real numbers, ``pitch`` apart and zero beyond the maps (f, z, y, x)."""
        f, z, y, x = maps.shape
        count = f * z * y * pitch
        sizes = map(np.int32, (z, y, x))
        strides = strides_in_elements(maps)
        arguments = (maps, *strides, *sizes, lines, np.int32(pitch), np.int64(count))
        self._embed((-(-count // THREADS),), (THREADS,), arguments)

    def transpose(
        self, source: Any, batch: int, rows: int, pitch: int, columns: int, to: Any, to_pitch: int
    ) -> None:
        """Transpose ``source`` (batch, rows, pitch) to ``to`` (batch, columns, to_pitch)."""
        grid = transpose_grid(batch, columns, to_pitch)
        sizes = map(np.int64, (rows, pitch, columns))
        arguments = (source, *sizes, to, np.int64(to_pitch), np.int64(batch))
        self._transpose(grid, (SIDE, ROWS), arguments)

    def multiply(self, inputs: Any, kernels: Any, sums: Any, images: int, sums_pitch: int) -> None:
        """Multiply the spectra of images by those of kernels, and sum over the input maps.

        Args:
            inputs: spectra (image, f, number).
            kernels: spectra (f, number) for one output map.
            sums: the sums of that map for the first image.
            images: how many images there are.
            sums_pitch: numbers from one image's sums to the next one's.
        """
        maps, numbers = kernels.shape
        grid = (-(-numbers // THREADS), -(-images // IMAGES_TOGETHER))
        sizes = (np.int32(images), np.int32(maps), np.int64(numbers))
        self._multiply(grid, (THREADS,), (inputs, kernels, sums, np.int64(sums_pitch), *sizes))

    def extract(self, lines: Any, pitch: int, scale: float, bias: Any, maps: Any) -> None:
        """Copy lines into maps (f, z, y, x), C-contiguous, through bias and activation."""
        f, z, y, x = maps.shape
        sizes = (np.int32(x), np.int64(z * y * x), np.int64(f * z * y * x))
        arguments = (lines, np.int32(pitch), np.float32(scale), bias, maps, *sizes)
        self._extract((-(-f * z * y * x // THREADS),), (THREADS,), arguments)


class _Transform:
    """The transforms of all lines of some maps, along x, y and z.

    Args:
        kernels: the kernels between transforms.
        spectrum: the spectrum of a map.
        maps: how many maps are transformed together.
        box: extents of the part of each map, from its start, that is not zero or is computed.
    """

    along_x: ClassVar[Kind]
    across: ClassVar[Kind]  # along y and z

    def __init__(self, kernels: Kernels, spectrum: Spectrum, maps: int, box: Vec3) -> None:
        self._kernels, self._spectrum, self._maps, self._box = kernels, spectrum, maps, box
        z, y, x = spectrum.size
        self._along_x = _lines(self.along_x, x, maps * box.z * box.y)
        self._along_y = _lines(self.across, y, maps * box.z * spectrum.half)
        self._along_z = _lines(self.across, z, maps * spectrum.plane)


class Forward(_Transform):
    """The transform of maps (f, z, y, x) of one shape to spectra (f, x, y, z)."""

    along_x = "real_to_complex"
    across = "forward"

    def run(self, maps: Any, spectra: Any, work: Any) -> None:
        """Transform ``maps`` into ``spectra``, which also holds intermediate lines."""
        half, plane, box = self._spectrum.half, self._spectrum.plane, self._box
        columns = device_workspace((self._maps * box.z * plane,), np.complex64)
        self._kernels.embed(maps, spectra, 2 * half)
        self._along_x.run(spectra.data.ptr, work.data.ptr)
        planes, y, z = self._maps * box.z, self._spectrum.size.y, self._spectrum.size.z
        self._kernels.transpose(spectra, planes, box.y, half, half, columns, y)
        self._along_y.run(columns.data.ptr, work.data.ptr)
        self._kernels.transpose(columns, self._maps, box.z, plane, plane, spectra, z)
        self._along_z.run(spectra.data.ptr, work.data.ptr)


class Inverse(_Transform):
    """The transform of spectra (f, x, y, z) to a box of each map (f, z, y, x)."""

    along_x = "complex_to_real"
    across = "inverse"

    def run(self, spectra: Any, bias: Any, maps: Any, work: Any) -> None:
        """Transform ``spectra``, which also holds intermediate lines, into ``maps``."""
        half, plane, box = self._spectrum.half, self._spectrum.plane, self._box
        columns = device_workspace((self._maps * box.z * plane,), np.complex64)
        self._along_z.run(spectra.data.ptr, work.data.ptr)
        planes, y, z = self._maps * box.z, self._spectrum.size.y, self._spectrum.size.z
        self._kernels.transpose(spectra, self._maps, plane, z, box.z, columns, plane)
        self._along_y.run(columns.data.ptr, work.data.ptr)
        self._kernels.transpose(columns, planes, half, y, box.y, spectra, half)
        self._along_x.run(spectra.data.ptr, work.data.ptr)
        scale = 1 / self._spectrum.size.volume
        self._kernels.extract(spectra, 2 * half, scale, bias, maps)


def _lines(kind: Kind, length: int, count: int) -> Lines:
    return Lines(kind, length, count, LINES_BYTES, WORK_BYTES)
