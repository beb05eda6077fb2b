"""Random tiled networks of layers that take packed values, and some that do not."""

from __future__ import annotations

import random

from znni.core.shapes import Vec3
from znni.network.input_scaling import InputScaling
from znni.network.layers import (
    Activation,
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    Layer,
    Maximum,
    Multiply,
    Padding,
    Pool,
    Upsample,
)
from znni.network.network import Network
from znni.network.node import INPUT, Node

ONE, TWO, THREE = Vec3(1, 1, 1), Vec3(2, 2, 2), Vec3(3, 3, 3)
ACTIVATIONS: tuple[Activation, ...] = ("relu", "elu", "identity", "leaky_relu")


class PackedGraph:
    """A network that is being made.

    Args:
        draw: the source of what is random.
    """

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._nodes: list[Node] = []
        self._maps = {INPUT: draw.choice([1, 2, 3])}

    def network(self) -> Network:
        """Return a U-Net of one or two levels."""
        x = self._level(self._conv(INPUT, [8, 16]), self._draw.choice([1, 1, 2]))
        x = self._conv(x, [3, 8])
        nodes = tuple(self._nodes)
        return Network("random", self._maps[INPUT], nodes, x, InputScaling())

    def _add(self, layer: Layer, *inputs: str) -> str:
        self._nodes.append(Node(layer, inputs))
        self._maps[layer.name] = layer.maps_from(*(self._maps[name] for name in inputs))
        return layer.name

    @property
    def _name(self) -> str:
        return f"v{len(self._nodes)}"

    @property
    def _activation(self) -> Activation:
        return self._draw.choice(ACTIVATIONS)

    def _extents(self, choices: list[int]) -> Vec3:
        return Vec3(*(self._draw.choice(choices) for _ in range(3)))

    def _conv(self, x: str, maps: list[int], activation: Activation | None = None) -> str:
        """Add a convolution that keeps the extents."""
        kernel, count = self._extents([1, 2, 3]), self._draw.choice(maps)
        before = (kernel - 1) // 2
        padding = Padding(before, kernel - 1 - before)
        activation = activation or self._activation
        layer = Conv(self._name, self._maps[x], count, kernel, activation, padding=padding)
        return self._add(layer, x)

    def _local(self, x: str) -> str:
        """Add one or two layers that keep the extents."""
        for _ in range(self._draw.randint(1, 2)):
            match self._draw.choice(["conv", "residual", "affine", "join", "pool"]):
                case "conv":
                    x = self._conv(x, [8, 16, 16, 12, 32, 5])
                case "residual":
                    first = self._conv(x, [8, 16, 16])
                    maps = [self._maps[first]]
                    second = self._conv(self._conv(first, [8, 16, 24]), maps, "identity")
                    x = self._add(Add(self._name, self._activation), second, first)
                case "affine":
                    x = self._add(Affine(self._name, self._maps[x], self._activation), x)
                case "join":
                    other = self._conv(x, [self._maps[x]])
                    kind = self._draw.choice([Add, Multiply, Maximum])
                    x = self._add(kind(self._name, self._activation), other, x)
                case _:
                    reduce, around = self._draw.choice(["max", "average"]), Padding(ONE, ONE)
                    x = self._add(Pool(self._name, THREE, reduce, ONE, padding=around), x)
        return x

    def _level(self, x: str, depth: int) -> str:
        """Add layers, and those of the levels below between a way down and a way up."""
        x = self._local(x)
        if depth == 0:
            return x
        skip, by = x, self._extents([1, 2, 2])
        by = TWO if by == ONE else by
        if self._draw.random() < 0.6:
            below = self._add(Pool(self._name, by, self._draw.choice(["max", "average"]), by), x)
        else:
            count, maps = self._draw.choice([16, 32]), self._maps[x]
            below = self._add(Conv(self._name, maps, count, by, self._activation, by), x)
        below = self._level(below, depth - 1)
        if self._draw.random() < 0.6:
            mode = "nearest" if self._draw.random() < 0.8 else "trilinear"
            up = self._add(Upsample(self._name, by, mode), below)
        else:
            count, maps = self._draw.choice([8, 16]), self._maps[below]
            up = self._add(ConvTranspose(self._name, maps, count, by, self._activation, by), below)
        if self._maps[up] == self._maps[skip] and self._draw.random() < 0.5:
            return self._local(self._add(Add(self._name, self._activation), up, skip))
        both = (up, skip) if self._draw.random() < 0.5 else (skip, up)
        return self._local(self._add(Concat(self._name), *both))
