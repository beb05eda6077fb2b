"""Networks in PyTorch, with strided pooling: outputs lie apart, as far as training needs.

``znni infer`` runs the same weights densely, and gives an output at every voxel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from znni.core.shapes import Vec3
from znni.network.layers import Concat, Conv, Layer, Pool, Upsample
from znni.network.network import Network
from znni.network.node import INPUT
from znni.network.weights import Weights

Parameters = dict[str, torch.Tensor]
Norms = dict[str, torch.nn.BatchNorm3d]


def logits(
    network: Network,
    parameters: Parameters,
    x: torch.Tensor,
    norms: Norms | None = None,
    spacing: int | None = None,
) -> torch.Tensor:
    """Run the network without its last activation.

    Args:
        network: all its convolutions but the last have ReLU.
        parameters: ``NAME.weight`` and ``NAME.bias`` of every convolution.
        x: scaled input, (n, f, z, y, x).
        norms: a batch norm for each convolution but the last; none if they are folded.
        spacing: distance of a chain's outputs in voxels. If all strides together are longer, the
            last poolings become fragments. They work on few voxels, so the additional outputs cost
            little. Default: the strides together.
    """
    spacing = None if network.is_tiled else spacing  # a U-Net gives all outputs anyway
    values, stride, split = {INPUT: x}, Vec3.of(1), list[Vec3]()
    ends = _ends(network)
    for node in network.nodes:
        layer, given = node.layer, [values[name] for name in node.inputs]
        if isinstance(layer, Pool):
            stride = stride * layer.window
        if isinstance(layer, Pool) and spacing is not None and max(stride) > spacing:
            split.append(layer.window)
            made = _fragments(given[0], layer.window)
        else:
            made = _computed(layer, parameters, given)
        if conv := ends.get(layer.name):
            made = functional.relu(norms[conv](made) if norms else made)
        values[layer.name] = made
    output = values[network.output]
    for window in reversed(split):
        output = _joined(output, window)
    return output


def _ends(network: Network) -> dict[str, str]:
    """Return the convolutions that end in ReLU, each by the layer after which its ReLU is computed.

    If only a pooling takes what a convolution gives, norm and ReLU come after the pooling. There
    are fewer voxels there. The values are the same, because norms are trained without factors.
    """
    takers: defaultdict[str, list[Layer]] = defaultdict(list)
    for node in network.nodes:
        for name in node.inputs:
            takers[name].append(node.layer)
    found = {}
    for conv in network.convolutions:
        if conv.name != network.output:
            first, *others = takers[conv.name]
            found[conv.name if others or not isinstance(first, Pool) else first.name] = conv.name
    return found


def _fragments(x: torch.Tensor, window: Vec3) -> torch.Tensor:
    """Return the max-pooling of ``x`` at each offset of the window, one after the other.

    Extents are a multiple of the window less one, so that all fragments are equally large.
    """
    dense = functional.max_pool3d(x, tuple(window), stride=1)
    return torch.cat([dense[:, :, *_every(offset, window)] for offset in _offsets(window)])


def _joined(fragments: torch.Tensor, window: Vec3) -> torch.Tensor:
    """Return the whole of which there are fragments."""
    parts = fragments.chunk(prod(window))
    n, f, *extents = parts[0].shape
    whole = parts[0].new_empty((n, f, *(Vec3(*extents) * window)))
    for offset, part in zip(_offsets(window), parts, strict=True):
        whole[:, :, *_every(offset, window)] = part
    return whole


def _offsets(window: Vec3) -> Iterator[tuple[int, ...]]:
    return product(*map(range, window))


def _every(offset: tuple[int, ...], window: Vec3) -> tuple[slice, ...]:
    """Return the voxels of the fragment of an offset."""
    return tuple(slice(o, None, w) for o, w in zip(offset, window, strict=True))


def _computed(layer: Layer, parameters: Parameters, given: list[torch.Tensor]) -> torch.Tensor:
    """Compute a layer without its activation."""
    if isinstance(layer, Conv):
        weight, bias = parameters[f"{layer.name}.weight"], parameters[f"{layer.name}.bias"]
        return functional.conv3d(given[0], weight, bias, padding=tuple(layer.padding.before))
    if isinstance(layer, Pool):
        return functional.max_pool3d(given[0], tuple(layer.window))
    if isinstance(layer, Upsample):
        return functional.interpolate(given[0], scale_factor=tuple(map(float, layer.factor)))
    if isinstance(layer, Concat):
        return torch.cat(given, dim=1)
    raise TypeError(f"{layer.name} is not trained here: {layer}")


def is_probability(network: Network) -> bool:
    """Return whether the last layer ends in a sigmoid. Otherwise it ends in ReLU."""
    last = network.convolutions[-1].activation
    if last not in ("sigmoid", "relu"):
        raise TypeError(f"{network.name} ends in {last}; here a network ends in sigmoid or relu")
    return last == "sigmoid"


def outputs_at(
    network: Network, parameters: Parameters, raw: NDArray[np.uint8], margin: int, spacing: int
) -> NDArray[np.float32]:
    """Return a network's outputs at every ``spacing``-th voxel along each axis, (f, z, y, x).

    Args:
        network: a U-Net, or a chain of odd field of view.
        parameters: its weights.
        raw: the volume.
        margin: voxels at each edge without an output; at least half of the field of view.
        spacing: distance between outputs in voxels. Each fragment has equally many outputs.
    """
    seen = [range(margin, n - margin, spacing) for n in raw.shape]
    if not network.is_tiled:
        halves = [v // 2 for v in network.field_of_view]
        raw = raw[
            tuple(slice(it[0] - h, it[-1] + h + 1) for it, h in zip(seen, halves, strict=True))
        ]
    x = raw * np.float32(network.scaling.scale) + np.float32(network.scaling.offset)
    device = next(iter(parameters.values())).device
    activation = torch.sigmoid if is_probability(network) else functional.relu
    with torch.no_grad():
        given = torch.from_numpy(x)[None, None].to(device)
        found = activation(logits(network, parameters, given, spacing=spacing))[0]
    if network.is_tiled:
        found = found[:, *(slice(it.start, it.stop, it.step) for it in seen)]
    values: NDArray[np.float32] = found.cpu().numpy()
    return values


def norms_for(network: Network, device: str) -> Norms:
    """Return a batch norm for each convolution but the last. Its factors are not trained."""
    norms: Norms = {}
    for conv in network.convolutions[:-1]:
        norms[conv.name] = torch.nn.BatchNorm3d(conv.out_features, momentum=0.02, device=device)
        norms[conv.name].weight.requires_grad_(False)
    return norms


def grown(parameters: Parameters, network: Network) -> Parameters:
    """Return weights of a network that computes what another one with smaller kernels does.

    The kernels of the other network stand in the middle of this one's, and zeros around them.
    """
    found = dict(parameters)
    for conv in network.convolutions:
        small = parameters[f"{conv.name}.weight"]
        margins = [(n - m) // 2 for n, m in zip(conv.kernel, small.shape[2:], strict=True)]
        middle = (slice(a, a + m) for a, m in zip(margins, small.shape[2:], strict=True))
        weight = small.new_zeros((*small.shape[:2], *conv.kernel))
        weight[:, :, *middle] = small
        found[f"{conv.name}.weight"] = weight
    return found


def folded(parameters: Parameters, norms: Norms) -> Parameters:
    """Fold each batch norm into its convolution, and return the new parameters."""
    found = dict(parameters)
    for name, norm in norms.items():
        assert norm.running_var is not None
        assert norm.running_mean is not None
        factor = norm.weight.detach() / torch.sqrt(norm.running_var + norm.eps)
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        found[f"{name}.weight"] = weight * factor[:, None, None, None, None]
        found[f"{name}.bias"] = (bias - norm.running_mean) * factor + norm.bias.detach()
    return {name: value.cpu() for name, value in found.items()}


def tensors(weights: Weights) -> Parameters:
    """Return weights as tensors."""
    found = {}
    for name, layer in weights.layers.items():
        found[f"{name}.weight"] = torch.from_numpy(layer.weight)
        found[f"{name}.bias"] = torch.from_numpy(layer.bias)
    return found
