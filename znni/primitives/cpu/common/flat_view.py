"""Any strided view as flat memory and strides: one compiled kernel serves every layout."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from znni.network.weights import Float32


class FlatView(NamedTuple):
    """The memory that a view spans.

    A compiled kernel sees contiguous memory, which it can vectorise over, and is compiled once,
    not once for every layout.

    Attributes:
        memory: (span,), from the view's lowest address to its highest.
        start: index in ``memory`` of the view's first element.
        strides: elements from one index to the next, per axis.
    """

    memory: Float32
    start: int
    strides: tuple[int, ...]


def flat_view(x: Float32) -> FlatView:
    """The memory that ``x`` spans, uncopied and read-only."""
    strides = tuple(stride // x.itemsize for stride in x.strides)
    reach = [stride * (extent - 1) for stride, extent in zip(strides, x.shape, strict=True)]
    backwards = tuple(slice(None, None, -1 if distance < 0 else None) for distance in reach)
    span = 1 + sum(map(abs, reach))
    memory = as_strided(x[backwards], (span,), (x.itemsize,), writeable=False)
    start = -sum(distance for distance in reach if distance < 0)
    return FlatView(np.asarray(memory), start, strides)
