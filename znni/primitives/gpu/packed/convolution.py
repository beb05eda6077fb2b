"""Direct convolution on tensor cores, of packed values.

A transposed convolution is a dense one that has the maps of each phase of its stride
(``arrangement``), or several such (``phases``). As it stores, it puts the sums of each phase in
their places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.core.shapes import Shape5
from znni.machine.packed_arrays import GROUP, groups_for
from znni.network.layers import Conv, ConvTranspose, Operation, PackedLayer, SummedConv
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.primitive import Run, convolution_of, convolved_with_gaps
from znni.primitives.gpu.common.activation import has_source
from znni.primitives.gpu.common.hardware import chip_of, processors_of
from znni.primitives.gpu.direct_tensor.launch import Launcher
from znni.primitives.gpu.direct_tensor.strips import strips_for
from znni.primitives.gpu.direct_tensor.work import Packing, Pieces
from znni.primitives.gpu.packed.base import ShapedPackedPrimitive, into_output
from znni.primitives.gpu.packed.phases import (
    PhasedLauncher,
    PhasedWork,
    dense_by_phase,
    phases_of,
    weights_by_group,
)


@dataclass(frozen=True)
class GpuPackedConvolution(ShapedPackedPrimitive[Pieces | PhasedWork]):
    """Direct convolution on tensor cores, whose input or output is packed.

    As it stores, it may add to a packed value in the output's memory, or add up each map for a
    norm.
    Transposed convolutions have both packed.
    """

    family: ClassVar[str] = "gpu_packed_direct_tensor"
    version: ClassVar[int] = 7

    def work(self, layer: Operation, shape: Shape5) -> Pieces | PhasedWork | None:
        """Decline what ``GpuDirectTensor`` declines, and a packed softmax."""
        if not isinstance(layer, PackedLayer) or not (layer.reads or layer.writes):
            return None
        if layer.parts != self.numbers.parts or layer.norm or layer.leaves:
            return None
        conv, adds = convolution_of(layer.layer), isinstance(layer.layer, SummedConv)
        reads, writes = layer.reads, layer.writes
        if (adds and not (reads and writes)) or (layer.sums and (adds or not writes)):
            return None
        if isinstance(conv, ConvTranspose) and reads and writes and not layer.sums:
            return self._transposed(conv, shape)
        if not isinstance(conv, Conv) or conv.groups != 1 or conv.reach != conv.kernel:
            return None
        groups = groups_for(conv.in_features) if reads else 0
        return self._pieces(conv, shape, Packing(reads, writes, groups, adds, layer.sums))

    def _transposed(self, layer: ConvTranspose, shape: Shape5) -> Pieces | PhasedWork | None:
        """Return the work of a transposed convolution: phase by phase, if that saves products."""
        found = dense_by_phase(layer, shape)
        if found is None or layer.out_features % GROUP:
            return None
        packing = Packing(True, True, groups_for(layer.in_features), phases=found.phases)
        phases = phases_of(found)
        if not phases:
            return self._pieces(found.dense, shape, packing)
        of_phase = packing._replace(phases=found.phases._replace(z=1, y=1))
        pieces = []
        for phase in phases:
            size = phase.seen(found.sums_size).size
            made = self._pieces(phase.conv, Shape5.of(shape.n, shape.f, size), of_phase)
            if made is None:
                return None
            pieces.append(made)
        return PhasedWork(shape, found.out, found, phases, tuple(pieces))

    def _pieces(self, conv: Conv, shape: Shape5, packing: Packing) -> Pieces | None:
        """Return the work of a dense convolution."""
        if not has_source(conv) or (packing.writes and conv.activation == "softmax"):
            return None
        out, chip = convolved_with_gaps(conv, shape), chip_of(self.device)
        if out is None or chip is None:
            return None
        processors = processors_of(self.device, chip)
        exact = self.numbers.parts > 1
        strips = strips_for(conv, self.numbers, out.size, chip, out.n, processors, exact=exact)
        if not strips or any(len(strip.block.sums) > 1 for strip in strips):
            return None
        phases = packing.phases
        made = Shape5.of(out.n, out.f // phases.volume, out.size * phases)
        pieces = Pieces(shape, made, conv, strips, processors, packing)
        return pieces if pieces.is_countable else None

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare all that can be done once, with the weights of the dense convolution."""
        transposed = layer.layer if isinstance(layer, PackedLayer) else layer
        if isinstance(transposed, ConvTranspose) and (found := dense_by_phase(transposed, shape)):
            given = conv_weights(transposed, weights)
            weights = given if phases_of(found) else weights_by_group(found, given)
        return super().build(layer, shape, weights)

    def prepare(self, work: Pieces | PhasedWork, weights: ConvWeights | None) -> Run:
        """Compile or load the kernels; lay out the weights."""
        run: Launcher | PhasedLauncher
        if isinstance(work, PhasedWork):
            layer = work.found.layer
            run = PhasedLauncher(work, conv_weights(layer, weights))
        else:
            run = Launcher(work, conv_weights(work.conv, weights))
            if not work.packing.writes:
                return run
        return into_output(work.out, self.numbers.parts, run)
