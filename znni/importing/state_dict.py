"""State dicts: named tensors, which fill the layers of a similar network file.

A state dict holds the convolutions and batch normalizations of a network. It holds no activations
and no pooling, and not always an order. The network file supplies these, and the tensors must agree
with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.shapes import Vec3
from znni.core.text import counted
from znni.importing import checks
from znni.importing.steps import Affine, Convolution, Found, MaxPooling, Nonlinearity, Step
from znni.network.layers import Conv
from znni.network.network import Network

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]

EPSILON = 1e-5  # PyTorch's default; a state dict does not store it
NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
NOT_COMPARED = (
    "a state dict does not say how its layers are connected; import the module or an exported "
    "program to have the network compared"
)


@dataclass(frozen=True)
class _Parts:
    """The layers that a state dict has tensors for, by the prefixes of their keys.

    Attributes:
        convolutions: prefixes of convolutions, in the order of their keys.
        norms: prefixes of batch normalizations.
        ordered: True if keys are in the order in which the layers were defined.
    """

    convolutions: Sequence[str]
    norms: Sequence[str]
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
    order = _matched(parts, like)
    if len(order) != len(like.convolutions):
        raise InvalidInput(
            f"has {counted(len(order), 'convolution')} ({', '.join(order)}), and network "
            f"{like.name} has {len(like.convolutions)}; correct the network file"
        )
    norms = _norm_of(parts, order)
    sources = iter(order)
    steps: list[Step] = []
    notes: list[str] = []
    for layer in like.dense_layers:
        if not isinstance(layer, Conv):
            steps.append(MaxPooling("pooling of the network file", layer.window, layer.name))
            continue
        prefix = next(sources)
        steps.append(_convolution(arrays, prefix, layer))
        if norm := norms.get(prefix):
            steps.append(_norm(arrays, norm))
            notes.append(
                f"batch normalization {norm} is taken to come right after convolution {prefix}, "
                f"before its activation, with PyTorch's epsilon of {EPSILON:g}"
            )
        steps.append(Nonlinearity("activation of the network file", layer.activation))
    return Found(tuple(steps), NOT_COMPARED, tuple(notes))


def _parts(arrays: Arrays, *, ordered: bool) -> _Parts:
    """Separate convolutions from batch normalizations, and refuse all else."""
    keys = list(arrays) if ordered else sorted(arrays, key=_natural)
    prefixes = list(dict.fromkeys(key.rpartition(".")[0] for key in keys))
    convolutions, norms = [], []
    for prefix in prefixes:
        kinds = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == prefix]
        weight = arrays.get(_key(prefix, "weight"))
        if "running_mean" in kinds and "running_var" in kinds and set(kinds) <= set(NORM):
            norms.append(prefix)
        elif weight is not None and weight.ndim == 5 and set(kinds) <= {"weight", "bias"}:
            convolutions.append(prefix)
        else:
            shapes = ", ".join(f"{kind} {arrays[_key(prefix, kind)].shape}" for kind in kinds)
            raise InvalidInput(
                f"layer {prefix!r} has {shapes}, which is neither a 3D convolution nor a batch "
                f"normalization; {checks.CHAIN}"
            )
    if not convolutions:
        raise InvalidInput(
            "has no weights of 3D convolutions (out, in, z, y, x); is it the right file?"
        )
    return _Parts(convolutions, norms, ordered)


def _matched(parts: _Parts, like: Network) -> Sequence[str]:
    """Return the convolutions' prefixes in the network's order: by name, or else by position."""
    names = [conv.name for conv in like.convolutions]
    if set(names) == set(parts.convolutions):
        return names
    if not parts.ordered and len({_skeleton(prefix) for prefix in parts.convolutions}) > 1:
        raise InvalidInput(
            f"has convolutions {', '.join(parts.convolutions)}, whose order the file does not "
            f"keep; name the network file's convolutions so (name: {parts.convolutions[0]}), or "
            f"save it with torch.save, which keeps it"
        )
    return parts.convolutions


def _norm_of(parts: _Parts, order: Sequence[str]) -> dict[str, str]:
    """Find by names the batch normalization right after each convolution that has one."""
    belongs: dict[str, str] = {}
    sequences = {_skeleton(prefix) for prefix in order}
    for norm in parts.norms:
        # Numbered with the convolutions, as nn.Sequential does, or by itself (conv1, bn1).
        step = 1 if _skeleton(norm) in sequences else 0
        found = [prefix for prefix in order if _following(prefix, step) == _numbers(norm)]
        if len(found) != 1 or found[0] in belongs:
            raise InvalidInput(
                f"has a batch normalization {norm!r}, and its name does not tell whether it "
                f"comes right after a convolution, or after which; import the module with "
                f"znni.import_network, or an exported program"
            )
        belongs[found[0]] = norm
    return belongs


def _convolution(arrays: Arrays, prefix: str, layer: Conv) -> Convolution:
    """Return a convolution of the state dict for a layer, after checking its shape."""
    origin = checks.origin(prefix, "convolution")
    weight = arrays[_key(prefix, "weight")]
    if weight.shape != layer.weight_shape:
        raise InvalidInput(
            f"convolution {prefix!r} has weights {weight.shape}, and layer {layer.name} of the "
            f"network file needs {layer.weight_shape} (out, in, z, y, x); correct the network file"
        )
    return checks.convolution(origin, weight, arrays.get(_key(prefix, "bias")), name=layer.name)


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
