"""The catalogue as test parameters, and random layers with inputs and weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from devices import built
from hypothesis import assume
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from bench import reference
from znni.calibration.measure import inputs_in
from znni.core.shapes import Shape5, Vec3
from znni.machine.detect import detect_machine
from znni.network.layers import (
    LEAKY_SLOPE,
    NO_PADDING,
    Activation,
    Add,
    Affine,
    Concat,
    Conv,
    ConvPair,
    ConvTranspose,
    GlobalPool,
    Maximum,
    Multiply,
    Normalize,
    Operation,
    Padding,
    PadLayer,
    PerMap,
    Pool,
    PooledConv,
    Upsample,
    VoxelNorm,
    Weighted,
)
from znni.network.weights import ConvWeights, Float32
from znni.plans.primitive import Primitive, UsesGpu
from znni.primitives.catalogue import catalogue

CONVOLUTION = Conv("convolution", 2, 3, Vec3(2, 3, 2), "identity"), Shape5(1, 2, 7, 8, 9)
POOLING = Pool("pooling", Vec3(2, 2, 2)), Shape5(1, 2, 9, 11, 13)
POOLED_CONVOLUTION = PooledConv(CONVOLUTION[0], POOLING[0]), CONVOLUTION[1]
ONE = Vec3(1, 1, 1)
PAIR = (
    ConvPair(Conv("expand", 2, 5, ONE, "gelu"), Conv("project", 5, 3, ONE, "identity")),
    CONVOLUTION[1],
)

# Layers of tiled networks, with the shapes of all their inputs together.
SIZE = Vec3(7, 8, 9)
TWO = Vec3(2, 2, 2)
PADDED = Padding(Vec3(1, 0, 1))
LOCAL: dict[str, tuple[Operation, Shape5]] = {
    layer.name: (layer, Shape5.of(1, maps, SIZE))
    for layer, maps in (
        (Conv("strided", 2, 3, Vec3(3, 2, 3), "elu", stride=Vec3(2, 1, 2)), 2),
        (Conv("dilated", 2, 3, Vec3(2, 3, 2), "prelu", dilation=Vec3(3, 1, 2)), 2),
        (Conv("grouped", 4, 6, Vec3(2, 2, 3), "gelu", groups=2), 4),
        (Conv("depthwise", 3, 6, Vec3(3, 2, 3), "elu", stride=Vec3(1, 1, 2), groups=3), 3),
        (ConvTranspose("spread_maps", 2, 4, Vec3(3, 2, 3), "tanh", TWO, groups=2).local, 2),
        (ConvTranspose("transposed", 2, 3, Vec3(3, 2, 4), "relu", Vec3(2, 2, 3)).local, 2),
        (Affine("affine", 3, "prelu"), 3),
        (Normalize("group_norm", 4, 2, activation="leaky_relu"), 4),
        (VoxelNorm("layer_norm", 6, 2, activation="prelu"), 6),
        (Normalize("response_norm", 6, 2, activation="elu", by="response"), 6),
        (Concat("concat"), 5),
        (Add("add", "leaky_relu", 0.1), 6),
        (Multiply("multiply"), 6),
        (Multiply("gate", "tanh", is_gate=True), 4),
        (Multiply("spread", "sigmoid", spreads=True), 6),
        (Maximum("maximum", "elu"), 6),
        (GlobalPool("global_average"), 3),
        (GlobalPool("global_maximum", "max"), 3),
        (Upsample("nearest", Vec3(1, 2, 3)), 2),
        (Upsample("trilinear", Vec3(2, 1, 3), "trilinear"), 2),
        (PadLayer("edges", NO_PADDING, "reflect"), 2),
        (Pool("average", Vec3(2, 3, 3), "average"), 2),
        (Pool("overlapping", Vec3(3, 2, 3), step=TWO), 2),
        (Pool("padded", Vec3(3, 2, 3), step=TWO, padding=PADDED), 2),
        (Pool("spread_windows", TWO, "average", Vec3(1, 1, 1), dilation=Vec3(2, 1, 3)), 2),
    )
}
EXAMPLES = (CONVOLUTION, POOLING, POOLED_CONVOLUTION, PAIR, *LOCAL.values())
# No pooling comes before them.
UNORDERED: set[Activation] = {"softmax", "gelu", "gelu_tanh", "prelu"}
MACHINE = detect_machine(ram=4 << 30, threads=2)

# References by layer and digest of input and weights: enough for the cases of one test.
_REFERENCES: dict[tuple[Conv, bytes], reference.Float64] = {}
MOST_REFERENCES = 200


def suited(
    primitive: Primitive, layer: Operation, shape: Shape5, axes: str = "xz"
) -> Shape5 | None:
    """Return the shape, stretched along one of the axes until the primitive applies to it."""
    for axis in axes:
        for extent in range(getattr(shape, axis), getattr(shape, axis) + 64):
            stretched = shape._replace(**{axis: extent})
            if primitive.out_shape(layer, stretched) is not None:
                return stretched
    return None


@cache  # modules ask for the same, while they are collected
def primitives_for(layer: Operation, shape: Shape5) -> tuple[Any, ...]:
    """Return all primitives of the catalogue that can run such layers, as test parameters.

    Of the host primitives that use a GPU, only one is included. They differ only in the primitive
    that computes their pieces.
    """
    return tuple(
        pytest.param(p, id=p.name, marks=pytest.mark.gpu if p.device.kind == "gpu" else ())
        for p in catalogue(MACHINE).values()
        if is_tested(p) and suited(p, layer, shape) is not None
    )


def is_tested(primitive: Primitive) -> bool:
    """Return whether the tests of all primitives include it."""
    return not isinstance(primitive, UsesGpu) or primitive.name == "host_ram_1GiB_gpu_direct"


def does(primitive: Primitive) -> tuple[Operation, Shape5]:
    """Return a layer and a shape that the primitive applies to."""
    shapes = ((layer, suited(primitive, layer, shape)) for layer, shape in EXAMPLES)
    return next((layer, shape) for layer, shape in shapes if shape is not None)


class Case(NamedTuple):
    """A layer with weights and input; the inputs of a join are one after the other in ``x``."""

    layer: Any
    weights: ConvWeights | None
    x: Float32

    @property
    def shape(self) -> Shape5:
        return Shape5(*self.x.shape)

    @property
    def inputs(self) -> tuple[Float32, ...]:
        """The arrays that a run takes."""
        return inputs_in(self.layer, self.x)

    def run(self, primitive: Primitive) -> Float32:
        return built(primitive, self.layer, self.shape, self.weights)(*self.inputs)


def random_weights(layer: Weighted, seed: int = 0) -> ConvWeights:
    """Return weights that keep the input's scale, and biases of that scale."""
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal(layer.weight_shape, np.float32)
    if not isinstance(layer, PerMap):
        weight *= np.float32(layer.fan_in**-0.5)
    bias = generator.standard_normal(layer.out_features, np.float32)
    prelu = layer.activation == "prelu"
    slope = generator.standard_normal(layer.out_features, np.float32) if prelu else None
    return ConvWeights(weight, bias, slope)


def random_input(shape: Shape5, seed: int = 0) -> Float32:
    """Return standard normal values."""
    return _random_input(shape, seed).copy()


@lru_cache(maxsize=2)  # tests ask for the same input for one primitive after the other
def _random_input(shape: Shape5, seed: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def case_for(primitive: Primitive, layer: Operation, shape: Shape5) -> Case:
    """Return a random case of that shape, or of the next longer one that suits the primitive."""
    suitable = suited(primitive, layer, shape)
    if suitable is None:
        pytest.skip(f"{primitive.name} does not do {layer}")
    return random_case(layer, suitable)


def random_case(layer: Operation, shape: Shape5, seed: int = 0) -> Case:
    """Return a case of any layer, with a contiguous input."""
    conv = layer.conv if isinstance(layer, PooledConv | ConvPair) else layer
    weighted = isinstance(conv, Weighted)
    weights = random_weights(conv, seed + 1) if weighted else None
    if isinstance(layer, ConvPair) and weights:
        weights = replace(weights, after=random_weights(layer.after, seed + 2))
    return Case(layer, weights, random_input(shape, seed))


def scaled(case: Case, factor: float) -> Case:
    """Return the case of a brighter image, by a factor; bias and linear output scale with it."""
    assert case.weights is not None
    bias = case.weights.bias * np.float32(factor)
    weights = ConvWeights(case.weights.weight, bias)
    return case._replace(weights=weights, x=case.x * np.float32(factor))


def assert_accurate(primitive: Primitive, case: Case, y: Float32 | None = None) -> None:
    """Compare a convolution's output with the float64 reference, relative to the sums.

    Without an output, the primitive runs.

    The scale is the largest of three magnitudes: products without the bias, products with it,
    output. Products and bias may cancel.
    """
    pooled = isinstance(case.layer, PooledConv)
    conv = case.layer.conv if pooled else case.layer
    linear = linear_reference(case.x, conv, case.weights)
    slope = conv.slope if case.weights.slope is None else case.weights.slope
    expected = reference.activation(linear, conv.activation, slope)
    if pooled:
        expected = reference.pooling(expected, case.layer.pool)
    products = linear - case.weights.bias[:, np.newaxis, np.newaxis, np.newaxis]
    scale = max(np.abs(values).max() for values in (products, linear, expected))
    found = case.run(primitive) if y is None else y
    assert np.abs(found - expected).max() <= primitive.accuracy * scale


def linear_reference(x: Float32, layer: Conv, weights: ConvWeights) -> reference.Float64:
    """Return the float64 reference without its activation, read-only.

    It is computed once for all primitives that are given the same bytes.
    """
    digest = sha256()
    for array in (x, weights.weight, weights.bias):
        digest.update(f"{array.shape} {array.dtype} ".encode())
        digest.update(np.ascontiguousarray(array))
    linear = replace(layer, name="any", activation="identity", slope=LEAKY_SLOPE)
    asked = linear, digest.digest()
    if asked not in _REFERENCES:
        if len(_REFERENCES) == MOST_REFERENCES:
            _REFERENCES.clear()
        with threadpool_limits(1):  # threads of BLAS wait in loops, at the cost of other tests
            found = reference.convolution(x, linear, weights)
        found.setflags(write=False)
        _REFERENCES[asked] = found
    return _REFERENCES[asked]


def identity(layer: Conv) -> Conv:
    """Return the same convolution without an activation."""
    return replace(layer, activation="identity")


def _contiguous(shape: Shape5, seed: int) -> Float32:
    return random_input(shape, seed)


def _cropped(shape: Shape5, seed: int) -> Float32:
    n, f, z, y, x = shape
    whole = random_input(Shape5(n, f + 1, z + 3, y + 2, x + 5), seed)
    return whole[:, 1:, 2 : 2 + z, 1 : 1 + y, 3 : 3 + x]


def _transposed(shape: Shape5, seed: int) -> Float32:
    n, f, z, y, x = shape
    return random_input(Shape5(f, z, n, y, x), seed).transpose(2, 0, 1, 3, 4)


def _reversed_and_thinned(shape: Shape5, seed: int) -> Float32:
    n, f, z, y, x = shape
    return random_input(Shape5(n, f, 2 * z, y, x), seed)[::-1, :, ::-2, ::-1]


def _repeated(shape: Shape5, seed: int) -> Float32:
    return np.broadcast_to(random_input(shape._replace(f=1), seed), shape)


inputs = st.sampled_from([_contiguous, _cropped, _transposed, _reversed_and_thinned, _repeated])
seeds = st.integers(0, 2**32 - 1)
maps = st.sampled_from([1, 2, 3, 8, 17])


def extents(smallest: int, largest: int) -> st.SearchStrategy[Vec3]:
    """Draw three extents."""
    one = st.integers(smallest, largest)
    return st.builds(Vec3, one, one, one)


@st.composite
def convolution_cases(draw: st.DrawFn, primitive: Primitive) -> Case:
    """Draw any convolution that the primitive can run, with an input of any memory layout."""
    activation = draw(st.sampled_from(get_args(Activation)))
    layer = Conv("convolution", draw(maps), draw(maps), draw(extents(1, 5)), activation)
    if primitive.device.kind == "cpu":
        layer = replace(layer, slope=draw(st.sampled_from([0.01, 0.3, -0.5])))
    size = layer.kernel + draw(extents(0, 9))
    shape = Shape5.of(draw(st.integers(1, 3)), layer.in_features, size)
    suitable = suited(primitive, layer, shape, draw(st.sampled_from("zyx")))
    assume(suitable is not None)
    return Case(layer, random_weights(layer, draw(seeds)), draw(inputs)(suitable, draw(seeds)))


@st.composite
def pooled_cases(draw: st.DrawFn, primitive: Primitive) -> Case:
    """Draw any pooled convolution that the primitive can run, with any memory layout."""
    activation = draw(st.sampled_from([a for a in get_args(Activation) if a not in UNORDERED]))
    conv = Conv("convolution", draw(st.integers(1, 4)), draw(maps), draw(extents(1, 5)), activation)
    conv = replace(conv, slope=draw(st.sampled_from([0.01, 0.3, 1.5])))
    layer = PooledConv(conv, Pool("pooling", draw(extents(1, 3))))
    size = conv.kernel + layer.pool.window - 1 + draw(extents(0, 17))
    shape = Shape5.of(draw(st.integers(1, 3)), conv.in_features, size)
    suitable = suited(primitive, layer, shape, draw(st.sampled_from("zyx")))
    assume(suitable is not None)
    return Case(layer, random_weights(conv, draw(seeds)), draw(inputs)(suitable, draw(seeds)))


@st.composite
def pooling_cases(draw: st.DrawFn, fragments: bool) -> Case:
    """Draw any pooling with an input of any memory layout; its size may suit fragments or not."""
    layer = Pool("pooling", draw(extents(1, 4)))
    if fragments:
        size = layer.window * (draw(extents(1, 4)) + 1) - 1
    else:
        size = layer.window + draw(extents(0, 9))
    shape = Shape5.of(draw(st.integers(1, 3)), draw(maps), size)
    return Case(layer, None, draw(inputs)(shape, draw(seeds)))
