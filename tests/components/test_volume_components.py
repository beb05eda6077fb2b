"""Components over slabs are those of the whole volume, whatever the slabs."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scipy import ndimage

from znni.components.runs import Connectivity, classes_of, paint_slab
from znni.components.slabs import slab_boxes, slab_part
from znni.components.volume_components import Components, components_bytes, find_components
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3

STEPS = {6: 1, 18: 2, 26: 3}

shapes = st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(1, 20))
connectivities = st.sampled_from(list(STEPS))


def labelled(mask: NDArray[np.bool_], connectivity: Connectivity) -> NDArray[Any]:
    """The components of a whole mask, numbered by their first voxels."""
    structure = ndimage.generate_binary_structure(3, STEPS[connectivity])
    found, _ = ndimage.label(mask, structure)
    return by_first_voxel(found)


def by_first_voxel(found: NDArray[Any]) -> NDArray[Any]:
    """Number the components of an array in the order of their first voxels."""
    values, first = np.unique(found, return_index=True)
    order = np.zeros(found.max() + 1, int)
    present = values > 0
    order[values[present][np.argsort(first[present])]] = np.arange(1, present.sum() + 1)
    return order[found]


def components_of(labels: NDArray[Any], slab: int, **options: Any) -> Components:
    return find_components(lambda box: labels[box.slices], Vec3(*labels.shape), slab, **options)


def numbers_of(found: Components, labels: NDArray[Any]) -> NDArray[Any]:
    """The component of each voxel, from 1 on. 0 means no component."""
    numbers = np.zeros(labels.shape, np.int32)
    for box in slab_boxes(found.extents, found.slab):
        part = slab_part(found.tables.first, box.start.z // found.slab)
        paint, everyone = 1 + found.tables.number[part], np.ones(part.stop - part.start, bool)
        known = labels[box.slices], found.classes, found.connectivity
        paint_slab(*known, everyone, paint, numbers[box.slices])
    return numbers


def check_tables(found: Components, numbers: NDArray[Any]) -> None:
    assert list(found.voxels) == list(np.bincount(numbers.ravel())[1:])
    last = np.array(numbers.shape)
    for index, slices in enumerate(ndimage.find_objects(numbers)):
        start, stop = ([getattr(it, end) for it in slices] for end in ("start", "stop"))
        assert (list(found.start[index]), list(found.stop[index])) == (start, stop)
        touches = min(start) == 0 or bool((np.array(stop) == last).any())
        assert found.touches_border[index] == touches


@given(data=st.data(), shape=shapes, slab=st.integers(1, 10), connectivity=connectivities)
@settings(max_examples=150, deadline=None)
def test_components_of_a_mask_are_those_of_scipy(
    data: st.DataObject, shape: tuple[int, int, int], slab: int, connectivity: Connectivity
) -> None:
    share, seed = data.draw(st.floats(0, 1)), data.draw(st.integers(0, 2**32 - 1))
    mask = np.random.default_rng(seed).random(shape) < share
    found = components_of(mask, slab, connectivity=connectivity)
    wanted = labelled(mask, connectivity)
    assert len(found) == wanted.max()
    np.testing.assert_array_equal(numbers_of(found, mask), wanted)
    check_tables(found, wanted)


@pytest.mark.slow
@given(
    labels=shapes.flatmap(
        lambda shape: arrays.arrays(
            st.sampled_from([np.uint8, np.int16, np.uint16]), shape, elements=st.integers(0, 4)
        )
    ),
    slab=st.integers(1, 10),
    connectivity=connectivities,
)
@settings(max_examples=150, deadline=None)
def test_classes_have_their_own_components(
    labels: NDArray[Any], slab: int, connectivity: Connectivity
) -> None:
    sets = ((1, 4), (3,))
    found = components_of(labels, slab, classes=classes_of(sets), connectivity=connectivity)
    whole = np.zeros(labels.shape, int)
    for one in sets:
        mask = np.isin(labels, one)
        whole += np.where(mask, labelled(mask, connectivity) + whole.max(), 0)
    wanted = by_first_voxel(whole)
    numbers = numbers_of(found, labels)
    np.testing.assert_array_equal(numbers, wanted)
    check_tables(found, wanted)
    for index, kind in enumerate(found.tables.kind):
        assert set(labels[numbers == index + 1]) <= set(sets[kind - 1])


def snake(extents: Vec3) -> NDArray[np.bool_]:
    """A path through all planes and rows, which only single voxels join."""
    mask = np.zeros(extents, bool)
    mask[::2, ::2] = True
    for plane in range(0, extents.z, 2):
        for row, (one, _) in enumerate(pairwise(range(0, extents.y, 2))):
            mask[plane, one + 1, -1 if row % 2 == 0 else 0] = True
    for number, plane in enumerate(range(1, extents.z - 1, 2)):
        mask[plane, 0 if number % 2 else -1, 0 if number % 2 else -1] = True
    return mask


@pytest.mark.parametrize("slab", [1, 2, 3, 20])
def test_a_path_through_all_slabs_is_one_component(slab: int) -> None:
    mask = snake(Vec3(9, 7, 6))
    assert len(components_of(mask, slab, connectivity=6)) == labelled(mask, 6).max()


def test_negative_labels_have_no_class() -> None:
    labels = np.array([-1, 255 - 256, 127, 2], np.int8).reshape(1, 1, 4)
    found = components_of(labels, 1, classes=classes_of([(127, 255), (2,)]))
    assert list(found.voxels) == [1, 1]


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint64"])
def test_labels_of_other_types_are_refused(dtype: str) -> None:
    with pytest.raises(InvalidInput, match=f"labels have the type {dtype}; give integers"):
        components_of(np.zeros((2, 3, 4), dtype), 1)


def test_too_many_components_are_refused() -> None:
    mask = np.zeros((4, 4, 8), bool)
    mask[::2, ::2, ::2] = True
    assert len(components_of(mask, 1, most_components=16)) == 16
    for slab in (1, 4):
        with pytest.raises(InvalidInput, match="more than 15 components in their slabs"):
            components_of(mask, slab, most_components=15)


def test_a_slab_that_changed_is_refused() -> None:
    mask = np.zeros((4, 4, 8), bool)
    mask[0, 0, 0] = True
    found = components_of(mask, 2)
    mask[0, 2, 4] = True
    with pytest.raises(InvalidInput, match="a slab had 1 components and now has 2"):
        numbers_of(found, mask)


@pytest.mark.parametrize(("share", "connectivity"), [(0.5, 6), (0.3, 26), (0.02, 6)])
def test_no_more_memory_than_declared(share: float, connectivity: Connectivity) -> None:
    extents, slab = Vec3(64, 128, 160), 16
    mask = np.random.default_rng(0).random(extents) < share
    components_of(mask[:1], slab, connectivity=connectivity)  # compiles
    tracemalloc.start()
    try:
        found = components_of(mask, slab, connectivity=connectivity)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    of_slabs = int(found.tables.first[-1])
    assert peak <= components_bytes(extents, slab, 1, most_components=of_slabs)
