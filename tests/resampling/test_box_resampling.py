"""Splines are those of scipy, whatever box of the target is computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from resampling_cases import WHOLE_START, boxes, by_scipy, resamplings, whole

from znni.core.resampling import Resampling
from znni.core.shapes import Box, Vec3
from znni.machine.arrays import peak_memory
from znni.network.weights import Float32
from znni.resampling.box_resampling import bounds_of, resample, resample_bytes

ACCURACY = 1e-6
SLACK = 2**20  # bytes that the interpreter may take


def values_for(resampling: Resampling, maps: int = 2, seed: int = 0) -> Float32:
    numbers = np.random.default_rng(seed)
    return numbers.standard_normal((maps, *resampling.source), dtype=np.float32)


@pytest.mark.slow
@given(resamplings(), st.booleans())
@example(Resampling(Vec3(40, 300, 20), Vec3(20, 200, 70), (3, 3, 3)), True)
@example(Resampling(Vec3(70, 9, 33), Vec3(35, 18, 700), (3, 1, 3), 1), True)
def test_values_are_those_of_scipy(resampling: Resampling, clips: bool) -> None:
    values = values_for(resampling)
    bounds = bounds_of(values, resampling.separate) if clips else None
    found = resample(values, WHOLE_START, resampling, whole(resampling), threads=2, bounds=bounds)
    wanted = by_scipy(values, resampling, clips=clips)
    assert np.abs(found - wanted).max() <= ACCURACY * np.abs(wanted).max()


@given(resamplings(), st.booleans(), st.data())
def test_values_do_not_depend_on_the_box(
    resampling: Resampling, clips: bool, data: st.DataObject
) -> None:
    values = values_for(resampling)
    bounds = bounds_of(values, resampling.separate) if clips else None
    all_of_it = resample(
        values, WHOLE_START, resampling, whole(resampling), threads=1, bounds=bounds
    )
    box = data.draw(boxes(resampling.target))
    needed = resampling.source_box(box)
    part = values[:, *needed.slices].copy()
    found = resample(part, needed.start, resampling, box, threads=2, bounds=bounds)
    np.testing.assert_array_equal(found, all_of_it[:, *box.slices])


@pytest.mark.slow
def test_voxels_of_a_ct_keep_their_accuracy() -> None:
    resampling = Resampling(Vec3(30, 64, 64), Vec3(64, 90, 50), (3, 3, 3))
    values = 1000 * values_for(resampling, 1) - 1000
    found = resample(values, WHOLE_START, resampling, whole(resampling), threads=2)
    wanted = by_scipy(values, resampling)
    assert np.abs(found - wanted).max() <= ACCURACY * np.abs(wanted).max()


def test_an_output_may_be_part_of_an_array() -> None:
    resampling = Resampling(Vec3(9, 8, 7), Vec3(12, 13, 14), (3, 3, 3))
    values = values_for(resampling)
    wanted = resample(values, WHOLE_START, resampling, whole(resampling), threads=2)
    into = np.full((2, 14, 15, 16), np.nan, np.float32)
    part = into[:, 1:13, 1:14, 1:15]
    found = resample(values, WHOLE_START, resampling, whole(resampling), threads=2, out=part)
    assert found is part
    np.testing.assert_array_equal(part, wanted)
    assert np.isnan(into).sum() == into.size - part.size


def test_values_must_cover_the_source_of_a_box() -> None:
    resampling = Resampling(Vec3(9, 8, 7), Vec3(12, 13, 14), (1, 1, 1))
    box = Box(Vec3(3, 3, 3), Vec3(12, 13, 14))
    with pytest.raises(ValueError, match="needs the source's"):
        resample(values_for(resampling), Vec3(3, 0, 0), resampling, box, threads=1)


@pytest.mark.slow_cases
@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_takes_the_memory_that_it_declares(order: int, threads: int) -> None:
    resampling = Resampling(Vec3(50, 310, 190), Vec3(70, 460, 290), (order,) * 3)
    values, box = values_for(resampling, 3), whole(resampling)
    out = np.zeros((3, *resampling.target), np.float32)

    def run() -> None:
        resample(values, WHOLE_START, resampling, box, threads=threads, out=out)

    run()  # compiles and starts threads
    with peak_memory() as peak:
        run()
    assert peak.added <= resample_bytes(resampling, box, threads) + SLACK
    assert resample_bytes(resampling, box, threads) <= threads * 2**24
