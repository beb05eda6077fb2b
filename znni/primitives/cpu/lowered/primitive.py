"""Lowered convolutions: three types of lowering, each over whole images or in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from znni.core.shapes import ZERO, Shape5, Vec3
from znni.machine.arena import new_output, workspace
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, Float32, conv_weights
from znni.plans.cost import Cost, HandedOut, Memory
from znni.plans.primitive import BoundedByItself, Run, applied_to, convolved
from znni.primitives.cpu.common.activation import activate_further, row_finish, with_activation
from znni.primitives.cpu.common.numba_kernel import flat_view, longest_rows
from znni.primitives.cpu.common.workers import Workers, even_slices, workers
from znni.primitives.cpu.lowered.lowering import LoweredLayer, OutputPart, Split, bounded_block

# Bytes of a block's workspace, which stays in a core's cache and its share of the last-level cache.
BLOCK_BYTES = 4 * 1024 * 1024
# Number of parts, for each thread, into which the rows or columns of a whole image are divided.
PARTS_PER_THREAD = 4
# Fewest rows or columns of the weights' matrix with which a product reaches its full rate.
FULL_RATE = 32


@dataclass(frozen=True)
class Lowered(BoundedByItself):
    """Convolution as matrix products on the CPU.

    Attributes:
        lifted_axes: choices for the number of leading axes to lift. The layer uses the one with
            the smallest workspace.
        blocked: True if each thread works on blocks of ``BLOCK_BYTES``, False if all threads work
            together on one whole image at a time.
    """

    device: Device
    name: str
    lifted_axes: tuple[int, ...]
    blocked: bool
    efficiency: float
    accuracy: float = 1e-5
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape for any convolution."""
        return convolved(layer, shape)

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost. Lifting multiplies at more positions than the output has."""
        conv, out = applied_to(Conv, self, layer, shape)
        split, block = self._blocking(conv, out)
        positions = (out.size + out.size.ceil_div(block.size) * (split.lifted - 1)).volume
        if self.blocked:
            workspace_bytes = self.device.threads * block.nbytes(conv, split)
            passes = 0
        else:
            workspace_bytes = block.lowered_nbytes(conv, split)
            workspace_bytes += 0 if _product_is_output(split) else block.product_nbytes(split)
            passes = 2 * out.n  # written and read, for every image
        cost = Cost(
            flops=2.0 * out.n * positions * conv.in_features * out.f * conv.kernel.volume,
            bytes_moved=shape.nbytes + 2 * out.nbytes + passes * workspace_bytes,
            memory=Memory.beside(
                shape.nbytes + out.nbytes, workspace_bytes, resident=split.matrix_nbytes(conv)
            ),
            efficiency=self.efficiency * min(1.0, min(split.matrix_shape(conv)) / FULL_RATE),
            handed=self._handed(conv, out, split, block),
        )
        return with_activation(cost, conv.activation, out, self.device.threads)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare the layer, with the weights as a matrix."""
        conv, out = applied_to(Conv, self, layer, shape)
        given = conv_weights(conv, weights)
        split, block = self._blocking(conv, out)
        finish = row_finish(conv, conv.out_features, given)
        prepared = LoweredLayer(conv, split, split.matrix(given.weight), finish)
        convolve = _convolve_in_blocks if self.blocked else _convolve_whole
        pool = workers(self.device.threads)

        def run(x: Float32) -> Float32:
            y = new_output(out)
            convolve(prepared, block, x, y, pool)
            activate_further(y, conv, pool)
            return y

        return run

    def _handed(self, layer: Conv, out: Shape5, split: Split, block: OutputPart) -> HandedOut:
        """Return the number of tasks.

        Each block takes one lowering, then a product and a lifting for each group of maps. Whole
        images take parts of each of the three.
        """
        if self.blocked:
            steps = 1 + 2 * -(-out.f // block.maps)
            return HandedOut(1, out.n * out.size.ceil_div(block.size).volume * steps)
        parts = self.device.threads * PARTS_PER_THREAD
        shared = split.matrix_shape(layer)[1], block.positions(split).volume, out.f
        return HandedOut(3, sum(min(parts, extent) for extent in shared)).times(out.n)

    def _blocking(self, layer: Conv, out: Shape5) -> tuple[Split, OutputPart]:
        whole = OutputPart(out.f, out.size)
        splits = (Split.after(axes, layer.kernel) for axes in self.lifted_axes)
        split = min(splits, key=lambda split: whole.nbytes(layer, split))
        return split, bounded_block(layer, out.size, split, BLOCK_BYTES) if self.blocked else whole


def primitives(device: Device) -> tuple[Lowered, ...]:
    """Return all six lowered convolutions."""
    return (
        Lowered(device, "lowered_expensive_lowering", (0,), blocked=False, efficiency=0.5),
        Lowered(device, "lowered_expensive_lowering_blocked", (0,), blocked=True, efficiency=0.5),
        Lowered(device, "lowered_balanced", (1, 2), blocked=False, efficiency=0.58),
        Lowered(device, "lowered_balanced_blocked", (1, 2), blocked=True, efficiency=0.5),
        Lowered(device, "lowered_expensive_lifting", (3,), blocked=False, efficiency=0.3),
        Lowered(device, "lowered_expensive_lifting_blocked", (3,), blocked=True, efficiency=0.48),
    )


def _product_is_output(split: Split) -> bool:
    """Return whether a whole image's product is the output, except for bias and activation."""
    return split.lifted.volume == 1


def _convolve_whole(
    prepared: LoweredLayer, block: OutputPart, x: Float32, y: Float32, pool: Workers
) -> None:
    """Convolve one image after the other; the threads share each step."""
    split, matrix = prepared.split, prepared.matrix
    positions = block.positions(split).volume
    lowered = workspace((matrix.shape[1], positions), np.float32)
    result_shape = (matrix.shape[0], positions)
    result = None if _product_is_output(split) else workspace(result_shape, np.float32)
    for source, target in zip(x, y, strict=True):
        _convolve_image(prepared, block, source, lowered, result, target, pool)


def _convolve_image(
    prepared: LoweredLayer,
    block: OutputPart,
    source: Float32,
    lowered: Float32,
    result: Float32 | None,
    target: Float32,
    pool: Workers,
) -> None:
    """Convolve an image; without memory for the ``result``, its product is made in the output."""
    view, positions = flat_view(source), block.positions(prepared.split)
    taps = prepared.split.lifted.volume

    def lower(_worker: int, rows: slice) -> None:
        prepared.lower(view, ZERO, positions, rows.start, lowered[rows])

    def multiply(_worker: int, item: tuple[slice, Float32]) -> None:
        columns, multiplied = item
        prepared.multiply(slice(None), lowered[:, columns], multiplied)

    def lift(_worker: int, maps: slice) -> None:
        if result is None:
            prepared.activate(target, maps)
            return
        part = OutputPart(maps.stop - maps.start, block.size)
        rows = slice(taps * maps.start, taps * maps.stop)
        prepared.lift(result[rows], target, ZERO, part, maps.start)

    parts = pool.threads * PARTS_PER_THREAD
    pool.for_each(lower, even_slices(lowered.shape[0], parts))
    products = _by_rows(target) if result is None else ((slice(0, result.shape[1]), result),)
    pool.for_each(multiply, _by_columns(products, parts))
    pool.for_each(lift, even_slices(block.maps, parts))


def _by_rows(image: Float32) -> Iterator[tuple[slice, Float32]]:
    """Yield the matrices (maps, columns) that an output image consists of, with their columns."""
    (rows,) = longest_rows(image[np.newaxis])
    length = rows.shape[4]
    for index, (z, y) in enumerate(product(range(rows.shape[2]), range(rows.shape[3]))):
        yield slice(index * length, (index + 1) * length), rows[0, :, z, y]


def _by_columns(
    products: Iterable[tuple[slice, Float32]], parts: int
) -> Iterator[tuple[slice, Float32]]:
    """Yield nearly equal parts of matrices; a matrix is cut only if it is the only one."""
    first, *others = products
    if others:
        yield from (first, *others)
        return
    columns, multiplied = first
    for part in even_slices(columns.stop, parts):
        yield part, multiplied[:, part]


def _convolve_in_blocks(
    prepared: LoweredLayer, block: OutputPart, x: Float32, y: Float32, pool: Workers
) -> None:
    """Convolve many blocks, each from input to output by one thread."""
    split, taps = prepared.split, prepared.split.lifted.volume
    lowered_size = block.lowered_nbytes(prepared.layer, split) // 4
    product_size = block.product_nbytes(split) // 4
    scratch = workspace((pool.threads, lowered_size + product_size), np.float32)
    out = Shape5(*y.shape)
    views = [flat_view(image) for image in x]

    def convolve(worker: int, item: tuple[int, ...]) -> None:
        n, corner = item[0], Vec3(*item[1:])
        size = block.size.minimum(out.size - corner)
        positions = OutputPart(block.maps, size).positions(split)
        lowered = _matrix_in(scratch[worker], prepared.matrix.shape[1], positions)
        prepared.lower(views[n], corner, positions, 0, lowered)
        for first in range(0, out.f, block.maps):
            part = OutputPart(min(block.maps, out.f - first), size)
            rows = slice(taps * first, taps * (first + part.maps))
            multiplied = _matrix_in(scratch[worker, lowered_size:], taps * part.maps, positions)
            prepared.multiply(rows, lowered, multiplied)
            prepared.lift(multiplied, y[n], corner, part, first)

    steps = zip(out.size, block.size, strict=True)
    corners = (range(0, extent, step) for extent, step in steps)
    pool.for_each(convolve, product(range(out.n), *corners))


def _matrix_in(scratch: Float32, rows: int, positions: Vec3) -> Float32:
    return scratch[: rows * positions.volume].reshape(rows, positions.volume)
