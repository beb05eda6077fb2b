"""Folding: layers compute the same as the steps that they were made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from import_cases import pooled, relative

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing.folding import fold
from znni.importing.graph import Operation, in_order, needed
from znni.importing.steps import (
    Graph,
    GraphStep,
    Layered,
    Nonlinearity,
    affine,
    chained,
    convolution,
)
from znni.importing.steps import Operation as StepOperation
from znni.importing.tracing import Tracer
from znni.network.input_scaling import InputScaling
from znni.network.layers import (
    NO_PADDING,
    Activation,
    Add,
    Affine,
    Concat,
    Conv,
    Multiply,
    Padding,
    Pool,
    Upsample,
)
from znni.network.node import INPUT, Node
from znni.network.weights import ConvWeights, Weights
from znni.primitives import reference, tiled_reference

KINDS = [kind for kind in get_args(Activation) if kind != "prelu"]


def directly(graph: Graph, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Compute steps directly, each by its own definition."""
    values = {INPUT: x.astype(np.float64)}
    for step in graph.steps:
        taken = [values[name] for name in step.reads]
        match step.operation:
            case Layered(layer=Affine(), weight=scale, bias=shift):
                made = taken[0] * scale.reshape(-1, 1, 1, 1) + shift.reshape(-1, 1, 1, 1)
            case Nonlinearity() as act:
                slope = act.slope if act.slopes is None else act.slopes
                made = reference.activation(taken[0][None], act.kind, slope)[0]
            case operation:
                made = layer_alone(operation, taken)
        values[step.value] = made
    return np.concatenate([values[name] for name in graph.outputs])


def layer_alone(operation: Any, taken: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Compute a layer by the reference."""
    arrays = {operation.origin: ConvWeights(operation.weight, operation.bias)}
    return tiled_reference._whole(operation.layer, Weights(arrays, "steps"), taken, "zeros")


def draw_step(
    draw: st.DrawFn, kind: str, maps: int, generator: np.random.Generator
) -> StepOperation:
    """Return a step of a kind for a value of so many maps."""
    match kind:
        case "convolution":
            kernel = draw(st.tuples(*[st.integers(1, 2)] * 3))
            out = draw(st.integers(1, 3))
            weight = generator.standard_normal((out, maps, *kernel))
            return convolution("conv", weight, generator.standard_normal(out))
        case "affine":
            sign = generator.choice([-1.0, 1.0], maps) if draw(st.booleans()) else 1.0
            shift = generator.standard_normal(maps) * draw(st.sampled_from([0.0, 1.0]))
            return affine("norm", sign * generator.uniform(0.2, 2, maps), shift)
        case "pooling":
            window = draw(st.sampled_from([Vec3(1, 2, 1), Vec3(2, 1, 1), Vec3(1, 1, 2)]))
            return Layered(Pool("pool", window))
        case "padded":
            weight = generator.standard_normal((maps, 1, 3, 1, 3))
            bias = generator.standard_normal(maps)
            padding = Padding(Vec3(1, 0, 1), Vec3(1, 0, 1))
            return convolution("same", weight, bias, groups=maps, padding=padding)
        case "average":
            padding = draw(st.sampled_from([Padding(), Padding(Vec3(1, 0, 0), Vec3(1, 0, 0))]))
            window = Vec3(3, 1, 1) if padding.total.z else Vec3(1, 1, 1)
            return Layered(Pool("average", window, "average", Vec3(1, 1, 1), padding))
        case "maximum":
            one = Vec3(0, 1, 0)
            return Layered(Pool("maximum", Vec3(1, 3, 1), "max", Vec3(1, 1, 1), Padding(one, one)))
    chosen = draw(st.sampled_from([*KINDS, "prelu"]))
    slope = draw(st.sampled_from([0.01, -0.5]))
    slopes = generator.uniform(-0.5, 0.5, maps) if chosen == "prelu" else None
    return Nonlinearity("act", chosen, slope, slopes)


@st.composite
def chains(draw: st.DrawFn) -> Graph:
    """Steps in any order, with at least one convolution."""
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    every = ["convolution", "affine", "pooling", "nonlinearity"]
    order = draw(st.lists(st.sampled_from(every), min_size=1, max_size=7))
    order.insert(draw(st.integers(0, len(order))), "convolution")
    first = maps = draw(st.integers(1, 3))
    steps: list[StepOperation] = []
    for kind in order:
        steps.append(draw_step(draw, kind, maps, generator))
        if kind == "convolution":
            maps = len(steps[-1].weight)  # type: ignore[union-attr]
    return chained(first, steps)


@settings(max_examples=50)
@given(chains())
def test_layers_compute_what_their_steps_compute(graph: Graph) -> None:
    made = fold("net", graph, "weights", InputScaling())
    assert not made.network.is_tiled
    size = made.network.field_of_view + made.network.total_pooling
    x = np.random.default_rng(1).standard_normal((made.network.in_features, *size))
    wanted = directly(graph, x)
    assert np.abs(pooled(made, x) - wanted).max() <= 2e-5 * max(1.0, np.abs(wanted).max())


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Steps that keep the size of any earlier value, or join two of them."""
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    maps = {INPUT: 2}
    steps: list[GraphStep] = []
    kinds = [
        "padded",
        "affine",
        "nonlinearity",
        "average",
        "maximum",
        "down",
        "add",
        "concat",
        "gate",
    ]
    for index, kind in enumerate(["padded", *draw(st.lists(st.sampled_from(kinds), max_size=9))]):
        # Most values are read then, and some of them several times.
        recent = list(maps)[1:][-3:] or [INPUT]
        read, other = draw(st.sampled_from(recent)), draw(st.sampled_from(recent))
        value, made = str(index), maps[read]
        if kind == "down":  # half the resolution, and back
            steps.append(GraphStep(Layered(Pool("down", Vec3(1, 1, 2))), (read,), f"{value} low"))
            mode = draw(st.sampled_from(["nearest", "trilinear"]))
            up = Layered(Upsample("up", Vec3(1, 1, 2), mode))
            steps.append(GraphStep(up, (f"{value} low",), value))
        elif kind == "add" and maps[other] == made:
            steps.append(GraphStep(Layered(Add("add")), (read, other), value))
        elif kind == "concat" and made + maps[other] <= 6:
            steps.append(GraphStep(Layered(Concat("concat")), (read, other), value))
            made += maps[other]
        elif kind == "gate":
            one = convolution("one", generator.standard_normal((1, made, 1, 1, 1)), np.zeros(1))
            steps.append(GraphStep(one, (read,), f"{value} gate"))
            gate = Layered(Multiply("gate", is_gate=made > 1))
            steps.append(GraphStep(gate, (read, f"{value} gate"), value))
        else:
            alone = "affine" if kind in ("add", "concat") else kind
            steps.append(GraphStep(draw_step(draw, alone, made, generator), (read,), value))
        maps[value] = made
    outputs = {value, draw(st.sampled_from(list(maps)[1:]))}
    return Graph(2, tuple(steps), tuple(sorted(outputs)))


@pytest.mark.slow
@settings(max_examples=100)
@given(graphs())
def test_layers_of_a_graph_compute_what_its_steps_compute(graph: Graph) -> None:
    made = fold("net", graph, "weights", InputScaling())
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 6))
    wanted = directly(graph, x)
    assert np.abs(pooled(made, x) - wanted).max() <= 2e-5 * max(1.0, np.abs(wanted).max())
    activations = sum(isinstance(step.operation, Nonlinearity) for step in graph.steps)
    own = sum(isinstance(step.operation, Layered) for step in graph.steps)
    assert len(made.network.layers) <= own + activations + 1


def conv(out: int = 2, taken: int = 1) -> Layered:
    shape = (out, taken, 1, 2, 3)
    weight = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
    return convolution("conv", weight, np.zeros(out))


def folded(*steps: StepOperation) -> Any:
    return fold("net", chained(1, steps), "weights", InputScaling())


def layers(*steps: StepOperation) -> list[str]:
    """Describe each layer: a convolution by its activation and extents, or a pooling."""
    made = folded(*steps)
    return [
        f"{layer.activation} {layer.kernel}" if isinstance(layer, Conv) else f"pool {layer.window}"
        for layer in made.network.layers
    ]


POOL = Layered(Pool("pool", Vec3(1, 2, 2)))
RELU = Nonlinearity("relu", "relu")
SAME = Padding(Vec3(1, 1, 1), Vec3(1, 1, 1))


def test_nothing_is_added_where_a_convolution_can_take_it_in() -> None:
    norm = affine("norm", np.array([2.0, 0.5]), np.array([1.0, -1.0]))
    flipped = affine("norm", np.array([2.0, -0.5]), np.array([1.0, -1.0]))
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
    flipped = affine("norm", np.array([2.0, -0.5]), np.array([1.0, -1.0]))
    softmax = Nonlinearity("softmax", "softmax")
    assert layers(conv(), RELU, flipped) == ["relu 1x2x3", "identity 1x1x1"]
    assert layers(conv(), RELU, softmax) == ["relu 1x2x3", "softmax 1x1x1"]
    assert layers(conv(), POOL, softmax) == ["identity 1x2x3", "pool 1x2x2", "softmax 1x1x1"]
    assert layers(conv(), RELU, affine("no", np.ones(2), np.zeros(2))) == ["relu 1x2x3"]


def test_unfolded_weights_are_kept_to_the_bit() -> None:
    weight = np.random.default_rng(0).standard_normal((2, 1, 1, 2, 3)).astype(np.float32)
    step = convolution("conv", weight.astype(np.float64), np.zeros(2))
    made = folded(step, RELU)
    assert relative(made.weights["conv1"].weight, weight) == 0
    assert made.origins == ("conv, relu",)


def test_maps_that_do_not_chain_are_refused() -> None:
    for second in (conv(1, 3), affine("norm", np.ones(3), np.ones(3))):
        with pytest.raises(InvalidInput, match="takes 3 maps, but the layer before it gives 2"):
            folded(conv(), second)
    with pytest.raises(InvalidInput, match="no 3D convolution"):
        folded(RELU)
    huge = convolution("conv", np.full((1, 1, 1, 1, 1), 1e300), np.zeros(1))
    with pytest.raises(InvalidInput, match="not finite in float32"):
        folded(huge)


def test_what_others_read_stays_as_it_is() -> None:
    """A convolution takes nothing in if its own value is read as well."""
    norm = affine("norm", np.array([2.0, 0.5]), np.array([1.0, -1.0]))
    steps = (
        GraphStep(conv(), (INPUT,), "c"),
        GraphStep(norm, ("c",), "n"),
        GraphStep(RELU, ("n",), "r"),
        GraphStep(Layered(Add("add")), ("r", "c"), "y"),
    )
    made = fold("net", Graph(1, steps, ("y",)), "weights", InputScaling())
    assert [(node.layer.kind, node.inputs) for node in made.network.nodes] == [
        ("conv", (INPUT,)),
        ("affine", ("conv1",)),
        ("add", ("affine1", "conv1")),
    ]
    assert made.network.layers[1].activation == "relu"  # type: ignore[union-attr]
    assert made.origins == ("conv", "norm, relu", "add")


def test_a_shift_does_not_pass_zeros_but_a_factor_does() -> None:
    shifted = affine("norm", np.array([2.0, 0.5]), np.array([1.0, -1.0]))
    scaled = affine("norm", np.array([2.0, 0.5]), np.zeros(2))
    same = convolution("same", np.ones((1, 2, 3, 3, 3)), np.zeros(1), padding=SAME)
    kinds = [
        [layer.kind for layer in folded(conv(), RELU, norm, same).network.layers]
        for norm in (shifted, scaled)
    ]
    assert kinds == [["conv", "affine", "conv"], ["conv", "conv"]]


def test_activations_pass_nearest_upsampling_but_no_interpolation() -> None:
    def kinds(mode: Any) -> list[tuple[str, str]]:
        steps = (
            conv(),
            Layered(Pool("pool", Vec3(1, 1, 2))),
            Layered(Upsample("up", Vec3(1, 1, 2), mode)),
            RELU,
        )
        layers = folded(*steps).network.layers
        return [(layer.kind, getattr(layer, "activation", "")) for layer in layers]

    assert kinds("nearest") == [("conv", "relu"), ("pool", ""), ("upsample", "")]
    assert kinds("trilinear")[-1] == ("affine", "relu")


def test_several_outputs_are_joined_in_their_order() -> None:
    steps = (
        GraphStep(conv(), (INPUT,), "a"),
        GraphStep(conv(1, 1), (INPUT,), "b"),
        GraphStep(Nonlinearity("act", "sigmoid"), ("b",), "s"),
    )
    made = fold("net", Graph(1, steps, ("s", "a")), "weights", InputScaling())
    assert made.network.nodes[-1] == Node(Concat("outputs"), ("conv2", "conv1"))
    assert made.network.out_features == 3


def padded(*steps: StepOperation, crop: Padding = NO_PADDING) -> Graph:
    """Return the graph of a value that is padded, then cropped, and then read by steps."""
    tracer = Tracer(1, Vec3(8, 8, 8))
    tracer.pad("pad", INPUT, "padded", SAME)
    value = "padded"
    if crop != NO_PADDING:
        tracer.crop("crop", value, "cropped", crop)
        value = "cropped"
    for index, step in enumerate(steps):
        tracer.add(step, (value,), str(index))
        value = str(index)
    return tracer.graph([value])


def test_padding_goes_into_the_convolutions_that_read_it() -> None:
    plain = convolution("conv", np.ones((1, 1, 3, 3, 3)), np.zeros(1))
    made = fold("net", padded(plain), "weights", InputScaling())
    (layer,) = made.network.layers
    assert layer.padding == SAME  # type: ignore[union-attr]
    assert made.origins == ("pad, conv",)


@pytest.mark.parametrize(
    ("graph", "reader"),
    [
        (lambda plain: padded(POOL, plain), "pool"),
        (lambda _plain: padded(), "the output"),
    ],
)
def test_a_convolution_of_one_tap_pads_what_other_layers_read(
    graph: Callable[[Layered], Graph], reader: str
) -> None:
    made = graph(convolution("conv", np.ones((1, 1, 3, 3, 3)), np.zeros(1)))
    first = made.steps[0].operation
    assert isinstance(first, Layered)
    assert first.layer == Conv(
        f"pad, {reader}", 1, 1, Vec3(1, 1, 1), "identity", groups=1, padding=SAME
    )
    assert (first.weight == 1).all()


def test_zeros_around_all_terms_of_a_sum_are_zeros_around_the_sum() -> None:
    tracer = Tracer(1, Vec3(8, 8, 8))
    tracer.pad("pad", INPUT, "padded", SAME)
    tracer.add(Layered(Add("sum")), ("padded", "padded"), "sum")
    tracer.add(convolution("conv", np.ones((1, 1, 3, 3, 3))), ("sum",), "y")
    total, last = tracer.graph(["y"]).steps
    assert total.reads == (INPUT, INPUT)
    assert isinstance(last.operation, Layered)
    assert isinstance(last.operation.layer, Conv)
    assert last.operation.layer.padding == SAME


def test_zeros_that_are_cropped_are_made_before() -> None:
    with pytest.raises(InvalidInput, match="crop crops what conv reads"):
        padded(convolution("conv", np.ones((1, 1, 3, 3, 3))), crop=SAME)


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
        (["a>b", "b>c", "c>d"], "'c' is read by c>d beside being its output"),
        (["a>b", "b>k"], "nothing reads 'k'"),
        (["a>b", "b>b2", "b2>b"], "both give 'b'"),
        (["a>a"], "'a' is read by"),
    ],
)
def test_graphs_that_branch_are_no_chains(operations: list[str], named: str) -> None:
    end = "c" if operations != ["a>a"] else "a"
    with pytest.raises(InvalidInput) as refused:
        in_order(map(operation, operations), "a", end)
    assert named in str(refused.value)


def test_only_what_outputs_depend_on_is_needed() -> None:
    operations = [operation(text) for text in ("x>a", "a>b", "a>k", "a,b>y", "y>z")]
    assert [each.origin for each in needed(operations, ["y"])] == ["x>a", "a>b", "a,b>y"]
