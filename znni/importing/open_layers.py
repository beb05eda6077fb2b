"""Layers that may still take in the steps after them, and the algebra of that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from znni.core.shapes import ZERO
from znni.importing.steps import Float64, Layered, Nonlinearity, convolution
from znni.network.layers import (
    Add,
    Affine,
    Conv,
    ConvTranspose,
    Maximum,
    Multiply,
    Normalize,
    Pool,
    Upsample,
)
from znni.network.weights import ConvWeights, Float32


@dataclass
class OpenLayer:
    """A layer that may still take in the steps after it.

    Attributes:
        operation: the layer without its activation.
        inputs: the layers that it reads; None is the network's input.
        maps: its output maps.
        origins: the parts of the source that it stands for.
        activation: its activation, if it has one.
    """

    operation: Layered
    inputs: tuple[OpenLayer | None, ...]
    maps: int
    origins: list[str]
    activation: Nonlinearity | None = None

    def takes(self, step: Layered | Nonlinearity) -> bool:
        """Return whether it can take in an activation, or a factor and a shift."""
        joins = isinstance(self.operation.layer, Add | Multiply | Maximum)
        if joins and isinstance(step, Nonlinearity):
            return self.activation is None and step.kind != "prelu"
        match self.operation.layer, step:
            case Normalize(by="response"), Layered():  # its input is added after its factor
                return self.activation is None and bool((step.weight == 1).all())
        return self.activation is None and self.operation.weight.size > 0

    def take(self, step: Layered | Nonlinearity) -> None:
        """Take in an activation, or a factor and a shift."""
        self.origins.append(step.origin)
        if isinstance(step, Nonlinearity):
            self.activation = step
        else:
            self.operation = then_affine(self.operation, step)

    def passes(self, step: Layered | Nonlinearity) -> bool:
        """Return whether a step may be done before the layer as well as after it."""
        if self.activation:
            return False
        if isinstance(step, Layered):
            return passes_affine(self.operation, step)
        match self.operation.layer:
            case Upsample(mode=mode):
                return mode == "nearest"  # which a shift is, too
            case Pool(reduce="max"):
                return step.is_increasing
        return False

    @property
    def weights(self) -> ConvWeights | None:
        """Its arrays in float32; None if it has none."""
        operation, slope = self.operation, None
        if self.activation and self.activation.slopes is not None:
            slope = _float32(np.broadcast_to(self.activation.slopes, self.maps))
        if not operation.weight.size:
            return None
        return ConvWeights(_float32(operation.weight), _float32(operation.bias), slope)


def passes_affine(part: Layered, step: Layered) -> bool:
    """Return whether a factor and a shift may be applied before a part as well as after it."""
    match part.layer:
        case Upsample():
            return True
        case Pool(reduce="max"):
            return bool(step.weight.min() >= 0)
        case Pool(padding=padding):
            return padding.total == ZERO
    return False


def then_affine(operation: Layered, step: Layered) -> Layered:
    """Return an operation with a factor and a shift after it as one operation."""
    weight = operation.weight
    if isinstance(operation.layer, ConvTranspose):
        by_group = np.split(step.weight, operation.layer.groups)
        weight = (
            weight * np.repeat(by_group, len(weight) // len(by_group), 0)[..., None, None, None]
        )
    else:
        weight = weight * step.weight.reshape(-1, *(1,) * (weight.ndim - 1))
    return replace(operation, weight=weight, bias=operation.bias * step.weight + step.bias)


def after_affine(step: Layered, before: Layered) -> Layered | None:
    """Return a convolution with a factor and a shift before it as one; None if it is no such."""
    match step.layer:
        case ConvTranspose() if not before.bias.any():
            return replace(step, weight=step.weight * before.weight.reshape(-1, 1, 1, 1, 1))
        case Conv(padding=padding, groups=groups) if padding.total == ZERO or not before.bias.any():
            pass
        case _:
            return None
    out, taken = step.weight.shape[:2]

    def of_groups(values: Float64) -> Float64:
        """Return the values for the inputs of each output map."""
        return np.repeat(values.reshape(groups, taken), out // groups, axis=0)

    bias = step.bias + (step.weight.sum(axis=(2, 3, 4)) * of_groups(before.bias)).sum(axis=1)
    weight = step.weight * of_groups(before.weight)[:, :, None, None, None]
    return replace(step, weight=weight, bias=bias)


def changed(operation: Layered, **changes: Any) -> Layered:
    """Return an operation whose layer has other fields."""
    return replace(operation, layer=replace(operation.layer, **changes))


def is_dense(operation: Layered) -> bool:
    """Return whether a layer may be slid over every voxel, alone or as a convolution."""
    return isinstance(operation.layer, Affine) or operation.layer.is_dense


def pointwise(step: Layered) -> Layered:
    """Return a convolution of kernel 1 for a factor and a shift."""
    kernels = np.diag(step.weight)[:, :, None, None, None]
    return replace(convolution(step.origin, kernels, step.bias), name=step.name)


def _float32(array: Float64) -> Float32:
    with np.errstate(over="ignore"):  # checked_weights reports values that become infinite
        return np.ascontiguousarray(array, dtype=np.float32)
