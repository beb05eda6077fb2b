"""Random layers of tiled networks, as primitives get them, with inputs of any memory layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, get_args

from hypothesis import strategies as st
from layers import Case, extents, inputs, random_weights, seeds

from znni.core.shapes import Box, Shape5, Vec3
from znni.network.layers import (
    NO_PADDING,
    Activation,
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    GlobalPool,
    Layer,
    Maximum,
    Multiply,
    Normalize,
    Padding,
    PadLayer,
    Pool,
    Upsample,
    VoxelNorm,
    Weighted,
)
from znni.network.padding import Beyond

ACTIVATIONS = get_args(Activation)
OF_JOINS = [activation for activation in ACTIVATIONS if activation != "prelu"]

maps = st.sampled_from([1, 2, 3, 7, 16, 17, 40])
slopes = st.sampled_from([0.01, 0.3, -0.5])
few = st.integers(0, 2)


class Given(NamedTuple):
    """A layer on inputs of a shape.

    Attributes:
        layer: the layer.
        shape: the shape of all its inputs together.
    """

    layer: Layer
    shape: Shape5


@st.composite
def convolutions(draw: st.DrawFn) -> Given:
    """Draw a convolution with any stride, dilation and groups."""
    groups = draw(st.sampled_from([1, 1, 2, 5, 16]))
    each = st.integers(1, 3 if groups > 1 else 17)
    layer = Conv(
        "layer", groups * draw(each), groups * draw(each), draw(extents(1, 4)),
        draw(st.sampled_from(ACTIVATIONS)), stride=draw(extents(1, 3)),
        dilation=draw(extents(1, 3)), groups=groups, slope=draw(slopes),
    )  # fmt: skip
    size = layer.reach + draw(extents(0, 9))
    return Given(layer, Shape5.of(draw(st.integers(1, 2)), layer.in_features, size))


@st.composite
def transposed(draw: st.DrawFn) -> Given:
    """Draw a transposed convolution, whose kernel may be less than its stride or more."""
    groups = draw(st.sampled_from([1, 1, 2, 5, 16]))
    each = st.integers(1, 3) if groups > 1 else maps
    kernel = draw(extents(1, 4))
    cut = Vec3(*(draw(st.integers(0, extent - 1)) for extent in kernel))
    activation = draw(st.sampled_from(ACTIVATIONS))
    layer = ConvTranspose(
        "layer", groups * draw(each), groups * draw(each), kernel, activation,
        draw(extents(1, 3)), cut, cut, draw(slopes), groups,
    )  # fmt: skip
    size = layer.context.total + draw(extents(1, 8))
    return Given(layer, Shape5.of(draw(st.integers(1, 2)), layer.in_features, size))


@st.composite
def joins(draw: st.DrawFn) -> Given:
    """Draw a join of two values."""
    size, count = draw(extents(1, 12)), draw(maps)
    activation, slope = draw(st.sampled_from(OF_JOINS)), draw(slopes)
    layer, taken = draw(
        st.sampled_from(
            [
                (Concat("layer"), count + 1),
                (Add("layer", activation, slope), 2 * count),
                (Multiply("layer", activation, slope), 2 * count),
                (Multiply("layer", activation, slope, is_gate=True), count + 1),
                (Multiply("layer", activation, slope, spreads=True), 2 * count),
                (Multiply("layer", activation, slope, is_gate=True, spreads=True), count + 1),
                (Maximum("layer", activation, slope), 2 * count),
            ]
        )
    )
    return Given(layer, Shape5.of(draw(st.integers(1, 2)), taken, size))


@st.composite
def affine(draw: st.DrawFn) -> Given:
    """Draw affine maps."""
    layer = Affine("layer", draw(maps), draw(st.sampled_from(ACTIVATIONS)), draw(slopes))
    return Given(layer, Shape5.of(draw(st.integers(1, 2)), layer.features, draw(extents(1, 12))))


@st.composite
def norms(draw: st.DrawFn) -> Given:
    """Draw a norm of groups of maps, of all voxels or each."""
    groups, each = draw(st.sampled_from([(1, 67), (2, 70), (1, 4), (3, 3), (8, 2), (17, 1)]))
    made = draw(st.sampled_from([Normalize, partial(Normalize, by="response"), VoxelNorm]))
    layer = made(
        "layer", groups * each, groups, draw(st.sampled_from([1e-5, 1e-2])),
        draw(st.sampled_from(ACTIVATIONS)), draw(slopes),
    )  # fmt: skip
    return Given(layer, Shape5.of(draw(st.integers(1, 2)), layer.features, draw(extents(2, 12))))


@st.composite
def global_poolings(draw: st.DrawFn) -> Given:
    """Draw a pooling over all voxels."""
    layer = GlobalPool("layer", draw(st.sampled_from(["average", "max"])))
    return Given(layer, Shape5.of(draw(st.integers(1, 2)), draw(maps), draw(extents(1, 40))))


@st.composite
def upsampling(draw: st.DrawFn) -> Given:
    """Draw upsampling of either kind."""
    layer = Upsample("layer", draw(extents(1, 4)), draw(st.sampled_from(["nearest", "trilinear"])))
    size = layer.context * 2 + draw(extents(1, 7))
    return Given(layer, Shape5.of(draw(st.integers(1, 2)), draw(maps), size))


@st.composite
def poolings(draw: st.DrawFn) -> Given:
    """Draw a pooling without fragments."""
    window, step = draw(extents(1, 4)), draw(extents(1, 3))
    reduce = draw(st.sampled_from(["max", "average"]))
    layer = Pool("layer", window, reduce, step, dilation=draw(extents(1, 3)))
    if reduce == "max" and draw(st.booleans()):
        cut = [Vec3(*(draw(st.integers(0, e - 1)) for e in layer.reach)) for _ in range(2)]
        layer = replace(layer, padding=Padding(*cut))
    if layer.is_dense:
        layer = replace(layer, dilation=Vec3(2, 2, 2))
    return Given(
        layer, Shape5.of(draw(st.integers(1, 2)), draw(maps), layer.reach + draw(extents(0, 9)))
    )


@st.composite
def paddings(draw: st.DrawFn) -> Given:
    """Draw the padding of a block, whose samples beyond the volume are filled."""
    layer = PadLayer("layer", NO_PADDING, draw(st.sampled_from(get_args(Beyond))))
    return Given(layer, Shape5.of(draw(st.integers(1, 2)), draw(maps), draw(extents(1, 12))))


KINDS: dict[str, Callable[[], st.SearchStrategy[Given]]] = {
    "convolutions": convolutions,
    "transposed": transposed,
    "joins": joins,
    "affine": affine,
    "norms": norms,
    "global poolings": global_poolings,
    "upsampling": upsampling,
    "poolings": poolings,
    "paddings": paddings,
}


@st.composite
def local_cases(draw: st.DrawFn, kind: str) -> Case:
    """Draw a layer of a kind, with weights and an input of any memory layout."""
    layer, shape = draw(KINDS[kind]())
    weighted = isinstance(layer, Weighted)
    weights = random_weights(layer, draw(seeds)) if weighted else None
    return Case(layer, weights, draw(inputs)(shape, draw(seeds)))


@st.composite
def boxes(draw: st.DrawFn, size: Vec3) -> Box:
    """Draw the samples of an input that lie within the volume, which may reach beyond it."""
    start = Vec3(*(draw(st.integers(-2, extent - 1)) for extent in size))
    stops = (draw(st.integers(max(a, 0) + 1, e + 2)) for a, e in zip(start, size, strict=True))
    return Box(start, Vec3(*stops))
