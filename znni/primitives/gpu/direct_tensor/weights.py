"""The weights of a convolution as tensor cores read them.

A network has some hundred megabytes of weights, and a run waits for them. So several threads lay
them out, some output maps at a time. The intermediate arrays of a thread stay in caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from znni.machine.io_threads import finish, io_threads, mapped
from znni.network.weights import Float32
from znni.primitives.gpu.common.number_formats import float16_parts
from znni.primitives.gpu.direct_tensor.geometry import GROUP, IN_MAPS, ThreadBlock

# The weights of an output map are multiplied by a power of two, so that the largest is in float16's
# upper range. Then all other weights, and the low parts of all, keep their precision.
BITS = 9

# Largest exponent of these powers: they and their inverses are normal numbers of float32.
MOST_EXPONENT = 100

# Bytes of the weights that a thread takes at a time. It needs about four times as much.
SHARE_BYTES = 2**20

# A type of the size of a group of maps in float16, which NumPy copies as a whole.
WHOLE_GROUP = np.complex128

Number = TypeVar("Number", bound=np.floating[Any])


def scales_of(weight: Float32) -> Float32:
    """Return powers of two that the weights of each output map are multiplied by.

    Args:
        weight: (f', f, z, y, x).
    """
    largest = _of_all_maps(_largest, weight)
    exponents = np.clip(BITS - np.frexp(largest)[1], -MOST_EXPONENT, MOST_EXPONENT)
    scales: Float32 = np.ldexp(np.float32(1), exponents).astype(np.float32)
    return scales


def sums_of(weight: Float32) -> NDArray[np.float64]:
    """Return the sum of the absolute weights of each output map.

    Args:
        weight: (f', f, z, y, x).
    """
    return _of_all_maps(_sums, weight)


def weights_by_stage(weight: Float32, scales: Float32, block: ThreadBlock) -> NDArray[np.float16]:
    """Return weights in the order in which blocks bring them, padded with zeros.

    Args:
        weight: (f', f, z, y, x).
        scales: factors of the output maps, which bring their weights into float16's range.
        block: the block that brings them.

    Returns:
        float16 (pass, chunk of 16 input maps, row of taps, x, part, half of the chunk, output map
        of the pass, input map of the half). If a product has all taps along z, rows are those
        along y, and taps along z come before output maps.
    """
    features, *kernel = weight.shape[1:]
    parts, halves = block.numbers.parts, IN_MAPS // GROUP
    columns, stacked = block.columns, block.stacks_taps
    rows = kernel[1] if stacked else len(block.rows)
    of_product = (kernel[0], columns) if stacked else (columns,)
    shape = (block.passes, block.chunks, rows, kernel[-1], parts, halves, *of_product, GROUP)
    made = np.zeros(shape, np.float16)
    groups = made.view(WHOLE_GROUP)[..., 0]
    by_row = [
        groups[:, :, y, ..., z, :] if stacked else groups[:, :, row]
        for row, (z, y) in enumerate(block.rows)
    ]

    def lay_out(share: slice) -> None:
        """Lay out some output maps of one pass."""
        count = share.stop - share.start
        number, first = divmod(share.start, columns)
        taps = np.zeros((*kernel, count, block.chunks * IN_MAPS), np.float32)
        scaled = taps[..., :features]
        np.multiply(weight[share].transpose(2, 3, 4, 0, 1), scales[share, None], out=scaled)
        for part, rounded in enumerate(float16_parts(taps, parts)):
            found = rounded.view(WHOLE_GROUP).reshape(*kernel, count, block.chunks, halves)
            for of_row, (z, y) in zip(by_row, block.rows, strict=True):
                place = of_row[number, :, :, part, :, first : first + count]
                place[...] = found[z, y].transpose(2, 0, 3, 1)

    finish(mapped(lay_out, _shares(weight, columns), 2 * io_threads(), "building"))
    return made


def _largest(weight: Float32) -> Float32:
    """Return the largest absolute weight of each output map."""
    largest: Float32 = np.abs(weight).max(axis=(1, 2, 3, 4))
    return largest


def _sums(weight: Float32) -> NDArray[np.float64]:
    """Return the sum of the absolute weights of each output map."""
    sums: NDArray[np.float64] = np.abs(weight).astype(np.float64).sum(axis=(1, 2, 3, 4))
    return sums


def _of_all_maps(task: Callable[[Float32], NDArray[Number]], weight: Float32) -> NDArray[Number]:
    """Return what a function finds for each output map."""
    shares = (weight[share] for share in _shares(weight, len(weight)))
    return np.concatenate([*mapped(task, shares, 2 * io_threads(), "building")])


def _shares(weight: Float32, columns: int) -> Iterator[slice]:
    """Return all output maps as slices, each of one pass."""
    most = max(1, SHARE_BYTES // weight[0].nbytes)
    for first in range(0, len(weight), columns):
        last = min(first + columns, len(weight))
        yield from (slice(start, min(start + most, last)) for start in range(first, last, most))
