"""Transposed convolutions of packed values, phase by phase of their stride along z and y.

Samples of the output at one phase are sums of few taps of the dense convolution (``arrangement``).
A kernel of 4 taps at stride 2 has 3 dense taps along each axis, of which each phase sees 2. So each
phase along z and y is a convolution by itself, without the taps that are zero for it. It stores
every few planes and rows. Phases along x stay together, because a sector of the output has voxels
of several phases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Box, Shape5, Vec3, offsets
from znni.machine.device_arena import new_device_output
from znni.machine.packed_arrays import GROUP, RECORD_BYTES, PackedArray, groups_for, packed_bytes
from znni.network.layers import Conv, ConvTranspose
from znni.network.weights import ConvWeights
from znni.primitives.gpu.arranged.arrangement import Arrangement, arrangement, taps_of_phase
from znni.primitives.gpu.common.base import Work
from znni.primitives.gpu.direct_tensor.launch import Launcher, bounds_of
from znni.primitives.gpu.direct_tensor.work import Pieces


class Phase(NamedTuple):
    """A phase along z and y, with all phases along x.

    Attributes:
        first: the first sample of the output, whose ``x`` is 0.
        taps: the taps of the dense convolution that it sees.
        conv: the convolution of these taps, with the maps of all phases along x.
    """

    first: Vec3
    taps: Box
    conv: Conv

    def seen(self, size: Vec3) -> Box:
        """Return the samples of the input for so many sums along each axis."""
        return Box(self.taps.start, self.taps.stop + size - 1)


@dataclass(frozen=True)
class PhasedWork(Work):
    """The work of a transposed convolution, phase by phase.

    Attributes:
        found: the layer as a dense convolution.
        phases: the phases along z and y.
        pieces: the work of each phase.
    """

    found: Arrangement
    phases: tuple[Phase, ...]
    pieces: tuple[Pieces, ...]
    writes_views: ClassVar[bool] = True

    @property
    def parts(self) -> int:
        """The parts of the packed numbers."""
        return self.pieces[0].block.numbers.parts

    @property
    def array_bytes(self) -> int:
        """Bytes of input and output."""
        return packed_bytes(self.shape, self.parts) + packed_bytes(self.out, self.parts)

    @property
    def bytes_moved(self) -> float:
        """Bytes to and from memory: each phase reads the input."""
        return sum(it.bytes_moved for it in self.pieces)

    @property
    def resident_bytes(self) -> int:
        """Bytes of the weights of all phases, and of the output's records."""
        records = RECORD_BYTES * groups_for(self.out.f)
        return sum(it.resident_bytes - records for it in self.pieces) + records

    @cached_property
    def flops(self) -> float:
        """Operations of all products of whole blocks."""
        return sum(it.flops for it in self.pieces)

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that these sustain, on tensor cores."""
        return self.flops / sum(it.flops / it.efficiency for it in self.pieces)


def dense_by_phase(layer: ConvTranspose, shape: Shape5) -> Arrangement | None:
    """Return a transposed convolution as a dense one with the maps of each phase."""
    found = arrangement(layer, shape)
    if found is None:
        return None
    dense = replace(found.dense, activation=layer.activation, slope=layer.slope)
    return replace(found, dense=dense)


def phases_of(found: Arrangement) -> tuple[Phase, ...]:
    """Return the phases along z and y; none if each sees all taps of the dense convolution."""
    layer, dense = found.layer, found.dense
    if not isinstance(layer, ConvTranspose):
        return ()
    phases = tuple(_phases(layer, dense))
    if all(phase.taps.size == dense.kernel for phase in phases):
        return ()
    return phases


def _phases(layer: ConvTranspose, dense: Conv) -> Iterator[Phase]:
    for first in offsets(layer.stride._replace(x=1)):
        taps = taps_of_phase(layer, first)
        start = taps.start.minimum(dense.kernel - 1)._replace(x=0)  # a tap of zeros, if it has none
        stop = taps.stop.maximum(start + 1)._replace(x=dense.kernel.x)
        maps = layer.out_features * layer.stride.x
        conv = replace(dense, out_features=maps, kernel=stop - start)
        yield Phase(first, Box(start, stop), conv)


def weights_by_group(found: Arrangement, given: ConvWeights) -> ConvWeights:
    """Return the weights of the dense convolution, whose maps are ordered by group and phase."""
    (dense,) = found.weights(given)
    return _by_group(dense, found.phases.volume)


def _by_group(dense: ConvWeights, phases: int) -> ConvWeights:
    """Return weights whose maps are ordered by group and phase, from those by phase and map."""

    def ordered(values: NDArray[Any]) -> NDArray[Any]:
        of_phase = values.reshape(phases, -1, GROUP, *values.shape[1:])
        return np.ascontiguousarray(of_phase.swapaxes(0, 1)).reshape(values.shape)

    return ConvWeights(ordered(dense.weight), ordered(dense.bias))


class PhasedLauncher:
    """Runs a transposed convolution of packed values phase by phase.

    Args:
        given: the layer's weights, which are laid out now and kept.
    """

    def __init__(self, work: PhasedWork, given: ConvWeights) -> None:
        self._work = work
        (dense,) = work.found.weights(given)
        bounds = bounds_of(work.found.layer.activation, dense)
        shape = *work.found.phases, -1, *dense.weight.shape[1:]
        weight, bias = dense.weight.reshape(shape), dense.bias.reshape(shape[:4])
        self._launchers = []
        for phase, pieces in zip(work.phases, work.pieces, strict=True):
            z, y, _ = phase.first
            taps = weight[z, y][..., *phase.taps.slices].reshape(pieces.conv.weight_shape)
            of_phase = ConvWeights(taps, bias[z, y].reshape(-1))
            ordered = _by_group(of_phase, work.found.phases.x)
            self._launchers.append(Launcher(pieces, ordered, bounds=bounds))

    def __call__(self, x: PackedArray) -> PackedArray:
        """Return the packed output (n, f', z, y, x) for a packed input (n, f, z, y, x)."""
        work = self._work
        y: PackedArray = new_device_output(work.out)
        step = work.found.phases
        for phase, launcher in zip(work.phases, self._launchers, strict=True):
            seen = x.within(phase.seen(work.found.sums_size))
            made = y.voxels[:, :, phase.first.z :: step.z, phase.first.y :: step.y]
            launcher.convolve(seen, x.records, y._replace(voxels=made))
        return y
