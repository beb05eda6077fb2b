"""The geometry of tiled networks: the samples of every value in blocks of the whole volume."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import NETWORKS

from znni.core.shapes import ZERO, Box, Vec3, offsets
from znni.network.frames import _geometry_along, whole_sizes
from znni.network.geometry import block_geometry, context, over, whole_input
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.node import INPUT
from znni.network.resizing import Upsample
from znni.network.weights import Weights, random_weights
from znni.primitives import tiled_reference
from znni.primitives.reference import Float64

small = graphs(depth=2, most_maps=3)
sizes = st.builds(Vec3, *[st.integers(1, 20)] * 3)
few = st.builds(Vec3, *[st.integers(1, 14)] * 3)


def cut(values: Float64, box: Box) -> Float64:
    """Return a box of values (f, z, y, x), with zeros beyond them."""
    size = Vec3(*values.shape[1:])
    found = np.zeros((len(values), *box.size))
    inside = Box(box.start.maximum(ZERO), box.stop.minimum(size))
    if min(inside.size) > 0:
        place = inside.shifted(ZERO - box.start)
        found[:, *place.slices] = values[:, *inside.slices]
    return found


def computed_in_blocks(network: Network, weights: Weights, x: Float64, patch: Vec3) -> Float64:
    """Return the output of a network for a volume, block after block, as plans do it."""
    geometry = block_geometry(network, patch)
    whole = geometry.sizes[network.output]
    made = np.full((network.out_features, *whole), np.nan)
    for block in offsets(whole.ceil_div(patch)):
        start = block * patch
        values = {INPUT: cut(x, geometry.frames[INPUT].stored.shifted(start))}
        for node in network.nodes:
            given = []
            for name, read in zip(node.inputs, geometry.reads[node.name], strict=True):
                stored = geometry.frames[name].stored
                assert read.within(stored)
                given.append(values[name][None, :, *read.shifted(ZERO - stored.start).slices])
            source, at = node.inputs[0], geometry.reads[node.name][0].start
            at += start // network.strides[source]
            size = Vec3(*given[0].shape[2:])
            inside = Box((ZERO - at).maximum(ZERO), (geometry.sizes[source] - at).minimum(size))
            frame = geometry.frames[node.name]
            assert frame.computed.within(frame.stored)
            assert node.layer.local_size(size) == frame.computed.size
            (result,) = tiled_reference.local(node.layer, weights, given, inside)
            at = start // network.strides[node.name]
            place = frame.computed.shifted(at)
            kept = Box(place.start.maximum(ZERO), place.stop.minimum(geometry.sizes[node.name]))
            known = np.zeros((len(result), *frame.stored.size))
            if min(kept.size) > 0:
                to, of = frame.stored.start + at, place.start
                known[:, *kept.shifted(ZERO - to).slices] = result[
                    :, *kept.shifted(ZERO - of).slices
                ]
            values[node.name] = known
        wanted = Box(start, (start + patch).minimum(whole))
        first = geometry.frames[network.output].stored.start + start
        made[:, *wanted.slices] = values[network.output][:, *wanted.shifted(ZERO - first).slices]
    return made


@pytest.mark.slow
@settings(max_examples=50)
@given(
    small,
    st.builds(Vec3, *[st.integers(1, 14)] * 3),
    st.builds(Vec3, *[st.integers(1, 3)] * 3),
    st.booleans(),
    st.integers(0, 99),
)
def test_blocks_of_any_size_give_the_whole_volume(
    network: Network, volume: Vec3, periods: Vec3, flat: bool, seed: int
) -> None:
    network = over(network, whole_input(network, volume))
    assert network.whole is not None
    weights = random_weights(network, seed)
    x = np.random.default_rng(seed).standard_normal((network.in_features, *network.whole))
    patch = network.alignment * periods
    if flat:  # an axis that is not cut
        patch = patch._replace(y=max(patch.y, network.whole.y))
    expected = tiled_reference.output_at_once(network, weights, x)
    found = computed_in_blocks(network, weights, x, patch)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_blocks_of_many_extents_are_worked_out_along_each_axis() -> None:
    network = load_network(NETWORKS / "cells-unet.yaml")
    network = over(network, whole_input(network, Vec3(612, 616, 620)))
    before = _geometry_along.cache_info().misses
    extents = [4 * it for it in range(3, 9)]
    for patch in product(extents, extents, extents):
        block_geometry(network, Vec3(*patch))
    assert _geometry_along.cache_info().misses - before == 3 * len(extents)


@pytest.mark.slow
@given(small, sizes)
def test_the_input_holds_the_volume_and_no_period_more(network: Network, volume: Vec3) -> None:
    whole = whole_input(network, volume)
    assert volume.within(whole)
    made = whole_sizes(network, whole)
    assert made[network.output] == whole - context(network)
    assert min(map(min, made.values())) > 0
    for axis in "zyx":
        extent = getattr(whole, axis) - getattr(network.alignment, axis)
        fewer = whole_sizes(network, whole._replace(**{axis: extent}))
        assert extent < getattr(volume, axis) or min(map(min, fewer.values())) < 1


def test_the_first_block_has_the_sample_that_a_shift_repeats() -> None:
    """Also in a volume of one voxel, which is smaller than the network's alignment."""
    shift = Upsample("shift", Vec3.of(1), shift=Vec3(1, 0, 0))
    assert shift.rounded(Box(ZERO, Vec3(1, 4, 4))) == Box(ZERO, Vec3(2, 4, 4))
    assert shift.rounded(Box(ZERO, Vec3(8, 4, 4))) == Box(ZERO, Vec3(8, 4, 4))
