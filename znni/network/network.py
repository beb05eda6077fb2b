"""Networks as graphs: each node computes one value from values computed before.

In a chain every node takes the value of the node before it. The weights are kept apart
(``znni.network.weights``). So a network can be hashed, compared and planned without arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import lcm
from pathlib import Path

from znni.core import html
from znni.core.file_fields import UNLESS_DEFAULT
from znni.core.shapes import ONE, ZERO, Axis, Box, Shape5, Vec3, extended, extent, resized
from znni.core.text import counted
from znni.core.voxel_size import VoxelSize
from znni.network.case_rules import CaseRules
from znni.network.graph_checks import check_graph
from znni.network.input_scaling import AS_STORED, InputScaling
from znni.network.layers import (
    Activation,
    Conv,
    Elementwise,
    Layer,
    Model,
    PadLayer,
    Pool,
    SlidingLayer,
    Weighted,
    WholeWindow,
)
from znni.network.node import INPUT, Node, SplitConv, maps_of, stride_of
from znni.network.window import Window


@dataclass(frozen=True)
class Network:
    """A graph of layers.

    Attributes:
        name: the name, for reports.
        in_features: the number of input maps.
        nodes: the layers with their inputs, in an order in which they can be computed.
        output: the name of the node whose value is the network's output.
        weights: the weights file that the network file names, if it names one.
        whole: the extents of a tiled network's input over the whole volume. They are None until
            the volume is known.
        labels: the name and the label of each output map, if the network file has them.
        has_regions: whether the maps are of regions, which may overlap. The label of a voxel is
            then that of its last region.
        case: the steps of whole cases; None if the network file does not describe them.
        about: the purpose of the network, for people.
        expects: what the input should look like, for people.
        spacing: the extents of the voxels that the network was trained on; None if any will do.
        window: the windows that the network is computed in, if it is not computed over the whole
            volume. ``whole`` is then the extents of one window.
        head: the last layer, if it is applied once to the blended values of windows, and not to
            each window. It is not among the nodes then.
        split: the convolutions whose parts are among the nodes in their place.
        is_swept: whether volumes are swept: blocks go on from each other along an axis, and layers
            keep the planes that the next block needs.

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
    has_regions: bool = field(default=False, compare=False)
    case: CaseRules | None = field(default=None, compare=False)
    window: Window | None = None
    about: str = field(default="", compare=False)
    expects: str = field(default="", compare=False)
    spacing: VoxelSize | None = field(default=None, compare=False)
    head: Conv | None = None
    split: tuple[SplitConv, ...] = ()
    is_swept: bool = field(default=False, compare=False, metadata=UNLESS_DEFAULT)
    sweep_axis: Axis = field(default="z", compare=False, metadata=UNLESS_DEFAULT)

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
        check_graph(self)

    def __hash__(self) -> int:
        """Return a hash of a few parts that tell most networks apart: a search hashes often."""
        return hash((self.name, len(self.nodes), self.whole, self.window))

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

    @cached_property
    def pooled(self) -> frozenset[str]:
        """The names of the values that have one sample for a whole window."""
        names: set[str] = set()
        for node in self.nodes:
            if node.is_pooled(names):
                names.add(node.name)
        return frozenset(names)

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
    def is_tiled(self) -> bool:
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

    def blended_extents(self, patch: Vec3) -> Vec3:
        """Return the most voxels per axis at which a patch of output needs the layers' values."""
        return self.window.blended_extents(patch) if self.window else patch

    def computing(self, together: int) -> Network:
        """Return the network with so many windows that the layers compute at once.

        Without windows, it is the network itself, which is computed once.
        """
        if self.window is None:
            if together != 1:
                raise ValueError(f"network {self.name} has no windows")
            return self
        return replace(self, window=replace(self.window, together=together))

    def computed_as(self, other: Network) -> Network:
        """Return the network computed as another one is: windows at once, or in a sweep."""
        return self.computing(other.together).sweeping(other.swept_along)

    @property
    def swept_along(self) -> Axis | None:
        """The axis along which volumes are swept; None if they are not."""
        return self.sweep_axis if self.is_swept else None

    def sweeping(self, axis: Axis | None) -> Network:
        """Return the network with blocks that go on from each other along an axis; None: alone."""
        if axis == self.swept_along:
            return self
        return replace(self, is_swept=axis is not None, sweep_axis=axis or "z")

    @cached_property
    def window_layer(self) -> str | None:
        """The name of a layer that depends on all voxels of a window, if there is one."""
        found = (
            layer.name
            for layer in self.layers
            if isinstance(layer, WholeWindow)
            or (isinstance(layer, PadLayer) and layer.mode == "wrap")
        )
        return next(found, None)

    @cached_property
    def sliding_layers(self) -> tuple[SlidingLayer, ...]:
        """The layers of a sliding network, in the order of the nodes."""
        found = tuple(layer for layer in self.layers if isinstance(layer, SlidingLayer))
        if self.is_tiled:
            raise ValueError(f"network {self.name} is tiled; its layers cannot be slid")
        return found

    @cached_property
    def operations(self) -> dict[str, tuple[Layer, int]]:
        """The operation of each node, and the number of maps that it takes, by name.

        A tiled network's layers find their zeros stored with their input, so they pad nothing.
        """
        return {
            node.name: (node.layer.local, sum(self.maps[name] for name in node.inputs))
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
        """The activation that gives the output: that of blended windows, or of the last layer."""
        if self.window and self.window.activation != "identity":
            return self.window.activation
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
        return self.regions(ONE)[INPUT].size

    @cached_property
    def strides(self) -> dict[str, Vec3]:
        """The distance in voxels between neighbouring samples of each value, by name.

        Raises:
            InvalidInput: a layer joins values with different distances, or upsamples too far.
        """
        strides = {INPUT: ONE}
        for node in self.nodes:
            strides[node.name] = stride_of(node, strides)
        return strides

    @cached_property
    def alignment(self) -> Vec3:
        """The voxels at whose multiples blocks may begin, so that all lattices keep their phase."""
        if not self.is_tiled:
            return ONE
        return Vec3(*(lcm(*axis) for axis in zip(*self.strides.values(), strict=True)))

    @property
    def granularity(self) -> Vec3:
        """The extents of a patch are multiples of these."""
        if self.window:
            return self.window.granularity
        return self.alignment if self.is_tiled else self.total_pooling

    def regions(self, output: Vec3) -> dict[str, Box]:
        """Return the voxels at which each value must be known for a block of dense output.

        The regions come from one walk from the output back. Several nodes may take the same value.
        Its region is then the hull of the regions that they need. Coordinates are those of the
        output block, whose first voxel is 0.
        """
        regions = {self.output: Box(ZERO, output)}
        for node in reversed(self.nodes):
            if not isinstance(node.layer, Conv | Pool):
                raise ValueError(f"network {self.name} is tiled; use block_geometry")
            for name in node.inputs:
                needed = node.layer.needs(regions[node.name], self.strides[name])
                known = regions.get(name)
                regions[name] = known.hull(needed) if known else needed
        return regions

    def shapes(self, output: Vec3) -> dict[str, Shape5]:
        """Return the shape of each value for a block of dense output, with all fragments.

        In a sweep, these are the planes that are computed for a block.

        Args:
            output: the voxels of the block, a multiple of ``total_pooling``.
        """
        found = {}
        for name, region in self.regions(output).items():
            stride, size = self.strides[name], region.size
            if axis := self.swept_along:
                new = extent(output, axis)
                size = resized(size, axis, new) if name else extended(size, axis, new - 1)
            found[name] = Shape5.of(stride.volume, self.maps[name], size // stride)
        return found

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
        if self.is_tiled:
            return f"computed over the whole volume in blocks of multiples of {self.alignment}"
        return f"field of view {self.field_of_view}, total pooling {self.total_pooling}"
