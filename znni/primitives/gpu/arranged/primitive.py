"""Convolutions with gaps, and transposed ones, by the GPU's dense convolutions.

Samples are rearranged so that a dense convolution remains (``arrangement``). Its primitive then
runs as on any other layer. Activations that the primitive does not know are applied when the sums
are put in their places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from znni.core.shapes import ONE, Shape5
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.cuda_kernels import compiled, source_beside
from znni.machine.device_arena import device_workspace, new_device_output
from znni.machine.machine import Device
from znni.network.layers import Activation, ConvTranspose, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost, Memory
from znni.plans.primitive import Primitive, Run, applying
from znni.primitives.gpu.arranged.arrangement import Arrangement, arrangement, with_activation
from znni.primitives.gpu.common.activation import has_source, sloped_activation_source
from znni.primitives.gpu.common.hardware import AMPERE_NEEDED
from znni.primitives.gpu.common.kernels import common_code, compiler_options, of_axes
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.common.voxels import countable, launch, strided
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
        arranged = self._arranged(layer, shape)
        return None if arranged is None else arranged.out

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the cost: of the dense convolutions, and of the passes around them."""
        arranged = applying(self._arranged(layer, shape), self, layer, shape)
        base = self.base.cost(arranged.dense, arranged.dense_shape)
        slopes = FLOAT_BYTES * arranged.out.f if arranged.scatters else 0
        gathered = 0 if self._base_gathers(arranged) else arranged.gathered
        memory = Memory.beside(
            shape.nbytes + arranged.out.nbytes,
            gathered + arranged.scattered + base.memory.workspace,
            arranged.groups * base.memory.resident + slopes,
        )
        gathers = shape.nbytes + gathered if gathered else 0
        scatters = arranged.scattered + arranged.out.nbytes if arranged.scatters else 0
        return replace(
            base,
            flops=arranged.groups * base.flops,
            bytes_moved=arranged.groups * base.bytes_moved + gathers + scatters,
            memory=memory,
            writes_views=base.writes_views or arranged.scatters,
        )

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernels, and prepare the dense convolutions."""
        arranged = applying(self._arranged(layer, shape), self, layer, shape)
        given = conv_weights(arranged.layer, weights)
        bases = [self._dense(arranged, part) for part in arranged.weights(given)]
        slope = arranged.layer.slope if given.slope is None else given.slope
        gather = (
            _Gather(arranged) if arranged.gathers and not self._base_gathers(arranged) else None
        )
        scatter = _Scatter(arranged, slope) if arranged.scatters else None
        maps = arranged.shape.f // arranged.groups

        def run(x: Any) -> Any:
            y = new_device_output(arranged.out) if scatter else None
            groups = [x[:, first : first + maps] for first in range(0, len(bases) * maps, maps)]
            if gather:
                gathered = device_workspace((arranged.groups, *arranged.dense_shape), np.float32)
                gather(x, gathered)
                groups = list(gathered)
            if scatter is None:
                return bases[0](groups[0])
            sums = device_workspace((arranged.groups, *arranged.dense_out), np.float32)
            for base, some, of_group in zip(bases, groups, sums, strict=True):
                with output_into(of_group):
                    base(some)
            scatter(sums, y)
            return y

        return run

    def _base_gathers(self, arranged: Arrangement) -> bool:
        """Return whether the dense convolution gathers its image itself: at strides alone."""
        return (
            isinstance(self.base, GpuDirectTensor)
            and arranged.gathers
            and arranged.groups == 1
            and arranged.items == ONE
            and arranged.shape.f % GROUP == 0
        )

    def _dense(self, arranged: Arrangement, weights: ConvWeights) -> Run:
        """Build the dense convolution of a group."""
        if isinstance(self.base, GpuDirectTensor) and self._base_gathers(arranged):
            gathering = Gathering(arranged.step, arranged.shifts)
            return self.base.build_gathering(
                arranged.dense, arranged.dense_shape, weights, gathering
            )
        return self.base.build(arranged.dense, arranged.dense_shape, weights)

    def _arranged(self, layer: Operation, shape: Shape5) -> Arrangement | None:
        """Return the layer as dense convolutions, if the base computes these but not itself."""
        arranged = arrangement(layer, shape)
        if arranged is None:
            return None
        if not has_source(arranged.dense):
            arranged = with_activation(arranged, "identity")
            if arranged.layer.activation == "softmax":
                return None
        if not arranged.gathers and not arranged.scatters:
            return None
        counted = arranged.out, arranged.shape, arranged.dense_shape, arranged.dense_out
        if not all(map(countable, counted)):
            return None
        made = self.base.out_shape(arranged.dense, arranged.dense_shape)
        return arranged if made == arranged.dense_out else None


class _Gather:
    """The kernel that rearranges an input."""

    def __init__(self, arranged: Arrangement) -> None:
        self._arrangement = arranged
        kernel_source = source("identity")
        self._kernel = compiled(kernel_source, steps(arranged.step)).get_function("gather")

    def __call__(self, x: Any, gathered: Any) -> None:
        arranged, shape = self._arrangement, self._arrangement.dense_shape
        numbers = (
            arranged.dense.in_features // arranged.shifts.volume,
            arranged.shape.n,
            *arranged.items,
            *arranged.shifts[1:],
        )
        launch(
            self._kernel,
            shape._replace(n=arranged.groups * shape.n),
            *strided(x),
            *map(np.int32, arranged.shape.size),
            gathered,
            *map(np.int32, numbers),
        )


class _Scatter:
    """The kernel that puts sums in their places."""

    def __init__(self, arranged: Arrangement, slope: Any) -> None:
        self._arrangement = arranged
        rest: Activation = arranged.layer.activation
        if arranged.dense.activation == arranged.layer.activation:
            rest = "identity"
        self._kernel = compiled(source(rest), steps(arranged.phases)).get_function("scatter")
        self._slopes = cupy().asarray(np.full(arranged.out.f, slope, np.float32))

    def __call__(self, sums: Any, y: Any) -> None:
        arranged, made = self._arrangement, self._arrangement.dense_out
        of_item = made.f * made.size.volume
        phases = arranged.phases.volume
        if isinstance(arranged.layer, ConvTranspose):
            maps, of_image, of_phase = arranged.out.f, of_item, of_item // phases
        else:
            maps, of_image, of_phase = made.f, phases * of_item, of_item
        launch(
            self._kernel,
            arranged.out,
            sums,
            *map(np.int64, (made.elements, of_image, of_phase)),
            *map(np.int32, (*made.size, maps)),
            self._slopes,
            *strided(y),
        )


def source(activation: Activation) -> str:
    """Return the CUDA source of ``gather`` and ``scatter``, compiled with ``steps``."""
    kernels = source_beside(__file__, "arrange.cu")
    return common_code("voxels.cuh") + sloped_activation_source(activation) + kernels


def steps(step: Any) -> tuple[str, ...]:
    """Return options of the compiler, which define the source's macros."""
    return compiler_options(of_axes("STEP", step))


# The GPUs that have these primitives.
NEEDS = AMPERE_NEEDED


def primitives(device: Device) -> tuple[Arranged, ...]:
    """Return one for each of the GPU's direct convolutions."""
    bases: tuple[Primitive, ...] = (*direct.primitives(device), *direct_tensor.primitives(device))
    return tuple(Arranged(base) for base in bases)
