"""Networks as text: one line for each layer."""

from __future__ import annotations

from collections.abc import Iterator

from znni.core.shapes import ONE
from znni.core.text import counted
from znni.network.layers import (
    LEAKY_SLOPE,
    NO_PADDING,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    GlobalPool,
    Layer,
    Model,
    Multiply,
    Normalize,
    Padding,
    PadLayer,
    Pool,
    Upsample,
    VoxelNorm,
)
from znni.network.network import Network
from znni.network.network_as_text import kind_of
from znni.network.node import INPUT, Node
from znni.network.normalization import EPS


def describe(network: Network) -> str:
    """Return the layers of a network, its input's scaling and its weights file, line by line."""
    lines = [str(network)]
    lines += [f"  {line}" for line in (network.about, *_expected(network)) if line]
    width = max(8, *(len(node.name) for node in network.nodes))
    before = INPUT
    for node in network.nodes:
        taken = () if node.inputs == (before,) else (_origin(node),)
        what = ", ".join((*_parts(node.layer, network.maps), *taken))
        lines.append(f"  {node.name:<{width}} {what}")
        before = node.name
    lines.append(f"  {'input':<{width}} {network.scaling}")
    lines.append(f"  {'weights':<{width}} {network.weights or 'none named'}")
    return "\n".join(lines)


def describe_layer(network: Network, layer: Layer) -> str:
    """Return a layer's name, and what it is in brackets."""
    return f"{layer.name} ({', '.join(_parts(layer, network.maps))})"


def _expected(network: Network) -> Iterator[str]:
    if network.expects:
        yield f"expects {network.expects}"
    if network.spacing:
        yield f"expects voxels of {network.spacing}"


def _origin(node: Node) -> str:
    return f"of {' and '.join(name or 'the input' for name in node.inputs)}"


def _parts(layer: Layer, maps: dict[str, int]) -> Iterator[str]:
    """Yield what a layer is, and each number that is not the usual one."""
    made = counted(maps[layer.name], "map")
    match layer:
        case Conv():
            yield f"conv {layer.kernel}"
            yield f"{layer.in_features} -> {made}"
            for name, usual in (("stride", ONE), ("dilation", ONE), ("groups", 1)):
                yield from _unless(name, getattr(layer, name), usual)
            yield from (*_padded(layer.padding), *_unless("mode", layer.mode, "correlation"))
        case ConvTranspose():
            yield f"transposed conv {layer.kernel}"
            yield f"{layer.in_features} -> {made}"
            yield f"stride {layer.stride}"
            yield from _unless("groups", layer.groups, 1)
            yield from _padded(Padding(layer.padding, layer.padding_after))
        case Pool():
            yield f"{layer.reduce}-pool {layer.window}"
            yield from _unless("stride", layer.stride, layer.window)
            yield from _unless("dilation", layer.dilation, ONE)
            yield from _padded(layer.padding)
        case Model():
            yield f"{layer.file}, computed by {layer.runtime}"
            yield f"{layer.in_features} -> {made}"
        case GlobalPool():
            yield f"global {layer.reduce}-pool of {made}"
        case Upsample():
            if layer.shift == NO_PADDING.before:
                yield f"{layer.mode} upsampling {layer.factor}"
            else:
                yield f"shift by {layer.shift}"
        case PadLayer():
            yield from (layer.mode, *_padded(layer.padding))
        case Affine():
            yield f"factor and shift of {made}"
        case Normalize() | VoxelNorm():
            yield f"{kind_of(layer).replace('_', ' ')} of {made}"
            usual = 1 if isinstance(layer, VoxelNorm) or layer.by == "response" else layer.features
            yield from (*_unless("groups", layer.groups, usual), *_unless("eps", layer.eps, EPS))
        case Multiply(spreads=True):
            yield f"multiply {made} by a factor" + " for each" * (not layer.is_gate)
        case Multiply(is_gate=True):
            yield f"multiply {made} by a gate"
        case _:
            yield (
                f"{layer.kind} to {made}" if isinstance(layer, Concat) else f"{layer.kind} {made}"
            )
    match layer:
        case Pool() | GlobalPool() | Upsample() | PadLayer() | Concat() | Model():
            return
        case _ if layer.activation == "leaky_relu" and layer.slope != LEAKY_SLOPE:
            yield f"leaky_relu {layer.slope:g}"
        case _:
            yield layer.activation


def _unless(name: str, value: object, usual: object) -> Iterator[str]:
    if value != usual:
        yield f"{name} {value}"


def _padded(padding: Padding) -> Iterator[str]:
    if padding.before != padding.after:
        yield f"padding {padding.before} before and {padding.after} after"
    else:
        yield from _unless("padding", padding.before, NO_PADDING.before)
