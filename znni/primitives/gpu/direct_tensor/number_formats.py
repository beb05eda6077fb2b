"""How the numbers of image and weights are given to tensor cores, whose sums are in float32."""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.options import ACCURACIES
from znni.primitives.gpu.common.rounding import ERROR_OF_11_BITS

# float16 holds numbers below 2**16; one bit is for rounding up.
MOST_EXPONENT = 15


@dataclass(frozen=True)
class NumberFormat:
    """A number as a sum of float16 ones, the next of which is what the ones before leave.

    Attributes:
        suffix: of primitives' names.
        parts: float16 numbers, one or two.
        least_exponent: of two: images whose largest number is at least that keep their precision
            as they are. Others, as those that float16 cannot hold, are scaled.
        accuracy: the class of what comes out.
        most_sums: products of 16 maps that are summed. Tensor cores cut off what they add, which
            amounts to 2.3e-8 for each.
    """

    suffix: str
    parts: int
    least_exponent: int
    accuracy: float
    most_sums: int

    @property
    def terms(self) -> int:
        """Products for one: all of parts but that of the low ones, which is below the rounding."""
        return 2 * self.parts - 1


FLOAT16 = NumberFormat("_float16", 1, -8, ERROR_OF_11_BITS, 16384)
HALVES = NumberFormat("", 2, -2, ACCURACIES["float32"], 512)
