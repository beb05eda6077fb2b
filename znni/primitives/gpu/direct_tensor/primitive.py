"""Direct convolution on tensor cores: fastest for small kernels between many maps.

The image is laid out as float16, 8 maps of a voxel together. So any 64 voxels that a tap sees are
one side of a product as they lie in shared memory (``geometry``). Nothing is unfolded.

Sums are in float32. Numbers are rounded to float16, which has the 11 bits of tf32. Or they are
pairs of float16, with three products for one and errors as in float32. If numbers are beyond the
range of float16, they are scaled by a power of two as they are laid out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.layers import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.primitive import Run, applying, convolved
from znni.primitives.gpu.common.base import ShapedPrimitive
from znni.primitives.gpu.common.hardware import AMPERE_NEEDED, chip_of, processors_of
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR, TensorFormat
from znni.primitives.gpu.direct_tensor.launch import Gathering, Launcher
from znni.primitives.gpu.direct_tensor.strips import strips_for
from znni.primitives.gpu.direct_tensor.work import Pieces


@dataclass(frozen=True)
class GpuDirectTensor(ShapedPrimitive[Pieces]):
    """Direct convolution on the tensor cores of a GPU."""

    numbers: TensorFormat
    family: ClassVar[str] = "gpu_direct_tensor"
    version: ClassVar[int] = 6

    def work(self, layer: Operation, shape: Shape5) -> Pieces | None:
        """Decline kernels beyond shared memory, inexact sums, and planes that are too large."""
        out = convolved(layer, shape)
        if out is None or not isinstance(layer, Conv):
            return None
        chip = chip_of(self.device)
        if chip is None:
            return None
        processors = processors_of(self.device, chip)
        strips = strips_for(layer, self.numbers, out.size, chip, out.n, processors)
        pieces = Pieces(shape, out, layer, strips, processors) if strips else None
        return pieces if pieces and pieces.is_countable else None

    def prepare(self, work: Pieces, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels; lay out the weights."""
        return Launcher(work, conv_weights(work.conv, weights))

    def build_gathering(
        self, layer: Conv, shape: Shape5, weights: ConvWeights, gathering: Gathering
    ) -> Run:
        """Build as ``build``, for an image of ``shape`` that is gathered from the input.

        Args:
            layer: the convolution of the image.
            shape: the image's shape.
            weights: the weights of the layer.
            gathering: how the image is gathered. The input's maps are a multiple of ``GROUP``.
        """
        work = applying(self._known(layer, shape), self, layer, shape)
        return Launcher(work, weights, gathering)


# The GPUs that have these primitives.
NEEDS = AMPERE_NEEDED


def primitives(device: Device) -> tuple[GpuDirectTensor, ...]:
    """Return both formats, if the GPU's tensor cores are those of Ampere or later."""
    if chip_of(device) is None:
        return ()
    return GpuDirectTensor(device, FLOAT16_PAIR), GpuDirectTensor(device, FLOAT16)
