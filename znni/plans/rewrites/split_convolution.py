"""Convolutions of upsampled values as transposed ones, which multiply at the coarse samples.

Nearest upsampling repeats samples. So a convolution of 3 taps, over samples that are repeated
twice, sees two samples of the coarse value along each axis. The weights of taps that see the same
sample are added up. The result is a transposed convolution of 4 taps with stride 2. It has 8
products for each output voxel in place of 27, reads an eighth of the samples, and nothing is
upsampled.

If the upsampled value is joined to another one, as in the decoders of U-Nets, the convolution is
split in two: one for the maps of each value. Their outputs are added.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from znni.core.shapes import ONE, Vec3
from znni.network.frames import whole_sizes
from znni.network.layers import NO_PADDING, Add, Concat, Conv, ConvTranspose, Upsample
from znni.network.network import Network
from znni.network.node import Node, SplitConv, readers_of
from znni.network.weights import ConvWeights, Float32, Weights


def splittable(network: Network) -> tuple[SplitConv, ...]:
    """Return the convolutions of a tiled network for a volume that can be split.

    Such a convolution takes a value that is upsampled by repetition, perhaps joined to another one.
    It has no stride, dilation or groups. No other layer takes the upsampled or the joined value.
    """
    if network.whole is None:
        raise ValueError(f"network {network.name} is for no volume; call over(network, whole)")
    made_by = {node.name: node for node in network.nodes}
    readers, sizes = readers_of(network.nodes), whole_sizes(network, network.whole)

    def only_for(name: str, reader: Node) -> Node | None:
        """Return the node of a value, if only one other node takes it."""
        alone = name != network.output and readers[name] == [reader]
        return made_by.get(name) if alone else None

    def repeated_for(name: str, reader: Node) -> bool:
        node = only_for(name, reader)
        if node is None or not isinstance(node.layer, Upsample) or node.layer.factor == ONE:
            return False
        return node.layer.mode == "nearest" and node.inputs[0] not in network.pooled

    found = []
    for node in network.nodes:
        if not isinstance(node.layer, Conv) or not _is_splittable(node.layer):
            continue
        (taken,) = node.inputs
        if repeated_for(taken, node):
            found.append(SplitConv(made_by[taken], None, node, 0, network.maps[taken]))
        join = only_for(taken, node)
        if join is None or not isinstance(join.layer, Concat) or len(join.inputs) != 2:
            continue
        repeated = [repeated_for(name, join) for name in join.inputs]
        # A join crops the larger value. Zeros around it would lie elsewhere after a convolution.
        alike = len({sizes[name] for name in join.inputs}) == 1
        if any(repeated) and (alike or node.layer.padding == NO_PADDING):
            number = repeated.index(True)
            first, name = number * network.maps[join.inputs[0]], join.inputs[number]
            found.append(SplitConv(made_by[name], join, node, first, network.maps[name]))
    return tuple(found)


def _is_splittable(conv: Conv) -> bool:
    before, after = conv.padding
    return (
        conv.stride == conv.dilation == ONE
        and conv.groups == 1
        and before == after
        and before.within(conv.kernel - 1)
        and conv.activation not in ("prelu", "softmax")
    )


def split(network: Network, convolutions: tuple[SplitConv, ...]) -> Network:
    """Return a network in which some of the convolutions from ``splittable`` are split."""
    by_conv = {it.conv.name: it for it in convolutions}
    gone = {node.name for it in convolutions for node in it.nodes} - by_conv.keys()
    nodes: list[Node] = []
    for node in network.nodes:
        if node.name in by_conv:
            nodes += _parts(by_conv[node.name])
        elif node.name not in gone:
            nodes.append(node)
    return replace(network, nodes=tuple(nodes), split=convolutions)


def alike(network: Network, other: Network) -> Network:
    """Return a network in which those convolutions are split that are split in another one.

    Convolutions that cannot be split stay whole.
    """
    names = {it.conv.name for it in other.split}
    if not names or network.whole is None:
        return network
    found = tuple(it for it in splittable(network) if it.conv.name in names)
    return split(network, found) if found else network


def original(network: Network) -> Network:
    """Return a network whose split convolutions are whole again."""
    if not network.split:
        return network
    nodes = list(network.nodes)
    for it in network.split:
        names = [node.name for node in _parts(it)]
        first = min(index for index, node in enumerate(nodes) if node.name in names)
        nodes = [node for node in nodes if node.name not in names]
        nodes[first:first] = it.nodes
    return replace(network, nodes=tuple(nodes), split=())


def _parts(it: SplitConv) -> list[Node]:
    """Return the layers that take the place of a convolution."""
    conv, factor = it.layers
    padding = conv.kernel - 1 - conv.padding.before
    coarse = ConvTranspose(
        conv.name, it.maps, conv.out_features, conv.kernel + factor - 1, conv.activation,
        factor, padding, padding, conv.slope,
    )  # fmt: skip
    if it.fine_input is None:
        return [Node(coarse, it.upsample.inputs)]
    coarse = replace(coarse, name=it.coarse, activation="identity")
    in_features = conv.in_features - it.maps
    fine = replace(conv, name=it.fine, in_features=in_features, activation="identity")
    return [
        Node(coarse, it.upsample.inputs),
        Node(fine, (it.fine_input,)),
        Node(Add(conv.name, conv.activation, conv.slope), (it.fine, it.coarse)),
    ]


def rewritten_weights(network: Network, weights: Weights) -> Weights:
    """Return the weights of a network's layers, given those of its convolutions before a split."""
    if not network.split:
        return weights
    layers = dict(weights.layers)
    for it in network.split:
        layers |= _weights_of_parts(it, layers.pop(it.conv.name))
    return Weights(layers, weights.source)


def _weights_of_parts(it: SplitConv, given: ConvWeights) -> dict[str, ConvWeights]:
    _, factor = it.layers
    upsampled = slice(it.first, it.first + it.maps)
    coarse = _of_coarse_samples(given.weight[:, upsampled], factor)
    if it.fine_input is None:
        return {it.conv.name: ConvWeights(coarse, given.bias)}
    fine = np.delete(given.weight, upsampled, axis=1)
    return {
        it.coarse: ConvWeights(coarse, np.zeros_like(given.bias)),
        it.fine: ConvWeights(fine, given.bias),
    }


def _of_coarse_samples(weight: Float32, factor: Vec3) -> Float32:
    """Return weights (f, f', z, y, x) of a transposed convolution, from (f', f, z, y, x)."""
    kernels = weight.swapaxes(0, 1).astype(np.float64)
    for axis, times in enumerate(factor, 2):
        taps = np.moveaxis(kernels, axis, 0)
        summed = np.zeros((len(taps) + times - 1, *taps.shape[1:]))
        for number, tap in enumerate(taps[::-1]):
            summed[number : number + times] += tap
        kernels = np.moveaxis(summed, 0, axis)
    return np.ascontiguousarray(kernels, np.float32)
