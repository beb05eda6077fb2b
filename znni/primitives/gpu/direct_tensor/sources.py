"""CUDA C++ of the convolution on tensor cores, and of its image."""

from __future__ import annotations

from znni.machine.cuda_kernels import source_beside
from znni.network.network import Activation
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.source import definitions, multiply_add_source
from znni.primitives.gpu.direct_tensor.geometry import Block
from znni.primitives.gpu.direct_tensor.number_formats import MOST_EXPONENT, NumberFormat


def image_source(numbers: NumberFormat) -> str:
    """Of ``lay_out``."""
    return "\n".join(
        (
            definitions({"PARTS": numbers.parts}),
            _ranges(numbers),
            source_beside(__file__, "image.cu"),
        )
    )


def convolution_source(block: Block, activation: Activation) -> str:
    """Of ``convolve``."""
    values = {
        "KERNEL_Z": block.kernel.z,
        "KERNEL_Y": block.kernel.y,
        "KERNEL_X": block.kernel.x,
        "CHUNKS": block.chunks,
        "COLUMNS": block.columns,
        "PARTS": block.numbers.parts,
        "TILES_Z": block.subtile.z,
        "TILES_Y": block.subtile.y,
        "TILES_X": block.subtile.x,
        "TAPS_Z": block.taps.z,
        "TAPS_Y": block.taps.y,
        "TAPS_X": block.taps.x,
        "STAGES": block.stages,
        "KEEP_WEIGHTS": int(block.keeps_weights),
    }
    return "\n".join(
        (
            definitions(values),
            _ranges(block.numbers),
            activation_source(activation),
            multiply_add_source(block.columns, "f16", ("unsigned long long a",), "0, 0"),
            source_beside(__file__, "convolution.cu"),
        )
    )


def _ranges(numbers: NumberFormat) -> str:
    values = definitions({"LEAST_EXPONENT": numbers.least_exponent, "MOST_EXPONENT": MOST_EXPONENT})
    return values + source_beside(__file__, "ranges.cuh")
