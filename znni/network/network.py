"""Networks as graphs: nodes that each compute one value from values computed before.

A chain is the graph in which every node takes the value of the node before it. The weights are kept
apart (``znni.network.weights``), so that a network can be hashed, compared and planned without
arrays. ``znni.network.geometry`` tells where its values lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Shape5, Vec3
from znni.core.text import counted

Activation: TypeAlias = Literal[
    "relu", "sigmoid", "tanh", "leaky_relu", "elu", "identity", "softmax"
]


@dataclass(frozen=True)
class Conv:
    """A valid 3D convolution (cross-correlation, as in PyTorch), a bias and an activation.

    Attributes:
        name: unique within the network; names its weights.
        in_features: input maps.
        out_features: output maps.
        kernel: extents in voxels.
        activation: applied to the sum; ``softmax`` runs over the maps of each voxel.

    Raises:
        InvalidInput: no maps, an extent that is not positive, or an unknown activation.
    """

    name: str
    in_features: int
    out_features: int
    kernel: Vec3
    activation: Activation

    def __post_init__(self) -> None:
        for what, maps in (("in_features", self.in_features), ("out_features", self.out_features)):
            if not _is_positive(maps):
                raise InvalidInput(f"layer {self.name}: {what} is {maps!r}; give 1 or more")
        _check_extents(f"layer {self.name}: kernel", self.kernel)
        if self.activation not in get_args(Activation):
            raise InvalidInput(
                f"layer {self.name}: unknown activation {self.activation!r}; choose one of "
                f"{', '.join(get_args(Activation))}"
            )

    @property
    def stride(self) -> Vec3:
        """Samples of the input from one sample of the output to the next."""
        return Vec3(1, 1, 1)

    def needs(self, region: Box, stride: Vec3) -> Box:
        """Return the voxels of the input that a dense region of the output depends on.

        Args:
            region: voxels at which the output is wanted.
            stride: voxels between neighbouring samples of the input.
        """
        return Box(region.start, region.stop + (self.kernel - 1) * stride)

    def maps_from(self, maps: int) -> int:
        """Return the output maps for an input of that many maps.

        Raises:
            InvalidInput: the convolution takes another number of maps.
        """
        if maps != self.in_features:
            raise InvalidInput(
                f"layer {self.name} takes {counted(self.in_features, 'map')}, but the layer before "
                f"it gives {maps}"
            )
        return self.out_features

    def size_from(self, size: Vec3) -> Vec3:
        """Return the output's samples per axis for an input of that many."""
        return size - self.kernel + 1

    @property
    def weight_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of the weights: (out, in, z, y, x)."""
        return (self.out_features, self.in_features, *self.kernel)

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.out_features * (self.in_features * self.kernel.volume + 1)


@dataclass(frozen=True)
class Pool:
    """Max-pooling with stride = window. Pooled or dense (fragments) is the plan's choice.

    Attributes:
        name: unique within the network.
        window: extents in voxels.

    Raises:
        InvalidInput: an extent that is not positive.
    """

    name: str
    window: Vec3

    def __post_init__(self) -> None:
        _check_extents(f"layer {self.name}: window", self.window)

    @property
    def stride(self) -> Vec3:
        """Samples of the input from one sample of the output to the next."""
        return self.window

    def needs(self, region: Box, stride: Vec3) -> Box:
        """Return the voxels of the input that a dense region of the output depends on.

        Args:
            region: voxels at which the output is wanted.
            stride: voxels between neighbouring samples of the input.
        """
        return Box(region.start, region.stop + (self.window - 1) * stride)

    def maps_from(self, maps: int) -> int:
        """Return the output maps for an input of that many maps."""
        return maps

    def size_from(self, size: Vec3) -> Vec3:
        """Return the output's samples per axis for an input of that many, pooled plainly."""
        return size // self.window


Layer: TypeAlias = Conv | Pool


@dataclass(frozen=True)
class PooledConv:
    """A convolution and the pooling after it as one operation: nothing between is stored."""

    conv: Conv
    pool: Pool

    @property
    def name(self) -> str:
        """Of both layers."""
        return f"{self.conv.name}+{self.pool.name}"


# What a primitive does: a layer, or two in one.
Operation: TypeAlias = Conv | Pool | PooledConv


@dataclass(frozen=True)
class InputScaling:
    """How stored values become the network's input: ``float32 = value * scale + offset``."""

    scale: float = 1.0
    offset: float = 0.0


# The value that every network starts from. No layer can have this name.
INPUT = ""


@dataclass(frozen=True)
class Node:
    """A layer of a network and the values that it takes.

    Attributes:
        layer: the operation; its name is the node's, and that of the value that it gives.
        inputs: names of the values that it takes, each the network's ``INPUT`` or a node before it.
    """

    layer: Layer
    inputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the node and of its value."""
        return self.layer.name

    @property
    def is_convolution(self) -> bool:
        """Whether the node has weights."""
        return isinstance(self.layer, Conv)


@dataclass(frozen=True)
class Network:
    """A graph of layers.

    Attributes:
        name: for reports.
        in_features: input maps.
        nodes: layers with their inputs, in an order in which they can be computed.
        output: the name of the node whose value is the network's output.
        scaling: scaling of the input.
        weights: the weights file that the network file names, if it names one.

    Raises:
        InvalidInput: no convolution, a name used twice, a value that is not there or that nothing
            uses, or maps that do not match.
    """

    name: str
    in_features: int
    nodes: tuple[Node, ...]
    output: str
    scaling: InputScaling = InputScaling()
    weights: Path | None = field(default=None, compare=False)

    @classmethod
    def chain(
        cls,
        name: str,
        in_features: int,
        layers: Iterable[Layer],
        scaling: InputScaling = InputScaling(),
        weights: Path | None = None,
    ) -> Network:
        """Return the network in which every layer takes the output of the layer before it."""
        nodes: list[Node] = []
        for layer in layers:
            nodes.append(Node(layer, (nodes[-1].name if nodes else INPUT,)))
        output = nodes[-1].name if nodes else INPUT
        return cls(name, in_features, tuple(nodes), output, scaling, weights)

    def __post_init__(self) -> None:
        if not self.convolutions:
            raise InvalidInput(f"network {self.name} has no convolution; give it at least one")
        names = [node.name for node in self.nodes]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidInput(f"network {self.name} has two layers named {name!r}; rename one")
        if self.output not in self.maps:
            raise InvalidInput(f"network {self.name} has no layer {self.output!r} for its output")
        used = {self.output, *(name for node in self.nodes for name in node.inputs)}
        if unused := [node.name for node in self.nodes if node.name not in used]:
            raise InvalidInput(
                f"network {self.name}: nothing takes the output of layer {unused[0]!r}; remove it"
            )

    @cached_property
    def maps(self) -> dict[str, int]:
        """The number of maps of each value, by name; the network's input is ``INPUT``."""
        maps = {INPUT: self.in_features}
        for node in self.nodes:
            maps[node.name] = _maps_of(node, maps)
        return maps

    @cached_property
    def alive(self) -> tuple[tuple[str, ...], ...]:
        """The values that are still needed before the first node and after each node."""
        last_use = {name: index for index, node in enumerate(self.nodes) for name in node.inputs}
        last_use[self.output] = len(self.nodes)
        alive, found = [INPUT], [tuple[str, ...]((INPUT,))]
        for index, node in enumerate(self.nodes):
            alive = [name for name in (*alive, node.name) if last_use[name] > index]
            found.append(tuple(alive))
        return tuple(found)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in the order of the nodes."""
        return tuple(node.layer for node in self.nodes)

    @cached_property
    def convolutions(self) -> tuple[Conv, ...]:
        """The convolutions, in the order of the nodes."""
        return tuple(layer for layer in self.layers if isinstance(layer, Conv))

    @property
    def out_features(self) -> int:
        """Output maps."""
        return self.maps[self.output]

    @cached_property
    def parameters(self) -> int:
        """The number of weights and biases."""
        return sum(conv.parameters for conv in self.convolutions)

    @cached_property
    def total_pooling(self) -> Vec3:
        """Voxels from one sample of the pooled output to the next, per axis."""
        return self.strides[self.output]

    @cached_property
    def field_of_view(self) -> Vec3:
        """Input voxels that one output voxel depends on, per axis."""
        return self.regions(Vec3(1, 1, 1))[INPUT].size

    @cached_property
    def strides(self) -> dict[str, Vec3]:
        """The distance in voxels between neighbouring samples of each value, by name."""
        strides = {INPUT: Vec3(1, 1, 1)}
        for node in self.nodes:
            taken = {strides[name] for name in node.inputs}
            if len(taken) > 1:
                apart = " and ".join(f"{name!r} ({strides[name]})" for name in node.inputs)
                raise InvalidInput(f"layer {node.name} joins {apart}, whose strides differ")
            strides[node.name] = taken.pop() * node.layer.stride
        return strides

    def regions(self, output: Vec3) -> dict[str, Box]:
        """Return the voxels at which each value must be known for a block of dense output.

        One walk from the output back. The region of a value that several nodes take is the hull of
        what they need. Coordinates are those of the output block, whose first voxel is 0.

        Args:
            output: voxels of the block.
        """
        regions = {self.output: Box(Vec3(0, 0, 0), output)}
        for node in reversed(self.nodes):
            for name in node.inputs:
                needed = node.layer.needs(regions[node.name], self.strides[name])
                known = regions.get(name)
                regions[name] = known.hull(needed) if known else needed
        return regions

    def shapes(self, output: Vec3) -> dict[str, Shape5]:
        """Return the shape of each value for a block of dense output, with all fragments.

        Args:
            output: voxels of the block, a multiple of ``total_pooling``.
        """
        return {
            name: Shape5.of(
                self.strides[name].volume, self.maps[name], region.size // self.strides[name]
            )
            for name, region in self.regions(output).items()
        }

    def __str__(self) -> str:
        return (
            f"{self.name}: {counted(len(self.nodes), 'layer')}, "
            f"{counted(self.parameters, 'parameter')}, "
            f"{self.in_features} -> {counted(self.out_features, 'map')}, "
            f"field of view {self.field_of_view}, total pooling {self.total_pooling}"
        )


def _maps_of(node: Node, maps: Mapping[str, int]) -> int:
    """Return the maps of a node's value, given those of the values before it."""
    for name in node.inputs:
        if name not in maps:
            raise InvalidInput(f"layer {node.name} takes {name!r}, which no layer before it gives")
    return node.layer.maps_from(*(maps[name] for name in node.inputs))


def _check_extents(what: str, extents: object) -> None:
    """Check three positive extents, of a caller without a type checker too."""
    if not isinstance(extents, Vec3) or not all(map(_is_positive, extents)):
        raise InvalidInput(
            f"{what} is {extents!r}; give a Vec3 of three positive integers, as Vec3(3, 3, 3)"
        )


def _is_positive(number: object) -> bool:
    return isinstance(number, int) and number >= 1
