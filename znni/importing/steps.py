"""The common form of all sources of a network: a graph of steps, in float64.

Steps are the source's computations in order, even if a network file has no such layer; ``folding``
turns them into layers. Each operation has an ``origin``: its name and type in the source, for
messages and for comments in the network file, as ``3 (MaxPool3d)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import Vec3
from znni.core.voxel_size import VoxelSize
from znni.network.activations import LEAKY_SLOPE
from znni.network.case_rules import CaseRules
from znni.network.input_scaling import AS_STORED, InputScaling
from znni.network.layer_geometry import NO_PADDING, ONE, ZERO
from znni.network.layers import (
    Activation,
    Add,
    Concat,
    Conv,
    ConvTranspose,
    GlobalPool,
    Join,
    Maximum,
    Multiply,
    Normalize,
    Padding,
    Pool,
    Upsample,
)
from znni.network.layers import Affine as AffineLayer
from znni.network.node import INPUT
from znni.network.weights import Float32
from znni.network.window import Window

Float64: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Convolution:
    """A cross-correlation and a bias.

    Attributes:
        origin: its name and type in the source.
        weight: kernels (out, in / groups, z, y, x).
        bias: shifts (out,).
        name: name for its layer; layers without one are numbered.
        stride: as those below, as in ``znni.network.layers.Conv``.
    """

    origin: str
    weight: Float64
    bias: Float64
    name: str = ""
    stride: Vec3 = ONE
    dilation: Vec3 = ONE
    groups: int = 1
    padding: Padding = NO_PADDING

    def layer(self, name: str) -> Conv:
        """Return the layer that it is, without an activation."""
        out, taken, *kernel = self.weight.shape
        return Conv(
            name, taken * self.groups, out, Vec3(*kernel), "identity", self.stride, self.dilation,
            self.groups, self.padding,
        )  # fmt: skip


@dataclass(frozen=True)
class TransposedConvolution:
    """A transposed convolution and a bias.

    Its kernels are (in, out, z, y, x). Its other attributes are as those of ``Convolution`` and of
    ``znni.network.layers.ConvTranspose``.
    """

    origin: str
    weight: Float64
    bias: Float64
    stride: Vec3
    padding: Vec3 = ZERO
    padding_after: Vec3 = ZERO
    name: str = ""

    def layer(self, name: str) -> ConvTranspose:
        """Return the layer that it is, without an activation."""
        taken, out, *kernel = self.weight.shape
        return ConvTranspose(
            name,
            taken,
            out,
            Vec3(*kernel),
            "identity",
            self.stride,
            self.padding,
            self.padding_after,
        )


@dataclass(frozen=True)
class Pooling:
    """Pooling; its attributes are as those of ``Convolution`` and ``znni.network.layers.Pool``."""

    origin: str
    window: Vec3
    name: str = ""
    reduce: Literal["max", "average"] = "max"
    step: Vec3 = ZERO
    padding: Padding = NO_PADDING

    def layer(self, name: str) -> Pool:
        """Return the layer that it is."""
        return Pool(name, self.window, self.reduce, self.step, self.padding)


@dataclass(frozen=True)
class GlobalPooling:
    """Pooling over a whole window; its attributes are as those of ``Pooling``."""

    origin: str
    reduce: Literal["average", "max"] = "average"
    name: str = ""

    def layer(self, name: str) -> GlobalPool:
        """Return the layer that it is."""
        return GlobalPool(name, self.reduce)


@dataclass(frozen=True)
class Upsampling:
    """Upsampling by whole factors; its attributes are as in ``znni.network.layers.Upsample``."""

    origin: str
    factor: Vec3
    mode: Literal["nearest", "trilinear"] = "nearest"
    name: str = ""
    shift: Vec3 = ZERO

    def layer(self, name: str) -> Upsample:
        """Return the layer that it is."""
        return Upsample(name, self.factor, self.mode, self.shift)


@dataclass(frozen=True)
class Joining:
    """The maps of several values after each other, or the sum, product or maximum of two values.

    Attributes:
        origin: its name and type in the source.
        how: the operation.
        is_gate: whether a product's second value has one map, for all maps of the first.
        spreads: whether a product's second value has one sample, for all samples of the first.
        name: name for its layer; layers without one are numbered.
    """

    origin: str
    how: Literal["concat", "add", "multiply", "maximum"]
    is_gate: bool = False
    spreads: bool = False
    name: str = ""

    def layer(self, name: str) -> Join:
        """Return the layer that it is, without an activation."""
        match self.how:
            case "concat":
                return Concat(name)
            case "add":
                return Add(name)
            case "multiply":
                return Multiply(name, is_gate=self.is_gate, spreads=self.spreads)
            case "maximum":
                return Maximum(name)


@dataclass(frozen=True)
class Affine:
    """``x * scale + shift``, both (maps,): a batch normalization in evaluation mode."""

    origin: str
    scale: Float64
    shift: Float64
    name: str = ""

    def layer(self, name: str) -> AffineLayer:
        """Return the layer that it is, without an activation."""
        return AffineLayer(name, len(self.scale))


@dataclass(frozen=True)
class Normalization:
    """Instance norm or group norm, by the values of a whole window.

    Attributes:
        origin: its name and type in the source.
        groups: the number of groups of maps.
        eps: what is added to the variance.
        scale: the factors (maps,) that follow.
        shift: the shifts (maps,) that follow.
        name: name for its layer; layers without one are numbered.
    """

    origin: str
    groups: int
    eps: float
    scale: Float64
    shift: Float64
    name: str = ""

    def layer(self, name: str) -> Normalize:
        """Return the layer that it is, without an activation."""
        return Normalize(name, len(self.scale), self.groups, self.eps)


@dataclass(frozen=True)
class Nonlinearity:
    """An activation by itself.

    Attributes:
        origin: its name and type in the source.
        kind: the function.
        slope: the factor of ``leaky_relu`` for negative values.
        slopes: the factors of ``prelu`` for negative values, one for each map or one for all.
    """

    origin: str
    kind: Activation
    slope: float = LEAKY_SLOPE
    slopes: Float64 | None = None

    @property
    def is_increasing(self) -> bool:
        """True if it keeps the order of values, so that it may pass max-pooling."""
        match self.kind:
            case "softmax" | "gelu":
                return False
            case "leaky_relu":
                return self.slope >= 0
            case "prelu":
                return self.slopes is not None and bool(self.slopes.min() >= 0)
        return True


@dataclass(frozen=True)
class Cropping:
    """Samples cut off at the beginning and at the end of each axis.

    Whoever reads the source checks that joins crop what they read to the centre, because layers
    that join values do so by themselves.
    """

    origin: str
    before: Vec3
    after: Vec3


@dataclass(frozen=True)
class ZeroPadding:
    """Zeros added around a value."""

    origin: str
    padding: Padding


# Operations that are layers of their own, unless they can be folded into others.
Layered: TypeAlias = (
    Convolution
    | TransposedConvolution
    | Pooling
    | GlobalPooling
    | Upsampling
    | Joining
    | Affine
    | Normalization
)
Operation: TypeAlias = Layered | Nonlinearity | Cropping | ZeroPadding


@dataclass(frozen=True)
class Step:
    """One operation of a graph.

    Attributes:
        operation: the operation.
        reads: names of the values that it reads. The network's input is ``INPUT``.
        value: name of the value that it computes.
    """

    operation: Operation
    reads: tuple[str, ...]
    value: str


@dataclass(frozen=True)
class Graph:
    """The steps of a network.

    Attributes:
        maps: the maps of its input.
        steps: its steps, each after those whose values it reads.
        outputs: names of the values that are its output.
        margin: the samples around its output that only the imported network gives.
    """

    maps: int
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    margin: Padding = NO_PADDING


def chained(maps: int, operations: Iterable[Operation]) -> Graph:
    """Return the graph in which every operation reads the value of the one before."""
    steps: list[Step] = []
    for operation in operations:
        steps.append(Step(operation, (steps[-1].value if steps else INPUT,), str(len(steps))))
    return Graph(maps, tuple(steps), (steps[-1].value if steps else INPUT,))


@dataclass(frozen=True)
class Original:
    """The network as its own library computes it.

    Attributes:
        runtime: name of the library.
        run: function from an input (f, z, y, x) to the output (f', z', y', x') as the library gives
            it; several outputs are joined along their maps.
        size: extents of the input, if it accepts only one size.
        most_flops: operations beyond which it would take minutes.
        margin: function from the extents of an input to the margin of ``Graph``.
    """

    runtime: str
    run: Callable[[Float32], Float32]
    size: Vec3 | None = None
    most_flops: float = float("inf")
    margin: Callable[[Vec3], Padding] = lambda _size: NO_PADDING


@dataclass(frozen=True)
class Settings:
    """The input, windows and labels of a network, as its source gives them.

    Attributes:
        scaling: how stored values become its input.
        window: the windows that it was trained on.
        labels: the name and the label of each of its output maps.
        regions: whether these maps are of regions, which may overlap.
        spacing: the extents of the voxels that it was trained on; None if they are not known.
        case: the steps of whole cases; None if they are not known.
    """

    scaling: InputScaling = AS_STORED
    window: Window | None = None
    labels: tuple[tuple[str, int], ...] = ()
    regions: bool = False
    spacing: VoxelSize | None = None
    case: CaseRules | None = None


UNSAID = Settings()


@dataclass(frozen=True)
class Sample:
    """An example of input and output that a source has beside its network.

    Attributes:
        name: what it is called in messages.
        given: the input (f, z, y, x), as it is stored.
        output: the output (f', z', y', x') of the network.
        threshold: the output is 1 where the network's is above it, and else 0. None: the output is
            that of the network.
    """

    name: str
    given: Float32
    output: Float32
    threshold: float | None = None


@dataclass(frozen=True)
class Found:
    """The contents of a source.

    Attributes:
        graph: its steps.
        original: the original network, or why nothing here can run it, as the end of "not compared:
            ...".
        notes: assumptions made while reading the source.
        settings: what the source says beside the layers.
        sample: an example of input and output.
    """

    graph: Graph
    original: Original | str
    notes: tuple[str, ...] = ()
    settings: Settings = UNSAID
    sample: Sample | None = None
