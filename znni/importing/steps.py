"""The common form of all sources of a network: a graph of steps, in float64.

Steps are the source's computations in order, even if a network file has no such layer; ``folding``
turns them into layers. Each operation has an ``origin``: its name and type in the source, for
messages and for comments in the network file, as ``3 (MaxPool3d)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.shapes import ONE, Vec3
from znni.core.voxel_size import VoxelSize
from znni.network.activations import LEAKY_SLOPE, increases
from znni.network.case_rules import CaseRules
from znni.network.input_scaling import AS_STORED, InputScaling
from znni.network.layer_geometry import NO_PADDING
from znni.network.layers import Activation, Affine, Conv, Layer, Padding
from znni.network.node import INPUT
from znni.network.weights import Float32
from znni.network.window import Window

Float64: TypeAlias = NDArray[np.float64]


def _none() -> Float64:
    """Return the weights of layers that have none."""
    return np.zeros(0)


@dataclass(frozen=True)
class Layered:
    """A layer of networks here, without an activation.

    Attributes:
        layer: the layer. Its name is its origin in the source.
        weight: its weights or factors, as in ``znni.network.weights.ConvWeights``; none if the
            layer has none.
        bias: its biases or shifts (maps,).
        name: its name in the network; layers without one are numbered.
    """

    layer: Layer
    weight: Float64 = field(default_factory=_none)
    bias: Float64 = field(default_factory=_none)
    name: str = ""

    @property
    def origin(self) -> str:
        """Its name and type in the source."""
        return self.layer.name


def convolution(
    origin: str,
    weight: Float64,
    bias: Float64 | None = None,
    *,
    stride: Vec3 = ONE,
    dilation: Vec3 = ONE,
    groups: int = 1,
    padding: Padding = NO_PADDING,
) -> Layered:
    """Return a convolution with weights (out, in / groups, z, y, x) and biases (out,) or none."""
    out, taken, *kernel = weight.shape
    layer = Conv(
        origin, taken * groups, out, Vec3(*kernel), "identity", stride, dilation, groups, padding
    )
    return Layered(layer, weight, np.zeros(out) if bias is None else bias)


def affine(origin: str, scale: Float64, shift: Float64) -> Layered:
    """Return ``x * scale + shift``, both (maps,): a batch normalization in evaluation mode."""
    return Layered(Affine(origin, len(scale)), scale, shift)


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
        return increases(self.kind, self.slope if self.slopes is None else float(self.slopes.min()))


Operation: TypeAlias = Layered | Nonlinearity


@dataclass(frozen=True)
class GraphStep:
    """One operation of a graph.

    Attributes:
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
    steps: tuple[GraphStep, ...]
    outputs: tuple[str, ...]
    margin: Padding = NO_PADDING


class GraphSteps:
    """Steps of a graph, one after the other, with names that no source gives."""

    def __init__(self) -> None:
        self.steps: list[GraphStep] = []

    def add(self, operation: Operation, *reads: str) -> str:
        """Add an operation, and return the name of its value."""
        self.steps.append(GraphStep(operation, reads, f"\0{len(self.steps)}"))
        return self.steps[-1].value

    def chain(self, read: str, operations: Iterable[Operation]) -> str:
        """Add operations of which each reads the value of the one before, and return the last."""
        for operation in operations:
            read = self.add(operation, read)
        return read

    def embed(self, graph: Graph, start: str, name: str = "") -> list[str]:
        """Add a graph that reads a value, and return its outputs.

        Args:
            start: the value that is its input.
            name: a name to put before its origins.
        """
        values = {INPUT: start}
        for step in graph.steps:
            operation = step.operation
            if name:
                operation = _renamed(operation, f"{name}: {operation.origin}")
            values[step.value] = self.add(operation, *(values[read] for read in step.reads))
        return [values[output] for output in graph.outputs]

    def graph(self, maps: int, *outputs: str) -> Graph:
        """Return the graph of all steps."""
        return Graph(maps, tuple(self.steps), outputs)


def chained(maps: int, operations: Iterable[Operation]) -> Graph:
    """Return the graph in which every operation reads the value of the one before."""
    steps = GraphSteps()
    return steps.graph(maps, steps.chain(INPUT, operations))


def _renamed(operation: Operation, origin: str) -> Operation:
    """Return an operation with another origin."""
    if isinstance(operation, Layered):
        return replace(operation, layer=replace(operation.layer, name=origin))
    return replace(operation, origin=origin)


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
        about: the purpose of the network, for people.
        expects: what its input should look like, for people.
    """

    scaling: InputScaling = AS_STORED
    window: Window | None = None
    labels: tuple[tuple[str, int], ...] = ()
    regions: bool = False
    spacing: VoxelSize | None = None
    case: CaseRules | None = None
    about: str = ""
    expects: str = ""


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
