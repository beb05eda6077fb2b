"""The five steps of both whole-image FFT convolutions, each on one block or slab.

Per axis, a valid cross-correlation of n voxels with a kernel of k is a circular one of N >= n. Its
first n' = n - k + 1 values are right, because wrap-around reaches only those after them. Spectra
are multiplied by the conjugate of the kernel's, a block of frequencies at a time. A kernel's
transform along y and x is one matrix product with the block's plane waves. Its transform along z
happens during the multiplication.

Sizes in docstrings: S inputs of f maps of n voxels; N the transform's size.
"""

from __future__ import annotations

import numpy as np

from znni.network.weights import ConvWeights, Float32
from znni.primitives.cpu.common.activation import activate, activate_rows, row_finish
from znni.primitives.cpu.common.numba_kernel import longest_rows, output_view
from znni.primitives.cpu.common.simd import LANES
from znni.primitives.cpu.common.vector_code import NUMBER
from znni.primitives.cpu.fft_whole_image.blocking import Blocking, Scratch
from znni.primitives.cpu.fft_whole_image.fused_product import Accumulator, pack, unpack
from znni.primitives.cpu.fft_whole_image.pruned_fft import Complex64


class FftLayer:
    """The steps of a convolution, for workers to share.

    Half-transformed arrays are complex64 (maps, z, plane); spectra are float32
    (vectors, maps, N_z, S, 2, LANES).
    """

    def __init__(self, blocking: Blocking, weights: ConvWeights) -> None:
        self.blocking = blocking
        self._weight = np.ascontiguousarray(weights.weight)
        self._finish = row_finish(blocking.layer, blocking.layer.out_features, weights)
        self._plane_waves = _plane_waves(blocking)
        self._accumulate = Accumulator(_line_waves(blocking))
        self._transforms = blocking.transforms()

    def forward_planes(self, worker: int, image: Float32, half: Complex64, slab: int) -> None:
        """Transform a slab of a map (n_z, n_y, n_x) along x and y."""
        planes = slice(slab, slab + self.blocking.pruned.slab)
        self._transforms[worker].forward_planes(image[planes], half[planes])

    def forward_block(
        self, worker: int, half: Complex64, block: int, spectra: Float32, first: int, n: int
    ) -> None:
        """Transform a block of half-transformed maps along z, into the spectra of input ``n``."""
        transforms, used = self._transforms[worker], self._frequencies(block)
        width = used.stop - used.start
        for at in range(0, len(half), self.blocking.maps):
            maps = half[at : at + self.blocking.maps, :, used]
            count, filled, _ = maps.shape
            transforms.columns[:count, :filled, :width] = maps
            transforms.columns[:count, filled:] = 0
            transforms.columns[:, :, width:] = 0
            transforms.columns[count:] = 0
            transforms.forward_columns()
            pack(transforms.columns, count, spectra, first + at, n)

    def products(self, scratch: Scratch, spectra: Float32, block: int, group: int) -> Float32:
        """Return spectra of a group of output maps, from a block of all input maps' spectra."""
        vectors, features, planes, batch = spectra.shape[:4]
        taps = self.blocking.layer.kernel.z
        weight = self._weight[group : group + self.blocking.group]
        maps = len(weight)
        matrix = weight.reshape(maps * features * taps, -1)
        waves = self._plane_waves[:, block : block + vectors].reshape(matrix.shape[1], -1)
        kernels = scratch.kernels[: len(matrix) * waves.shape[1]]
        np.matmul(matrix, waves, out=kernels.reshape(len(matrix), -1))
        sums = scratch.sums[: vectors * maps * planes * batch * NUMBER]
        sums = sums.reshape(vectors, maps, planes, batch, 2, LANES)
        self._accumulate(sums, spectra, kernels)
        return sums

    def inverse_block(
        self, worker: int, sums: Float32, n: int, half: Complex64, block: int
    ) -> None:
        """Transform a block of input ``n`` back along z, into the planes of ``half``."""
        transforms, used = self._transforms[worker], self._frequencies(block)
        for at in range(0, len(half), self.blocking.maps):
            maps = half[at : at + self.blocking.maps, :, used]
            count, wanted, width = maps.shape
            unpack(sums, at, n, transforms.columns, count)
            transforms.columns[:, :, sums.shape[0] * LANES :] = 0
            transforms.columns[count:] = 0
            transforms.inverse_columns()
            maps[...] = transforms.columns[:count, :wanted, :width]

    def inverse_planes(
        self, worker: int, half: Complex64, o: int, output: Float32, slab: int
    ) -> None:
        """Transform a slab back along y and x, with output map ``o``'s bias and activation."""
        stop = min(slab + self.blocking.pruned.slab, len(output))
        part = output[slab:stop]
        self._transforms[worker].inverse_planes(half[slab:stop], part)
        bias, slope, code = self._finish
        if part.flags.c_contiguous:
            activate(part.reshape(-1), bias[o], slope[o], code)
            return
        (rows,) = longest_rows(part[np.newaxis, np.newaxis])
        activate_rows(*output_view(rows), rows.shape, 0, part.size, bias[o:], slope[o:], code)

    def _frequencies(self, block: int) -> slice:
        """Return a plane's frequencies in the block that begins at this vector."""
        stop = (block + self.blocking.vectors) * LANES
        return slice(block * LANES, min(stop, self.blocking.pruned.plane))


def _plane_waves(blocking: Blocking) -> Float32:
    """Return conjugate Fourier factors (y and x of the kernel, vectors, 2, LANES), with 1 / N^3."""
    kernel, pruned = blocking.layer.kernel, blocking.pruned
    size, columns = pruned.size, pruned.columns
    waves = np.zeros((kernel.y * kernel.x, blocking.all_vectors, 2, LANES), np.float32)
    y = np.exp(2j * np.pi / size.y * np.outer(np.arange(kernel.y), np.arange(size.y)))
    x = np.exp(2j * np.pi / size.x * np.outer(np.arange(kernel.x), np.arange(columns)))
    padded = np.zeros(blocking.all_vectors * LANES, np.complex128)
    for tap, row in enumerate(waves):
        wave = np.outer(y[tap // kernel.x], x[tap % kernel.x]) / size.volume
        padded[: pruned.plane] = wave.ravel()
        vectors = padded.reshape(-1, LANES)
        row[:, 0], row[:, 1] = vectors.real, vectors.imag
    return waves


def _line_waves(blocking: Blocking) -> Float32:
    """Return cosines and sines (N_z // 2 + 1, z of the kernel, 2)."""
    size, taps = blocking.pruned.size.z, blocking.layer.kernel.z
    angles = 2 * np.pi / size * np.outer(np.arange(size // 2 + 1), np.arange(taps))
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
