"""Padding by a network's own values on a GPU: only samples beyond the volume are computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from znni.core.shapes import Shape5
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.machine import Device
from znni.network.layers import Operation, PadLayer
from znni.network.padding import Beyond
from znni.network.weights import ConvWeights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applied_to, edge_filled
from znni.primitives.gpu.common.kernels import common_code, compiler_options
from znni.primitives.gpu.common.voxels import cost_by_voxel, countable, seeing_edges


@dataclass(frozen=True)
class GpuEdgeFilling:
    """Samples beyond the volume, on a GPU. The output may be the memory of the input."""

    device: Device
    name: str = "gpu_edge_filling"
    accuracy: float = 0.0
    version = 1

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the input's shape for the padding of a block."""
        return edge_filled(layer, shape) if countable(shape) else None

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: one pass over each array, unless both are the same memory."""
        _, out = applied_to(PadLayer, self, layer, shape)
        return cost_by_voxel(shape, out, flops=1)

    def build(self, layer: Operation, shape: Shape5, _weights: ConvWeights | None) -> Run:
        """Compile the kernel."""
        pad, out = applied_to(PadLayer, self, layer, shape)
        kernel = compiled(source(), options(pad)).get_function("fill_edges")
        return seeing_edges(kernel, shape, out)


def source() -> str:
    """Return the CUDA source of ``fill_edges``, compiled with ``options``."""
    return common_code("voxels.cuh") + source_beside(__file__, "edge_filling.cu")


def options(layer: PadLayer) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    modes = {name.upper(): index for index, name in enumerate(get_args(Beyond))}
    return compiler_options(modes | {"MODE": modes[layer.mode.upper()]})


def primitives(device: Device) -> tuple[GpuEdgeFilling, ...]:
    """Return the padding."""
    return (GpuEdgeFilling(device),)
