"""State dicts: named tensors, which fill the layers of a similar network file.

A state dict holds the convolutions, normalizations and slopes of prelu of a network. It does not
hold how they are connected, and not always an order. The network file supplies these, and the
tensors must agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Vec3
from znni.core.text import counted
from znni.importing import checks, operations
from znni.importing.state_dict_names import Parts, natural, norms_of, skeleton
from znni.importing.steps import Found, GraphSteps, Layered, Nonlinearity, Operation
from znni.network.layers import (
    LEAKY_SLOPE,
    Activation,
    Affine,
    Conv,
    ConvTranspose,
    Layer,
    Normalize,
    VoxelNorm,
)
from znni.network.network import Network
from znni.network.node import INPUT

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]

EPSILON = 1e-5  # PyTorch's default; a state dict does not store it
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
NOT_COMPARED = (
    "a state dict does not say how its layers are connected; import the module or an exported "
    "program to have the network compared"
)


def read_safetensors(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a ``.safetensors`` file; such files keep no order."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"cannot be read as safetensors of NumPy's types: {error}; save it again, in float32"
        ) from None


def fill(arrays: Arrays, like: Network | None, *, ordered: bool) -> Found:
    """Return the network ``like`` with the values of a state dict.

    Args:
        arrays: arrays by key, as ``features.0.weight``.
        like: network that gives the layers.
        ordered: True if keys are in the order in which the layers were defined.

    Raises:
        InvalidInput: no network is given, or it does not agree with the tensors.
    """
    parts = _parts(arrays, ordered=ordered)
    if like is None:
        found = "; ".join(_described(arrays, prefix) for prefix in parts.convolutions)
        raise InvalidInput(
            f"is a state dict with {counted(len(parts.convolutions), 'convolution')} ({found}); "
            f"it does not say which activations and pooling are between them: build the model in "
            f"Python, load these tensors into it, and call znni.import_network(model.eval(), "
            f"'net.yaml'), or write a network file with all layers and give it with "
            f"{option('like', 'NET.yaml')}"
        )
    filling, steps, values = _Filling(arrays, parts, like), GraphSteps(), {INPUT: INPUT}
    for node in like.nodes:
        first, *others = filling.operations(node.layer)
        value = steps.add(first, *(values[read] for read in node.inputs))
        values[node.name] = steps.chain(value, others)
    graph = steps.graph(like.in_features, values[like.output])
    return Found(graph, NOT_COMPARED, tuple(filling.notes))


class _Filling:
    """The operations of a network's layers, with the values of a state dict."""

    def __init__(self, arrays: Arrays, parts: Parts, like: Network) -> None:
        self.notes: list[str] = []
        self._arrays = arrays
        convolutions = [each for each in like.layers if isinstance(each, Conv | ConvTranspose)]
        norms = [each.name for each in like.layers if isinstance(each, Normalize | VoxelNorm)]
        curved = [each.name for each in like.layers if _activation(each).kind == "prelu"]
        names = [each.name for each in convolutions]
        self._prefixes = _matched("convolution", parts, parts.convolutions, names, like)
        maps = {self._prefixes[each.name]: each.out_features for each in convolutions}
        affine = [each.name for each in like.layers if isinstance(each, Affine)]
        self._norms, self._affine = norms_of(parts, maps, affine)
        self._slopes = _by_place("prelu", parts.slopes, curved, like)
        self._scales: dict[str, str] = {}
        if parts.scales:  # or the network's normalizations have none
            kind = "instance, group or layer normalization"
            self._scales = _matched(kind, parts, parts.scales, norms, like)

    def operations(self, layer: Layer) -> list[Operation]:
        """Return the operations of a layer, one after the other."""
        made: list[Operation] = [self._operation(layer)]
        if (scales := self._scales.get(layer.name, layer.name)) != layer.name:
            self.notes.append(f"normalization {scales} fills layer {layer.name}, by its place")
        if norm := self._norms.get(self._prefixes.get(layer.name, "")):
            made.append(self._norm(norm))
            self.notes.append(
                f"batch normalization {norm} is taken to come right after convolution "
                f"{self._prefixes[layer.name]}, before its activation, with PyTorch's epsilon of "
                f"{EPSILON:g}"
            )
        activation = _activation(layer)
        if activation.kind == "prelu":
            slopes = self._arrays[_key(self._slopes[layer.name], "weight")]
            maps = getattr(layer, "out_features", 1)
            activation = operations.prelu(activation.origin, maps, slopes)
        return [*made, activation]

    def _operation(self, layer: Layer) -> Layered:
        """Return a layer without its activation."""
        made = Layered(_linear(layer, f"{layer.name} of the network file"))
        match layer:
            case Conv() | ConvTranspose():
                made = self._convolution(self._prefixes[layer.name], layer)
            case Affine():
                norm = self._affine.get(layer.name)
                if norm is None:
                    raise InvalidInput(
                        f"has no batch normalization for layer {layer.name}; give the layer the "
                        f"name of one"
                    )
                made = self._norm(norm)
            case Normalize() | VoxelNorm():
                prefix = self._scales.get(layer.name)
                origin = checks.origin(prefix or layer.name, "normalization")
                scale, shift = (None, None) if prefix is None else self._held(prefix, *NORM[:2])
                made = operations.norm(
                    replace(layer, name=origin, activation="identity"), scale, shift
                )
        return replace(made, name=layer.name)

    def _convolution(self, prefix: str, layer: Conv | ConvTranspose) -> Layered:
        """Return a convolution for a layer, after checking its shape."""
        origin = checks.origin(prefix, "convolution")
        weight, bias = self._held(prefix, *NORM[:2])
        if weight.shape != layer.weight_shape:
            axes = "(out, in, z, y, x)" if isinstance(layer, Conv) else "(in, out, z, y, x)"
            raise InvalidInput(
                f"convolution {prefix!r} has weights {weight.shape}, and layer {layer.name} of the "
                f"network file needs {layer.weight_shape} {axes}; correct the network file"
            )
        weights = checks.floats(origin, "weight", weight)
        biases = checks.vector(origin, "bias", bias, layer.out_features)
        return Layered(_linear(layer, origin), weights, biases)

    def _norm(self, prefix: str) -> Layered:
        """Return a batch normalization."""
        origin = checks.origin(prefix, "batch normalization")
        weight, bias, mean, variance = self._held(prefix, *NORM[:4])
        return operations.batch_norm(origin, weight, bias, mean, variance, EPSILON)

    def _held(self, prefix: str, *kinds: str) -> tuple[Any, ...]:
        """Return the arrays of a layer; None for those that it has not."""
        return tuple(self._arrays.get(_key(prefix, kind)) for kind in kinds)


def _activation(layer: Layer) -> Nonlinearity:
    """Return a layer's activation."""
    kind: Activation = getattr(layer, "activation", "identity")
    slope: float = getattr(layer, "slope", LEAKY_SLOPE)
    return Nonlinearity("activation of the network file", kind, slope)


def _linear(layer: Layer, origin: str) -> Layer:
    """Return a layer without its activation, with its origin for its name."""
    changes: dict[str, Any] = {"activation": "identity"} if hasattr(layer, "activation") else {}
    return replace(layer, name=origin, **changes)


def _parts(arrays: Arrays, *, ordered: bool) -> Parts:
    """Separate convolutions from normalizations, and refuse all else."""
    keys = list(arrays) if ordered else sorted(arrays, key=natural)
    prefixes = list(dict.fromkeys(key.rpartition(".")[0] for key in keys))
    convolutions, scales, slopes = [], [], []
    norms: dict[str, int] = {}
    for prefix in prefixes:
        kinds = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == prefix]
        weight = arrays.get(_key(prefix, "weight"))
        if "running_mean" in kinds and "running_var" in kinds and set(kinds) <= set(NORM):
            norms[prefix] = arrays[_key(prefix, "running_mean")].size
        elif weight is not None and weight.ndim == 5 and set(kinds) <= {"weight", "bias"}:
            convolutions.append(prefix)
        elif weight is not None and weight.ndim == 1 and kinds == ["weight"]:
            slopes.append(prefix)
        elif weight is not None and weight.ndim == 1 and set(kinds) == {"weight", "bias"}:
            scales.append(prefix)
        else:
            shapes = ", ".join(f"{kind} {arrays[_key(prefix, kind)].shape}" for kind in kinds)
            raise InvalidInput(
                f"layer {prefix!r} has {shapes}, which is neither a 3D convolution nor a "
                f"normalization nor a prelu; {checks.LAYERS}"
            )
    if not convolutions:
        raise InvalidInput(
            "has no weights of 3D convolutions (out, in, z, y, x); is it the right file?"
        )
    return Parts(prefixes, convolutions, norms, scales, slopes, ordered)


def _matched(
    kind: str, parts: Parts, prefixes: Sequence[str], layers: Sequence[str], like: Network
) -> dict[str, str]:
    """Return the prefix of each layer of a kind: by name, or else by place."""
    if set(layers) == set(prefixes):
        return {name: name for name in layers}
    found = _by_place(kind, prefixes, layers, like)
    if not parts.ordered and len({skeleton(prefix) for prefix in prefixes}) > 1:
        raise InvalidInput(
            f"has {kind}s {', '.join(prefixes)}, whose order the file does not keep; name those "
            f"of the network file so (name: {prefixes[0]}), or save it with torch.save, which "
            f"keeps it"
        )
    return found


def _by_place(
    kind: str, prefixes: Sequence[str], layers: Sequence[str], like: Network
) -> dict[str, str]:
    """Return the prefix of each layer of a kind, by place."""
    if len(prefixes) != len(layers):
        raise InvalidInput(
            f"has {counted(len(prefixes), kind)} ({', '.join(prefixes)}), and network {like.name} "
            f"has {len(layers)}; correct the network file"
        )
    return dict(zip(layers, prefixes, strict=True))


def _described(arrays: Arrays, prefix: str) -> str:
    out, taken, *kernel = arrays[_key(prefix, "weight")].shape
    return f"{prefix}: {taken} -> {out} maps, kernel {Vec3(*kernel)}"


def _key(prefix: str, kind: str) -> str:
    return f"{prefix}.{kind}" if prefix else kind
