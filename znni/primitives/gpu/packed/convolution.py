"""Direct convolution on tensor cores, of packed values.

A transposed convolution is a dense one that has the maps of each phase of its stride
(``arrangement``). As it stores, it puts the sums of each phase in their places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Shape5
from znni.machine.packed_arrays import GROUP, groups_for
from znni.network.layers import Conv, ConvTranspose, Operation, PackedLayer, SummedConv
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.primitive import Run, convolution_of, convolved_with_gaps
from znni.primitives.gpu.arranged.arrangement import (
    ONE,
    Arrangement,
    arrangement,
    with_activation,
)
from znni.primitives.gpu.common.activation import has_source
from znni.primitives.gpu.common.base import ShapedPrimitive
from znni.primitives.gpu.common.hardware import chip_of, processors_of
from znni.primitives.gpu.common.number_formats import FLOAT16, TensorFormat
from znni.primitives.gpu.direct_tensor.geometry import strips_for
from znni.primitives.gpu.direct_tensor.launch import Launcher
from znni.primitives.gpu.direct_tensor.work import Packing, Pieces
from znni.primitives.gpu.packed.base import made_into


@dataclass(frozen=True)
class GpuPackedConvolution(ShapedPrimitive[Pieces]):
    """Direct convolution on tensor cores, whose input or output is packed.

    As it stores, it may add to a packed value in the output's memory, or add up each map for a
    norm.
    Transposed convolutions have both packed.
    """

    numbers: TensorFormat = FLOAT16
    family: ClassVar[str] = "gpu_packed_direct_tensor"
    version: ClassVar[int] = 3

    @property
    def packed_parts(self) -> int:
        """The parts of the packed numbers."""
        return self.numbers.parts

    def work(self, layer: Operation, shape: Shape5) -> Pieces | None:
        """Decline what ``GpuDirectTensor`` declines, and a packed softmax."""
        if not isinstance(layer, PackedLayer) or not (layer.reads or layer.writes):
            return None
        if layer.parts != self.numbers.parts or layer.norm or layer.leaves:
            return None
        conv, adds = convolution_of(layer.layer), isinstance(layer.layer, SummedConv)
        reads, writes, phases = layer.reads, layer.writes, ONE
        if isinstance(conv, ConvTranspose) and reads and writes and not layer.sums:
            found = _by_phases(conv, shape)
            if found is None or conv.out_features % GROUP:
                return None
            conv, phases = found.dense, found.phases
        if not isinstance(conv, Conv) or not has_source(conv):
            return None
        if (adds and not (reads and writes)) or (layer.sums and (adds or not writes)):
            return None
        if writes and conv.activation == "softmax":
            return None
        if conv.groups != 1 or conv.reach != conv.kernel:
            return None
        out, chip = convolved_with_gaps(conv, shape), chip_of(self.device)
        if out is None or chip is None or (layer.sums and out.n > 1):
            return None
        processors = processors_of(self.device, chip)
        exact = self.numbers.parts > 1
        strips = strips_for(conv, self.numbers, out.size, chip, out.n, processors, exact=exact)
        if not strips or any(len(strip.block.sums) > 1 for strip in strips):
            return None
        groups = groups_for(conv.in_features) if reads else 0
        packing = Packing(reads, writes, groups, adds, layer.sums, phases)
        made = Shape5.of(out.n, out.f // phases.volume, out.size * phases)
        pieces = Pieces(shape, made, conv, strips, processors, packing)
        return pieces if pieces.is_countable else None

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare all that can be done once, with the weights of the dense convolution."""
        transposed = layer.layer if isinstance(layer, PackedLayer) else layer
        if isinstance(transposed, ConvTranspose) and (found := _by_phases(transposed, shape)):
            weights = _by_groups(found, conv_weights(transposed, weights))
        return super().build(layer, shape, weights)

    def prepare(self, work: Pieces, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels; lay out the weights."""
        run = Launcher(work, conv_weights(work.conv, weights))
        if not work.packing.writes:
            return run

        def into(*inputs: Any) -> Any:
            return made_into(work.out, self.numbers.parts, lambda: run(*inputs))

        return into


def _by_phases(layer: ConvTranspose, shape: Shape5) -> Arrangement | None:
    """Return a transposed convolution as a dense one with the maps of each phase."""
    found = arrangement(layer, shape)
    if found is None:
        return None
    found = with_activation(found, layer.activation)
    return replace(found, dense=replace(found.dense, slope=layer.slope))


def _by_groups(found: Arrangement, given: ConvWeights) -> ConvWeights:
    """Return the weights of the dense convolution, whose maps are ordered by group and phase."""
    (dense,) = found.weights(given)

    def ordered(values: NDArray[Any]) -> NDArray[Any]:
        of_phase = values.reshape(found.phases.volume, -1, GROUP, *values.shape[1:])
        return np.ascontiguousarray(of_phase.swapaxes(0, 1)).reshape(values.shape)

    return ConvWeights(ordered(dense.weight), ordered(dense.bias))
