"""Layers from steps. Operations between convolutions are folded into them, without error.

A factor and a shift of each map go into the convolution before, or else into the one after.
Max-pooling commutes with increasing activations, and with factors that are not negative, so these
may pass it. If no convolution can take a step in, the step becomes a convolution of its own with
kernel 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.core.text import counted
from znni.importing.checks import CHAIN, refuse
from znni.importing.steps import Affine, Convolution, Float64, MaxPooling, Nonlinearity, Step
from znni.network.layers import Activation, Conv, Layer, Pool
from znni.network.network import InputScaling, Network
from znni.network.weights import ConvWeights, Weights, checked_weights

# Activations that must not pass max-pooling.
NOT_INCREASING = ("softmax", "gelu")


@dataclass(frozen=True)
class Chain:
    """A network, its weights, and the parts of the source that each layer stands for."""

    network: Network
    weights: Weights
    origins: tuple[str, ...]


@dataclass
class _Conv:
    """A convolution that may still take in the steps after it."""

    origins: list[str]
    weight: Float64
    bias: Float64
    name: str = ""
    activation: Activation = "identity"


@dataclass
class _Folding:
    """The layers so far, and the factor and shift that still apply to their output."""

    maps: int
    layers: list[_Conv | MaxPooling] = field(default_factory=list)
    pending: Affine | None = None

    def convolution(self, step: Convolution) -> None:
        taken = step.weight.shape[1]
        if taken != self.maps:
            refuse(
                step.origin,
                f"takes {counted(taken, 'map')}, but what is before it gives {self.maps}; is this "
                f"the whole network, in order?",
            )
        conv = _Conv([step.origin], step.weight, step.bias, step.name)
        if before := self.pending:
            conv.origins.insert(0, before.origin)
            conv.bias = conv.bias + conv.weight.sum(axis=(2, 3, 4)) @ before.shift
            conv.weight = conv.weight * before.scale[:, None, None, None]
            self.pending = None
        self.layers.append(conv)
        self.maps = len(conv.weight)

    def pooling(self, step: MaxPooling) -> None:
        if self.pending and self.pending.scale.min() < 0:
            self._append_pointwise(self.pending, "identity")
        self.layers.append(step)

    def affine(self, step: Affine) -> None:
        if step.scale.shape != (self.maps,):
            refuse(
                step.origin,
                f"is for {counted(len(step.scale), 'map')}, but what is before it gives "
                f"{self.maps}; is this the whole network, in order?",
            )
        if (step.scale == 1).all() and (step.shift == 0).all():
            return
        conv = self._open_conv(through_pools=bool(step.scale.min() >= 0))
        if conv:
            conv.origins.append(step.origin)
            conv.weight = conv.weight * step.scale[:, None, None, None, None]
            conv.bias = conv.bias * step.scale + step.shift
        elif before := self.pending:
            self.pending = Affine(
                f"{before.origin}, {step.origin}",
                before.scale * step.scale,
                before.shift * step.scale + step.shift,
            )
        else:
            self.pending = step

    def nonlinearity(self, step: Nonlinearity) -> None:
        if step.kind == "identity":
            return
        conv = self._open_conv(through_pools=step.kind not in NOT_INCREASING)
        if conv:
            conv.origins.append(step.origin)
            conv.activation = step.kind
            return
        before = self.pending or Affine("", np.ones(self.maps), np.zeros(self.maps))
        names = filter(None, (before.origin, step.origin))
        self._append_pointwise(Affine(", ".join(names), before.scale, before.shift), step.kind)

    def end(self) -> None:
        if self.pending:
            self._append_pointwise(self.pending, "identity")

    def _open_conv(self, *, through_pools: bool) -> _Conv | None:
        """Return the convolution that gives the output so far, pooled or not; None if changed."""
        if self.pending:
            return None
        for layer in reversed(self.layers):
            if isinstance(layer, _Conv):
                return layer if layer.activation == "identity" else None
            if not through_pools:
                return None
        return None

    def _append_pointwise(self, step: Affine, activation: Activation) -> None:
        kernels = np.diag(step.scale)[:, :, None, None, None]
        conv = _Conv([step.origin], kernels, step.shift, activation=activation)
        self.layers.append(conv)
        self.pending = None


def chain(name: str, steps: Iterable[Step], source: str, scaling: InputScaling) -> Chain:
    """Fold steps into the layers of a network.

    Args:
        name: name of the network.
        steps: steps from first to last.
        source: name of the weights in errors.
        scaling: scaling of the network's input.

    Raises:
        InvalidInput: there is no convolution, numbers of maps do not match, or weights exceed
            float32.
    """
    steps = tuple(steps)
    first = next((step for step in steps if isinstance(step, Convolution)), None)
    if first is None:
        raise InvalidInput(f"there is no 3D convolution in it; {CHAIN}")
    folding = _Folding(maps=first.weight.shape[1])
    for step in steps:
        match step:
            case Convolution():
                folding.convolution(step)
            case MaxPooling():
                folding.pooling(step)
            case Affine():
                folding.affine(step)
            case Nonlinearity():
                folding.nonlinearity(step)
    folding.end()
    return _named(name, first.weight.shape[1], folding.layers, source, scaling)


def _named(
    name: str,
    in_features: int,
    folded: Iterable[_Conv | MaxPooling],
    source: str,
    scaling: InputScaling,
) -> Chain:
    """Return the folded layers with names, in float32."""
    layers: list[Layer] = []
    origins: list[str] = []
    arrays: dict[str, ConvWeights] = {}
    count = Counter[str]()
    for layer in folded:
        kind = "conv" if isinstance(layer, _Conv) else "pool"
        count[kind] += 1
        called = layer.name or f"{kind}{count[kind]}"
        if isinstance(layer, _Conv):
            out, taken, *kernel = layer.weight.shape
            layers.append(Conv(called, taken, out, Vec3(*kernel), layer.activation))
            origins.append(", ".join(dict.fromkeys(layer.origins)))
            arrays[called] = ConvWeights(_float32(layer.weight), _float32(layer.bias))
        else:
            layers.append(Pool(called, layer.window))
            origins.append(layer.origin)
    network = Network.chain(name, in_features, tuple(layers), scaling)
    weights = checked_weights(Weights(arrays, source), network)
    return Chain(network, weights, tuple(origins))


def _float32(array: Float64) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    with np.errstate(over="ignore"):  # checked_weights reports values that become infinite
        return np.ascontiguousarray(array, dtype=np.float32)
