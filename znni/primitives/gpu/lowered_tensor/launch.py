"""Launching a convolution on tensor cores whose taps are summed last: source, and what runs it."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared, source_beside
from znni.machine.device_arena import new_device_output
from znni.network.layers import Activation
from znni.network.weights import ConvWeights
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.kernels import (
    common_code,
    definitions,
    products_source,
    strides_in_elements,
)
from znni.primitives.gpu.common.number_formats import BFLOAT16_PAIR
from znni.primitives.gpu.lowered_tensor.geometry import ThreadBlock, planes_for
from znni.primitives.gpu.lowered_tensor.weights import weights_by_unit
from znni.primitives.gpu.lowered_tensor.work import LoweredWork


def source(block: ThreadBlock, activation: Activation) -> str:
    """Return the CUDA source of ``convolve``."""
    numbers = block.numbers
    parts = (
        definitions(block.macros),
        definitions({"SOFTMAX": int(activation == "softmax")}),
        activation_source(activation),
        products_source(block.chip, block.columns, numbers, left_in_registers=True),
        f"constexpr int RIGHT = {2 * block.cycle};",
        common_code("bfloat16_pair.cuh") if numbers is BFLOAT16_PAIR else "",
        source_beside(__file__, f"left_{numbers.name}.cuh"),
        source_beside(__file__, "convolution.cu"),
    )
    return "\n".join(parts)


class Launcher:
    """Runs a layer.

    Args:
        work: the layer's work.
        weights: the layer's weights, which are laid out now and kept.
    """

    def __init__(self, work: LoweredWork, weights: ConvWeights) -> None:
        block = work.tiling.block
        self._tiling, self._out = work.tiling, work.out
        self._kernel = kernel_with_shared(
            source(block, work.conv.activation), "convolve", block.shared_bytes
        )
        self._weights = cupy().asarray(weights_by_unit(weights.weight, block))
        self._bias = cupy().asarray(weights.bias)
        processors = cupy().cuda.Device().attributes["MultiProcessorCount"]
        self._planes = planes_for(work.tiling, work.out, processors)

    def __call__(self, x: Any) -> Any:
        """Return the output (n, f', z, y, x) for an input (n, f, z, y, x)."""
        tiling, out, planes = self._tiling, self._out, self._planes
        y = new_device_output(out)
        tiles, segments = tiling.tiles(out.size), -(-out.z // planes)
        sizes = (tiling.y, tiling.x, *tiles, planes, segments)
        arguments = (
            x,
            *strides_in_elements(x),
            *map(np.int32, x.shape[3:]),
            y,
            *map(np.int32, out.size),
            self._weights,
            self._bias,
            *map(np.int32, sizes),
        )
        block = tiling.block
        self._kernel(
            (out.n * segments * tiles[0] * tiles[1],),
            (block.threads,),
            arguments,
            shared_mem=block.shared_bytes,
        )
        return y
