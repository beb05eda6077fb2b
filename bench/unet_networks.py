"""U-Nets that people train, with folded batch norm or with instance norm, to be measured.

The widths and depths are those of pytorch-3dunet, nnU-Net's plain network, a residual symmetric
U-Net of connectomics, and a valid U-Net as funlib makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeGuard

import numpy as np
from safetensors.numpy import save_file

from znni.core.shapes import Vec3
from znni.network.layers import (
    Activation,
    Add,
    Concat,
    Conv,
    ConvTranspose,
    Layer,
    Normalize,
    Padding,
    Pool,
    Upsample,
)
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.weights import ConvWeights, Weights, random_weights

ONE, THREE = Vec3(1, 1, 1), Vec3(3, 3, 3)


class _Graph:
    """Nodes of a network that is being made."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.maps = {INPUT: 1}

    def add(self, layer: Layer, *inputs: str) -> str:
        """Add a layer, and return the name of its value."""
        self.nodes.append(Node(layer, inputs))
        self.maps[layer.name] = layer.maps_from(*(self.maps[name] for name in inputs))
        return layer.name

    def conv(
        self,
        taken: str,
        features: int,
        kernel: Vec3 = THREE,
        activation: Activation = "relu",
        stride: Vec3 = ONE,
        *,
        same: bool = True,
    ) -> str:
        """Add a convolution, whose padding keeps the size unless it is valid."""
        half = (kernel - 1) // 2 if same else Vec3(0, 0, 0)
        conv = Conv(
            f"conv{len(self.nodes)}", self.maps[taken], features, kernel, activation, stride,
            padding=Padding(half, half),
        )  # fmt: skip
        return self.add(conv, taken)

    def pool(self, taken: str, window: Vec3) -> str:
        """Add a max-pooling."""
        return self.add(Pool(f"pool{len(self.nodes)}", window), taken)

    def upsample(self, taken: str, factor: Vec3) -> str:
        """Add upsampling by repetition."""
        return self.add(Upsample(f"up{len(self.nodes)}", factor), taken)

    def concat(self, *taken: str) -> str:
        """Add a join of maps."""
        return self.add(Concat(f"join{len(self.nodes)}"), *taken)

    def network(self, name: str) -> Network:
        """Return the network."""
        return Network(name, 1, tuple(self.nodes), self.nodes[-1].name)


def unet3d() -> Network:
    """Return pytorch-3dunet's UNet3D with 32 to 256 maps."""
    graph, two = _Graph(), Vec3(2, 2, 2)
    at, skips = INPUT, []
    for level, maps in enumerate((32, 64, 128, 256)):
        if level:
            skips.append(at)
            at = graph.pool(at, two)
        at = graph.conv(graph.conv(at, maps // 2), maps)
    for maps in (128, 64, 32):
        at = graph.concat(skips.pop(), graph.upsample(at, two))
        at = graph.conv(graph.conv(at, maps), maps)
    graph.conv(at, 3, ONE, "sigmoid")
    return graph.network("unet3d")


def nnunet(*, instance_norm: bool = False, maps: int = 3) -> Network:
    """Return nnU-Net's plain network of six stages, with batch norm or instance norm.

    Args:
        instance_norm: whether it has instance norm.
        maps: the maps of its output.
    """
    graph, two = _Graph(), Vec3(2, 2, 2)
    at, skips = INPUT, []

    def conv(taken: str, width: int, stride: Vec3 = ONE) -> str:
        if not instance_norm:
            return graph.conv(taken, width, activation="leaky_relu", stride=stride)
        made = graph.conv(taken, width, activation="identity", stride=stride)
        name = f"norm{len(graph.nodes)}"
        return graph.add(Normalize(name, width, width, activation="leaky_relu"), made)

    for level, width in enumerate((32, 64, 128, 256, 320, 320)):
        if level:
            skips.append(at)
        at = conv(conv(at, width, two if level else ONE), width)
    for width in (320, 256, 128, 64, 32):
        up = ConvTranspose(f"up{len(graph.nodes)}", graph.maps[at], width, two, "identity", two)
        at = graph.concat(graph.add(up, at), skips.pop())
        at = conv(conv(at, width), width)
    graph.conv(at, maps, ONE, "identity")
    return graph.network("nnunet-instance" if instance_norm else "nnunet")


def rsunet() -> Network:
    """Return a residual symmetric U-Net with 16 to 256 maps."""
    graph, flat = _Graph(), Vec3(1, 5, 5)
    at, skips = graph.conv(INPUT, 16, flat, "elu"), []
    windows = (Vec3(1, 2, 2), *(Vec3(2, 2, 2),) * 3)

    def block(taken: str, maps: int) -> str:
        first = graph.conv(taken, maps, activation="elu")
        second = graph.conv(graph.conv(first, maps, activation="elu"), maps, activation="identity")
        return graph.add(Add(f"sum{len(graph.nodes)}", "elu"), second, first)

    at = block(at, 16)
    for maps, window in zip((32, 64, 128, 256), windows, strict=True):
        skips.append((at, window))
        at = block(graph.pool(at, window), maps)
    for maps in (128, 64, 32, 16):
        skip, window = skips.pop()
        narrow = graph.conv(at, maps, ONE, "identity")
        up = graph.add(Upsample(f"up{len(graph.nodes)}", window, "trilinear"), narrow)
        at = block(graph.add(Add(f"sum{len(graph.nodes)}"), up, skip), maps)
    graph.conv(graph.conv(at, 16, flat, "elu"), 3, ONE, "sigmoid")
    return graph.network("rsunet")


def valid_unet() -> Network:
    """Return a valid U-Net of four levels with 12 to 768 maps."""
    graph, two = _Graph(), Vec3(2, 2, 2)
    at, skips = INPUT, []
    for level, maps in enumerate((12, 48, 192, 768)):
        if level:
            skips.append(at)
            at = graph.pool(at, two)
        at = graph.conv(graph.conv(at, maps, same=False), maps, same=False)
    for maps in (192, 48, 12):
        at = graph.concat(graph.upsample(at, two), skips.pop())
        at = graph.conv(graph.conv(at, maps, same=False), maps, same=False)
    graph.conv(at, 3, ONE, "sigmoid")
    return graph.network("valid-unet")


def mednext(expansions: Sequence[int], blocks: Sequence[int], kernel: int) -> Network:
    """Return a MedNeXt of five levels with 32 to 512 maps, as MONAI has it.

    Args:
        expansions: the factor by which a block widens its maps, by the stage.
        blocks: the blocks of each stage.
        kernel: the extent of depthwise kernels.
    """
    graph, two, wide, half = _Graph(), Vec3(2, 2, 2), Vec3.of(kernel), Vec3.of(kernel // 2)
    at, skips = graph.conv(INPUT, 32, ONE, "identity"), []

    def named(kind: str) -> str:
        return f"{kind}{len(graph.nodes)}"

    def widened(taken: str, maps: int, factor: int) -> str:
        known = graph.maps[taken]
        normed = graph.add(Normalize(named("norm"), known, known), taken)
        return graph.conv(graph.conv(normed, factor * known, ONE, "gelu"), maps, ONE, "identity")

    def spatial(taken: str, stride: Vec3) -> str:
        maps, padding = graph.maps[taken], Padding(half, half)
        layer = Conv(named("conv"), maps, maps, wide, "identity", stride, ONE, maps, padding)
        return graph.add(layer, taken)

    def added(first: str, second: str) -> str:
        return graph.add(Add(named("sum")), first, second)

    def stage(taken: str, number: int) -> str:
        for _ in range(blocks[number]):
            maps = graph.maps[taken]
            taken = added(widened(spatial(taken, ONE), maps, expansions[number]), taken)
        return taken

    def lower(taken: str, maps: int, factor: int) -> str:
        made = widened(spatial(taken, two), maps, factor)
        return added(made, graph.conv(taken, maps, ONE, "identity", two))

    def higher(taken: str, maps: int, factor: int) -> str:
        known = graph.maps[taken]
        layer = ConvTranspose(
            named("up"), known, known, wide, "identity", two, half, half, groups=known
        )
        made = widened(graph.add(layer, taken), maps, factor)
        point = ConvTranspose(named("up"), known, maps, ONE, "identity", two)
        both = added(made, graph.add(point, taken))
        before = Padding(ONE, Vec3(0, 0, 0))
        pad = Conv(named("pad"), maps, maps, ONE, "identity", groups=maps, padding=before)
        return graph.add(pad, both)

    for level in range(4):
        at = stage(at, level)
        skips.append(at)
        at = lower(at, 64 << level, expansions[level])
    at = stage(at, 4)
    for level in range(5, 9):
        skip = skips.pop()
        at = stage(added(higher(at, graph.maps[skip], expansions[level]), skip), level)
    graph.conv(at, 2, ONE, "identity")
    return graph.network(f"mednext-{sum(expansions)}-{sum(blocks)}-k{kernel}")


MEDNEXT_S = (2,) * 9, (2,) * 9
MEDNEXT_B = (2, 3, 4, 4, 4, 4, 4, 3, 2), (2,) * 9
MEDNEXT_M = (2, 3, 4, 4, 4, 4, 4, 3, 2), (3, 4, 4, 4, 4, 4, 4, 4, 3)
MEDNEXT_L = (3, 4, 8, 8, 8, 8, 8, 4, 3), (3, 4, 8, 8, 8, 8, 8, 4, 3)

UNETS: Mapping[str, Callable[[], Network]] = {
    "unet3d": unet3d,
    "nnunet": nnunet,
    "nnunet-instance": partial(nnunet, instance_norm=True),
    "rsunet": rsunet,
    "valid-unet": valid_unet,
    **{
        f"mednext-{size}-k{kernel}": partial(mednext, *widths, kernel)
        for size, widths in zip("sbml", (MEDNEXT_S, MEDNEXT_B, MEDNEXT_M, MEDNEXT_L), strict=True)
        for kernel in (3, 5)
    },
}


def unet_weights(network: Network) -> Weights:
    """Return random weights with which values keep their size, as batch norm keeps them.

    Layers that only pad have weights of 1.

    Every sum of a residual network adds variances. With He's scaling, values would grow until the
    last sigmoid is 0 or 1 everywhere, so that errors mean nothing. Half the variance prevents it.
    """
    weights = random_weights(network, 0)
    layers = dict(weights.layers)
    if any(isinstance(layer, Add) for layer in network.layers):
        halved = np.float32(np.sqrt(0.5))
        layers = {name: replace(it, weight=it.weight * halved) for name, it in layers.items()}
    for layer in filter(only_pads, network.layers):
        ones = np.ones(layer.weight_shape, np.float32)
        layers[layer.name] = ConvWeights(ones, np.zeros(len(ones), np.float32))
    return Weights(layers, source=weights.source)


def only_pads(layer: Layer) -> TypeGuard[Conv]:
    """Return whether a layer of these networks stands for zero padding."""
    return isinstance(layer, Conv) and layer.groups > 1 and layer.kernel == ONE


def save_weights(weights: Weights, path: Path) -> None:
    """Write weights into a .safetensors file, as ``load_weights`` reads them."""
    arrays = {
        f"{name}.{kind}": array
        for name, layer in weights.layers.items()
        for kind, array in layer.arrays.items()
    }
    save_file(arrays, path)
