"""The number formats in which cuDNN convolves, and what each promises."""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.option_types import ACCURACIES
from znni.machine.machine import OLDEST_CAPABILITY
from znni.primitives.gpu.common.hardware import FLOAT16_CORES, TF32_CORES
from znni.primitives.gpu.common.number_formats import NumberFormat

# Engines take output maps by 32, and input maps by vectors of 16 bytes if maps are innermost.
# Measured on an H200: 3 output maps take as long as some 30, and one input map as long as a few.
OUT_MAPS_TOGETHER = 32
VECTOR_BYTES = 16

# cuDNN's notes of engines that round further than the format says: these are never taken.
ROUNDING = ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")


@dataclass(frozen=True)
class Format(NumberFormat):
    """A number format of cuDNN; sums are in float32.

    Attributes:
        data_type: cuDNN's name of the numbers that it reads and writes.
        cuda_type: CUDA's name of them.
        nbytes: bytes of a number.
        channels_last: whether its fast engines want maps innermost, as (n, z, y, x, f).
        barred: cuDNN's notes of engines that compute in another format.
        share: the largest share of the nominal float32 rate that it sustains.
        capability: the least compute capability of a GPU that multiplies such numbers fast.
    """

    data_type: str
    cuda_type: str
    nbytes: int
    channels_last: bool
    barred: tuple[str, ...]
    share: float
    capability: int

    @property
    def suffix(self) -> str:
        """The end of a primitive's name, which always tells the format."""
        return f"_{self.name}"

    def maps_in(self, maps: int) -> int:
        """Return the input maps that engines multiply, which are padded with zeros."""
        together = VECTOR_BYTES // self.nbytes if self.channels_last else 1
        return -(-maps // together) * together


def maps_out(maps: int) -> int:
    """Return the output maps that engines compute, which may be more than the layer's."""
    return -(-maps // OUT_MAPS_TOGETHER) * OUT_MAPS_TOGETHER


# Shares of a Hopper GPU's float32 rate were measured on first, hidden and last layers. Tensor cores
# are faster than that rate.
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
        capability=OLDEST_CAPABILITY,
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
        capability=TF32_CORES,
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
        capability=FLOAT16_CORES,
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
        capability=TF32_CORES,
    ),
)
