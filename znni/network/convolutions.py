"""Convolutions, and transposed convolutions, as layers of a network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from znni.core.errors import InvalidInput
from znni.core.shapes import ONE, ZERO, Box, Vec3
from znni.core.text import counted
from znni.network.activations import LEAKY_SLOPE, Activation, check_activation, has_slopes
from znni.network.layer_checks import LayerBase, check_count, check_extents
from znni.network.layer_geometry import NO_PADDING, Padding, SlidBox


class _Kernels(LayerBase):
    """The weights of a convolution or a transposed one, and checks of their numbers."""

    name: str
    in_features: int
    out_features: int
    kernel: Vec3
    activation: Activation
    stride: Vec3
    groups: int

    def __post_init__(self) -> None:
        where = f"layer {self.name}"
        for what in ("in_features", "out_features", "groups"):
            check_count(f"{where}: {what}", getattr(self, what))
        check_extents(f"{where}: kernel", self.kernel)
        check_extents(f"{where}: stride", self.stride)
        check_activation(where, self.activation)
        if self.in_features % self.groups or self.out_features % self.groups:
            raise InvalidInput(
                f"{where}: groups is {self.groups}, which does not divide its {self.in_features} "
                f"input and {self.out_features} output maps; give a number that divides both"
            )

    def maps_from(self, *maps: int) -> int:
        """Return the output maps for an input of that many maps."""
        check_maps(self.name, self.in_features, maps[0])
        return self.out_features

    @property
    def taps(self) -> int:
        """The weights of one output map."""
        return self.in_features // self.groups * self.kernel.volume

    @property
    def parameters(self) -> int:
        """The number of weights, biases and slopes."""
        return self.out_features * (self.taps + 1 + has_slopes(self.activation))


@dataclass(frozen=True, repr=False)
class Conv(_Kernels, SlidBox):
    """A 3D convolution (cross-correlation, as in PyTorch), a bias and an activation.

    Attributes:
        name: the name, unique within the network; it also names the weights.
        in_features: the number of input maps.
        out_features: the number of output maps.
        kernel: the extents in samples.
        activation: the function applied to the sum. ``softmax`` runs over the maps of each voxel.
        stride: the samples of the input from one sample of the output to the next.
        dilation: the samples of the input from one tap of the kernel to the next.
        groups: the number of groups of maps. Each output map depends on one group of input maps.
        padding: the zeros around the input. They lie outside the volume, not around each block.
        slope: the factor of ``leaky_relu`` for negative values.
        mode: the order of the taps in files of weights. With ``convolution`` it is reversed along
            each axis. Loaded weights are always for cross-correlation.

    Raises:
        InvalidInput: there are no maps, an extent is not positive, or the activation is unknown.
            Or the groups do not divide the maps, or the padding is negative.
    """

    name: str
    in_features: int
    out_features: int
    kernel: Vec3
    activation: Activation
    stride: Vec3 = ONE
    dilation: Vec3 = ONE
    groups: int = 1
    padding: Padding = NO_PADDING
    slope: float = LEAKY_SLOPE
    mode: Literal["correlation", "convolution"] = "correlation"
    kind: Literal["conv"] = field(default="conv", repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_extents(f"layer {self.name}: dilation", self.dilation)
        for side in self.padding:
            check_extents(f"layer {self.name}: padding", side, least=0)

    @property
    def is_dense(self) -> bool:
        """True if it may be slid over every voxel: no stride, dilation, groups or padding."""
        return (
            self.stride == self.dilation == ONE and self.groups == 1 and self.padding == NO_PADDING
        )

    @property
    def is_linear_at_voxels(self) -> bool:
        """True if each voxel of the output is a linear function of the same voxel of the input."""
        return self.is_dense and self.kernel == ONE and self.activation == "identity"

    @property
    def reach(self) -> Vec3:
        """The samples from the first to the last tap of the kernel, both included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def local(self) -> Conv:
        """The convolution of a block whose zeros outside the volume are stored with it."""
        return replace(self, padding=NO_PADDING, mode="correlation")

    @property
    def fan_in(self) -> int:
        """The inputs of one output value."""
        return self.taps

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of the weights: (out, in / groups, z, y, x)."""
        return (self.out_features, self.in_features // self.groups, *self.kernel)


@dataclass(frozen=True, repr=False)
class ConvTranspose(_Kernels):
    """A transposed 3D convolution, a bias and an activation.

    Sample ``i`` of the input adds to samples ``stride * i - padding + tap`` of the output
    (``torch.nn.ConvTranspose3d``).

    Attributes:
        name: the name, unique within the network; it also names the weights.
        in_features: the number of input maps.
        out_features: the number of output maps.
        kernel: the extents in samples of the output.
        activation: the function applied to the sum.
        stride: the samples of the output from one sample of the input to the next.
        padding: the samples that are cut off at the beginning of the output, per axis.
        padding_after: the samples that are cut off at its end. If an extent is negative, samples
            are added there (PyTorch's ``output_padding``).
        slope: the factor of ``leaky_relu`` for negative values.
        groups: the number of groups of maps. Each output map depends on one group of input maps.

    Raises:
        InvalidInput: an extent is not positive, the activation is unknown, or the padding cuts off
            more than the kernel. Or the samples added at the end are as many as the stride. Or the
            groups do not divide the maps.
    """

    sees_edges: ClassVar[bool] = False
    name: str
    in_features: int
    out_features: int
    kernel: Vec3
    activation: Activation
    stride: Vec3
    padding: Vec3 = ZERO
    padding_after: Vec3 = ZERO
    slope: float = LEAKY_SLOPE
    groups: int = 1
    kind: Literal["conv_transpose"] = field(default="conv_transpose", repr=False)

    def __post_init__(self) -> None:
        where = f"layer {self.name}"
        super().__post_init__()
        check_extents(f"{where}: padding", self.padding, least=0)
        if not self.padding.within(self.kernel - 1):
            raise InvalidInput(
                f"{where}: padding {self.padding} cuts off all of a kernel of {self.kernel}; give "
                f"less than the kernel"
            )
        added = self.padding - self.padding_after
        if min(added) < 0 or not added.within(self.stride - 1):
            raise InvalidInput(
                f"{where}: output_padding is {added}; give 0 or more, and less than its stride "
                f"{self.stride}"
            )

    is_dense: ClassVar[bool] = False

    @property
    def local(self) -> ConvTranspose:
        """The layer for a block: the same, because it cuts its output to whole strides."""
        return replace(self, padding_after=self.padding)

    def scaled(self, scale: Vec3) -> Vec3:
        """Return the voxels per sample of the output, given those of the input."""
        return finer(self.name, scale, self.stride)

    @property
    def context(self) -> Padding:
        """The samples of the input beside those that give whole strides of the output."""
        return Padding(
            (self.kernel - 1 - self.padding) // self.stride,
            (self.stride - 1 + self.padding) // self.stride,
        )

    def reads(self, box: Box) -> Box:
        """Return the samples of the input that a box of samples of the output depends on."""
        start, stop = box.start // self.stride, box.stop.ceil_div(self.stride)
        return Box(start - self.context.before, stop + self.context.after)

    def rounded(self, box: Box) -> Box:
        """Return the smallest box around another that the layer can compute."""
        return Box(
            box.start // self.stride * self.stride, box.stop.ceil_div(self.stride) * self.stride
        )

    def size_from(self, *sizes: Vec3) -> Vec3:
        """Return the output's samples per axis for a whole input of that size."""
        return (sizes[0] - 1) * self.stride + self.kernel - self.padding - self.padding_after

    def local_size(self, size: Vec3) -> Vec3:
        """Return the output's samples per axis for a stored input, in whole strides."""
        return (size - self.context.total) * self.stride

    @property
    def fan_in(self) -> int:
        """The inputs of one output value, on average."""
        return max(1, self.taps // self.stride.volume)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of the weights, as in PyTorch: (in, out / groups, z, y, x)."""
        return (self.in_features, self.out_features // self.groups, *self.kernel)


def check_maps(name: str, expected: int, maps: int) -> None:
    """Check that a layer gets the number of maps that it takes."""
    if maps != expected:
        raise InvalidInput(
            f"layer {name} takes {counted(expected, 'map')}, but the layer before it gives {maps}"
        )


def finer(name: str, scale: Vec3, factor: Vec3) -> Vec3:
    """Return the voxels per sample after upsampling."""
    if scale % factor != ZERO:
        raise InvalidInput(
            f"layer {name} upsamples by {factor} where a sample spans {scale} voxels, so its "
            f"output would be finer than the volume; upsample by no more than was pooled before"
        )
    return scale // factor
