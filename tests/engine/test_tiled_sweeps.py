"""Sweeps of tiled networks: joins, strides and upsampling go on from block to block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from graphs import graphs
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stopped_runs import Counting
from unet_text import UNET

from bench.unet_networks import UNETS
from planner.search import GAIN_OF_SWEEPS
from znni.core.errors import InvalidInput
from znni.core.shapes import AXES, Axis, Box, Vec3, extent, resized
from znni.engine.checks import check_runnable
from znni.engine.reading import read_input
from znni.engine.tiles import make_job, seen_by
from znni.inference.planning import search
from znni.network.frames import can_be_swept
from znni.network.geometry import context, with_window
from znni.network.network_file import network_from_text
from znni.network.weights import Float32, random_weights
from znni.network.window import Window
from znni.plans.plan import Plan
from znni.primitives.catalogue import catalogue
from znni.primitives.reference import Float64
from znni.primitives.tiled_reference import output_at_once
from znni.volumes.array import ArrayVolume

OPTIONS: Any = {"costs": "built-in", "threads": 1, "device": "cpu"}


class Case(NamedTuple):
    """A sweep: its plan, with a volume and the options of the job."""

    volume: Float32
    plan: Plan
    options: dict[str, Any]

    @property
    def expected(self) -> Float64:
        """The output for the job, cut from that of one evaluation over the whole volume."""
        network, volume = self.plan.network, ArrayVolume(self.volume)
        job = make_job(network, volume.size, **self.options)
        x = read_input(volume, job, seen_by(network, job), network.scaling)
        made = output_at_once(network, random_weights(network, 7), x)
        return made[:, *Box(job.first, job.first + job.output).slices]

    def runs(self) -> Counting:
        """Return runs of the case's job."""
        able = catalogue(self.plan.machine)
        check_runnable(self.plan, able)
        return Counting(self.plan.network, self.plan, self.volume, able, **self.options)


@st.composite
def sweeps(draw: st.DrawFn) -> Case:
    network, axis = draw(graphs(depth=2, most_maps=4)), draw(st.sampled_from(AXES))
    assume(network.is_tiled and can_be_swept(network))
    border: Any = draw(st.sampled_from(["valid", "same"]))
    pad: Any = draw(st.sampled_from(["reflect", "edge", "constant"])) if border == "same" else None
    size = Vec3(*(draw(st.integers(1, 12)) for _ in range(3)))
    size = resized(size, axis, draw(st.integers(4, 30)))
    size += context(network) if border == "valid" else Vec3(0, 0, 0)
    job = make_job(network, size, border, pad, None)
    roi = None
    if draw(st.booleans()):
        starts = [draw(st.integers(0, along - 1)) for along in job.output]
        stops = [draw(st.integers(*ends)) for ends in zip(starts, job.output, strict=True)]
        stops = [max(stop, start + 1) for start, stop in zip(starts, stops, strict=True)]
        roi = Box(Vec3(*starts), Vec3(*stops)).shifted(job.center)
    patch = network.alignment * Vec3(*(draw(st.integers(1, 3)) for _ in range(3)))
    found = search(network, size, border=border, roi=roi, **OPTIONS)
    plan = found.sweeping(axis).fastest_for(patch)
    assert plan is not None
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    volume = generator.standard_normal((network.in_features, *size), np.float32)
    return Case(volume, plan, {"border": border, "pad": pad, "roi": roi})


@pytest.mark.slow
@settings(max_examples=60)
@given(sweeps(), st.integers(0, 6))
def test_a_sweep_that_is_killed_and_goes_on_gives_what_one_evaluation_gives(
    case: Case, blocks: int
) -> None:
    job, expected = case.runs(), case.expected
    written = job.run(blocks=blocks)
    rest = job.run(finished=written)
    assert sum(box.size.volume for box in (*written, *rest)) == job.job.output.volume
    bound = 1e-5 * np.abs(expected).max() + 1e-7
    np.testing.assert_allclose(job.values, expected, rtol=0, atol=bound)


def swept(size: Vec3, patch: Vec3, axis: Axis) -> Plan:
    """The plan of a sweep of ``UNET``."""
    found = search(network_from_text(UNET, "unet.yaml"), size, border="same", **OPTIONS).sweeping(
        axis
    )
    plan = found.fastest_for(patch)
    assert plan is not None
    return plan


@pytest.mark.parametrize("axis", AXES)
def test_layers_of_a_column_run_once_for_a_block_and_before_the_first_as_often_as_needed(
    axis: Axis,
) -> None:
    size, patch = resized(Vec3(8, 8, 8), axis, 32), resized(Vec3(8, 8, 8), axis, 4)
    plan = swept(size, patch, axis)
    volume = np.random.default_rng(0).standard_normal((1, *size), np.float32)
    case = Case(volume, plan, {"border": "same", "pad": None, "roi": None})
    job = case.runs()
    job.run()
    np.testing.assert_allclose(job.values, case.expected, rtol=0, atol=1e-5)
    geometry = plan.parts[0].storage
    assert geometry is not None
    behind = geometry.geometry.behind
    assert behind["d"] == 0 < behind["c"] <= behind["a"]
    for step in plan.steps:
        assert job.calls[step.gives] == 32 // 4 + -(-behind[step.gives] // 4)


@pytest.mark.parametrize("axis", AXES)
def test_a_sweep_over_a_whole_layer_computes_only_the_beginning_twice(axis: Axis) -> None:
    """Blocks alone compute their borders along the axis, and a sweep does so in one block."""
    size, patch = resized(Vec3(16, 16, 16), axis, 256), resized(Vec3(16, 16, 16), axis, 4)
    plan = swept(size, patch, axis)
    alone = search(
        network_from_text(UNET, "unet.yaml"), size, border="same", **OPTIONS
    ).fastest_for(patch)
    assert alone is not None
    assert plan.wasted_work < 0.05
    assert alone.wasted_work > 0.4
    (part,) = plan.parts
    assert part.kept_bytes == sum(it.kept.nbytes for it in part.swept_steps if it.kept)
    assert plan.memory.total > part.kept_bytes > 0
    joined = {step.gives: it.kept for step, it in zip(plan.steps, part.swept_steps, strict=True)}
    # The join waits for the way down and up again, so that it reads old planes of ``b``.
    late = joined["b"] or joined["join"]
    assert late is not None
    assert extent(late.shape, axis) > 2


@pytest.mark.slow
def test_a_long_job_of_a_tiled_network_sweeps_on_the_host_if_memory_is_short() -> None:
    found = search(UNETS["unet3d"](), Vec3.of(1024), border="same", ram="2GiB", **OPTIONS)
    plain, chosen = replace(found, sweeps=False).fastest()[0], found.fastest()[0]
    assert chosen.is_swept
    assert GAIN_OF_SWEEPS * chosen.seconds < plain.seconds
    assert chosen.wasted_work < plain.wasted_work - 0.1
    assert chosen.memory.total <= 2 << 30


def test_layers_that_see_far_ahead_are_not_swept() -> None:
    padded = "  - {pad: {padding: 1, mode: edge}}\n  - {name: down,"
    text = UNET.replace("  - {name: down,", padded)
    found = search(network_from_text(text, "unet.yaml"), (64, 64, 64), border="same", **OPTIONS)
    with pytest.raises(InvalidInput, match="sweeps no volume"):
        found.sweeping()


def test_windows_are_not_swept() -> None:
    network = with_window(network_from_text(UNET, "unet.yaml"), Window(Vec3(16, 16, 16)))
    with pytest.raises(InvalidInput, match="sweeps no volume"):
        search(network, (64, 64, 64), **OPTIONS).sweeping()
