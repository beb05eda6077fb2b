"""Layers of packed values on a GPU, in classes tf32 and float32.

Values lie in float16 from layer to layer, 8 maps of a voxel together, as tensor cores read them
(``znni.machine.packed_arrays``). In class float32, a number is a pair of two float16. Before a
layer stores its output it knows a bound on the numbers: the largest number of its input is known,
and so are the weights. The output's scale is chosen by that bound. So float16 neither overflows nor
loses digits that count, for numbers of 1e-20 to 1e22.
"""

from __future__ import annotations

from typing import TypeAlias

from znni.machine.machine import Device
from znni.primitives.gpu.common.hardware import AMPERE_NEEDED, chip_of
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR
from znni.primitives.gpu.packed.base import GpuPackedPass
from znni.primitives.gpu.packed.convolution import GpuPackedConvolution
from znni.primitives.gpu.packed.copies import GpuPackedConcatenation, GpuPackedUpsampling
from znni.primitives.gpu.packed.depthwise import GpuPackedDepthwise
from znni.primitives.gpu.packed.first_layer import GpuPackedFirstLayer
from znni.primitives.gpu.packed.last_layer import GpuPackedLastLayer
from znni.primitives.gpu.packed.normalization import GpuPackedNormalization
from znni.primitives.gpu.packed.pair import GpuPackedPair
from znni.primitives.gpu.packed.pointwise import (
    GpuPackedAddition,
    GpuPackedAffine,
    GpuPackedMaximum,
    GpuPackedMultiplication,
)
from znni.primitives.gpu.packed.pooling import GpuPackedPooling

NEEDS = AMPERE_NEEDED


Packed: TypeAlias = (
    GpuPackedConvolution
    | GpuPackedDepthwise
    | GpuPackedFirstLayer
    | GpuPackedLastLayer
    | GpuPackedPair
    | GpuPackedPass
)


def primitives(device: Device) -> tuple[Packed, ...]:
    """Return all in both formats, if the GPU's tensor cores are those of Ampere or later."""
    if chip_of(device) is None:
        return ()
    kinds = (
        GpuPackedConvolution,
        GpuPackedDepthwise,
        GpuPackedFirstLayer,
        GpuPackedLastLayer,
        GpuPackedPair,
        GpuPackedUpsampling,
        GpuPackedConcatenation,
        GpuPackedPooling,
        GpuPackedAddition,
        GpuPackedMultiplication,
        GpuPackedMaximum,
        GpuPackedAffine,
        GpuPackedNormalization,
    )
    return tuple(kind(device, numbers) for numbers in (FLOAT16, FLOAT16_PAIR) for kind in kinds)
