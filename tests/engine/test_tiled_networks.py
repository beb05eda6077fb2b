"""Runs of tiled networks: blocks of any size, region and border give the whole volume's output."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import run

from znni.core.option_types import Border, Pad
from znni.core.shapes import Box, Vec3
from znni.engine.patch_runner import PatchRunner
from znni.engine.reading import read_input
from znni.engine.tiles import make_job, seen_by
from znni.inference.planning import search
from znni.network.geometry import context
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import Float32, random_weights
from znni.plans.plan import Plan
from znni.primitives.catalogue import catalogue
from znni.primitives.reference import Float64
from znni.primitives.tiled_reference import output_at_once
from znni.volumes.array import ArrayVolume

ONE = Vec3(1, 1, 1)


class Case(NamedTuple):
    """A run: a plan for a tiled network, with a volume and the options of the job."""

    network: Network
    volume: Float32
    plan: Plan
    options: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    network = draw(graphs(depth=2, most_maps=4))
    border = draw(st.sampled_from(["valid", "same"]))
    pad = draw(st.sampled_from(["reflect", "edge", "constant"])) if border == "same" else "reflect"
    size = Vec3(*(draw(st.integers(1, 12)) for _ in range(3)))
    size += context(network) if border == "valid" else Vec3(0, 0, 0)
    job = make_job(network, size, border, pad, None)
    roi = None
    if draw(st.booleans()):
        starts = [draw(st.integers(0, extent - 1)) for extent in job.output]
        stops = [
            draw(st.integers(start + 1, extent))
            for start, extent in zip(starts, job.output, strict=True)
        ]
        roi = Box(Vec3(*starts), Vec3(*stops)).shifted(job.center)
    patch = network.alignment * Vec3(*(draw(st.integers(1, 3)) for _ in range(3)))
    found = search(network, size, border=border, roi=roi, costs="built-in", threads=1, device="cpu")
    plan = found.fastest_for(patch)
    assert plan is not None
    seed = draw(st.integers(0, 99))
    volume = np.random.default_rng(seed).standard_normal((network.in_features, *size), np.float32)
    return Case(plan.network, volume, plan, {"border": border, "pad": pad, "roi": roi})


def whole_output(case: Case, border: Border, pad: Pad, roi: Box | None) -> Float64:
    """Return the output for the job, cut from that of one evaluation over the whole volume."""
    volume, weights = ArrayVolume(case.volume), random_weights(case.network, 7)
    job = make_job(case.network, volume.size, border, pad, roi)
    x = read_input(volume, job, seen_by(case.network, job), case.network.scaling)
    made = output_at_once(case.network, weights, x)
    return made[:, *Box(job.first, job.first + job.output).slices]


@pytest.mark.slow
@settings(max_examples=60)
@given(cases())
def test_blocks_give_what_one_evaluation_over_the_whole_volume_gives(case: Case) -> None:
    weights = random_weights(case.network, 7)
    runner = PatchRunner(case.plan, catalogue(case.plan.machine), weights)
    found = run(runner, weights, case.volume, **case.options)
    expected = whole_output(case, **case.options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max() + 1e-7)


def layers_text(*layers: str) -> str:
    """Return a network file whose layers have names, entries and inputs in a line each."""
    made = ["name: joined", "layers:"]
    for layer in layers:
        name, entry, inputs = layer.split(" | ")
        made += [f"  - name: {name}", f"    {entry}", f"    from: [{inputs}]"]
    return "\n".join(made) + "\n"


THREE = "conv: {features: 16, kernel: 3, padding: same, activation: relu}"
FEW = "conv: {features: 8, kernel: 3, padding: same, activation: relu}"
JOINED = {
    "a layer between those of a step computes in a join of what the step takes": (
        f"x | {THREE} | input", f"y | {THREE} | input", f"a | {THREE} | input",
        "r | concat: {} | x, y", "c | conv: {features: 16, kernel: 3, padding: same} | x",
        "e | affine: {} | r", "s | add: {activation: relu} | c, a", f"d | {THREE} | e",
        "j | concat: {} | d, s", "wide | conv: {features: 200, kernel: 1} | j",
        "last | conv: {features: 2, kernel: 1} | wide",
    ),
    "a value is joined at two places": (
        f"a | {FEW} | input", f"b | {FEW} | input", "j | concat: {} | a, b",
        "k | concat: {} | b, a", "l | concat: {} | j, k",
        "last | conv: {features: 2, kernel: 1} | l",
    ),
    "a join has fewer samples than a value in it, which others read": (
        f"y | {FEW} | input", f"x | {FEW} | input", "j | concat: {} | y, x",
        "p | conv: {features: 8, kernel: 1} | j", f"q | {FEW} | x", "m | concat: {} | p, y",
        "t | concat: {} | m, q", "wide | conv: {features: 200, kernel: 1} | t",
        "last | conv: {features: 2, kernel: 1} | wide",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("patch", [32, 64])
def test_joined_values_are_those_of_one_evaluation(name: str, patch: int) -> None:
    network, size = network_from_text(layers_text(*JOINED[name]), "joined"), Vec3(64, 64, 64)
    found = search(network, size, border="same", costs="built-in", threads=2, device="cpu")
    plan = found.fastest_for(Vec3.of(patch))
    assert plan is not None
    volume = np.random.default_rng(3).standard_normal((1, *size), np.float32)
    weights = random_weights(network, 7)
    runner = PatchRunner(plan, catalogue(plan.machine), weights)
    made = run(runner, weights, volume, border="same", pad="constant", roi=None)
    case = Case(plan.network, volume, plan, {"border": "same", "pad": "constant", "roi": None})
    right = whole_output(case, "same", "constant", None)
    np.testing.assert_allclose(made, right, rtol=0, atol=1e-5 * np.abs(right).max())
