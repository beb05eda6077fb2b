"""What the direct convolutions of a GPU have in common: all but what they apply to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from znni.core.options import ACCURACIES
from znni.core.shapes import Shape5
from znni.machine.machine import Device
from znni.network.network import Conv, Operation
from znni.network.weights import ConvWeights, conv_weights
from znni.plans.cost import Cost
from znni.plans.primitive import Run, applying
from znni.primitives.gpu.direct.geometry import Tile
from znni.primitives.gpu.direct.launch import build, cost_of


class Tiled(NamedTuple):
    """What a convolution is, the tile of a block that computes it, and the shape of its output."""

    conv: Conv
    tile: Tile
    out: Shape5


@dataclass(frozen=True)
class DirectConvolution(ABC):
    """Direct convolution on a GPU, pooled at once or not."""

    device: Device
    name: str
    accuracy: float = ACCURACIES["float32"]
    version = 1

    @abstractmethod
    def tiled(self, layer: Operation, shape: Shape5) -> Tiled | None:
        """How a layer is computed, or None where this convolution does not apply."""

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Of what applies and has a kernel whose view fits in shared memory."""
        found = self.tiled(layer, shape)
        return found and found.out

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """A multiply-add for each tap of each voxel that is computed; no workspace."""
        conv, tile, out = applying(self.tiled(layer, shape), self, layer, shape)
        return cost_of(conv, tile, shape, out)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Compile the kernel, and order the weights as it reads them."""
        conv, tile, out = applying(self.tiled(layer, shape), self, layer, shape)
        return build(conv, tile, shape, out, conv_weights(conv, weights))
