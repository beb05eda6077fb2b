"""One layer's convolution whose taps are summed last, ready to run."""

from __future__ import annotations

from typing import Any

import numpy as np

from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import kernel_with_shared, source_beside
from znni.machine.device_arena import new_device_output
from znni.network.network import Activation
from znni.network.weights import ConvWeights
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.source import definitions, multiply_add_source
from znni.primitives.gpu.common.strides import strides_in_elements
from znni.primitives.gpu.lowered_tensor.geometry import Block, planes_for
from znni.primitives.gpu.lowered_tensor.weights import weights_by_unit
from znni.primitives.gpu.lowered_tensor.work import Work


def source(block: Block, activation: Activation) -> str:
    """CUDA C++ of ``convolve``."""
    transposed = None if block.numbers.instruction == "tf32" else "0"
    left = tuple(f"unsigned a{i}" for i in range(4))
    return "\n".join(
        (
            definitions(block.macros),
            definitions({"SOFTMAX": int(activation == "softmax")}),
            activation_source(activation),
            multiply_add_source(block.columns, block.numbers.instruction, left, transposed),
            f"constexpr int RIGHT = {2 * block.cycle};",
            source_beside(__file__, f"{block.numbers.name}.cuh"),
            source_beside(__file__, "convolution.cu"),
        )
    )


class LoweredConvolution:
    """Runs a layer.

    Args:
        work: the layer's.
        weights: of the layer; they are laid out now and kept.
    """

    def __init__(self, work: Work, weights: ConvWeights) -> None:
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
        """The output (n, f', z, y, x) for an input (n, f, z, y, x)."""
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
