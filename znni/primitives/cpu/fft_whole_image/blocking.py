"""Division of a whole-image FFT convolution into blocks and slabs, with its memory and work.

Spectra are multiplied in blocks of frequencies of the (y, x) plane. A block has ``vectors`` times
``LANES`` frequencies, with all z. Planes are transformed in slabs of a few planes. Along z, a few
maps are transformed together.

Sizes in docstrings: S inputs of f maps of n voxels; N the transform's size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from znni.core.shapes import Shape5, valid_convolution
from znni.machine.arena import workspace
from znni.network.layers import Conv
from znni.network.weights import Float32
from znni.primitives.cpu.common.simd import FLOAT_BYTES, LANES, whole_vectors
from znni.primitives.cpu.common.vector_code import NUMBER
from znni.primitives.cpu.common.workers import Workers, workers
from znni.primitives.cpu.fft_whole_image.pruned_fft import PrunedShape, PrunedTransforms, backend

# Bytes of a vector of complex numbers.
NUMBER_BYTES = NUMBER * FLOAT_BYTES

# Number of maps that are transformed along z together.
MAPS_TOGETHER = 4
# Limits on the vectors of a block. The number falls if the block's spectra would exceed
# BLOCK_BYTES, but not so far that the matrix product is slow.
MOST_VECTORS, FEWEST_VECTORS = 8, 2
BLOCK_BYTES = 4 * 1024 * 1024
# Number of blocks per thread, so that all threads have work to the end.
BLOCKS_PER_THREAD = 4

# Shares of a core's nominal operations per second.
TRANSFORM_EFFICIENCY = 0.045
PRODUCT_EFFICIENCY = 0.4


@dataclass(frozen=True)
class Blocking:
    """Division of a layer's arrays.

    Attributes:
        layer: the convolution.
        shape: shape of the input.
        threads: number of threads that share the work.
        group: largest number of output maps computed in one pass over the inputs' spectra.
    """

    layer: Conv
    shape: Shape5
    threads: int
    group: int

    @property
    def workers(self) -> Workers:
        """Threads that share the work."""
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
        """Sizes of each map's transforms."""
        return PrunedShape(self.shape.size, self.out.size)

    @cached_property
    def all_vectors(self) -> int:
        """Number of vectors of a (y, x) plane's frequencies, the last one padded."""
        return whole_vectors(self.pruned.plane) // LANES

    @cached_property
    def vectors(self) -> int:
        """Number of vectors of a block; the last block may have fewer."""
        one = self.spectra_bytes(1)
        cached = max(FEWEST_VECTORS, BLOCK_BYTES // one)
        shared = max(1, self.all_vectors // (BLOCKS_PER_THREAD * self.threads))
        blocks = -(-self.all_vectors // min(MOST_VECTORS, cached, shared))
        return -(-self.all_vectors // blocks)

    @property
    def maps(self) -> int:
        """Number of maps that are transformed along z together."""
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

    @property
    def slabs(self) -> int:
        """Number of slabs in all input maps and all output maps."""
        shape, out = self.shape, self.out
        return shape.n * shape.f * len(self.forward_slabs) + out.n * out.f * len(self.inverse_slabs)

    def columns(self, maps: int) -> int:
        """Return the number of transforms along z of so many maps of all inputs, in all blocks."""
        return len(self.blocks) * self.shape.n * -(-maps // self.maps)

    def spectra_bytes(self, vectors: int) -> int:
        """Return the bytes of input spectra at so many vectors: S f N_z NUMBER_BYTES each."""
        return vectors * self.shape.n * self.shape.f * self.pruned.size.z * NUMBER_BYTES

    def empty_spectra(self, vectors: int) -> Float32:
        """Return memory for the input maps' spectra at so many vectors."""
        planes = self.pruned.size.z
        return workspace((vectors, self.shape.f, planes, self.shape.n, 2, LANES), np.float32)

    @property
    def half_bytes(self) -> int:
        """Bytes of one half-transformed map: n_z N_y (N_x // 2 + 1) complex numbers."""
        return 8 * self.shape.z * self.pruned.plane

    def transforms(self) -> list[PrunedTransforms]:
        """Return new transforms, one set for each worker."""
        width = self.vectors * LANES
        return [
            PrunedTransforms(self.pruned, self.maps, width, backend()) for _ in range(self.threads)
        ]

    @property
    def kernel_bytes_read(self) -> int:
        """Bytes of the kernels, which are read again for each block of frequencies."""
        return len(self.blocks) * FLOAT_BYTES * math.prod(self.layer.weight_shape)

    @property
    def resident_bytes(self) -> int:
        """Bytes of an ``FftLayer``: each worker's transforms, and the plane waves."""
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
        """Bytes that all workers' transforms allocate while they run."""
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
        """Average share of the processor's nominal rate that the operations sustain."""
        transforms = self._transform_flops / TRANSFORM_EFFICIENCY
        return self.flops / (transforms + self._product_flops / PRODUCT_EFFICIENCY)

    @property
    def _transform_flops(self) -> float:
        """Operations of the images' transforms."""
        forward = self.layer.in_features * self.pruned.forward_flops
        return self.shape.n * (forward + self.layer.out_features * self.pruned.inverse_flops)

    @property
    def _product_flops(self) -> float:
        """Operations of the kernels' transforms and the products."""
        layer, shape, pruned = self.layer, self.shape, self.pruned
        maps = layer.in_features * layer.out_features
        plane = self.all_vectors * LANES
        kernels_plane = 4.0 * layer.kernel.volume * plane
        kernels_line = 4.0 * layer.kernel.z * pruned.size.z * plane
        products = 8.0 * shape.n * pruned.size.z * plane
        return maps * (kernels_plane + kernels_line + products)


class Scratch:
    """Memory for the products of one worker in one call."""

    def __init__(self, blocking: Blocking) -> None:
        shape, floats = blocking.shape, blocking.vectors * NUMBER
        planes, taps = blocking.pruned.size.z, blocking.layer.kernel.z
        maps = min(blocking.group, blocking.out.f)
        self.kernels: Float32 = workspace((maps * shape.f * taps * floats,), np.float32)
        self.sums: Float32 = workspace((maps * shape.n * planes * floats,), np.float32)
