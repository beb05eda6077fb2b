"""Networks as graphs: each node computes one value from values computed before.

In a chain every node takes the value of the node before it. The weights are kept apart
(``znni.network.weights``). So a network can be hashed, compared and planned without arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lcm
from pathlib import Path

from znni.core import html
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Shape5, Vec3
from znni.core.text import counted
from znni.network.input_scaling import AS_STORED, InputScaling
from znni.network.layers import (
    Activation,
    Conv,
    DenseLayer,
    Elementwise,
    GlobalPool,
    Join,
    Layer,
    Model,
    Multiply,
    Pool,
    Upsample,
    Weighted,
    WholeWindow,
)
from znni.network.window import Window

# The name of the network's input. No layer can have this name.
INPUT = ""


@dataclass(frozen=True)
class Node:
    """A layer of a network and the values that it takes.

    Attributes:
        layer: the layer. Its name is also the name of the node and of the node's value.
        inputs: the names of the values that it takes. Each is the network's ``INPUT`` or an earlier
            node.
    """

    layer: Layer
    inputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the node and of its value."""
        return self.layer.name

    @property
    def aligned(self) -> tuple[str, ...]:
        """The names of the values whose samples lie where its own do; not of one that spreads."""
        spreads = isinstance(self.layer, Multiply) and self.layer.spreads
        return self.inputs[:1] if spreads else self.inputs

    def is_pooled(self, pooled: Set[str]) -> bool:
        """Return whether its value has one sample for a whole window.

        Args:
            pooled: the values before it that have one.
        """
        return isinstance(self.layer, GlobalPool) or pooled >= set(self.aligned)


@dataclass(frozen=True)
class SplitConv:
    """A convolution of an upsampled value that is split (``znni.network.split``).

    Attributes:
        upsample: the upsampling.
        join: the concatenation with a finer value, if there is one.
        conv: the convolution.
        first: the first of its input maps that are upsampled.
        maps: the number of these maps.
    """

    upsample: Node
    join: Node | None
    conv: Node
    first: int
    maps: int

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The layers that are not computed as they are."""
        joined = () if self.join is None else (self.join,)
        return (self.upsample, *joined, self.conv)

    @property
    def layers(self) -> tuple[Conv, Vec3]:
        """The convolution, and the factor of the upsampling."""
        conv, upsample = self.conv.layer, self.upsample.layer
        if not isinstance(conv, Conv) or not isinstance(upsample, Upsample):
            raise InvalidInput(f"{self.conv.name} is no convolution of an upsampled value")
        return conv, upsample.factor

    @property
    def fine_input(self) -> str | None:
        """The name of the finer value, if there is one."""
        if self.join is None:
            return None
        return next(name for name in self.join.inputs if name != self.upsample.name)

    @property
    def coarse(self) -> str:
        """The name of the convolution's part that reads the value before it is upsampled."""
        return f"{self.conv.name}.coarse"

    @property
    def fine(self) -> str:
        """The name of its part that reads the finer value."""
        return f"{self.conv.name}.fine"


@dataclass(frozen=True)
class Network:
    """A graph of layers.

    Attributes:
        name: the name, for reports.
        in_features: the number of input maps.
        nodes: the layers with their inputs, in an order in which they can be computed.
        output: the name of the node whose value is the network's output.
        scaling: the scaling of the input.
        weights: the weights file that the network file names, if it names one.
        whole: the extents of an exact network's input over the whole volume. They are None until
            the volume is known.
        labels: the name and the label of each output map, if the network file has them.
        about: the purpose of the network, for people.
        expects: what the input should look like, for people.
        window: the windows that the network is computed in, if it is not computed over the whole
            volume. ``whole`` is then the extents of one window.
        head: the last layer, if it is applied once to the blended values of windows, and not to
            each window. It is not among the nodes then.
        split: the convolutions whose parts are among the nodes in their place.

    Raises:
        InvalidInput: there is no convolution, or two layers have the same name. Or a value is
            missing or unused, or numbers of maps do not match.
    """

    name: str
    in_features: int
    nodes: tuple[Node, ...]
    output: str
    scaling: InputScaling = AS_STORED
    weights: Path | None = field(default=None, compare=False)
    whole: Vec3 | None = None
    labels: tuple[tuple[str, int], ...] = field(default=(), compare=False)
    window: Window | None = None
    about: str = field(default="", compare=False)
    expects: str = field(default="", compare=False)
    head: Conv | None = None
    split: tuple[SplitConv, ...] = ()

    @classmethod
    def chain(
        cls,
        name: str,
        in_features: int,
        layers: Iterable[Layer],
        scaling: InputScaling = AS_STORED,
        weights: Path | None = None,
    ) -> Network:
        """Return the network in which every layer takes the output of the layer before it."""
        nodes: list[Node] = []
        for layer in layers:
            nodes.append(Node(layer, (nodes[-1].name if nodes else INPUT,)))
        output = nodes[-1].name if nodes else INPUT
        return cls(name, in_features, tuple(nodes), output, scaling, weights)

    def __post_init__(self) -> None:
        if not self.convolutions and not self.models:
            raise InvalidInput(f"network {self.name} has no convolution; give it at least one")
        names = [INPUT, *(node.name for node in self.nodes)]
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
        self.scaling.of_maps(self.in_features)
        for node in self.nodes:
            self._check_pooled(node)
            self._check_shift(node)
        if self.output in self.pooled:
            raise InvalidInput(
                f"network {self.name}: its output has one sample for a whole window, as a "
                f"classifier's; give a network with an output for every voxel"
            )
        if self.is_exact and self.strides[self.output] != Vec3(1, 1, 1):
            raise InvalidInput(
                f"network {self.name}: a sample of its output spans {self.strides[self.output]} "
                f"voxels; end it with upsampling to the input's resolution, or use only "
                f"convolutions without padding and max-pooling, which can give every voxel"
            )

    def __hash__(self) -> int:
        """Return a hash of a few parts that tell most networks apart: a search hashes often."""
        return hash((self.name, len(self.nodes), self.whole, self.window))

    def _check_pooled(self, node: Node) -> None:
        """Check that a join does not mix values of one sample with others."""
        if not isinstance(node.layer, Join):
            return
        pooled = [name in self.pooled for name in node.inputs]
        if node.aligned != node.inputs:
            fits = pooled == [False, True]
        else:
            fits = all(pooled) or not any(pooled)
        if not fits:
            raise InvalidInput(
                f"layer {node.name} of network {self.name} joins a globally pooled value with one "
                f"that is not; only multiply takes these, the pooled one second"
            )

    def _check_shift(self, node: Node) -> None:
        """Check that every block has more samples of a shifted value than it is shifted by.

        So the first block has the sample that is repeated.
        """
        if not isinstance(node.layer, Upsample) or node.layer.shift == Vec3(0, 0, 0):
            return
        most = self.alignment // self.strides[node.name] - 1
        if not node.layer.shift.within(most):
            raise InvalidInput(
                f"layer {node.name} shifts by {node.layer.shift}, and blocks of network "
                f"{self.name} allow {most}; shift only after upsampling"
            )

    @cached_property
    def maps(self) -> dict[str, int]:
        """The number of maps of each value, by name; the network's input is ``INPUT``."""
        maps = {INPUT: self.in_features}
        for node in self.nodes:
            maps[node.name] = maps_of(node, maps)
        return maps

    def scaled_by(self, scaling: InputScaling) -> Network:
        """Return the network with another scaling of its input, and windows over its crop.

        The windows stay as they are while the extents of the volume are unknown.
        """
        window = self.window
        if window and window.volume:
            window = window.over(window.volume, scaling.box)
        if (scaling, window) == (self.scaling, self.window):
            return self
        return replace(self, scaling=scaling, window=window)

    def with_head_apart(self) -> Network:
        """Return the network with its last layer as ``head``, if that takes fewer sums of windows.

        Such a layer is linear at each voxel. So it gives the same, but for rounding, before and
        after windows are blended.
        """
        *before, last = self.nodes
        layer = last.layer
        if not (
            self.window
            and last.name == self.output
            and isinstance(layer, Conv)
            and layer.is_linear_at_voxels
            and last.inputs[0] not in self.pooled
            and layer.in_features < layer.out_features
            and any(isinstance(node.layer, Conv) for node in before)
        ):
            return self
        return replace(self, nodes=tuple(before), output=last.inputs[0], head=layer)

    def with_head_joined(self) -> Network:
        """Return the network whose last layer is among the nodes."""
        if self.head is None:
            return self
        last = Node(self.head, (self.output,))
        return replace(self, nodes=(*self.nodes, last), output=last.name, head=None)

    @cached_property
    def pooled(self) -> frozenset[str]:
        """The names of the values that have one sample for a whole window."""
        found: set[str] = set()
        for node in self.nodes:
            if node.is_pooled(found):
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def alive(self) -> tuple[tuple[str, ...], ...]:
        """The values that are still needed: before the first node, and after each node."""
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
    def is_exact(self) -> bool:
        """True if the output is that of one evaluation over the whole volume, or over each window.

        Otherwise the network is slid over the volume, and gives its output for every voxel.
        """
        return self.window is not None or not all(
            isinstance(layer, Conv | Pool) and layer.is_dense for layer in self.layers
        )

    @property
    def together(self) -> int:
        """The number of windows that the layers compute at once; 1 without windows."""
        return self.window.together if self.window else 1

    def computing(self, together: int) -> Network:
        """Return the network with so many windows that the layers compute at once.

        Without windows, it is the network itself, which is computed once.
        """
        if self.window is None:
            if together != 1:
                raise ValueError(f"network {self.name} has no windows")
            return self
        return replace(self, window=replace(self.window, together=together))

    @cached_property
    def window_layer(self) -> str | None:
        """The name of a layer that depends on all voxels of a window, if there is one."""
        found = (layer.name for layer in self.layers if isinstance(layer, WholeWindow))
        return next(found, None)

    @cached_property
    def dense_layers(self) -> tuple[DenseLayer, ...]:
        """The layers of a dense network, in the order of the nodes.

        Raises:
            ValueError: the network is exact.
        """
        found = tuple(layer for layer in self.layers if isinstance(layer, DenseLayer))
        if self.is_exact:
            raise ValueError(f"network {self.name} is exact; its layers cannot be slid")
        return found

    @cached_property
    def operations(self) -> dict[str, tuple[Layer, int]]:
        """The operation of each node, and the number of maps that it takes, by name.

        An exact network's layers find their zeros stored with their input, so they pad nothing.
        """
        return {
            node.name: (
                node.layer.local if self.is_exact else node.layer,
                sum(self.maps[name] for name in node.inputs),
            )
            for node in self.nodes
        }

    @cached_property
    def weighted(self) -> tuple[Weighted, ...]:
        """The layers with trained weights, in the order of the nodes. Split ones are whole."""
        whole = {it.conv.name: it.layers[0] for it in self.split}
        parts = {name for it in self.split for name in (it.coarse, it.fine)}
        layers = (whole.get(it.name, it) for it in self.layers if it.name not in parts)
        return tuple(layer for layer in layers if isinstance(layer, Weighted))

    @cached_property
    def convolutions(self) -> tuple[Conv, ...]:
        """The convolutions, in the order of the nodes."""
        return tuple(layer for layer in self.layers if isinstance(layer, Conv))

    @cached_property
    def models(self) -> tuple[Model, ...]:
        """The layers that other libraries compute, in the order of the nodes."""
        return tuple(layer for layer in self.layers if isinstance(layer, Model))

    @property
    def out_features(self) -> int:
        """The number of output maps."""
        return self.head.out_features if self.head else self.blended_features

    @property
    def blended_features(self) -> int:
        """The number of maps that windows give: those of the output, or what the head takes."""
        return self.maps[self.output]

    @property
    def last_activation(self) -> Activation:
        """The activation of the layer that gives the output."""
        if self.head:
            return self.head.activation
        (last,) = (node.layer for node in self.nodes if node.name == self.output)
        if isinstance(last, Weighted | Elementwise):
            return last.activation
        return "identity"

    @cached_property
    def parameters(self) -> int:
        """The number of trained values: weights, biases and slopes."""
        layers = (*self.weighted, self.head) if self.head else self.weighted
        return sum(layer.parameters for layer in layers)

    @cached_property
    def held_parameters(self) -> int:
        """The number of values that a run holds: trained ones, and those of split convolutions."""
        parts = {name for it in self.split for name in (it.coarse, it.fine, it.conv.name)}
        made = (it for it in self.layers if it.name in parts and isinstance(it, Weighted))
        return self.parameters + sum(layer.parameters for layer in made)

    @cached_property
    def total_pooling(self) -> Vec3:
        """The voxels from one sample of the pooled output to the next, per axis."""
        return self.strides[self.output]

    @cached_property
    def field_of_view(self) -> Vec3:
        """The input voxels that one output voxel depends on, per axis."""
        return self.regions(Vec3(1, 1, 1))[INPUT].size

    @cached_property
    def strides(self) -> dict[str, Vec3]:
        """The distance in voxels between neighbouring samples of each value, by name.

        Raises:
            InvalidInput: a layer joins values with different distances, or upsamples too far.
        """
        strides = {INPUT: Vec3(1, 1, 1)}
        for node in self.nodes:
            strides[node.name] = stride_of(node, strides)
        return strides

    @cached_property
    def alignment(self) -> Vec3:
        """The voxels at whose multiples blocks may begin, so that all lattices keep their phase."""
        if not self.is_exact:
            return Vec3(1, 1, 1)
        return Vec3(*(lcm(*axis) for axis in zip(*self.strides.values(), strict=True)))

    @property
    def granularity(self) -> Vec3:
        """The voxels of which the extents of a patch are multiples."""
        if self.window:
            return self.window.step
        return self.alignment if self.is_exact else self.total_pooling

    def regions(self, output: Vec3) -> dict[str, Box]:
        """Return the voxels at which each value must be known for a block of dense output.

        The regions come from one walk from the output back. Several nodes may take the same value.
        Its region is then the hull of the regions that they need. Coordinates are those of the
        output block, whose first voxel is 0.

        Args:
            output: the voxels of the block.
        """
        regions = {self.output: Box(Vec3(0, 0, 0), output)}
        for node in reversed(self.nodes):
            if not isinstance(node.layer, Conv | Pool):
                raise ValueError(f"network {self.name} is exact; use block_geometry")
            for name in node.inputs:
                needed = node.layer.needs(regions[node.name], self.strides[name])
                known = regions.get(name)
                regions[name] = known.hull(needed) if known else needed
        return regions

    def shapes(self, output: Vec3) -> dict[str, Shape5]:
        """Return the shape of each value for a block of dense output, with all fragments.

        Args:
            output: the voxels of the block, a multiple of ``total_pooling``.
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
            f"{self.in_features} -> {counted(self.out_features, 'map')}, {self._lattice}"
        )

    def _repr_html_(self) -> str:
        rows = [("layer", "kind", "takes", "maps")]
        for node in self.nodes:
            kernel = getattr(node.layer, "kernel", None) or getattr(node.layer, "window", None)
            kind = type(node.layer).__name__ + (f" {kernel}" if kernel else "")
            takes = ", ".join(name or "the input" for name in node.inputs)
            rows.append((node.name, kind, takes, str(self.maps[node.name])))
        said = [str(self), self.about, self.expects and f"expects {self.expects}"]
        return html.text("\n".join(filter(None, said))) + html.table(rows)

    @property
    def _lattice(self) -> str:
        if self.window:
            return str(self.window)
        if self.window_layer:
            return f"computed in windows of multiples of {self.alignment}, whose size is not given"
        if self.is_exact:
            return f"computed over the whole volume in blocks of multiples of {self.alignment}"
        return f"field of view {self.field_of_view}, total pooling {self.total_pooling}"


def readers_of(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """Return the nodes that take each value, by the value's name, in their order.

    A node that takes a value twice is listed once. A value that no node takes has an empty list.
    """
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        readers.setdefault(node.name, [])
        for name in dict.fromkeys(node.inputs):
            readers.setdefault(name, []).append(node)
    return readers


def maps_of(node: Node, maps: Mapping[str, int]) -> int:
    """Return the maps of a node's value, given the maps of the values before it."""
    for name in node.inputs:
        if name not in maps:
            raise InvalidInput(f"layer {node.name} takes {name!r}, which no layer before it gives")
    arity = node.layer.arity
    if len(node.inputs) != arity and (arity is not None or len(node.inputs) < 2):
        takes = "2 or more values" if arity is None else counted(arity, "value")
        raise InvalidInput(f"layer {node.name} takes {takes}, but it is given {len(node.inputs)}")
    return node.layer.maps_from(*(maps[name] for name in node.inputs))


def stride_of(node: Node, strides: Mapping[str, Vec3]) -> Vec3:
    """Return the distance in voxels between samples of a node's value, given those before it.

    Raises:
        InvalidInput: the node joins values with different distances, or upsamples too far.
    """
    taken = {strides[name] for name in node.aligned}
    if len(taken) > 1:
        apart = " and ".join(f"{name or 'input'!r} ({strides[name]})" for name in node.aligned)
        raise InvalidInput(
            f"layer {node.name} joins {apart}, whose strides differ; upsample the coarser one first"
        )
    return node.layer.scaled(taken.pop())
