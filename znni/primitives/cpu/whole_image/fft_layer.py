"""What both whole-image FFT convolutions are made of: five steps on one block or slab each.

Per axis, a valid cross-correlation of n voxels with a kernel of k is a circular one of N >= n,
of which the first n' = n - k + 1 values are right: wrap-around reaches only those after them.
Spectra are multiplied with the conjugate of the kernel's, in blocks of frequencies of the (y, x)
plane: ``vectors`` times ``LANES`` of them, with all z. A kernel's transform along y and x is one
matrix product with the block's plane waves; the one along z happens during the multiplication.

Sizes in docstrings: S inputs of f maps of n voxels, f' output maps of n'; N the transform's size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from znni.arena import workspace
from znni.network import Conv
from znni.primitives.cpu.common.activation import CODES, activate
from znni.primitives.cpu.common.simd import LANES
from znni.primitives.cpu.common.workers import Workers, workers
from znni.primitives.cpu.whole_image.fused_product import (
    NUMBER_BYTES,
    NUMBER_FLOATS,
    Accumulator,
    pack,
    unpack,
)
from znni.primitives.cpu.whole_image.pruned_fft import (
    Complex64,
    PrunedShape,
    PrunedTransforms,
    backend,
)
from znni.shapes import Shape5, valid_convolution
from znni.weights import ConvWeights, Float32

# Maps that are transformed along z together.
MAPS_TOGETHER = 4
# A block has at most so many vectors; fewer where its spectra would take more than these bytes,
# but not so few that the matrix product is slow.
MOST_VECTORS, FEWEST_VECTORS = 8, 2
BLOCK_BYTES = 4 * 1024 * 1024
# Blocks per thread, so that all have work to the end.
BLOCKS_PER_THREAD = 4

# Shares of a core's nominal operations per second.
TRANSFORM_EFFICIENCY = 0.035
PRODUCT_EFFICIENCY = 0.4


@dataclass(frozen=True)
class Blocking:
    """How a layer's arrays are cut up.

    Attributes:
        layer: the convolution.
        shape: of its input.
        threads: that share the work.
        group: output maps that share each passing of the inputs' spectra, at most.
    """

    layer: Conv
    shape: Shape5
    threads: int
    group: int

    @property
    def workers(self) -> Workers:
        """Who shares the work."""
        return workers(self.threads)

    @cached_property
    def out(self) -> Shape5:
        """Shape of the output."""
        size = valid_convolution(self.shape.size, self.layer.kernel)
        if size is None:
            raise ValueError(f"kernel {self.layer.kernel} exceeds {self.shape}")
        return Shape5.of(self.shape.n, self.layer.out_features, size)

    @cached_property
    def pruned(self) -> PrunedShape:
        """Of each map's transforms."""
        return PrunedShape(self.shape.size, self.out.size)

    @cached_property
    def all_vectors(self) -> int:
        """Vectors of a (y, x) plane's frequencies, the last one padded."""
        return -(-self.pruned.plane // LANES)

    @cached_property
    def vectors(self) -> int:
        """Vectors of a block; the last block may have fewer."""
        one = self.spectra_bytes(1)
        cached = max(FEWEST_VECTORS, BLOCK_BYTES // one)
        shared = max(1, self.all_vectors // (BLOCKS_PER_THREAD * self.threads))
        blocks = -(-self.all_vectors // min(MOST_VECTORS, cached, shared))
        return -(-self.all_vectors // blocks)

    @property
    def maps(self) -> int:
        """Maps that are transformed along z together."""
        return min(MAPS_TOGETHER, max(self.shape.f, self.out.f))

    @property
    def blocks(self) -> range:
        """The first vectors of all blocks."""
        return range(0, self.all_vectors, self.vectors)

    @property
    def groups(self) -> range:
        """The first output maps of all groups."""
        return range(0, self.layer.out_features, self.group)

    @property
    def forward_slabs(self) -> range:
        """The first planes of all slabs of an input map."""
        return range(0, self.shape.z, self.pruned.slab)

    @property
    def inverse_slabs(self) -> range:
        """The first planes of all slabs of an output map."""
        return range(0, self.out.z, self.pruned.slab)

    def spectra_bytes(self, vectors: int) -> int:
        """Bytes of the input maps' spectra at so many vectors: S f N_z NUMBER_BYTES each."""
        return vectors * self.shape.n * self.shape.f * self.pruned.size.z * NUMBER_BYTES

    def empty_spectra(self, vectors: int) -> Float32:
        """Memory for the input maps' spectra at so many vectors."""
        planes = self.pruned.size.z
        return workspace((vectors, self.shape.f, planes, self.shape.n, 2, LANES), np.float32)

    @property
    def half_bytes(self) -> int:
        """Bytes of one half-transformed map: n_z N_y (N_x // 2 + 1) complex numbers."""
        return 8 * self.shape.z * self.pruned.plane

    @property
    def resident_bytes(self) -> int:
        """Bytes of a ``FftLayer``: each worker's transforms, and the plane waves."""
        kernel = self.layer.kernel
        scratch, _ = self._transform_bytes
        plane_waves = kernel.y * kernel.x * self.all_vectors * NUMBER_BYTES
        line_waves = 8 * (self.pruned.size.z // 2 + 1) * kernel.z
        return self.threads * (scratch + backend().resident_bytes()) + plane_waves + line_waves

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all workers' ``Scratch``."""
        maps = min(self.group, self.out.f)
        kernels = maps * self.shape.f * self.layer.kernel.z * self.vectors * NUMBER_BYTES
        sums = maps * self.shape.n * self.pruned.size.z * self.vectors * NUMBER_BYTES
        return self.threads * (kernels + sums)

    @property
    def transient_bytes(self) -> int:
        """What all workers' transforms allocate while they run."""
        _, largest = self._transform_bytes
        return self.threads * backend().transient_bytes(largest)

    @property
    def _transform_bytes(self) -> tuple[int, int]:
        return PrunedTransforms.scratch_bytes(self.pruned, self.maps, self.vectors * LANES)

    @property
    def flops(self) -> float:
        """Operations of one call."""
        return self._transform_flops + self._product_flops

    @property
    def efficiency(self) -> float:
        """The share of the processor's nominal rate that they sustain, one with another."""
        transforms = self._transform_flops / TRANSFORM_EFFICIENCY
        return self.flops / (transforms + self._product_flops / PRODUCT_EFFICIENCY)

    @property
    def _transform_flops(self) -> float:
        """Of the images' transforms."""
        forward = self.layer.in_features * self.pruned.forward_flops
        return self.shape.n * (forward + self.layer.out_features * self.pruned.inverse_flops)

    @property
    def _product_flops(self) -> float:
        """Of the kernels' transforms and the products."""
        layer, shape, pruned = self.layer, self.shape, self.pruned
        maps = layer.in_features * layer.out_features
        plane = self.all_vectors * LANES
        kernels_plane = 4.0 * layer.kernel.volume * plane
        kernels_line = 4.0 * layer.kernel.z * pruned.size.z * plane
        products = 8.0 * shape.n * pruned.size.z * plane
        return maps * (kernels_plane + kernels_line + products)


class Scratch:
    """One call's memory for the products of one worker."""

    def __init__(self, blocking: Blocking) -> None:
        shape, floats = blocking.shape, blocking.vectors * NUMBER_FLOATS
        planes, taps = blocking.pruned.size.z, blocking.layer.kernel.z
        maps = min(blocking.group, blocking.out.f)
        self.kernels: Float32 = workspace((maps * shape.f * taps * floats,), np.float32)
        self.sums: Float32 = workspace((maps * shape.n * planes * floats,), np.float32)


class FftLayer:
    """A convolution's steps, for workers to share out.

    Half-transformed arrays are complex64 (maps, z, plane); spectra are float32
    (vectors, maps, N_z, S, 2, LANES).
    """

    def __init__(self, blocking: Blocking, weights: ConvWeights) -> None:
        self.blocking = blocking
        self._weight = np.ascontiguousarray(weights.weight)
        self._bias = weights.bias
        self._code = CODES[blocking.layer.activation]
        self._plane_waves = _plane_waves(blocking)
        self._accumulate = Accumulator(_line_waves(blocking))
        width = blocking.vectors * LANES
        self._transforms = [
            PrunedTransforms(blocking.pruned, blocking.maps, width, backend())
            for _ in range(blocking.threads)
        ]

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
        """The spectra of a group of output maps, from a block of those of all input maps."""
        vectors, features, planes, batch = spectra.shape[:4]
        taps = self.blocking.layer.kernel.z
        weight = self._weight[group : group + self.blocking.group]
        maps = len(weight)
        matrix = weight.reshape(maps * features * taps, -1)
        waves = self._plane_waves[:, block : block + vectors].reshape(matrix.shape[1], -1)
        kernels = scratch.kernels[: len(matrix) * waves.shape[1]]
        np.matmul(matrix, waves, out=kernels.reshape(len(matrix), -1))
        sums = scratch.sums[: vectors * maps * planes * batch * NUMBER_FLOATS]
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
        """Transform a slab back along y and x, and add output map ``o``'s bias and activation."""
        stop = min(slab + self.blocking.pruned.slab, len(output))
        self._transforms[worker].inverse_planes(half[slab:stop], output[slab:stop])
        activate(output[slab:stop].reshape(-1), self._bias[o], self._code)

    def _frequencies(self, block: int) -> slice:
        """Those of a plane that the block beginning at this vector holds."""
        stop = (block + self.blocking.vectors) * LANES
        return slice(block * LANES, min(stop, self.blocking.pruned.plane))


def _plane_waves(blocking: Blocking) -> Float32:
    """Conjugate Fourier factors (y and x of the kernel, vectors, 2, LANES), with 1 / N^3."""
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
    """Cosines and sines (N_z // 2 + 1, z of the kernel, 2)."""
    size, taps = blocking.pruned.size.z, blocking.layer.kernel.z
    angles = 2 * np.pi / size * np.outer(np.arange(size // 2 + 1), np.arange(taps))
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
