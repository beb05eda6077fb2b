"""Networks as PyTorch modules, for comparisons with PyTorch and with what it exports to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's documentation has it
from torch import Tensor, nn

from bench.unet_networks import only_pads
from znni.core.shapes import Vec3, offsets
from znni.network.layers import (
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
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
from znni.network.weights import Weights

PER_MAP = (1, -1, 1, 1, 1)  # the shape of numbers for maps, beside (n, f, z, y, x)

# Values of a tap's input that are copied at a time.
MOST_TAP_VALUES = 2**28


class TorchGraph(nn.Module):
    """A network that PyTorch computes over one whole input (1, f, z, y, x).

    Args:
        network: a tiled network.
        weights: its weights.
        dtype: the type of weights and values.
        by_taps: add convolutions up tap by tap: PyTorch copies its float64 input for each tap.
    """

    def __init__(
        self,
        network: Network,
        weights: Weights,
        dtype: torch.dtype = torch.float32,
        *,
        by_taps: bool = False,
    ) -> None:
        super().__init__()
        self._network = network
        self._by_taps = by_taps
        last = {name: index for index, node in enumerate(network.nodes) for name in node.inputs}
        self._dying: list[list[str]] = [[] for _ in network.nodes]
        for name, index in last.items():
            self._dying[index] += [name] * (name != network.output)
        for index, node in enumerate(network.nodes):
            if node.name in weights.layers:
                for kind, array in weights[node.name].arrays.items():
                    values = torch.from_numpy(np.ascontiguousarray(array)).to(dtype)
                    self.register_buffer(f"{kind}{index}", values)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (1, f', z', y', x'). Values that nobody needs any more are let go."""
        values = {INPUT: x}
        del x
        for index, node in enumerate(self._network.nodes):
            given = [values[name] for name in node.inputs]
            for name in self._dying[index]:
                del values[name]
            values[node.name] = self._computed(index, node, given)
        return values[self._network.output]

    def _computed(self, index: int, node: Node, given: list[Tensor]) -> Tensor:
        layer, x = node.layer, given[0]

        def array(kind: str) -> Any:
            return getattr(self, f"{kind}{index}", None)

        match layer:
            case Conv():
                before, after = layer.padding
                padding: Any = tuple(before)
                if before != after or self._by_taps:
                    x, padding = _padded(x, layer.padding, 0.0), 0
                if only_pads(layer):
                    y = x
                elif self._by_taps and layer.groups == 1:
                    y = _sum_of_taps(x, layer, array("weight"), array("bias"))
                else:
                    y = F.conv3d(
                        x, array("weight"), array("bias"), tuple(layer.stride), padding,
                        tuple(layer.dilation), layer.groups,
                    )  # fmt: skip
            case ConvTranspose():
                y = F.conv_transpose3d(
                    x, array("weight"), array("bias"), tuple(layer.stride), tuple(layer.padding),
                    tuple(layer.padding - layer.padding_after), layer.groups,
                )  # fmt: skip
            case Pool():
                y = _pooled(x, layer)
            case Upsample() if any(layer.shift):
                y = F.interpolate(x, tuple(map(sum, zip(x.shape[2:], layer.shift, strict=True))))
            case Upsample():
                y = F.interpolate(x, scale_factor=tuple(map(float, layer.factor)), mode=layer.mode)
            case PadLayer():
                y = _extended(x, layer)
            case Affine():
                y = x * array("weight").view(PER_MAP) + array("bias").view(PER_MAP)
            case Normalize() if layer.is_instance_norm:
                y = F.instance_norm(x, None, None, array("weight"), array("bias"), eps=layer.eps)
            case Normalize(by="response"):
                grouped = x.unflatten(1, (layer.groups, -1))
                norms = torch.linalg.vector_norm(grouped, dim=(3, 4, 5), keepdim=True)
                shares = (norms / (norms.mean(2, keepdim=True) + layer.eps)).flatten(1, 2)
                y = array("weight").view(PER_MAP) * (x * shares) + array("bias").view(PER_MAP) + x
            case Normalize():
                y = F.group_norm(x, layer.groups, array("weight"), array("bias"), layer.eps)
            case VoxelNorm():
                last = x.unflatten(1, (layer.groups, -1)).movedim(2, -1)
                normed = F.layer_norm(last, last.shape[-1:], eps=layer.eps)
                y = normed.movedim(-1, 2).flatten(1, 2)
                y = y * array("weight").view(PER_MAP) + array("bias").view(PER_MAP)
            case Concat():
                y = torch.cat(_cropped(given), 1)
            case Add():
                first, second = _cropped(given)
                y = first + second
            case Multiply():
                first, second = _cropped(given)
                y = first * second
        return _activated(y, layer, array("slope"))


def _sum_of_taps(x: Tensor, layer: Conv, weight: Tensor, bias: Tensor) -> Tensor:
    """Return a convolution as a sum of products over its taps, some planes at a time.

    So it takes little memory beside input and output.
    """
    size = layer.local_size(Vec3(*x.shape[2:]))
    y = x.new_empty((1, layer.out_features, *size))
    depth = max(1, MOST_TAP_VALUES // (layer.in_features * size.y * size.x))
    for first in range(0, size.z, depth):
        part = y[:, :, first : first + depth]
        planes = Vec3(first, 0, 0)
        made = bias.view(-1, 1).repeat(1, part[0, 0].numel())
        for tap in offsets(layer.kernel):
            begin = tap * layer.dilation + planes * layer.stride
            z, y_, x_ = (
                slice(start, start + (extent - 1) * step + 1, step)
                for start, extent, step in zip(begin, part.shape[2:], layer.stride, strict=True)
            )
            seen = x[0, :, z, y_, x_].reshape(layer.in_features, -1)
            made.addmm_(weight[:, :, tap.z, tap.y, tap.x], seen)
        part.copy_(made.view(part.shape))
    return y


def _padded(x: Tensor, padding: Padding, missing: float) -> Tensor:
    """Return values with others around them, which may differ in number on both sides."""
    sides = zip(*map(reversed, padding), strict=True)
    return F.pad(x, [each for side in sides for each in side], value=missing)


def _extended(x: Tensor, layer: PadLayer) -> Tensor:
    """Return values with samples of their own around them."""
    for axis, sides in enumerate(zip(*layer.padding, strict=True), start=2):
        taken = np.pad(np.arange(x.shape[axis]), sides, mode=layer.mode)
        x = x.index_select(axis, torch.from_numpy(taken).to(x.device))
    return x


def _pooled(x: Tensor, layer: Pool) -> Tensor:
    is_max = layer.reduce == "max"
    around, after = layer.padding
    fits = around.within(layer.window // 2) and layer.reach.within(Vec3(*x.shape[2:]))
    if around != after or not fits:  # then PyTorch cannot pad while it pools
        x, around = _padded(x, layer.padding, -math.inf if is_max else 0.0), Vec3(0, 0, 0)
    window, stride, dilation = map(tuple, (layer.window, layer.stride, layer.dilation))
    if is_max:
        return F.max_pool3d(x, window, stride, tuple(around), dilation)
    if layer.dilation == Vec3(1, 1, 1):
        return F.avg_pool3d(x, window, stride, tuple(around))
    share = x.new_full((x.shape[1], 1, *window), 1 / layer.window.volume)
    return F.conv3d(x, share, None, stride, tuple(around), dilation, x.shape[1])


def _cropped(given: list[Tensor]) -> list[Tensor]:
    """Return values cropped around their centres to the smallest of them."""
    size = [min(extents) for extents in zip(*(value.shape[2:] for value in given), strict=True)]
    for axis, extent in enumerate(size, start=2):
        given = [
            value
            if value.shape[axis] == extent
            else value.narrow(axis, (value.shape[axis] - extent) // 2, extent)
            for value in given
        ]
    return given


def _activated(y: Tensor, layer: Layer, slopes: Tensor | None) -> Tensor:
    match getattr(layer, "activation", "identity"):
        case "identity":
            return y
        case "relu":
            return F.relu(y)
        case "leaky_relu":
            return F.leaky_relu(y, getattr(layer, "slope"))  # noqa: B009 - of several classes
        case "prelu" if slopes is not None:
            return F.prelu(y, slopes)
        case "elu":
            return F.elu(y)
        case "gelu":
            return F.gelu(y)
        case "gelu_tanh":
            return F.gelu(y, approximate="tanh")
        case "sigmoid":
            return torch.sigmoid(y)
        case "tanh":
            return torch.tanh(y)
        case "softmax":
            return torch.softmax(y, 1)
        case other:
            raise ValueError(f"no such activation: {other}")
