"""Strips of tiles of a layer: sizes, memory and operations, by arithmetic alone.

A strip is a row of tiles along x that are transformed together. So rows of voxels are turned into
vectors across maps only once for all its tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5, Vec3
from znni.machine.arrays import ALIGNMENT
from znni.network.layers import Conv
from znni.plans.cost import HandedOut
from znni.primitives.cpu.common.simd import FLOAT_BYTES, LANES, whole_vectors
from znni.primitives.cpu.fft_tiled.tiling import Tiling
from znni.primitives.cpu.winograd.minimal_filtering import MinimalFiltering, minimal_filtering

# Most tiles of a strip: their voxels and transforms fill the registers. With a stride, a tile has
# more voxels, as many times.
MOST_TILES = 4

# Most tiles of a worker's own batch: with wide registers, a multiple of the rows of a block of
# products.
OWN_TILES = 24

# If a layer has at least this many tiles, each worker takes batches of its own.
FEWEST_OWN_TILES = 16 * OWN_TILES

# Most tiles of a batch that workers share.
SHARED_TILES = 192

# A worker's own batches between which Python looks for an interruption: at most so many, and so
# many operations, which take some half a second.
BATCHES_AT_ONCE = 64
FLOPS_AT_ONCE = 5e10

# Samples to points, products, and products to outputs.
PASSES = 3

# Floats of transformed kernels that a worker makes at a time while the layer is built.
TRANSFORMED_FLOATS = 2**16

# Bytes of an index.
INDEX_BYTES = 8

# Bytes of the arguments of a batch's passes.
ARGUMENT_BYTES = 800

# Shares of the nominal rate that the transforms of samples, the products, and the transforms of
# products sustain. The transforms load, store and shuffle more than they compute.
EFFICIENCIES = (0.14, 0.55, 0.08)


@dataclass(frozen=True)
class Strips:
    """The work of one call.

    Attributes:
        layer: the convolution.
        shape: shape of the input.
        out: shape of the output.
    """

    layer: Conv
    shape: Shape5
    out: Shape5

    @cached_property
    def filterings(self) -> tuple[MinimalFiltering, MinimalFiltering, MinimalFiltering]:
        """The algorithms along z, y and x."""
        axes = zip(self.layer.kernel, self.layer.stride, strict=True)
        z, y, x = (minimal_filtering(*axis) for axis in axes)
        assert z is not None
        assert y is not None
        assert x is not None
        return z, y, x

    @cached_property
    def across(self) -> int:
        """Number of tiles in a strip: as few in all as possible, and then long strips."""
        by = self.filterings[2].outputs
        tiles = -(-self.out.x // by)
        most = max(1, MOST_TILES // self.layer.stride.x)
        return min(range(1, most + 1), key=lambda count: (-(-tiles // count) * count, -count))

    @cached_property
    def outputs(self) -> Vec3:
        """Outputs of a strip."""
        z, y, x = self.filterings
        return Vec3(z.outputs, y.outputs, x.outputs * self.across)

    @cached_property
    def tiling(self) -> Tiling:
        """Strips of all images, as if a smaller input gave the output without a stride."""
        kernel = self.layer.kernel
        dense = Shape5.of(self.shape.n, self.shape.f, self.out.size + kernel - 1)
        return Tiling(self.outputs + kernel - 1, dense, kernel)

    @property
    def read(self) -> Vec3:
        """Voxels that a strip reads."""
        return self.layer.stride * (self.tiling.written - 1) + self.layer.kernel

    @cached_property
    def points(self) -> int:
        """Products of a tile for each pair of maps, which are sums over phases."""
        return math.prod(axis.length for axis in self.filterings)

    @cached_property
    def values(self) -> int:
        """Values that are made of a tile's samples, each of which has its kernel."""
        return math.prod(axis.values for axis in self.filterings)

    def values_of_points(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of all values, point by point, and where each point's begin."""
        point = np.zeros((1,), np.int64)
        for axis in self.filterings:
            point = (point[:, np.newaxis] * axis.length + np.array(axis.point_of_value)).ravel()
        values = np.argsort(point, kind="stable")
        return values, np.searchsorted(point[values], np.arange(self.points + 1))

    @property
    def in_groups(self) -> int:
        """Number of groups of 16 input maps."""
        return whole_vectors(self.layer.in_features) // LANES

    @property
    def out_groups(self) -> int:
        """Number of groups of 16 output maps."""
        return whole_vectors(self.layer.out_features) // LANES

    @cached_property
    def own(self) -> bool:
        """True if each worker makes all passes over batches of its own.

        With few maps, such a batch stays in the worker's cache. If there are few tiles, workers
        share a batch, so that all of them have work and each reads a part of the kernels.
        """
        return self.tiling.count * self.across >= FEWEST_OWN_TILES

    @cached_property
    def batch(self) -> int:
        """Number of strips in a batch; batches are as equal as possible."""
        strips = self.tiling.count
        most = (OWN_TILES if self.own else SHARED_TILES) // self.across
        return math.ceil(strips / math.ceil(strips / most))

    @cached_property
    def batches(self) -> int:
        """Number of batches, each of which reads the kernels once."""
        return math.ceil(self.tiling.count / self.batch)

    def handed_out(self, threads: int) -> HandedOut:
        """Return the rounds of a call.

        A round is some batches of each worker, or one pass of a shared batch.
        """
        if self.own:
            return HandedOut(-(-self.batches // (self.at_once * threads)))
        return HandedOut(PASSES).times(self.batches)

    @property
    def at_once(self) -> int:
        """A worker's own batches between which Python looks for an interruption."""
        return max(1, min(BATCHES_AT_ONCE, int(FLOPS_AT_ONCE * self.batches / self.flops)))

    # Layout of samples and products: (point, tile, map)

    def point_stride(self, groups: int) -> int:
        """Return the floats from one point to the next, for some groups of maps.

        It is an odd number of cache lines, so that points do not share a few cache sets.
        """
        return (self.batch * self.across * groups | 1) * LANES

    @property
    def sample_floats(self) -> int:
        """Floats of the values that are made of a batch's samples."""
        return self.values * self.point_stride(self.in_groups)

    @property
    def product_floats(self) -> int:
        """Floats of a batch's products."""
        return self.points * self.point_stride(self.out_groups)

    @property
    def planes_floats(self) -> int:
        """Floats of all planes of a strip's scratch: (z, y, tile, x, lane)."""
        return self.across * self.values * LANES

    @property
    def scratch_floats(self) -> int:
        """Floats of one worker's scratch: planes, a row of 16 maps, and values of its own batch."""
        return self.own_samples + self.own * (self.sample_floats + self.product_floats)

    @property
    def own_samples(self) -> int:
        """Place of a worker's own values in its scratch, after planes and a row of 16 maps."""
        row = self.layer.stride.x * (self.outputs.x - 1) + self.layer.kernel.x
        return whole_vectors(self.planes_floats + LANES * (row + 1))

    @property
    def own_products(self) -> int:
        """Place of a worker's own products in its scratch."""
        return self.own_samples + self.sample_floats

    # Cost

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        """Shape of the transformed kernels: (value, output group, input map, output map)."""
        return self.values, self.out_groups, self.layer.in_features, LANES

    @property
    def maps_transformed_at_once(self) -> int:
        """Input maps whose kernels a worker transforms at a time; this bounds its memory."""
        return max(1, TRANSFORMED_FLOATS // (self.values * LANES))

    @property
    def list_bytes(self) -> int:
        """Bytes of the ``values_of_points``."""
        return (self.values + self.points + 1) * INDEX_BYTES

    @property
    def kernel_bytes(self) -> int:
        """Bytes of the transformed kernels."""
        return math.prod(self.kernel_shape) * FLOAT_BYTES + ALIGNMENT

    def workspace_bytes(self, threads: int) -> int:
        """Return the bytes of a call beside input, output and kernels."""
        floats = threads * self.scratch_floats
        if not self.own:
            floats += self.sample_floats + self.product_floats
        tables = self.tiling.table_bytes + self.batches * ARGUMENT_BYTES
        return floats * FLOAT_BYTES + tables + 3 * ALIGNMENT

    @cached_property
    def _flops(self) -> tuple[float, float, float]:
        """Operations of the transforms of samples, of the products and of their transforms."""
        z, y, x = self.filterings
        tiles = self.tiling.count * self.across
        columns = y.values * x.values, z.seen * x.values, z.seen * y.seen
        made = y.length * x.length, z.outputs * x.length, z.outputs * y.outputs
        samples = sum(
            count * axis.samples.flops
            for count, axis in zip(columns, self.filterings, strict=True)
        )  # fmt: skip
        results = sum(
            count * axis.results.flops for count, axis in zip(made, self.filterings, strict=True)
        )
        in_features, out_maps = self.layer.in_features, self.out_groups * LANES
        return (
            tiles * self.in_groups * LANES * samples,
            2 * tiles * self.values * in_features * out_maps,
            tiles * out_maps * results,
        )

    @property
    def flops(self) -> float:
        """Operations of a call with existing kernels."""
        return sum(self._flops)

    @property
    def efficiency(self) -> float:
        """Average share of a processor's nominal rate that these operations sustain."""
        shares = zip(self._flops, EFFICIENCIES, strict=True)
        return self.flops / sum(flops / share for flops, share in shares)

    @property
    def bytes_moved(self) -> int:
        """Bytes to and from main memory: the images, the kernels, and values that workers share."""
        moved = self.shape.nbytes + 2 * self.out.nbytes
        if self.own:
            return moved + self.kernel_bytes
        values = self.sample_floats + self.product_floats
        return moved + self.batches * (self.kernel_bytes + 2 * values * FLOAT_BYTES)
