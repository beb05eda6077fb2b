"""The work of a whole-image Fourier convolution: transforms, memory and traffic.

A spectrum of N = (X, Y, Z) has h = X / 2 + 1 frequencies along x. An image has z, y, x voxels. It
is transformed along x in z y lines, then along y in z h lines, then along z in h Y lines. Other
lines hold only zeros, and are left out (ZNNi, SC'16, section III.C). The inverse transform leaves
out the lines that no output needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import ClassVar

from znni.core.shapes import Vec3
from znni.primitives.gpu.common.base import ConvolutionWork
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES

PRIMES = (2, 3, 5, 7)
NUMBER_BYTES = 8  # of a complex number

# Bytes of the work area that cuFFT may take, and of the lines that it transforms at a time.
WORK_BYTES = 64 * 2**20
LINES_BYTES = 32 * 2**20

# Images that are multiplied by a kernel's spectra together, so that these are read once.
IMAGES_TOGETHER = 4


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of one map.

    Attributes:
        size: extents of the transforms, at least the image's.
    """

    size: Vec3

    @staticmethod
    def of(image: Vec3) -> Spectrum:
        """Return the spectrum of an image, with extents that cuFFT transforms fastest."""
        return Spectrum(Vec3(*map(good_size, image)))

    @property
    def half(self) -> int:
        """Frequencies along x."""
        return self.size.x // 2 + 1

    @property
    def plane(self) -> int:
        """Numbers of a plane along y and x."""
        return self.size.y * self.half

    @property
    def numbers(self) -> int:
        """Complex numbers of the spectrum."""
        return self.size.z * self.plane

    def flops(self, box: Vec3) -> float:
        """Return the operations for a map that is zero outside a box, or needed only within it."""
        z, y, x = self.size
        lines = ((box.z * box.y, x / 2), (box.z * self.half, y), (self.plane, z))
        return sum(5 * count * length * log2(max(length, 2)) for count, length in lines)

    def bytes_moved(self, box: Vec3) -> int:
        """Return the bytes for such a map: each pass and transposition reads and writes lines."""
        rows, columns = box.z * box.y * self.half, box.z * self.plane
        return 2 * NUMBER_BYTES * (2 * rows + rows + columns + columns + 2 * self.numbers)


@dataclass(frozen=True)
class Amounts:
    """Complex numbers of the arrays of a call.

    Attributes:
        inputs: spectra of all images.
        outputs: spectra of all sums.
        kernels: spectra of the kernels of one output map.
        image_columns: intermediate lines of an image's transform.
        kernel_columns: intermediate lines of the kernels' transform.
        output_columns: intermediate lines of an output's inverse transform.
    """

    inputs: int
    outputs: int
    kernels: int
    image_columns: int
    kernel_columns: int
    output_columns: int

    @property
    def workspace(self) -> int:
        """Bytes of the arrays beside input and output that exist at a time, at most."""
        forward = self.inputs + max(self.image_columns, self.kernels + self.kernel_columns)
        peak = self.outputs + max(forward, self.output_columns)
        return NUMBER_BYTES * peak + WORK_BYTES


@dataclass(frozen=True)
class PrunedWork(ConvolutionWork):
    """A convolution by pruned transforms of whole images."""

    # Share of the nominal operations per second, without the time for the bytes that they move.
    efficiency: ClassVar[float] = 0.15

    @property
    def spectrum(self) -> Spectrum:
        """The spectrum of an image."""
        return Spectrum.of(self.shape.size)

    @property
    def amounts(self) -> Amounts:
        """Complex numbers of the arrays of a call."""
        spectrum, shape, out = self.spectrum, self.shape, self.out
        return Amounts(
            inputs=shape.n * shape.f * spectrum.numbers,
            outputs=out.n * out.f * spectrum.numbers,
            kernels=shape.f * spectrum.numbers,
            image_columns=shape.f * shape.z * spectrum.plane,
            kernel_columns=shape.f * self.conv.kernel.z * spectrum.plane,
            output_columns=out.f * out.z * spectrum.plane,
        )

    @property
    def flops(self) -> float:
        """Operations of all transforms, and of a product for each pair of maps."""
        spectrum, shape, out = self.spectrum, self.shape, self.out
        pairs = shape.f * out.f
        transforms = (
            shape.n * shape.f * spectrum.flops(shape.size)
            + pairs * spectrum.flops(self.conv.kernel)
            + out.n * out.f * spectrum.flops(out.size)
        )
        return transforms + 8.0 * shape.n * pairs * spectrum.numbers

    @property
    def bytes_moved(self) -> float:
        """Bytes of all passes."""
        spectrum, shape, out = self.spectrum, self.shape, self.out
        pairs = shape.f * out.f
        readings = shape.n * pairs + -(-shape.n // IMAGES_TOGETHER) * pairs + out.n * out.f
        return (
            shape.nbytes
            + out.nbytes
            + shape.n * shape.f * spectrum.bytes_moved(shape.size)
            + pairs * spectrum.bytes_moved(self.conv.kernel)
            + out.n * out.f * spectrum.bytes_moved(out.size)
            + NUMBER_BYTES * readings * spectrum.numbers
        )

    @property
    def workspace_bytes(self) -> int:
        """Bytes of spectra, intermediate lines and cuFFT's work area."""
        return self.amounts.workspace

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights and biases."""
        return FLOAT_BYTES * self.conv.parameters


def good_size(extent: int) -> int:
    """Return the least extent from ``extent`` on that has no prime factor beyond 7."""
    while not _is_good(extent):
        extent += 1
    return extent


def _is_good(extent: int) -> bool:
    for prime in PRIMES:
        while extent % prime == 0:
            extent //= prime
    return extent == 1
