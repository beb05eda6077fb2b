"""Outputs that are given: every primitive of the host writes into a view, and nowhere beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from layers import (
    CONVOLUTION,
    POOLED_CONVOLUTION,
    POOLING,
    Case,
    primitives_for,
    random_case,
    suited,
)

from znni.core.shapes import Shape5, Vec3
from znni.machine.arena import output_into
from znni.network.layers import Activation, Conv, Operation, Pool, PooledConv
from znni.network.weights import Float32
from znni.plans.primitive import Primitive
from znni.primitives.cpu.common import streaming

HOST = [
    parameter
    for kind in (CONVOLUTION, POOLING, POOLED_CONVOLUTION)
    for parameter in primitives_for(*kind)
    if parameter.values[0].device.kind == "cpu" and not parameter.id.startswith("host_ram")
]
# Two activations of kernels on vectors, one of kernels on rows, and one of all maps.
ACTIVATIONS: tuple[Activation, ...] = ("relu", "leaky_relu", "elu", "softmax")

LAYERS: tuple[tuple[Operation, Shape5], ...] = (
    (Conv("some", 3, 19, Vec3(2, 3, 4), "relu"), Shape5(2, 3, 9, 13, 27)),
    (Conv("head", 33, 2, Vec3(1, 1, 1), "relu"), Shape5(1, 33, 5, 6, 37)),
    (Pool("pool", Vec3(2, 3, 2)), Shape5(2, 5, 11, 14, 43)),
    (PooledConv(Conv("first", 1, 18, Vec3(3, 2, 3), "relu"), Pool("pool", Vec3(2, 1, 2))),
     Shape5(2, 1, 14, 13, 50)),
)  # fmt: skip


def thinned(shape: Shape5) -> tuple[Float32, Float32]:
    """Rows with gaps, in every second map of every second image."""
    whole = np.full((2 * shape.n, 2 * shape.f, shape.z + 2, shape.y + 3, shape.x + 5), np.nan)
    whole = whole.astype(np.float32)
    return whole, whole[::2, 1::2, 1:-1, 2:-1, 2:-3]


def some_maps(shape: Shape5) -> tuple[Float32, Float32]:
    """Whole maps within more: those of a value that is concatenated."""
    whole = np.full(shape._replace(f=shape.f + 3), np.nan, np.float32)
    return whole, whole[:, 2:-1]


def planes(shape: Shape5) -> tuple[Float32, Float32]:
    """Whole planes, with others between them."""
    whole = np.full(shape._replace(z=2 * shape.z), np.nan, np.float32)
    return whole, whole[:, :, ::2]


VIEWS = {"thinned": thinned, "some_maps": some_maps, "planes": planes}


def cases(primitive: Primitive) -> list[Case]:
    """Small layers that the primitive does, with all kinds of activations."""
    found = []
    for layer, shape in LAYERS:
        pooling = isinstance(layer, Pool)
        for activation in ACTIVATIONS[:1] if pooling else ACTIVATIONS:
            done = with_activation(layer, activation)
            suitable = suited(primitive, done, shape)
            if suitable is not None:
                found.append(random_case(done, suitable))
    assert found
    return found


def with_activation(layer: Operation, activation: Activation) -> Operation:
    match layer:
        case PooledConv():
            return PooledConv(replace(layer.conv, activation=activation), layer.pool)
        case Conv():
            return replace(layer, activation=activation)
    return layer


@pytest.mark.slow_cases
@pytest.mark.parametrize("streamed", [False, True], ids=["cached", "streamed"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("primitive", HOST)
def test_an_output_is_written_into_a_view_alone(
    primitive: Primitive, view: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "STREAMED_BYTES", 0 if streamed else 2**40)
    for case in cases(primitive):
        run = primitive.build(case.layer, case.shape, case.weights)
        expected = run(case.x)
        whole, given = VIEWS[view](Shape5(*expected.shape))
        with output_into(given):
            assert run(case.x) is given
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)
        given.fill(np.nan)
        assert np.isnan(whole).all()
