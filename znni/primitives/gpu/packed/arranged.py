"""Strided convolutions of packed values, by dense ones of rearranged voxels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from znni.core.shapes import Shape5, Vec3
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.packed_arrays import GROUP, RECORD_BYTES, PackedArray, packed_bytes, voxel_shape
from znni.network.layers import Conv, Layer, Operation, PackedLayer
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.packed import TOGETHER
from znni.plans.primitive import Run, applying
from znni.primitives.gpu.arranged.arrangement import ONE, Arrangement, arrangement
from znni.primitives.gpu.common.activation import has_source
from znni.primitives.gpu.common.voxels import countable, launch
from znni.primitives.gpu.direct_tensor.launch import Launcher
from znni.primitives.gpu.packed.base import (
    GpuPackedPass,
    common_source,
    groups_of,
    made_into,
    of_axes,
    strided,
)
from znni.primitives.gpu.packed.convolution import GpuPackedConvolution


@dataclass(frozen=True)
class GpuPackedArranged(GpuPackedPass):
    """Strided convolutions of packed values."""

    kind: ClassVar[type[Layer]] = Conv
    family: ClassVar[str] = "arranged_gpu_packed_direct_tensor"

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the output's shape of a layer that the dense convolution does not compute."""
        found = self._arranged(layer, shape)
        return None if found is None else found.out

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: of the dense convolution, and of the copies before it."""
        found = applying(self._arranged(layer, shape), self, layer, shape)
        dense = self._dense.cost(_packed(found.dense), found.dense_shape)
        copied = packed_bytes(found.dense_shape)
        given, made = packed_bytes(found.shape), packed_bytes(found.out)
        records = RECORD_BYTES * found.dense.in_features // GROUP
        moved = copied + given
        return replace(
            dense,
            bytes_moved=dense.bytes_moved + moved,
            memory=Memory.beside(given + made, copied + records, dense.memory.resident),
        )

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernels, and prepare the dense convolution."""
        found = applying(self._arranged(layer, shape), self, layer, shape)
        work = applying(
            self._dense.work(_packed(found.dense), found.dense_shape), self, layer, shape
        )
        (of_dense,) = found.weights(conv_weights(found.layer, weights))
        dense = Launcher(work, of_dense)
        gather = compiled(source(), options(found.step, found.shifts)).get_function("gather")

        def run(x: PackedArray) -> Any:
            y, made = new_device_output(found.out), _workspace(found.dense_shape)
            numbers = *found.shape.size, x.shape[1] // GROUP
            launch(
                gather,
                groups_of(found.dense_shape),
                *strided(x),
                *map(np.int32, numbers),
                *strided(made),
            )
            dense(made)
            return y

        def into(x: PackedArray) -> Any:
            return made_into(found.out, lambda: run(x))

        return into

    @property
    def _dense(self) -> GpuPackedConvolution:
        """The primitive of the dense convolution."""
        return GpuPackedConvolution(self.device)

    def _arranged(self, layer: Operation, shape: Shape5) -> Arrangement | None:
        """Return a packed layer as one dense convolution; None if it is none.

        Each shift has whole chunks of maps, because each value has one scale.
        """
        if not isinstance(layer, PackedLayer) or not layer.reads or not layer.writes:
            return None
        if layer.sums or not isinstance(layer.layer, Conv):
            return None
        found = arrangement(layer.layer, shape)
        if found is None or found.groups != 1 or found.items != ONE:
            return None
        whole = found.gathers and found.shape.f % TOGETHER == 0
        if not whole or not has_source(found.dense) or found.layer.activation == "softmax":
            return None
        if not all(map(countable, (found.out, found.dense_shape, found.dense_out))):
            return None
        made = self._dense.out_shape(_packed(found.dense), found.dense_shape)
        return found if made == found.dense_out else None


def _packed(dense: Conv) -> PackedLayer:
    return PackedLayer(dense, reads=True, writes=True)


def _workspace(shape: Shape5) -> PackedArray:
    """Return an uninitialised packed array that lives no longer than the call."""
    voxels = device_workspace(voxel_shape(shape), np.float16)
    return PackedArray(voxels, device_workspace((shape.f // GROUP, 2), np.uint32))


def source() -> str:
    """Return the CUDA source of ``gather``, compiled with ``options``."""
    return common_source() + source_beside(__file__, "arrange.cu")


def options(step: Vec3, shifts: Vec3) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return *of_axes("STEP", step), *of_axes("SHIFTS", shifts)
