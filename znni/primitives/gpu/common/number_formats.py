"""The number formats that GPU primitives round images and weights to.

Sums are always in float32. A pair is the sum of two shorter numbers: the rounded number, and what
rounding took away. Products of pairs are about as exact as products of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import ACCURACIES
from znni.network.weights import Float32

FLOAT_BYTES, FLOAT64_BYTES = 4, 8

# Relative error of the largest output if numbers have 11 significant bits, as tf32 and float16
# have. Errors measured were 2e-4 to 5e-4.
ERROR_OF_11_BITS = 1e-3

# The last bits of float32, which bfloat16 and tf32 lack.
BFLOAT16_LACKS, TF32_LACKS = 16, 13

Part: TypeAlias = Literal["f16", "bf16", "tf32"]
Number = TypeVar("Number", bound=np.floating[Any])


@dataclass(frozen=True)
class NumberFormat:
    """A number format.

    Attributes:
        name: such as ``float32``.
        accuracy: the relative error that a primitive promises with it.
    """

    name: str
    accuracy: float

    @property
    def suffix(self) -> str:
        """The end of a primitive's name: nothing if the format is as exact as float32."""
        return "" if self.accuracy <= ACCURACIES["float32"] else f"_{self.name}"


@dataclass(frozen=True)
class TensorFormat(NumberFormat):
    """A number format that tensor cores multiply.

    Attributes:
        part: the type of the numbers that they multiply, as PTX names it.
        parts: how many of these are added up to one number, one or two.
    """

    part: Part
    parts: int = 1

    @property
    def terms(self) -> int:
        """Products of parts for one product: all but the negligible one of the two low parts."""
        return 2 * self.parts - 1

    @property
    def depth(self) -> int:
        """Input maps, or taps, that one product of a warpgroup sums over."""
        return 8 if self.part == "tf32" else 16

    def split(self, values: Float32) -> Float32:
        """Return the parts of numbers as float32 (part, ...), each rounded to its type."""
        if self.part == "f16":
            return np.stack([*float16_parts(values, self.parts)]).astype(np.float32)
        lacks = BFLOAT16_LACKS if self.part == "bf16" else TF32_LACKS
        return np.stack([*_parts(values, self.parts, lambda rest: rounded(rest, lacks))])


FLOAT32 = NumberFormat("float32", ACCURACIES["float32"])
FLOAT16 = TensorFormat("float16", ERROR_OF_11_BITS, "f16")
TF32 = TensorFormat("tf32", ERROR_OF_11_BITS, "tf32")
FLOAT16_PAIR = TensorFormat("float16_pair", ACCURACIES["float32"], "f16", parts=2)
BFLOAT16_PAIR = TensorFormat("bfloat16_pair", ACCURACIES["float32"], "bf16", parts=2)
TF32_PAIR = TensorFormat("tf32_pair", ACCURACIES["float32"], "tf32", parts=2)


def rounded(values: Float32, bits: int) -> Float32:
    """Clear the last bits of float32, rounding to the nearest; ties go away from zero.

    Args:
        values: finite numbers.
        bits: how many to clear, such as ``TF32_LACKS``.
    """
    raised = values.view(np.uint32) + np.uint32(1 << bits - 1)
    return (raised & ~np.uint32((1 << bits) - 1)).view(np.float32)


def bits_of_bfloat16(values: Float32) -> NDArray[np.uint16]:
    """Return the bits of numbers that were rounded to bfloat16."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def float16_parts(values: Float32, count: int) -> Iterator[NDArray[np.float16]]:
    """Yield the parts of numbers: each is the rest of those before, rounded to float16.

    Args:
        values: the numbers, in float16's range.
        count: the parts of each.
    """
    return _parts(values, count, lambda rest: rest.astype(np.float16))


def _parts(
    values: Float32, count: int, to_part: Callable[[Float32], NDArray[Number]]
) -> Iterator[NDArray[Number]]:
    """Yield the parts of numbers, each of which a function rounds from the rest."""
    part = to_part(values)
    yield part
    for _ in range(1, count):
        values = values - part
        part = to_part(values)
        yield part
