"""State dicts: named tensors, which fill the layers of a similar network file.

A state dict holds the convolutions, normalizations and slopes of prelu of a network. It does not
hold how they are connected, and not always an order. The network file supplies these, and the
tensors must agree with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Vec3
from znni.core.text import counted
from znni.importing import checks
from znni.importing.steps import (
    Affine,
    Convolution,
    Found,
    GlobalPooling,
    Graph,
    Joining,
    Nonlinearity,
    Operation,
    Pooling,
    Step,
    TransposedConvolution,
    Upsampling,
)
from znni.network.layers import (
    LEAKY_SLOPE,
    Activation,
    Concat,
    Conv,
    ConvTranspose,
    GlobalPool,
    Layer,
    Maximum,
    Model,
    Multiply,
    Normalize,
    Pool,
    Upsample,
    Weighted,
)
from znni.network.layers import Affine as AffineLayer
from znni.network.network import Network
from znni.network.node import Node

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]

EPSILON = 1e-5  # PyTorch's default; a state dict does not store it
WITHOUT_ACTIVATION = Pool | GlobalPool | Upsample | Concat | Model
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
NOT_COMPARED = (
    "a state dict does not say how its layers are connected; import the module or an exported "
    "program to have the network compared"
)


@dataclass(frozen=True)
class _Parts:
    """The layers that a state dict has tensors for, by the prefixes of their keys.

    Attributes:
        prefixes: all prefixes, in the order of their keys.
        convolutions: prefixes of convolutions, in this order.
        norms: maps of each batch normalization.
        scales: prefixes of instance and group normalizations, which have factors and shifts alone.
        slopes: prefixes of slopes of prelu.
        ordered: True if keys are in the order in which the layers were defined.
    """

    prefixes: Sequence[str]
    convolutions: Sequence[str]
    norms: Mapping[str, int]
    scales: Sequence[str]
    slopes: Sequence[str]
    ordered: bool


def read_safetensors(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a ``.safetensors`` file; such files keep no order.

    Raises:
        InvalidInput: the file cannot be read.
    """
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
            f"it does not say which activations and pooling are between them: write a network "
            f"file with all layers and give it with {option('like', 'NET.yaml')}"
        )
    filling = _Filling(arrays, parts, like)
    for node in like.nodes:
        filling.add(node)
    outputs = (like.output,)
    graph = Graph(like.in_features, tuple(filling.steps), outputs)
    return Found(graph, NOT_COMPARED, tuple(filling.notes))


class _Filling:
    """The steps of a network's layers, with the values of a state dict."""

    def __init__(self, arrays: Arrays, parts: _Parts, like: Network) -> None:
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self._arrays = arrays
        order = _matched(parts, like)
        wanted = _convolutions(like)
        if len(order) != len(wanted):
            raise InvalidInput(
                f"has {counted(len(order), 'convolution')} ({', '.join(order)}), and network "
                f"{like.name} has {len(wanted)}; correct the network file"
            )
        self._prefixes = dict(zip((layer.name for layer in wanted), order, strict=True))
        affine = [layer.name for layer in like.layers if isinstance(layer, AffineLayer)]
        maps = {prefix: layer.out_features for prefix, layer in zip(order, wanted, strict=True)}
        self._norms, self._affine = _norms_of(parts, maps, affine)
        curved = [layer.name for layer in like.layers if _activation(layer) == "prelu"]
        if len(curved) != len(parts.slopes):
            raise InvalidInput(
                f"has {counted(len(parts.slopes), 'prelu')} ({', '.join(parts.slopes)}), and "
                f"network {like.name} has {len(curved)}; correct the network file"
            )
        self._slopes = dict(zip(curved, parts.slopes, strict=True))
        self._scales = _scales_of(parts, like)

    def add(self, node: Node) -> None:
        """Add the steps of a node."""
        layer = node.layer
        operations: list[Operation] = [self._operation(layer)]
        if (scales := self._scales.get(layer.name, layer.name)) != layer.name:
            self.notes.append(f"normalization {scales} fills layer {layer.name}, by its place")
        if norm := self._norms.get(self._prefixes.get(layer.name, "")):
            operations.append(_norm(self._arrays, norm))
            self.notes.append(
                f"batch normalization {norm} is taken to come right after convolution "
                f"{self._prefixes[layer.name]}, before its activation, with PyTorch's epsilon of "
                f"{EPSILON:g}"
            )
        operations.append(self._activation(layer))
        reads = node.inputs
        for index, operation in enumerate(operations):
            value = node.name if index == len(operations) - 1 else f"{node.name}\0{index}"
            self.steps.append(Step(operation, reads, value))
            reads = (value,)

    def _operation(self, layer: Layer) -> Operation:
        """Return a layer without its activation."""
        origin = f"{layer.name} of the network file"
        match layer:
            case Conv() | ConvTranspose():
                return _convolution(self._arrays, self._prefixes[layer.name], layer)
            case AffineLayer():
                norm = self._affine.get(layer.name)
                if norm is None:
                    raise InvalidInput(
                        f"has no batch normalization for layer {layer.name}; give the layer the "
                        f"name of one"
                    )
                return replace(_norm(self._arrays, norm), name=layer.name)
            case Normalize():
                prefix = self._scales.get(layer.name)
                scale, shift = (
                    (None, None)
                    if prefix is None
                    else (self._arrays[_key(prefix, kind)] for kind in NORM[:2])
                )
                made = checks.normalization(
                    checks.origin(prefix or layer.name, "normalization"),
                    layer.groups, scale, shift, layer.eps, layer.features,
                )  # fmt: skip
                return replace(made, name=layer.name)
            case Pool():
                step, padding = layer.step, layer.padding
                return Pooling(origin, layer.window, layer.name, layer.reduce, step, padding)
            case Upsample():
                return Upsampling(origin, layer.factor, layer.mode, layer.name, layer.shift)
            case Concat():
                return Joining(origin, "concat", name=layer.name)
            case GlobalPool():
                return GlobalPooling(origin, layer.reduce, layer.name)
            case Multiply():
                return Joining(origin, "multiply", layer.is_gate, layer.spreads, layer.name)
            case Maximum():
                return Joining(origin, "maximum", name=layer.name)
            case _:
                return Joining(origin, "add", name=layer.name)

    def _activation(self, layer: Layer) -> Nonlinearity:
        """Return a layer's activation."""
        origin, kind = "activation of the network file", _activation(layer)
        if kind == "prelu":
            slopes = self._arrays[_key(self._slopes[layer.name], "weight")]
            return checks.prelu(origin, slopes, _maps(layer))
        slope = LEAKY_SLOPE if isinstance(layer, WITHOUT_ACTIVATION) else layer.slope
        return Nonlinearity(origin, kind, slope)


def _activation(layer: Layer) -> Activation:
    return "identity" if isinstance(layer, WITHOUT_ACTIVATION) else layer.activation


def _maps(layer: Layer) -> int:
    """Return the maps of a layer that may have slopes."""
    return layer.out_features if isinstance(layer, Weighted) else 1


def _convolutions(network: Network) -> list[Conv | ConvTranspose]:
    return [layer for layer in network.layers if isinstance(layer, Conv | ConvTranspose)]


def _parts(arrays: Arrays, *, ordered: bool) -> _Parts:
    """Separate convolutions from normalizations, and refuse all else."""
    keys = list(arrays) if ordered else sorted(arrays, key=_natural)
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
    return _Parts(prefixes, convolutions, norms, scales, slopes, ordered)


def _scales_of(parts: _Parts, like: Network) -> dict[str, str]:
    """Return the prefix of the factors and shifts of each instance and group normalization.

    They are matched by name, or else by place. A file without any of them is that of a network
    whose normalizations have none.
    """
    layers = [layer.name for layer in like.layers if isinstance(layer, Normalize)]
    if not parts.scales or set(layers) == set(parts.scales):
        return {name: name for name in layers if parts.scales}
    if len(layers) != len(parts.scales):
        raise InvalidInput(
            f"has {counted(len(parts.scales), 'instance or group normalization')} "
            f"({', '.join(parts.scales)}), and network {like.name} has {len(layers)}; correct the "
            f"network file"
        )
    if not parts.ordered and len({_skeleton(prefix) for prefix in parts.scales}) > 1:
        raise InvalidInput(
            f"has normalizations {', '.join(parts.scales)}, whose order the file does not keep; "
            f"name those of the network file so, or save it with torch.save, which keeps it"
        )
    return dict(zip(layers, parts.scales, strict=True))


def _matched(parts: _Parts, like: Network) -> Sequence[str]:
    """Return the convolutions' prefixes in the network's order: by name, or else by position."""
    names = [conv.name for conv in _convolutions(like)]
    if set(names) == set(parts.convolutions):
        return names
    if not parts.ordered and len({_skeleton(prefix) for prefix in parts.convolutions}) > 1:
        raise InvalidInput(
            f"has convolutions {', '.join(parts.convolutions)}, whose order the file does not "
            f"keep; name the network file's convolutions so (name: {parts.convolutions[0]}), or "
            f"save it with torch.save, which keeps it"
        )
    return parts.convolutions


def _norms_of(
    parts: _Parts, convolutions: Mapping[str, int], affine: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Find what the batch normalizations belong to.

    Args:
        parts: the layers of the state dict.
        convolutions: output maps of its convolutions.
        affine: the network's affine layers. One may have the name of a batch normalization.

    Returns:
        The batch normalization right after each convolution that has one, and that of each affine
        layer.
    """
    own = {name: name for name in affine if name in parts.norms}
    left = [name for name in affine if name not in own]
    belongs: dict[str, str] = {}
    others = [norm for norm in parts.norms if norm not in own]
    # Numbers tell more than places. If an affine layer has no batch normalization of its name, it
    # takes one that numbers leave over.
    for owner_of in (_owner_by_number, _owner_by_place)[: 1 if left else 2]:
        waiting, others = others, []
        for norm in waiting:
            owner = owner_of(parts, convolutions, norm)
            if owner is None or owner in belongs or convolutions[owner] != parts.norms[norm]:
                others.append(norm)
            else:
                belongs[owner] = norm
    if len(others) > len(left):
        raise InvalidInput(
            f"has a batch normalization {others[0]!r}, and its name does not tell whether it "
            f"comes right after a convolution, or after which; import the module with "
            f"znni.import_network, or an exported program"
        )
    return belongs, own | dict(zip(left, others, strict=False))


def _owner_by_number(parts: _Parts, convolutions: Mapping[str, int], norm: str) -> str | None:
    """Return the convolution before a batch normalization if numbers tell it: conv1 and bn1.

    In an nn.Sequential, batch normalization 1 follows convolution 0. If several convolutions
    match, the one in the nearest module is chosen.
    """
    step = 1 if _numbered_together(convolutions, norm) else 0
    found = [
        name for name in _in_reach(convolutions, norm) if _following(name, step) == _numbers(norm)
    ]
    nearest = _nearest(found, norm)
    if parts.ordered:
        nearest = [name for name in nearest if _comes_before(parts, name, norm)][-1:]
    return nearest[0] if len(nearest) == 1 else None


def _owner_by_place(parts: _Parts, convolutions: Mapping[str, int], norm: str) -> str | None:
    """Return the convolution before a batch normalization that has no number: the nearest one."""
    if _numbered_together(convolutions, norm):
        return None
    nearest = _nearest(_in_reach(convolutions, norm), norm)
    if parts.ordered:  # no other batch normalization may lie between
        at = parts.prefixes.index(norm)
        others = [parts.prefixes.index(other) for other in parts.norms if other != norm]
        last = max((other for other in others if other < at), default=-1)
        nearest = [name for name in nearest if last < parts.prefixes.index(name) < at]
    return nearest[0] if len(nearest) == 1 else None


def _numbered_together(convolutions: Mapping[str, int], norm: str) -> bool:
    return _skeleton(norm) in {_skeleton(name) for name in convolutions}


def _comes_before(parts: _Parts, name: str, norm: str) -> bool:
    return parts.prefixes.index(name) < parts.prefixes.index(norm)


def _in_reach(convolutions: Mapping[str, int], norm: str) -> list[str]:
    """Return the convolutions whose module, or list in a module, is around a batch normalization's.

    A batch normalization in another block may come after a sum, whatever is defined before it.
    """
    modules = norm.split(".")
    return [name for name in convolutions if modules[: len(_module(name))] == _module(name)]


def _module(name: str) -> list[str]:
    """Return the path of the module that holds a layer, or the list or sequence of layers."""
    *path, last = name.split(".")
    if last.isdecimal() and path:
        path.pop()
    return path


def _nearest(names: Sequence[str], norm: str) -> list[str]:
    """Return the names that share the most modules with that of a batch normalization."""
    modules = norm.split(".")
    pairs = [zip(name.split("."), modules, strict=False) for name in names]
    shared = [len(list(takewhile(lambda pair: pair[0] == pair[1], of_both))) for of_both in pairs]
    return [name for name, count in zip(names, shared, strict=True) if count == max(shared)]


def _convolution(
    arrays: Arrays, prefix: str, layer: Conv | ConvTranspose
) -> Convolution | TransposedConvolution:
    """Return a convolution of the state dict for a layer, after checking its shape."""
    origin = checks.origin(prefix, "convolution")
    weight, bias = arrays[_key(prefix, "weight")], arrays.get(_key(prefix, "bias"))
    if weight.shape != layer.weight_shape:
        axes = "(out, in, z, y, x)" if isinstance(layer, Conv) else "(in, out, z, y, x)"
        raise InvalidInput(
            f"convolution {prefix!r} has weights {weight.shape}, and layer {layer.name} of the "
            f"network file needs {layer.weight_shape} {axes}; correct the network file"
        )
    if isinstance(layer, ConvTranspose):
        made = checks.transposed_convolution(origin, weight, bias, name=layer.name)
        return replace(
            made,
            stride=layer.stride,
            padding=layer.padding,
            padding_after=layer.padding_after,
        )
    return replace(
        checks.convolution(origin, weight, bias, name=layer.name),
        stride=layer.stride,
        dilation=layer.dilation,
        groups=layer.groups,
        padding=layer.padding,
    )


def _norm(arrays: Arrays, prefix: str) -> Affine:
    weight, bias, mean, variance = (arrays.get(_key(prefix, kind)) for kind in NORM[:4])
    origin = checks.origin(prefix, "batch normalization")
    return checks.batch_norm(origin, weight, bias, mean, variance, EPSILON)


def _described(arrays: Arrays, prefix: str) -> str:
    out, taken, *kernel = arrays[_key(prefix, "weight")].shape
    return f"{prefix}: {taken} -> {out} maps, kernel {Vec3(*kernel)}"


def _key(prefix: str, kind: str) -> str:
    return f"{prefix}.{kind}" if prefix else kind


def _natural(key: str) -> list[tuple[int, str]]:
    """Return a sort key that puts 10 after 9."""
    return [(int(part), "") if number else (0, part) for part, number in _split(key)]


def _skeleton(name: str) -> str:
    """Return a name with ``#`` for each number."""
    return "".join("#" if number else part for part, number in _split(name))


def _numbers(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part, number in _split(name) if number)


def _following(name: str, step: int) -> tuple[int, ...]:
    """Return the numbers in a name, with ``step`` added to the last one."""
    numbers = _numbers(name)
    return (*numbers[:-1], numbers[-1] + step) if numbers else ()


def _split(name: str) -> list[tuple[str, bool]]:
    """Split a name into parts, each with a flag that tells numbers."""
    return [(part, part.isdecimal()) for part in re.split(r"([0-9]{1,9})", name) if part]
