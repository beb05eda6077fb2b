"""Rules over slabs give what they give over the whole volume, one after the other."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scipy import ndimage

from znni.components.postprocessing import postprocess, postprocess_bytes
from znni.components.rules import KeepLargest
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3

STEPS = {6: 1, 18: 2, 26: 3}

connectivities = st.sampled_from(list(STEPS))
label_sets = st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).map(tuple)
backgrounds = st.integers(0, 2)
kept = st.builds(KeepLargest, label_sets, backgrounds, connectivities)
volumes = arrays.arrays(
    st.sampled_from([np.uint8, np.int16, np.uint16, np.dtype(">u2")]),
    st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(1, 20)),
    elements=st.integers(0, 4),
    fill=st.integers(0, 4),
)


def by_scipy(labels: NDArray[Any], rules: Sequence[KeepLargest]) -> NDArray[Any]:
    """Apply rules to a whole array, as nnU-Net's own function does."""
    for rule in rules:
        structure = ndimage.generate_binary_structure(3, STEPS[rule.connectivity])
        components, count = ndimage.label(np.isin(labels, rule.labels), structure)
        voxels = np.bincount(components.ravel(), minlength=count + 1)[1:]
        gone = [size < max(voxels) for size in voxels]
        labels = np.where(np.array([False, *gone])[components], rule.background, labels)
    return labels


def by_slabs(
    labels: NDArray[Any], rules: Sequence[KeepLargest], slab: int, **options: Any
) -> NDArray[Any]:
    result = np.full(labels.shape, 99, labels.dtype)

    def write(box: Box, part: NDArray[Any]) -> None:
        result[box.slices] = part

    before = labels.copy()
    extents = Vec3(*labels.shape)
    postprocess(lambda box: labels[box.slices], write, extents, rules, slab, **options)
    np.testing.assert_array_equal(labels, before)
    return result


@pytest.mark.slow
@given(
    labels=volumes,
    rules=st.lists(kept, max_size=4),
    slab=st.integers(1, 10),
)
@settings(max_examples=200, deadline=None)
def test_rules_over_slabs_are_those_over_the_whole(
    labels: NDArray[Any], rules: list[KeepLargest], slab: int
) -> None:
    found = by_slabs(labels, rules, slab)
    np.testing.assert_array_equal(found, by_scipy(labels, rules))


def test_components_that_are_equally_large_all_stay() -> None:
    labels = np.array([1, 1, 0, 2, 2, 0, 1, 0, 1, 1], np.uint8).reshape(1, 1, -1)
    wanted = [1, 1, 0, 2, 2, 0, 7, 0, 1, 1]
    assert list(by_slabs(labels, [KeepLargest((1, 2), background=7)], 1).ravel()) == wanted


def test_voxels_that_share_a_corner_are_one_component() -> None:
    labels = np.zeros((2, 2, 4), np.uint8)
    labels[0, 0, 0] = labels[1, 1, 1] = labels[:, 0, 3] = 1
    labels[0, 1, 3] = 1
    assert by_slabs(labels, [KeepLargest((1,))], 1).sum() == 3
    labels[0, 1, 3] = 0
    assert by_slabs(labels, [KeepLargest((1,))], 1).sum() == 4
    assert by_slabs(labels, [KeepLargest((1,), connectivity=18)], 1).sum() == 2


def test_each_group_of_rules_is_one_pass() -> None:
    labels = np.random.default_rng(0).integers(0, 5, (6, 5, 4), np.uint8)
    reads: list[Box] = []

    def read(box: Box) -> NDArray[Any]:
        reads.append(box)
        return labels[box.slices]

    each = [KeepLargest((label,)) for label in (1, 2, 3, 4)]
    for rules, passes in (([], 1), (each, 2), ([KeepLargest((1, 2, 3, 4)), *each], 3)):
        reads.clear()
        postprocess(read, lambda *_: None, Vec3(6, 5, 4), rules, 2)
        assert len(reads) == 3 * passes


def test_the_volume_itself_may_be_written() -> None:
    labels = np.random.default_rng(1).integers(0, 3, (12, 9, 10), np.uint8)
    rules = [KeepLargest((1, 2)), KeepLargest((1,)), KeepLargest((2,), background=1)]
    wanted = by_scipy(labels, rules)

    def write(box: Box, part: NDArray[Any]) -> None:
        labels[box.slices] = part

    extents = Vec3(*labels.shape)
    postprocess(lambda box: labels[box.slices], write, extents, rules, 2)
    np.testing.assert_array_equal(labels, wanted)


def test_a_background_that_the_type_cannot_hold() -> None:
    with pytest.raises(InvalidInput, match="labels of type uint8 cannot hold the background 300"):
        by_slabs(np.zeros((2, 2, 2), np.uint8), [KeepLargest((1,), background=300)], 1)


def test_labels_that_change_between_passes() -> None:
    labels = np.zeros((4, 4, 8), np.uint8)
    labels[0, 0, 0], labels[0, 0, 2:4] = 1, 1
    reads: list[Box] = []

    def read(box: Box) -> NDArray[Any]:
        reads.append(box)
        if len(reads) == 3:
            labels[0, 2, 4] = 1
        return labels[box.slices]

    with pytest.raises(InvalidInput, match="a slab had 2 components and now has 3"):
        postprocess(read, lambda *_: None, Vec3(4, 4, 8), [KeepLargest((1,))], 2)


def worst(extents: Vec3) -> NDArray[np.uint8]:
    """Labels that take most memory: no two neighbours in a row are alike."""
    labels = np.ones(extents, np.uint8)
    labels[..., ::2] = 2
    labels[-1, -1, 1] = 0
    return labels


def noise(extents: Vec3) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 5, extents, np.uint8)


@pytest.mark.parametrize("labels_of", [worst, noise])
@pytest.mark.parametrize("slab", [1, 8])
def test_no_more_memory_than_declared(labels_of: Any, slab: int) -> None:
    extents = Vec3(40, 96, 160)
    labels = labels_of(extents)
    rules = [KeepLargest((1, 2)), KeepLargest((1,)), KeepLargest((2,))]
    slabs: list[Box] = []

    def run(most: int) -> None:
        postprocess(
            lambda box: labels[box.slices].copy(),
            lambda box, _: slabs.append(box),
            extents, rules, slab, most_components=most,
        )  # fmt: skip

    most = 2**13 if labels_of is worst else 2**19
    run(most)
    tracemalloc.start()
    try:
        run(most)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    declared = postprocess_bytes(extents, rules, slab, 1, most_components=most)
    assert peak <= declared
    if labels_of is worst:
        assert peak > declared / 4
