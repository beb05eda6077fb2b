"""Strips of tiles of a layer: sizes, memory and operations, by arithmetic alone.

A strip is a row of tiles along x that are transformed together. So rows of voxels are turned into
vectors across maps only once for all its tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from znni.core.shapes import Shape5, Vec3
from znni.machine.arrays import ALIGNMENT
from znni.network.layers import Conv
from znni.plans.cost import HandedOut
from znni.primitives.cpu.common.simd import FLOAT_BYTES, LANES, whole_vectors
from znni.primitives.cpu.fft_tiled.tiling import Tiling
from znni.primitives.cpu.winograd.minimal_filtering import MinimalFiltering, minimal_filtering

# Most tiles of a strip: their voxels and transforms fill the registers.
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

    @property
    def filterings(self) -> tuple[MinimalFiltering, MinimalFiltering, MinimalFiltering]:
        """The algorithms along z, y and x."""
        z, y, x = map(minimal_filtering, self.layer.kernel)
        return z, y, x

    @cached_property
    def across(self) -> int:
        """Number of tiles in a strip: as few in all as possible, and then long strips."""
        by = self.filterings[2].outputs
        tiles = -(-self.out.x // by)
        return min(range(1, MOST_TILES + 1), key=lambda count: (-(-tiles // count) * count, -count))

    @property
    def outputs(self) -> Vec3:
        """Outputs of a strip."""
        z, y, x = self.filterings
        return Vec3(z.outputs, y.outputs, x.outputs * self.across)

    @cached_property
    def tiling(self) -> Tiling:
        """Strips of all images."""
        return Tiling(self.outputs + self.layer.kernel - 1, self.shape, self.layer.kernel)

    @property
    def points(self) -> int:
        """Products of a tile for each pair of maps."""
        return math.prod(axis.length for axis in self.filterings)

    @property
    def in_groups(self) -> int:
        """Number of groups of 16 input maps."""
        return whole_vectors(self.layer.in_features) // LANES

    @property
    def out_groups(self) -> int:
        """Number of groups of 16 output maps."""
        return whole_vectors(self.layer.out_features) // LANES

    @property
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

    @property
    def batches(self) -> int:
        """Number of batches, each of which reads the kernels once."""
        return math.ceil(self.tiling.count / self.batch)

    def handed_out(self, threads: int) -> HandedOut:
        """Return the tasks of a call.

        A round is some batches of each worker, or one pass of a shared batch.
        """
        if self.own:
            return HandedOut(1, threads).times(-(-self.batches // (self.at_once * threads)))
        return HandedOut(PASSES, threads).times(self.batches)

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

    def point_floats(self, groups: int) -> int:
        """Return the floats of a batch at all points."""
        return self.points * self.point_stride(groups)

    @property
    def plane_floats(self) -> int:
        """Floats of one plane of a strip's scratch: (y, tile, x, lane)."""
        _, y, x = self.filterings
        return y.length * self.across * x.length * LANES

    @property
    def scratch_floats(self) -> int:
        """Floats of one worker's scratch: planes, a row of 16 maps, and values of its own batch."""
        return self.own_samples + self.own * (
            self.point_floats(self.in_groups) + self.point_floats(self.out_groups)
        )

    @property
    def own_samples(self) -> int:
        """Place of a worker's own values in its scratch, after planes and a row of 16 maps."""
        row = self.tiling.tile.x
        return whole_vectors(self.filterings[0].length * self.plane_floats + LANES * (row + 1))

    @property
    def own_products(self) -> int:
        """Place of a worker's own products in its scratch."""
        return self.own_samples + self.point_floats(self.in_groups)

    # Cost

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        """Shape of the transformed kernels: (point, output group, input map, output map)."""
        return self.points, self.out_groups, self.layer.in_features, LANES

    @property
    def kernel_bytes(self) -> int:
        """Bytes of the transformed kernels."""
        return math.prod(self.kernel_shape) * FLOAT_BYTES + ALIGNMENT

    def workspace_bytes(self, threads: int) -> int:
        """Return the bytes of a call beside input, output and kernels."""
        floats = threads * self.scratch_floats
        if not self.own:
            floats += self.point_floats(self.in_groups) + self.point_floats(self.out_groups)
        tables = self.tiling.table_bytes + self.batches * ARGUMENT_BYTES
        return floats * FLOAT_BYTES + tables + 3 * ALIGNMENT

    @cached_property
    def _flops(self) -> tuple[float, float, float]:
        """Operations of the transforms of samples, of the products and of their transforms."""
        z, y, x = self.filterings
        tiles = self.tiling.count * self.across
        columns = y.length * x.length, z.length * x.length, z.length * y.length
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
            2 * tiles * self.points * in_features * out_maps,
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
        values = self.point_floats(self.in_groups) + self.point_floats(self.out_groups)
        return moved + self.batches * (self.kernel_bytes + 2 * values * FLOAT_BYTES)
