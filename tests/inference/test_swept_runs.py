"""Runs whose plan sweeps the volume: they stop, go on, skip blocks, and are verified as others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from command_line import LONG_VOLUME, voxels
from interrupted_runs import interrupt
from tiny_network import TOLERANCE, expected

from znni.core.shapes import AXES, Axis, Box, Vec3, extent, resized
from znni.inference import api
from znni.inference.parts import finish
from znni.inference.planning import search
from znni.inference.verify import verify
from znni.plans.plan import Plan
from znni.volumes.locate import open_volume

OPTIONS: dict[str, Any] = {"ram": "600MiB", "threads": 1}

pytestmark = pytest.mark.usefixtures("long_case", "fake_primitives")


@pytest.fixture(params=AXES)
def plan(request: pytest.FixtureRequest) -> Plan:
    axis: Axis = request.param
    found = search("tiny.yaml", LONG_VOLUME, **OPTIONS).sweeping(axis)
    pooling = found.network.granularity
    patch = resized(found.output, "z", 12).ceil_div(pooling) * pooling
    made = found.fastest_for(resized(patch, axis, 2 * extent(pooling, axis)))
    assert made
    assert made.network.swept_along == axis
    assert made.patches > 4
    return made


def values(path: str) -> Any:
    output = open_volume(path)
    return output.read(Box(Vec3(0, 0, 0), output.size))


@pytest.mark.slow_cases
def test_a_run_sweeps_and_its_output_is_that_of_the_reference(plan: Plan) -> None:
    api.infer("volume.h5", "tiny.yaml", "out.h5", plan=plan, **OPTIONS)
    np.testing.assert_allclose(values("out.h5"), expected(voxels(LONG_VOLUME)), atol=TOLERANCE)
    assert verify("out.h5").wrong == 0


@pytest.mark.slow_cases
def test_znni_verify_and_a_region_hold_for_a_swept_plan(plan: Plan) -> None:
    whole = expected(voxels(LONG_VOLUME))
    first, last = Vec3(3, 2, 5), Vec3(*whole.shape[1:]) - Vec3(9, 1, 2)
    wanted, before = Box(first, last), (plan.network.field_of_view - 1) // 2
    region = wanted.shifted(before).slices
    report = api.infer("volume.h5", "tiny.yaml", "out.h5", plan=plan, roi=region, **OPTIONS)
    assert report.plan.is_swept
    np.testing.assert_allclose(values("out.h5"), whole[:, *wanted.slices], atol=TOLERANCE)
    checked = verify("out.h5")
    assert checked.wrong == 0 < checked.voxels


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
def test_a_run_that_stopped_within_a_column_goes_on(plan: Plan, name: str) -> None:
    interrupt(name, plan=plan, **OPTIONS)
    report = api.infer("volume.h5", "tiny.yaml", name, **OPTIONS)
    assert report.plan.is_swept, "the output has the plan"
    np.testing.assert_allclose(values(name), expected(voxels(LONG_VOLUME)), atol=TOLERANCE)


@pytest.mark.slow_cases
def test_each_part_begins_its_own_sweeps(plan: Plan) -> None:
    for index in range(3):
        api.infer("volume.h5", "tiny.yaml", "out.zarr", part=f"{index}/3", plan=plan, **OPTIONS)
    finish("out.zarr")
    np.testing.assert_allclose(values("out.zarr"), expected(voxels(LONG_VOLUME)), atol=TOLERANCE)


@pytest.mark.slow_cases
def test_constant_blocks_are_skipped_and_a_sweep_begins_behind_them(plan: Plan) -> None:
    volume = voxels(LONG_VOLUME)
    volume[20:80] = 7
    made = np.zeros((plan.network.out_features, *plan.output), np.float32)
    report = api.infer(volume, "tiny.yaml", made, plan=plan, **OPTIONS)
    assert report.skipped.constant > 0
    np.testing.assert_allclose(made, expected(volume), atol=TOLERANCE)
