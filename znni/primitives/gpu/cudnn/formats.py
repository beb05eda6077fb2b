"""The number formats in which cuDNN convolves, and what each promises."""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.options import ACCURACIES
from znni.primitives.gpu.common.capability import AMPERE, OLDEST, VOLTA

# What engines take together: output maps, and the input maps of a vector where they are innermost.
# Measured on an H200: 3 maps take as long as some 30, and one input map as long as a few.
OUT_MAPS_TOGETHER = 32
VECTOR_BYTES = 16

# Engines that round further than the format says are never taken.
ROUNDING = ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")


@dataclass(frozen=True)
class Format:
    """How numbers are stored and multiplied; sums are float32.

    Attributes:
        name: of the format.
        data_type: cuDNN's name of the numbers that it reads and writes.
        cuda_type: the same in CUDA.
        nbytes: of a number.
        channels_last: whether its fast engines want maps innermost, as (n, z, y, x, f).
        barred: cuDNN's notes of engines that compute otherwise.
        accuracy: the relative error promised.
        share: of the nominal float32 operations per second that it sustains, at most.
        capability: the least compute capability of a GPU that multiplies such numbers fast.
    """

    name: str
    data_type: str
    cuda_type: str
    nbytes: int
    channels_last: bool
    barred: tuple[str, ...]
    accuracy: float
    share: float
    capability: int

    def maps_in(self, maps: int) -> int:
        """Input maps that engines multiply, as if zeros followed those that there are."""
        together = VECTOR_BYTES // self.nbytes if self.channels_last else 1
        return -(-maps // together) * together


def maps_out(maps: int) -> int:
    """Output maps that engines compute, of which those that there are may be few."""
    return -(-maps // OUT_MAPS_TOGETHER) * OUT_MAPS_TOGETHER


# Shares are of the float32 rate of a Hopper GPU, measured on first, hidden and last layers; matrix
# units are faster than that rate.
FORMATS = (
    Format(
        name="float32",
        data_type="FLOAT",
        cuda_type="float",
        nbytes=4,
        channels_last=False,
        barred=(*ROUNDING, "TENSOR_CORE"),
        accuracy=ACCURACIES["float32"],
        share=0.4,
        capability=OLDEST,
    ),
    Format(
        name="tf32",
        data_type="FLOAT",
        cuda_type="float",
        nbytes=4,
        channels_last=True,
        barred=ROUNDING,
        accuracy=ACCURACIES["tf32"],
        share=2.0,
        capability=AMPERE,
    ),
    Format(
        name="float16",
        data_type="HALF",
        cuda_type="__half",
        nbytes=2,
        channels_last=True,
        barred=(),
        accuracy=ACCURACIES["tf32"],
        share=3.2,
        capability=VOLTA,
    ),
    Format(
        name="bfloat16",
        data_type="BFLOAT16",
        cuda_type="__nv_bfloat16",
        nbytes=2,
        channels_last=True,
        barred=(),
        accuracy=ACCURACIES["bfloat16"],
        share=3.2,
        capability=AMPERE,
    ),
)
