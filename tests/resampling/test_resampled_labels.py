"""Labels of resampled maps and of resampled labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from resampling_cases import WHOLE_START, along_axis, boxes, by_scipy, resamplings, whole

from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.machine.arrays import peak_memory
from znni.resampling.labels import label_bytes, label_largest, resample_labels

MAPS = 7
OF_MAPS = np.array([0, 3, 4, 9, 300, 2, 1], np.uint16)
LINEAR = (0, 1)
NEAR = 1e-5  # maps this close may change places by rounding
SLACK = 2**20  # bytes that the interpreter may take

linear = resamplings(LINEAR, 20)


@given(linear, st.data())
def test_labels_are_those_of_the_largest_map(resampling: Resampling, data: st.DataObject) -> None:
    numbers = np.random.default_rng(0)
    values = numbers.standard_normal((MAPS, *resampling.source), dtype=np.float32)
    box = data.draw(boxes(resampling.target))
    needed = resampling.source_box(box)
    part = values[:, *needed.slices]
    found = label_largest(part, needed.start, resampling, box, OF_MAPS, threads=2)
    maps = by_scipy(values, resampling)[:, *box.slices]
    assert found.dtype == OF_MAPS.dtype
    largest = maps.max(axis=0)
    of_found = (maps * (found == OF_MAPS[:, None, None, None])).sum(axis=0)
    assert (largest - of_found).max() <= NEAR


def test_of_equal_maps_the_first_counts_and_nan_is_largest() -> None:
    resampling = Resampling(Vec3(3, 4, 5), Vec3(5, 7, 9), (1, 1, 1))
    values = np.random.default_rng(0).standard_normal((1, 3, 4, 5), dtype=np.float32)
    values = np.repeat(values, MAPS, axis=0)
    values[0] -= 1
    box = whole(resampling)
    assert (label_largest(values, WHOLE_START, resampling, box, OF_MAPS, threads=1) == 3).all()
    values[4:6] = np.nan
    assert (label_largest(values, WHOLE_START, resampling, box, OF_MAPS, threads=1) == 300).all()


def by_indicators(labels: NDArray[Any], resampling: Resampling) -> NDArray[np.uint8]:
    """Return labels as batchgenerators finds them: an image of each label, resampled by scipy."""
    if resampling.orders == (0, 0, 0):
        return by_scipy(labels[None], resampling)[0].astype(np.uint8)
    known = np.unique(labels)
    shares = np.stack([_resampled(labels == label, resampling) for label in known])
    nearest = labels.astype(np.float64)
    for axis in range(3):
        nearest = along_axis(nearest, axis, resampling.target[axis], 0)
    made = known[shares.argmax(axis=0)]
    has_most = np.take_along_axis(shares, np.searchsorted(known, nearest)[None], 0)[0]
    return np.where(has_most == shares.max(axis=0), nearest, made).astype(np.uint8)


def _resampled(mask: NDArray[np.bool_], resampling: Resampling) -> NDArray[np.float64]:
    """Resample by scipy all axes of order 1 at once, so that sums are rounded alike."""
    from scipy import ndimage

    made = mask.astype(np.float64)
    for axis in range(3):
        if resampling.orders[axis] == 0:
            made = along_axis(made, axis, resampling.target[axis], 0)
    if made.shape == tuple(resampling.target):
        return made
    factors = np.divide(resampling.target, made.shape)
    return np.asarray(ndimage.zoom(made, factors, order=1, mode="nearest", grid_mode=True))


@given(linear, st.integers(1, 5), st.data())
@example(Resampling(Vec3(5, 6, 7), Vec3(10, 12, 14), (1, 1, 1)), 5, None)
@example(Resampling(Vec3(6, 6, 8), Vec3(3, 3, 4), (1, 1, 1)), 3, None)
def test_labels_are_resampled_as_by_batchgenerators(
    resampling: Resampling, known: int, data: st.DataObject | None
) -> None:
    numbers = np.random.default_rng(0)
    labels = numbers.choice(np.array([0, 7, 2, 200, 9], np.uint8)[:known], resampling.source)
    box = whole(resampling) if data is None else data.draw(boxes(resampling.target))
    needed = resampling.source_box(box)
    part = labels[needed.slices]
    found = resample_labels(part, needed.start, resampling, box, threads=2)
    assert found.dtype == labels.dtype
    np.testing.assert_array_equal(found, by_indicators(labels, resampling)[box.slices])


def test_cubic_splines_give_no_labels() -> None:
    resampling = Resampling(Vec3(3, 4, 5), Vec3(5, 7, 9), (1, 3, 1))
    values = np.zeros((MAPS, 3, 4, 5), np.float32)
    box = whole(resampling)
    with pytest.raises(ValueError, match="orders 0 or 1"):
        label_largest(values, WHOLE_START, resampling, box, OF_MAPS, threads=1)
    with pytest.raises(ValueError, match="orders 0 or 1"):
        resample_labels(np.zeros((3, 4, 5), int), WHOLE_START, resampling, box, threads=1)


def test_labels_take_the_memory_that_they_declare() -> None:
    resampling = Resampling(Vec3(40, 50, 60), Vec3(80, 100, 120), (1, 1, 1))
    values = np.random.default_rng(0).standard_normal((MAPS, 40, 50, 60), dtype=np.float32)
    box = Box(WHOLE_START, resampling.target)

    def run() -> NDArray[Any]:
        return label_largest(values, WHOLE_START, resampling, box, OF_MAPS, threads=2)

    labels = run()
    with peak_memory() as peak:
        run()
    assert peak.added <= labels.nbytes + label_bytes(resampling, box, 2) + SLACK
