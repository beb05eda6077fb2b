"""Layers of packed values in tests: their primitives, and what they should give."""

from __future__ import annotations

from typing import Any

import pytest

from znni.core.shapes import Box, Shape5
from znni.machine.machine import Device
from znni.network.layers import Operation
from znni.network.weights import ConvWeights, Weights
from znni.primitives import tiled_reference
from znni.primitives.gpu.common.number_formats import FLOAT16, FLOAT16_PAIR
from znni.primitives.gpu.packed import primitive as packed_layers

in_both_formats = pytest.mark.parametrize("numbers", [FLOAT16, FLOAT16_PAIR], ids=["", "pairs"])


def primitive_for(device: Device, layer: Operation, shape: Shape5, last: bool = False) -> Any:
    """The first or the last primitive that computes a layer."""
    found = [it for it in packed_layers.primitives(device) if it.out_shape(layer, shape)]
    return found[-1 if last else 0]


def expected(layer: Any, weights: ConvWeights | None, inputs: Any, *inside: Box) -> Any:
    """What a layer should give."""
    layers = {} if weights is None else {layer.name: weights}
    return tiled_reference.local(layer, Weights(layers, "test"), inputs, *inside)
