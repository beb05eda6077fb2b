"""How the numbers of image and weights are given to tensor cores, whose sums are in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from znni.core.options import ACCURACIES
from znni.network.weights import Float32
from znni.primitives.gpu.common.rounding import ERROR_OF_11_BITS


@dataclass(frozen=True)
class NumberFormat:
    """A format, whose left side a CUDA source of its name makes from float32.

    Attributes:
        name: of that source.
        suffix: of primitives' names.
        instruction: the type of products' sides.
        terms: products for one of 16 maps, in units of those of bfloat16.
        accuracy: the class of what comes out.
    """

    name: str
    suffix: str
    instruction: Literal["bf16", "tf32"]
    terms: int
    accuracy: float


HALVES = NumberFormat("halves", "", "bf16", 3, ACCURACIES["float32"])
TF32 = NumberFormat("tf32", "_tf32", "tf32", 2, ERROR_OF_11_BITS)


def upper_halves(values: Float32) -> NDArray[np.uint16]:
    """Numbers of bfloat16 as their bits."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)
