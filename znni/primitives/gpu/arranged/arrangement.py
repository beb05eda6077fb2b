"""The arithmetic that makes a convolution with gaps, or a transposed one, a dense convolution.

- **Stride.** Every stride-th sample makes a map of its own, for each shift. A kernel of 3 taps at
  stride 2 becomes one of 2 taps of twice as many maps, with a weight of zero.
- **Dilation.** Every dilation-th sample makes an item of a batch, for each first sample.
- **Groups.** Each group is a convolution by itself.
- **Transposed.** Samples of the output at the same phase of the stride are a map of their own, for
  each phase. Groups become one, with weights of zero between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from znni.core.shapes import ONE, Box, Shape5, Vec3, offsets
from znni.network.layers import Activation, Conv, ConvTranspose
from znni.network.weights import ConvWeights, Float32, in_one_group

# More groups would be as many calls.
MOST_GROUPS = 1024


@dataclass(frozen=True)
class Arrangement:
    """A layer as dense convolutions of rearranged samples.

    Attributes:
        shape: the shape of its input.
        out: the shape of its output.
        groups: the number of dense convolutions, each of some maps.
        dense: the dense convolution of one group.
        step: the samples of the input between those of an item or a shift.
        shifts: the first samples of which each makes maps of its own.
        items: the first samples of which each makes an item of its own.
        phases: the samples of the output, per axis, that are sums of different items or maps.
    """

    layer: Conv | ConvTranspose
    shape: Shape5
    out: Shape5
    groups: int
    dense: Conv
    step: Vec3
    shifts: Vec3
    items: Vec3
    phases: Vec3

    @property
    def gathers(self) -> bool:
        """True if samples of the input are rearranged."""
        return self.step != ONE

    @property
    def scatters(self) -> bool:
        """True if sums are put in their places afterwards, through the activation."""
        return self.dense.activation != self.layer.activation or not self.in_place

    @property
    def in_place(self) -> bool:
        """True if sums are made in their places."""
        return isinstance(self.layer, Conv) and self.phases == ONE and self.groups == 1

    @property
    def dense_shape(self) -> Shape5:
        """The shape of a dense convolution's input."""
        count = self.shape.n * self.items.volume
        taken = self.sums_size + self.dense.kernel - 1
        size = taken if self.gathers else self.shape.size
        return Shape5.of(count, self.dense.in_features, size)

    @property
    def sums_size(self) -> Vec3:
        """The extents of a dense convolution's output."""
        return self.out.size.ceil_div(self.phases)

    @property
    def dense_out(self) -> Shape5:
        """The shape of a dense convolution's output."""
        return Shape5.of(self.dense_shape.n, self.dense.out_features, self.sums_size)

    @property
    def gathered(self) -> int:
        """The bytes of the rearranged input."""
        return self.groups * self.dense_shape.nbytes if self.gathers else 0

    @property
    def scattered(self) -> int:
        """The bytes of the sums, if they are not made in their places."""
        return self.groups * self.dense_out.nbytes if self.scatters else 0

    def weights(self, given: ConvWeights) -> list[ConvWeights]:
        """Return the weights of the dense convolution of each group."""
        if isinstance(self.layer, ConvTranspose):
            return [self._transposed_weights(self.layer, given)]
        parts = zip(
            np.split(given.weight, self.groups), np.split(given.bias, self.groups), strict=True
        )
        return [ConvWeights(self._shifted(weight), bias) for weight, bias in parts]

    def _shifted(self, weight: Float32) -> Float32:
        """Return weights (f', shift and f, z, y, x) of a group, from its own (f', f, z, y, x)."""
        maps, features = weight.shape[:2]
        made = np.zeros((maps, self.shifts.volume, features, *self.dense.kernel), np.float32)
        for index, shift in enumerate(offsets(self.shifts)):
            z, y, x = (
                slice(first, None, by) for first, by in zip(shift, self.layer.stride, strict=True)
            )
            taps = weight[:, :, z, y, x]
            size = taps.shape[2:]
            made[:, index, :, : size[0], : size[1], : size[2]] = taps
        return made.reshape(maps, -1, *self.dense.kernel)

    def _transposed_weights(self, layer: ConvTranspose, given: ConvWeights) -> ConvWeights:
        """Return weights (phase and f', f, z, y, x) from those of a transposed convolution."""
        weight = in_one_group(given.weight, layer.groups)
        features, maps = weight.shape[:2]
        made = np.zeros((self.phases.volume, maps, features, *self.dense.kernel), np.float32)
        for index, phase in enumerate(offsets(self.phases)):
            taps = taps_of_phase(layer, phase)
            for at in (taps.start + it for it in offsets(taps.size)):
                tap = (layer.context.before - at) * layer.stride + phase + layer.padding
                made[index, :, :, *at] = weight[:, :, *tap].T
        return ConvWeights(
            made.reshape(-1, features, *self.dense.kernel), np.tile(given.bias, self.phases.volume)
        )


def taps_of_phase(layer: ConvTranspose, phase: Vec3) -> Box:
    """Return the taps of the dense convolution that are not zero for a phase of a transposed one.

    The box is empty if no sample of the input adds to this phase.
    """
    last = layer.context.before * layer.stride + phase + layer.padding
    start = (last - layer.kernel + 1).ceil_div(layer.stride).maximum(0)
    stop = (last // layer.stride + 1).minimum(layer.context.total + 1)
    return Box(start, stop.maximum(start))


def arrangement(layer: object, shape: Shape5) -> Arrangement | None:
    """Return a layer as dense convolutions; None if it is no such layer, or has none."""
    if isinstance(layer, ConvTranspose):
        found = _of_transposed(layer, shape)
    elif isinstance(layer, Conv):
        found = _of_convolution(layer, shape)
    else:
        return None
    if found and found.scatters and layer.activation == "softmax":
        return None
    return found


def with_activation(found: Arrangement, activation: Activation) -> Arrangement:
    """Return the arrangement whose dense convolution applies an activation."""
    return replace(found, dense=replace(found.dense, activation=activation))


def _of_transposed(layer: ConvTranspose, shape: Shape5) -> Arrangement | None:
    size = layer.local_size(shape.size)
    if layer != layer.local or layer.in_features != shape.f or min(size) < 1:
        return None
    dense = Conv(
        layer.name, layer.in_features, layer.out_features * layer.stride.volume,
        layer.context.total + 1, "identity",
    )  # fmt: skip
    out = Shape5.of(shape.n, layer.out_features, size)
    return Arrangement(layer, shape, out, 1, dense, ONE, ONE, ONE, layer.stride)


def _of_convolution(layer: Conv, shape: Shape5) -> Arrangement | None:
    if layer != layer.local or layer.in_features != shape.f or layer.groups > MOST_GROUPS:
        return None
    if not layer.reach.within(shape.size):
        return None
    axes = tuple(zip(layer.kernel, layer.stride, layer.dilation, strict=True))
    # A single tap has no neighbours to be apart from.
    dilation = Vec3(*(1 if kernel == 1 else apart for kernel, _, apart in axes))
    if any(stride > 1 and apart > 1 for stride, apart in zip(layer.stride, dilation, strict=True)):
        return None
    shifts = layer.stride.minimum(layer.kernel)
    in_features = layer.in_features // layer.groups * shifts.volume
    simple = layer.groups == 1 and dilation == ONE
    dense = Conv(
        layer.name, in_features, layer.out_features // layer.groups,
        layer.kernel.ceil_div(layer.stride), layer.activation if simple else "identity",
        slope=layer.slope,
    )  # fmt: skip
    out = Shape5.of(shape.n, layer.out_features, layer.local_size(shape.size))
    step = layer.stride * dilation
    return Arrangement(layer, shape, out, layer.groups, dense, step, shifts, dilation, dilation)
