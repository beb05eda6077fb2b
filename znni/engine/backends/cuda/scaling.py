"""The scaling of stored values to the input of a network, on a GPU."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from znni.engine.scaling import StoredScaling
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.network.input_scaling import Fixed, InputScaling
from znni.network.weights import Float32

WARPS = 8  # of a block of threads; each takes a row at a time
MOST_BLOCKS = 2**16  # with more rows, each warp takes several

# The types of stored values, for the bytes of a value.
TYPES = {1: ("unsigned char", "signed char"), 2: ("unsigned short", "short")}


class DeviceScaling:
    """Scales blocks of stored values on the current GPU, as ``znni.engine.scaling.scale`` does.

    Args:
        maps: the maps of a block.
        itemsize: the bytes of a stored value.
    """

    def __init__(self, maps: int, itemsize: int) -> None:
        self._kernel = compiled(source(), options(itemsize)).get_function("scale")
        self._numbers = cupy().empty((maps, 4), np.float32)
        self._held: tuple[InputScaling, tuple[Fixed | None, ...]] | None = None

    def __call__(self, stored: Any, scaling: StoredScaling, into: Any) -> None:
        """Write what a network sees, on the current stream.

        Args:
            stored: the stored values (1, f, z, y, x), integers without gaps.
            scaling: how they are scaled.
            into: takes what the network sees, in the same shape, as float32.
        """
        _, maps, *size = stored.shape
        key = scaling.scaling, scaling.fixed
        if key != self._held:  # the same in every block of a volume
            self._numbers.set(numbers_of(*key))
            self._held = key
        known = scaling.known
        extents = map(np.int32, (maps, *size, *known.start, *known.stop))
        blocks = min(-(-maps * size[0] * size[1] // WARPS), MOST_BLOCKS)
        is_signed, normalizes = stored.dtype.kind == "i", scaling.fixed[0] is not None
        numbers = np.int32(is_signed), self._numbers, np.int32(normalizes)
        self._kernel((blocks,), (32, WARPS), (stored, *numbers, into, *extents))


def numbers_of(scaling: InputScaling, fixed: tuple[Fixed | None, ...]) -> Float32:
    """Return the numbers (f, 4) of each map, as the kernel takes them."""

    def numbers(rule: Fixed | None) -> tuple[float, float, float, float]:
        if rule is None:
            # Adding -0 changes no value, not even the sign of a zero. The host adds nothing.
            return -inf, inf, scaling.scale, scaling.offset or -0.0
        return (*(rule.clip or (-inf, inf)), rule.mean, rule.std)

    with np.errstate(over="ignore"):  # as the host: limits may lie beyond float32
        return np.array([numbers(rule) for rule in fixed], np.float32)


def source() -> str:
    """Return the kernel in CUDA C++."""
    return source_beside(__file__, "scaling.cu")


def options(itemsize: int) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    unsigned, signed = TYPES[itemsize]
    return f"-DUnsigned={unsigned}", f"-DSigned={signed}"
