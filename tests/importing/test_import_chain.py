"""Folding: layers compute the same as the steps that they were made from."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from import_cases import pooled, relative

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing.chain import chain
from znni.importing.graph import Operation, in_order
from znni.importing.steps import Affine, Convolution, MaxPooling, Nonlinearity, Step
from znni.network.layers import Activation, Conv, Pool
from znni.network.network import InputScaling
from znni.network.weights import ConvWeights
from znni.primitives import reference


def directly(steps: list[Step], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Compute steps directly, each by its own definition."""
    value = x[np.newaxis].astype(np.float64)
    for step in steps:
        match step:
            case Convolution():
                out, taken, *kernel = step.weight.shape
                layer = Conv("conv", taken, out, Vec3(*kernel), "identity")
                weights = ConvWeights(step.weight, step.bias)
                value = reference.convolution(value, layer, weights)
            case MaxPooling():
                value = reference.pooling(value, Pool("pool", step.window))
            case Affine():
                shape = (-1, 1, 1, 1)
                value = value * step.scale.reshape(shape) + step.shift.reshape(shape)
            case Nonlinearity():
                value = reference.activation(value, step.kind)
    return value[0]


@st.composite
def chains(draw: st.DrawFn) -> list[Step]:
    """Steps in any order, with at least one convolution."""
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    order = draw(st.lists(st.sampled_from("capn"), min_size=1, max_size=7))
    order.insert(draw(st.integers(0, len(order))), "c")
    maps = draw(st.integers(1, 3))
    steps: list[Step] = []
    for kind in order:
        match kind:
            case "c":
                kernel = draw(st.tuples(*[st.integers(1, 2)] * 3))
                out = draw(st.integers(1, 3))
                weight = generator.standard_normal((out, maps, *kernel))
                steps.append(Convolution("conv", weight, generator.standard_normal(out)))
                maps = out
            case "a":
                sign = generator.choice([-1.0, 1.0], maps) if draw(st.booleans()) else 1.0
                scale = sign * generator.uniform(0.2, 2, maps)
                steps.append(Affine("norm", scale, generator.standard_normal(maps)))
            case "p":
                window = draw(st.sampled_from([Vec3(1, 2, 1), Vec3(2, 1, 1), Vec3(1, 1, 2)]))
                steps.append(MaxPooling("pool", window))
            case _:
                kinds = sorted({*get_args(Activation)} - {"prelu"})  # a step has no slopes
                steps.append(Nonlinearity("act", draw(st.sampled_from(kinds))))
    return steps


@settings(max_examples=120)
@given(chains())
def test_layers_compute_what_their_steps_compute(steps: list[Step]) -> None:
    made = chain("net", steps, "weights", InputScaling())
    size = made.network.field_of_view + made.network.total_pooling
    x = np.random.default_rng(1).standard_normal((made.network.in_features, *size))
    wanted = directly(steps, x)
    assert np.abs(pooled(made, x) - wanted).max() <= 2e-5 * max(1.0, np.abs(wanted).max())


def conv(out: int = 2, taken: int = 1) -> Convolution:
    shape = (out, taken, 1, 2, 3)
    weight = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
    return Convolution("conv", weight, np.zeros(out))


def layers(*steps: Step) -> list[str]:
    """Describe each layer: a convolution by its activation and extents, or a pooling."""
    made = chain("net", steps, "weights", InputScaling())
    return [
        f"{layer.activation} {layer.kernel}" if isinstance(layer, Conv) else f"pool {layer.window}"
        for layer in made.network.layers
    ]


POOL = MaxPooling("pool", Vec3(1, 2, 2))
RELU = Nonlinearity("relu", "relu")


def test_nothing_is_added_where_a_convolution_can_take_it_in() -> None:
    norm = Affine("norm", np.array([2.0, 0.5]), np.array([1.0, -1.0]))
    flipped = Affine("norm", np.array([2.0, -0.5]), np.array([1.0, -1.0]))
    assert layers(conv(), norm, RELU, POOL) == ["relu 1x2x3", "pool 1x2x2"]
    assert layers(conv(), POOL, norm, RELU) == ["relu 1x2x3", "pool 1x2x2"]
    assert layers(conv(), RELU, norm, POOL, conv(1, 2)) == [
        "relu 1x2x3",
        "pool 1x2x2",
        "identity 1x2x3",
    ]
    assert layers(conv(), POOL, flipped, conv(1, 2)) == [
        "identity 1x2x3",
        "pool 1x2x2",
        "identity 1x2x3",
    ]


def test_what_no_convolution_can_take_in_gets_one_of_its_own() -> None:
    flipped = Affine("norm", np.array([2.0, -0.5]), np.array([1.0, -1.0]))
    softmax = Nonlinearity("softmax", "softmax")
    assert layers(conv(), RELU, flipped) == ["relu 1x2x3", "identity 1x1x1"]
    assert layers(conv(), RELU, softmax) == ["relu 1x2x3", "softmax 1x1x1"]
    assert layers(conv(), POOL, softmax) == ["identity 1x2x3", "pool 1x2x2", "softmax 1x1x1"]
    assert layers(conv(), RELU, Affine("no", np.ones(2), np.zeros(2))) == ["relu 1x2x3"]


def test_unfolded_weights_are_kept_to_the_bit() -> None:
    weight = np.random.default_rng(0).standard_normal((2, 1, 1, 2, 3)).astype(np.float32)
    step = Convolution("conv", weight.astype(np.float64), np.zeros(2))
    made = chain("net", [step, RELU], "weights", InputScaling())
    assert relative(made.weights["conv1"].weight, weight) == 0
    assert made.origins == ("conv, relu",)


def test_maps_that_do_not_chain_are_refused() -> None:
    for second in (conv(1, 3), Affine("norm", np.ones(3), np.ones(3))):
        with pytest.raises(InvalidInput, match="what is before it gives 2"):
            chain("net", [conv(), second], "weights", InputScaling())
    with pytest.raises(InvalidInput, match="no 3D convolution"):
        chain("net", [RELU], "weights", InputScaling())
    huge = Convolution("conv", np.full((1, 1, 1, 1, 1), 1e300), np.zeros(1))
    with pytest.raises(InvalidInput, match="not finite in float32"):
        chain("net", [huge], "weights", InputScaling())


def operation(text: str) -> Operation[str]:
    """Parse ``a,b>c``: reads a and b, and gives c."""
    reads, writes = text.split(">")
    return Operation(text, tuple(filter(None, reads.split(","))), tuple(writes.split(",")), text)


def test_a_chain_is_found_whatever_the_order_of_its_nodes() -> None:
    found = in_order(map(operation, ["b>c", ">unused", "a>b", "c>d"]), "a", "d")
    assert [each.origin for each in found] == ["a>b", "b>c", "c>d"]
    assert in_order([], "a", "a") == []


@pytest.mark.parametrize(
    ("operations", "named"),
    [
        (["a>b", "a,b>c"], "'a' is read by a>b, a,b>c"),
        (["a>b", "b,k>c"], "b,k>c reads 'b', 'k'"),
        (["a>b", "b>c", "c>d"], "'c' is read by c>d beside being its output"),
        (["a>b", "b>k"], "nothing reads 'k'"),
        (["a>b,k", "b>c"], "a>b,k gives 2 results"),
        (["a>b", "b>b2", "b2>b"], "both give 'b'"),
        (["a>a"], "'a' is read by"),
    ],
)
def test_graphs_that_branch_are_refused(operations: list[str], named: str) -> None:
    end = "c" if operations != ["a>a"] else "a"
    with pytest.raises(InvalidInput) as refused:
        in_order(map(operation, operations), "a", end)
    assert named in str(refused.value)
