"""The transforms of a whole-image Fourier convolution, what they hold and what they move.

A spectrum of N = (X, Y, Z) has h = X / 2 + 1 frequencies along x. An image of z, y, x voxels is
transformed along x in z y lines, then along y in z h lines, then along z in h Y lines: lines of
zeros beside them are left out (ZNNi, SC'16, section III.C). Back, those are left out that no output
needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from znni.core.shapes import Shape5, Vec3
from znni.network.network import Conv

PRIMES = (2, 3, 5, 7)
NUMBER_BYTES = 8  # of a complex number

# Work area that cuFFT may take, and bytes of the lines that it transforms at a time.
WORK_BYTES = 64 * 2**20
LINES_BYTES = 32 * 2**20

# Images whose products with a kernel's spectra are summed together, so that these are read once.
IMAGES_TOGETHER = 4


@dataclass(frozen=True)
class Spectrum:
    """Of one map.

    Attributes:
        size: of the transforms, at least the image's.
    """

    size: Vec3

    @staticmethod
    def of(image: Vec3) -> Spectrum:
        """For images of a size: extents that cuFFT transforms by its fastest code."""
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
        """Of the transform of a map that is zero beyond ``box``, or is wanted within it only."""
        z, y, x = self.size
        lines = ((box.z * box.y, x / 2), (box.z * self.half, y), (self.plane, z))
        return sum(5 * count * length * log2(max(length, 2)) for count, length in lines)

    def bytes_moved(self, box: Vec3) -> int:
        """Of the same: every line read and written by each pass and by each transposition."""
        rows, columns = box.z * box.y * self.half, box.z * self.plane
        return 2 * NUMBER_BYTES * (2 * rows + rows + columns + columns + 2 * self.numbers)


@dataclass(frozen=True)
class Amounts:
    """Numbers of the arrays of a call.

    Attributes:
        inputs: spectra of all images.
        outputs: of their sums.
        kernels: spectra for one output map.
        image_columns: what an image's transform holds halfway.
        kernel_columns: what the kernels' holds.
        output_columns: what an output's inverse transform holds.
    """

    inputs: int
    outputs: int
    kernels: int
    image_columns: int
    kernel_columns: int
    output_columns: int

    @property
    def workspace(self) -> int:
        """Bytes of the arrays beside input and output that are alive at a time, at most."""
        forward = self.inputs + max(self.image_columns, self.kernels + self.kernel_columns)
        peak = self.outputs + max(forward, self.output_columns)
        return NUMBER_BYTES * peak + WORK_BYTES


def amounts(conv: Conv, shape: Shape5, out: Shape5) -> Amounts:
    """What a convolution of images of a shape takes."""
    spectrum = Spectrum.of(shape.size)
    return Amounts(
        inputs=shape.n * shape.f * spectrum.numbers,
        outputs=out.n * out.f * spectrum.numbers,
        kernels=shape.f * spectrum.numbers,
        image_columns=shape.f * shape.z * spectrum.plane,
        kernel_columns=shape.f * conv.kernel.z * spectrum.plane,
        output_columns=out.f * out.z * spectrum.plane,
    )


def flops(conv: Conv, shape: Shape5, out: Shape5) -> float:
    """Of all transforms and products."""
    spectrum = Spectrum.of(shape.size)
    pairs = shape.f * out.f
    transforms = (
        shape.n * shape.f * spectrum.flops(shape.size)
        + pairs * spectrum.flops(conv.kernel)
        + out.n * out.f * spectrum.flops(out.size)
    )
    return transforms + 8.0 * shape.n * pairs * spectrum.numbers


def bytes_moved(conv: Conv, shape: Shape5, out: Shape5) -> int:
    """Of all passes."""
    spectrum = Spectrum.of(shape.size)
    pairs = shape.f * out.f
    readings = shape.n * pairs + -(-shape.n // IMAGES_TOGETHER) * pairs + out.n * out.f
    return (
        shape.n * shape.f * spectrum.bytes_moved(shape.size)
        + pairs * spectrum.bytes_moved(conv.kernel)
        + out.n * out.f * spectrum.bytes_moved(out.size)
        + NUMBER_BYTES * readings * spectrum.numbers
    )


def good_size(extent: int) -> int:
    """The least extent from one on that has no prime factor beyond 7."""
    while not _is_good(extent):
        extent += 1
    return extent


def _is_good(extent: int) -> bool:
    for prime in PRIMES:
        while extent % prime == 0:
            extent //= prime
    return extent == 1
