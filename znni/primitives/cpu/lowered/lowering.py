"""Convolution as one matrix product: lower the input, multiply, lift the product.

A kernel's taps along an axis can be gathered before the product (lowered: the input is repeated)
or after it (lifted: partial results are repeated). Caffe con Troll has three types of lowering,
which lower all axes, the trailing ones, or none (Hadjis et al. 2015, section 2.1). Here each type
is the same two loops with other extents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from znni.core.shapes import Vec3
from znni.network.layers import Conv
from znni.network.weights import Float32
from znni.primitives.cpu.common.activation import Finish, activate, activate_rows
from znni.primitives.cpu.common.numba_kernel import (
    FlatView,
    longest_rows,
    numba_kernel,
    output_view,
)


class Split(NamedTuple):
    """Division of a kernel's axes into lowered and lifted ones.

    Attributes:
        lowered: extents of the kernel along the lowered axes, 1 along the others.
        lifted: extents of the kernel along the lifted axes, 1 along the others.
    """

    lowered: Vec3
    lifted: Vec3

    @classmethod
    def after(cls, lifted_axes: int, kernel: Vec3) -> Split:
        """Return the split that lifts so many leading axes and lowers the rest."""
        lowered = Vec3(*(1,) * lifted_axes, *kernel[lifted_axes:])
        return cls(lowered, kernel // lowered)

    def matrix(self, weight: Float32) -> Float32:
        """Return weights (out, in, z, y, x) as (out * lifted taps, in * lowered taps).

        The result is a view of the weights if nothing needs to move.
        """
        out_features, in_features = weight.shape[:2]
        taps = (self.lifted.volume, self.lowered.volume)
        parts = weight.reshape(out_features, in_features, *taps).swapaxes(1, 2)
        return parts.reshape(out_features * taps[0], in_features * taps[1])

    def matrix_shape(self, layer: Conv) -> tuple[int, int]:
        """Return rows and columns of the weights' matrix."""
        return layer.out_features * self.lifted.volume, layer.in_features * self.lowered.volume

    def matrix_nbytes(self, layer: Conv) -> int:
        """Return the bytes that ``matrix`` allocates."""
        moves = self.lifted.volume > 1 and layer.in_features > 1
        return 4 * layer.out_features * layer.in_features * layer.kernel.volume if moves else 0


class OutputPart(NamedTuple):
    """A part of the output that is computed by itself: some maps, some voxels.

    Attributes:
        maps: number of output maps that are multiplied and lifted at a time.
        size: output voxels per axis.
    """

    maps: int
    size: Vec3

    def positions(self, split: Split) -> Vec3:
        """Return the columns of the lowered input and of the product, per axis."""
        return self.size + split.lifted - 1

    def lowered_nbytes(self, layer: Conv, split: Split) -> int:
        """Return the bytes of the lowered input."""
        return 4 * layer.in_features * split.lowered.volume * self.positions(split).volume

    def product_nbytes(self, split: Split) -> int:
        """Return the bytes of the product."""
        return 4 * self.maps * split.lifted.volume * self.positions(split).volume

    def nbytes(self, layer: Conv, split: Split) -> int:
        """Return the bytes of the lowered input and the product."""
        rows = layer.in_features * split.lowered.volume + self.maps * split.lifted.volume
        return 4 * rows * self.positions(split).volume

    def halves(self) -> list[OutputPart]:
        """Return all ways to halve the block."""
        cuts = [OutputPart(-(-self.maps // 2), self.size)] if self.maps > 1 else []
        for axis, extent in enumerate(self.size):
            if extent > 1:
                size = list(self.size)
                size[axis] = -(-extent // 2)
                cuts.append(OutputPart(self.maps, Vec3(*size)))
        return cuts


@cache
def bounded_block(layer: Conv, size: Vec3, split: Split, limit: int) -> OutputPart:
    """Return a block of at most ``limit`` bytes, or the smallest possible, that wastes little.

    The search starts from all maps and voxels of the output, whose extents are ``size``. It halves
    the block until it fits, each time where it saves the most memory for the least added work.
    Added work is positions on block borders that are multiplied twice, products too small to be
    fast, and rows too short to be copied fast.
    """
    overhead = 32  # extra time of each row or column of a product, counted in elements
    lifted, lowered = split.lifted.volume, layer.in_features * split.lowered.volume
    above_z, above_y, above_x = split.lifted - 1

    def price(
        block: OutputPart,
    ) -> float:  # in integers, because a search asks for thousands of blocks
        maps, (z, y, x) = block
        blocks = (
            -(-size.z // z) * -(-size.y // y) * -(-size.x // x) * -(-layer.out_features // maps)
        )
        z, y, x = z + above_z, y + above_y, x + above_x
        rows, columns = maps * lifted + overhead, z * y * (x + overhead) + overhead
        return blocks * rows * columns * 4 * (lowered + maps * lifted) * z * y * x

    block = OutputPart(layer.out_features, size)
    while block.nbytes(layer, split) > limit and (halves := block.halves()):
        block = min(halves, key=price)
    return block


@dataclass(frozen=True)
class LoweredLayer:
    """A layer ready to be computed as matrix products.

    Attributes:
        layer: the convolution.
        split: division of the kernel's axes.
        matrix: weights as a matrix, from ``Split.matrix``.
        finish: bias and activation.
    """

    layer: Conv
    split: Split
    matrix: Float32
    finish: Finish

    def lower(
        self, image: FlatView, corner: Vec3, positions: Vec3, first: int, rows: Float32
    ) -> None:
        """Fill ``rows`` (rows, positions) of the lowered input, from row ``first`` on.

        ``image`` is (f, z, y, x); the positions begin at its voxel ``corner``.
        """
        lowered = tuple(self.split.lowered)
        _lower(*image, tuple(corner), lowered, tuple(positions), first, rows)

    def multiply(self, rows: slice, lowered: Float32, product: Float32) -> None:
        """Fill ``product`` with these rows of the weights times the lowered input."""
        # NumPy does not use BLAS for products over a single element, and is slow at them itself.
        operation = np.matmul if lowered.shape[0] > 1 else np.multiply
        operation(self.matrix[rows], lowered, out=product)

    def lift(
        self, product: Float32, image: Float32, corner: Vec3, block: OutputPart, first: int
    ) -> None:
        """Finish a block of an output image, ``image`` (f, z, y, x), from its product.

        ``product`` is (maps * lifted taps, positions), for maps from ``first`` on.
        """
        positions, lifted = tuple(block.positions(self.split)), tuple(self.split.lifted)
        box = (first, *corner), (block.maps, *block.size)
        _lift(product, lifted, positions, *output_view(image), *box, *self.finish)

    def activate(self, image: Float32, maps: slice) -> None:
        """Finish some maps of an output image (f, z, y, x) that holds the product itself."""
        (rows,) = longest_rows(image[np.newaxis, maps])
        bias, slope, code = self.finish
        finish = bias[maps], slope[maps], code
        activate_rows(*output_view(rows), rows.shape, 0, rows.size, *finish)


@numba_kernel
def _lower(memory, start, strides, corner, lowered, positions, first, rows):  # type: ignore[no-untyped-def]
    for index in range(rows.shape[0]):
        rest, dx = divmod(first + index, lowered[2])
        rest, dy = divmod(rest, lowered[1])
        f, dz = divmod(rest, lowered[0])
        plane = start + f * strides[0] + (corner[0] + dz) * strides[1]
        at = plane + (corner[1] + dy) * strides[2] + (corner[2] + dx)
        for z in range(positions[0]):
            for y in range(positions[1]):
                source = memory[at + z * strides[1] + y * strides[2] :]
                target = rows[index, (z * positions[1] + y) * positions[2] :]
                for x in range(positions[2]):
                    target[x] = source[x]


@numba_kernel
def _lift(  # type: ignore[no-untyped-def]
    product, lifted, positions, memory, start, strides, corner, extent, bias, slope, code
):
    taps = lifted[0] * lifted[1] * lifted[2]
    for o in range(extent[0]):
        for z in range(extent[1]):
            for y in range(extent[2]):
                to = start + (corner[0] + o) * strides[0] + (corner[1] + z) * strides[1]
                to += (corner[2] + y) * strides[2] + corner[3]
                row = memory[to : to + extent[3]]
                for tap in range(taps):
                    rest, dx = divmod(tap, lifted[2])
                    dz, dy = divmod(rest, lifted[1])
                    at = ((z + dz) * positions[1] + y + dy) * positions[2] + dx
                    part = product[o * taps + tap, at:]
                    if tap == 0:
                        for x in range(row.size):
                            row[x] = part[x]
                    else:
                        for x in range(row.size):
                            row[x] += part[x]
                activate(row, bias[corner[0] + o], slope[corner[0] + o], code)
