"""The time of a plan's stages, which work at the same time or take turns."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from znni.plans.job_seconds import ReportStage, StageSeconds
from znni.plans.totals import SHARED, PlanTime


@given(
    st.tuples(*[st.floats(0, 10)] * 7),
    st.integers(1, 50),
    st.integers(1, 8),
    st.sampled_from([stage for stage in get_args(ReportStage) if stage not in SHARED]),
    st.integers(0, 3),
    st.booleans(),
)
def test_the_seconds_that_a_time_leaves_a_stage(
    seconds: tuple[float, ...],
    patches: int,
    workers: int,
    stage: ReportStage,
    idle: int,
    followed: bool,
) -> None:
    time = PlanTime(*seconds[:2], StageSeconds(*seconds[2:]), workers, idle=idle, followed=followed)
    within = time.stage_within(time.total(patches), patches, stage)
    sets_pace = patches == 1 and not followed
    if workers == 1 and not idle and (sets_pace or time.patch.bottleneck == stage):
        assert within == pytest.approx(time.patch.by_stage()[stage], abs=1e-6)
    there = replace(time, patch=replace(time.patch, **{stage: max(within, 0)}))
    assert there.total(patches) == pytest.approx(time.total(patches), abs=1e-6)


def test_stages_take_longer_beside_layers_but_not_longer_than_the_time_between_patches() -> None:
    """The first block is read, and the last one written, while nothing else works."""
    alone = PlanTime(3.0, 4.0, StageSeconds(reading=1.0, host_layers=5.0, writing=2.0))
    time = replace(alone, beside=StageSeconds(reading=1.5, writing=9.0))
    for patches in (1, 2, 7):
        busy = time.for_job(patches).busy
        assert busy.reading == pytest.approx(1.0 + 2.5 * (patches - 1))
        assert busy.writing == pytest.approx(2.0 + 5.0 * (patches - 1))
        assert busy.host_layers == alone.for_job(patches).busy.host_layers
        assert time.total(patches) == alone.total(patches)


def test_stages_that_go_on_at_a_time_take_as_long_as_the_slowest() -> None:
    """Each stage takes a patch as soon as it has handed on its last one."""
    for seconds in product((1.0, 2.0, 5.0), repeat=5):
        time = PlanTime(3.0, 4.0, StageSeconds(*seconds))
        for patches in (1, 2, 7):
            free = [7.0] * (len(seconds) + 1)  # when each stage takes its next patch
            for _ in range(patches):
                handed = free[0]
                for stage, each in enumerate(seconds):
                    free[stage] = handed = max(handed + each, free[stage + 1])
            assert time.total(patches) == handed


def test_a_job_that_others_follow_takes_as_long_as_between_the_ends_of_two() -> None:
    for seconds in product((1.0, 2.0, 5.0), repeat=5):
        alone = PlanTime(0.0, 0.0, StageSeconds(*seconds))
        for patches in (1, 2, 7):
            further = alone.total(9 * patches) - alone.total(8 * patches)
            assert replace(alone, followed=True).total(patches) == further


@given(st.floats(0.01, 0.1), st.floats(0.01, 0.1), st.integers(1, 4), st.integers(0, 3))
def test_patches_without_windows_of_their_own_are_written_when_the_layers_have_ended(
    reading: float, writing: float, computed: int, idle: int
) -> None:
    layers, patches = 1.0, computed + idle
    time = PlanTime(0.0, 0.0, StageSeconds(reading, gpu_layers=layers, writing=writing), idle=idle)
    end = reading + patches * layers  # the layers have worked for the first patches alone
    assert time.total(patches) == pytest.approx(end + (1 + idle) * writing)


@given(
    st.tuples(*[st.floats(0.1, 1.0)] * 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3)
)
def test_workers_wait_for_each_other_to_read_and_to_write(
    seconds: tuple[float, ...], workers: int, rounds: int, more: int
) -> None:
    """One process reads for all and writes for all, and the layers of each set the pace."""
    reading, host, transfer, writing = seconds
    patches, layers = workers * rounds + min(more, workers - 1) + 1, 10.0
    time = PlanTime(
        0.0, 0.0, StageSeconds(reading, host, transfer, layers, writing), workers=workers
    )
    reads_from = writes_from = 0.0
    free = [0.0] * workers  # when the layers of each take the next patch
    for patch in range(patches):
        worker = patch % workers
        # Patches of later rounds are read long before.
        reads_from = reads_from + reading if patch < workers else reads_from
        begun = max(free[worker], reads_from + host + transfer) if patch < workers else free[worker]
        free[worker] = begun + layers
        writes_from = max(writes_from, free[worker]) + writing
    assert time.total(patches) == pytest.approx(writes_from)
