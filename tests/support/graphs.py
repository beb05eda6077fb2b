"""Random legal graphs of tiled networks: residual blocks, skips, joins, and ways down and up."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import assume
from hypothesis import strategies as st

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.network.geometry import context, with_window
from znni.network.input_scaling import InputScaling
from znni.network.layers import (
    LEAKY_SLOPE,
    Activation,
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    GlobalPool,
    Layer,
    Multiply,
    Normalize,
    Padding,
    PadLayer,
    Pool,
    Upsample,
    VoxelNorm,
)
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.window import Window

# A network file with every kind of layer.
EVERY_KIND = """\
name: unet
in_features: 2
layers:
  - conv: {features: 4, kernel: 3, padding: same, activation: {leaky_relu: 0.2}}
  - name: skip
    conv: {features: 4, kernel: [1, 3, 2], padding: same, dilation: [1, 2, 1], groups: 4}
  - affine: {activation: prelu}
  - pool: {window: 3, kind: average, stride: 2, padding: 1}
  - conv: {features: 8, kernel: 2, stride: 2, activation: gelu}
  - upsample: {factor: 2, mode: trilinear}
  - conv_transpose: {features: 4, kernel: 3, stride: 2, padding: 1, output_padding: [1, 1, 0]}
  - add: {activation: elu}
    from: [conv_transpose1, skip]
  - name: gate
    from: input
    conv: {features: 1, kernel: 3, padding: [1, 1, 1], activation: sigmoid}
  - multiply: {}
    from: [add1, gate]
  - concat: {}
    from: [multiply1, input]
  - name: boundary
    conv: {features: 1, kernel: 2, padding: {before: 0, after: [1, 0, 1]}, activation: sigmoid}
  - name: classes
    from: concat1
    conv: {features: 3, kernel: 1, activation: softmax}
outputs: [boundary, classes]
"""

ONE = Vec3(1, 1, 1)


class Graph:
    """A network that is being made: its nodes, and the maps of each value.

    Args:
        draw: given by hypothesis.
        maps: the maps of the input.
        most_maps: the most maps of a convolution.
        whole: whether layers may depend on a whole window. Then all layers keep the lattice of
            voxels, as windows ask for.
    """

    def __init__(self, draw: st.DrawFn, maps: int, most_maps: int, *, whole: bool = False) -> None:
        self.draw = draw
        self.most_maps = most_maps
        self.whole = whole
        self.nodes: list[Node] = []
        self.maps = {INPUT: maps}

    def add(self, layer: Layer, *inputs: str) -> str:
        """Add a layer, and return the name of its value."""
        self.nodes.append(Node(layer, inputs))
        self.maps[layer.name] = layer.maps_from(*(self.maps[name] for name in inputs))
        return layer.name

    @property
    def name(self) -> str:
        """An unused name for the next layer."""
        return f"v{len(self.nodes)}"

    def count(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def extents(self, least: int, most: int) -> Vec3:
        return Vec3(*(self.count(least, most) for _ in range(3)))

    def activation(self, *, joins: bool = False) -> Activation:
        known = [name for name in get_args(Activation) if not (joins and name == "prelu")]
        found: Activation = self.draw(st.sampled_from(known))
        return found

    def slope(self, activation: Activation) -> float:
        """Return a slope, which only ``leaky_relu`` has."""
        slopes = [LEAKY_SLOPE, 0.2, -0.5] if activation == "leaky_relu" else [LEAKY_SLOPE]
        return self.draw(st.sampled_from(slopes))

    def groups(self, taken: int, features: int) -> int:
        """Return a number that divides both; depthwise layers have as many as there are maps."""
        divisors = [n for n in range(1, taken + 1) if taken % n == features % n == 0]
        return self.draw(st.sampled_from(divisors))

    def wide(self, x: str) -> str:
        """Add two convolutions of one tap."""
        for _ in range(2):
            activation = self.activation()
            features, slope = self.count(1, 2 * self.most_maps), self.slope(activation)
            conv = Conv(self.name, self.maps[x], features, ONE, activation, slope=slope)
            x = self.add(conv, x)
        return x

    def convolution(
        self,
        x: str,
        *,
        kept: bool = False,
        stride: Vec3 = ONE,
        features: int | None = None,
        extended: bool = False,
    ) -> str:
        """Add a convolution.

        Args:
            x: the value that it takes.
            kept: whether the output has the extents of the input.
            extended: whether it sees samples of the input beyond the volume, and not zeros.
            stride: its stride.
            features: the output maps; None for any number.
        """
        taken = self.maps[x]
        features = features or self.count(1, self.most_maps)
        kernel, dilation = self.extents(1, 4), self.extents(1, 2)
        total = (kernel - 1) * dilation
        before = total // 2
        kept = kept or self.whole
        if not kept:
            before = Vec3(*(self.count(0, extent) for extent in before))
        padding = Padding(before, total - before if kept else before)
        if extended:
            mode = self.draw(st.sampled_from(["reflect", "edge"]))
            x, padding = self.add(PadLayer(self.name, padding, mode), x), Padding()
        activation = self.activation()
        return self.add(
            Conv(
                self.name, taken, features, kernel, activation, stride, dilation,
                self.groups(taken, features), padding, self.slope(activation),
            ),
            x,
        )  # fmt: skip

    def local(self, x: str, earlier: list[str]) -> str:
        """Add a layer, or a few, that keep the stride.

        Args:
            x: the value that they take.
            earlier: values of this level, which may be read once more.
        """
        kinds = ["conv", "conv", "affine", "norm", "pool", "pad", "residual", "again", "wide"]
        kinds += ["whole norm", "excite"] if self.whole else []
        match self.draw(st.sampled_from(kinds)):
            case "again":
                other = self.draw(st.sampled_from(earlier))
                if self.draw(st.booleans()):
                    other = self.convolution(other, kept=True)
                return x if other == x else self.join(x, other)
            case "conv":
                return self.convolution(x)
            case "wide":
                return self.wide(x)
            case "affine":
                activation = self.activation()
                return self.add(
                    Affine(self.name, self.maps[x], activation, self.slope(activation)), x
                )
            case "norm":
                activation, maps = self.activation(), self.maps[x]
                groups, slope = self.groups(maps, maps), self.slope(activation)
                return self.add(VoxelNorm(self.name, maps, groups, 0.1, activation, slope), x)
            case "whole norm":
                activation, maps = self.activation(), self.maps[x]
                groups, slope = self.groups(maps, maps), self.slope(activation)
                by: Any = self.draw(st.sampled_from(["deviation", "response"]))
                return self.add(Normalize(self.name, maps, groups, 0.1, activation, slope, by), x)
            case "excite":
                reduce: Any = self.draw(st.sampled_from(["average", "max"]))
                pooled = self.add(GlobalPool(self.name, reduce), x)
                maps = self.maps[x]
                factors = self.add(Conv(self.name, maps, maps, ONE, self.activation()), pooled)
                return self.add(
                    Multiply(self.name, self.activation(joins=True), spreads=True), x, factors
                )
            case "pool":
                return self.pooling(x, ONE)
            case "pad":
                return self.convolution(x, extended=True)
            case _:
                other = self.convolution(x, kept=self.draw(st.booleans()), features=self.maps[x])
                return self.join(other, x)

    def pooling(self, x: str, stride: Vec3) -> str:
        """Add a pooling with windows of the stride, or longer ones with padding."""
        window, padding = stride, Padding()
        if self.draw(st.booleans()):
            window = stride + self.extents(0, 1)
            most = window - (stride if self.whole else ONE)
            before = Vec3(*(self.count(0, extent) for extent in most))
            spare = most - before
            after = spare if self.whole else Vec3(*(self.count(0, extent) for extent in spare))
            padding = Padding(before, after)
        kind = self.draw(st.sampled_from(["max", "average"]))
        return self.add(Pool(self.name, window, kind, stride, padding), x)

    def down(self, x: str, stride: Vec3) -> str:
        if self.draw(st.booleans()):
            return self.pooling(x, stride)
        return self.convolution(x, stride=stride)

    def up(self, x: str, stride: Vec3) -> str:
        kinds = ["nearest", "trilinear", "conv_transpose", "shifted"]
        kind = self.draw(st.sampled_from(kinds))
        if kind == "shifted":  # the transposed convolution gives one sample too few
            by = Vec3(*(int(step > 1) for step in stride))
            short = ConvTranspose(
                self.name, self.maps[x], self.count(1, self.most_maps), stride + by,
                "identity", stride, by, by,
            )  # fmt: skip
            return self.add(Upsample(f"{self.name} shift", ONE, shift=by), self.add(short, x))
        if kind != "conv_transpose":
            return self.add(Upsample(self.name, stride, kind), x)
        kernel, before, after = [], [], []
        for step in stride:
            extent = self.count(1, step + 2)
            least = max(0, -(-(extent - step) // 2))  # the output is no longer than the lattice
            start = self.count(least, max(least, (extent - 1) // 2))
            most = min(step - 1, 2 * start - extent + step)
            added = most if self.whole else self.count(0, most)
            kernel.append(extent)
            before.append(start)
            after.append(start - added)
        activation, taken = self.activation(), self.maps[x]
        features = self.draw(st.sampled_from([taken, self.count(1, self.most_maps)]))
        return self.add(
            ConvTranspose(
                self.name, taken, features, Vec3(*kernel), activation, stride, Vec3(*before),
                Vec3(*after), self.slope(activation), self.groups(taken, features),
            ),
            x,
        )  # fmt: skip

    def join(self, x: str, skip: str) -> str:
        """Join two values, after making their maps fit if needed."""
        kind = self.draw(st.sampled_from(["concat", "add", "multiply", "gate"]))
        if kind == "concat":
            return self.add(Concat(self.name), *self.draw(st.permutations([x, skip])))
        wanted = 1 if kind == "gate" else self.maps[x]
        if self.maps[skip] != wanted:
            skip = self.convolution(skip, features=wanted)
        activation = self.activation(joins=True)
        slope = self.slope(activation)
        if kind == "add":
            return self.add(Add(self.name, activation, slope), x, skip)
        is_gate = wanted < self.maps[x]
        return self.add(Multiply(self.name, activation, slope, is_gate), x, skip)

    def level(self, x: str, depth: int, strides: tuple[int, ...]) -> str:
        """Add the layers between a value and another with the same stride."""
        earlier = [x]
        for _ in range(self.count(0, 2)):
            x = self.local(x, earlier)
            earlier.append(x)
        if depth:
            stride = Vec3(*(self.draw(st.sampled_from(strides)) for _ in range(3)))
            below = self.level(self.down(x, stride), depth - 1, strides)
            above = self.up(below, stride)
            x = self.join(above, x) if self.draw(st.booleans()) else above
        earlier.append(x)
        for _ in range(self.count(0, 2)):
            x = self.local(x, earlier)
            earlier.append(x)
        return x


@st.composite
def graphs(
    draw: st.DrawFn,
    depth: int = 2,
    most_maps: int = 20,
    strides: tuple[int, ...] = (1, 2, 3),
    *,
    whole: bool = False,
) -> Network:
    """Tiled networks of up to some levels of resolution.

    Args:
        draw: given by hypothesis.
        depth: the most ways down, and up again.
        most_maps: the most maps of a convolution.
        strides: the strides of a way down along an axis.
        whole: whether a layer depends on a whole window.
    """
    graph = Graph(draw, draw(st.integers(1, 3)), most_maps, whole=whole)
    x = graph.level(INPUT, draw(st.integers(0, depth)), strides)
    if draw(st.booleans()):
        graph.convolution(x, kept=True)
    assume(any(isinstance(node.layer, Conv) for node in graph.nodes))
    nodes = tuple(graph.nodes)
    try:
        network = Network("random", graph.maps[INPUT], nodes, nodes[-1].name, InputScaling())
        assume(network.is_tiled and bool(network.window_layer) == whole)
        if whole:
            with_window(network, Window(network.alignment * 2))
        else:
            context(network)
    except InvalidInput:  # poolings of different branches may suit no extents
        assume(False)
    return network
