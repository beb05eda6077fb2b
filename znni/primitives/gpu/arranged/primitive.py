"""Convolutions with gaps, and transposed ones, by the GPU's dense convolutions.

Samples are rearranged so that a dense convolution remains (``arrangement``). Its primitive then
runs as on any other layer. Activations that the primitive does not know are applied when the sums
are put in their places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from znni.core.shapes import Shape5
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.machine import Device
from znni.network.layers import Activation, ConvTranspose, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Primitive, Run, applying
from znni.primitives.gpu.arranged.arrangement import (
    ONE,
    Arrangement,
    arrangement,
    with_activation,
)
from znni.primitives.gpu.common.activation import has_source, sloped_activation_source
from znni.primitives.gpu.common.hardware import AMPERE_NEEDED
from znni.primitives.gpu.common.kernels import compiler_options, of_axes
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.common.voxels import countable, launch, strided, voxels_source
from znni.primitives.gpu.direct import primitive as direct
from znni.primitives.gpu.direct_tensor import primitive as direct_tensor
from znni.primitives.gpu.direct_tensor.geometry import GROUP
from znni.primitives.gpu.direct_tensor.launch import Gathering
from znni.primitives.gpu.direct_tensor.primitive import GpuDirectTensor


@dataclass(frozen=True)
class Arranged:
    """A layer by a dense convolution of rearranged samples.

    Attributes:
        base: the primitive of the dense convolution.
    """

    base: Primitive

    @property
    def name(self) -> str:
        """The name in the catalogue."""
        return f"arranged_{self.base.name}"

    @property
    def device(self) -> Device:
        """The GPU."""
        return self.base.device

    @property
    def accuracy(self) -> float:
        """The relative error that it promises: that of the dense convolution."""
        return self.base.accuracy

    @property
    def version(self) -> int:
        """The version of the dense convolution's primitive."""
        return self.base.version

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the shape of the output; None if the base computes the layer itself."""
        found = self._arranged(layer, shape)
        return None if found is None else found.out

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: of the dense convolutions, and of the passes around them."""
        found = applying(self._arranged(layer, shape), self, layer, shape)
        base = self.base.cost(found.dense, found.dense_shape)
        slopes = FLOAT_BYTES * found.out.f if found.scatters else 0
        gathered = 0 if self._base_gathers(found) else found.gathered
        memory = Memory.beside(
            shape.nbytes + found.out.nbytes,
            gathered + found.scattered + base.memory.workspace,
            found.groups * base.memory.resident + slopes,
        )
        gathers = shape.nbytes + gathered if gathered else 0
        scatters = found.scattered + found.out.nbytes if found.scatters else 0
        return replace(
            base,
            flops=found.groups * base.flops,
            bytes_moved=found.groups * base.bytes_moved + gathers + scatters,
            memory=memory,
            writes_views=base.writes_views or found.scatters,
        )

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernels, and prepare the dense convolutions."""
        found = applying(self._arranged(layer, shape), self, layer, shape)
        given = conv_weights(found.layer, weights)
        bases = [self._dense(found, part) for part in found.weights(given)]
        slope = found.layer.slope if given.slope is None else given.slope
        gather = _Gather(found) if found.gathers and not self._base_gathers(found) else None
        scatter = _Scatter(found, slope) if found.scatters else None
        maps = found.shape.f // found.groups

        def run(x: Any) -> Any:
            y = new_device_output(found.out) if scatter else None
            groups = [x[:, first : first + maps] for first in range(0, len(bases) * maps, maps)]
            if gather:
                gathered = device_workspace((found.groups, *found.dense_shape), np.float32)
                gather(x, gathered)
                groups = list(gathered)
            if scatter is None:
                return bases[0](groups[0])
            sums = device_workspace((found.groups, *found.dense_out), np.float32)
            for base, some, of_group in zip(bases, groups, sums, strict=True):
                with output_into(of_group):
                    base(some)
            scatter(sums, y)
            return y

        return run

    def _base_gathers(self, found: Arrangement) -> bool:
        """Return whether the dense convolution gathers its image itself: at strides alone."""
        return (
            isinstance(self.base, GpuDirectTensor)
            and found.gathers
            and found.groups == 1
            and found.items == ONE
            and found.shape.f % GROUP == 0
        )

    def _dense(self, found: Arrangement, weights: ConvWeights) -> Run:
        """Build the dense convolution of a group."""
        if isinstance(self.base, GpuDirectTensor) and self._base_gathers(found):
            gathering = Gathering(found.step, found.shifts)
            return self.base.build_gathering(found.dense, found.dense_shape, weights, gathering)
        return self.base.build(found.dense, found.dense_shape, weights)

    def _arranged(self, layer: Operation, shape: Shape5) -> Arrangement | None:
        """Return the layer as dense convolutions, if the base computes these but not itself."""
        found = arrangement(layer, shape)
        if found is None:
            return None
        if not has_source(found.dense):
            found = with_activation(found, "identity")
            if found.layer.activation == "softmax":
                return None
        if not found.gathers and not found.scatters:
            return None
        counted = found.out, found.shape, found.dense_shape, found.dense_out
        if not all(map(countable, counted)):
            return None
        made = self.base.out_shape(found.dense, found.dense_shape)
        return found if made == found.dense_out else None


class _Gather:
    """The kernel that rearranges an input."""

    def __init__(self, found: Arrangement) -> None:
        self._found = found
        kernel_source = source("identity")
        self._kernel = compiled(kernel_source, steps(found.step)).get_function("gather")

    def __call__(self, x: Any, gathered: Any) -> None:
        found, shape = self._found, self._found.dense_shape
        numbers = (
            found.dense.in_features // found.shifts.volume,
            found.shape.n,
            *found.items,
            *found.shifts[1:],
        )
        launch(
            self._kernel,
            shape._replace(n=found.groups * shape.n),
            *strided(x),
            *map(np.int32, found.shape.size),
            gathered,
            *map(np.int32, numbers),
        )


class _Scatter:
    """The kernel that puts sums in their places."""

    def __init__(self, found: Arrangement, slope: Any) -> None:
        self._found = found
        rest: Activation = found.layer.activation
        if found.dense.activation == found.layer.activation:
            rest = "identity"
        self._kernel = compiled(source(rest), steps(found.phases)).get_function("scatter")
        self._slopes = cupy().asarray(np.full(found.out.f, slope, np.float32))

    def __call__(self, sums: Any, y: Any) -> None:
        found, made = self._found, self._found.dense_out
        of_item = made.f * made.size.volume
        phases = found.phases.volume
        if isinstance(found.layer, ConvTranspose):
            maps, of_image, of_phase = found.out.f, of_item, of_item // phases
        else:
            maps, of_image, of_phase = made.f, phases * of_item, of_item
        launch(
            self._kernel,
            found.out,
            sums,
            *map(np.int64, (made.elements, of_image, of_phase)),
            *map(np.int32, (*made.size, maps)),
            self._slopes,
            *strided(y),
        )


def source(activation: Activation) -> str:
    """Return the CUDA source of ``gather`` and ``scatter``, compiled with ``steps``."""
    kernels = source_beside(__file__, "arrange.cu")
    return voxels_source() + sloped_activation_source(activation) + kernels


def steps(step: Any) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return compiler_options(of_axes("STEP", step))


# The GPUs that have these primitives.
NEEDS = AMPERE_NEEDED


def primitives(device: Device) -> tuple[Arranged, ...]:
    """Return one for each of the GPU's direct convolutions."""
    bases: tuple[Primitive, ...] = (*direct.primitives(device), *direct_tensor.primitives(device))
    return tuple(Arranged(base) for base in bases)
