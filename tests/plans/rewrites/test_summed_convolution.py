"""Residual networks whose convolutions add as they store: plans, their files and their runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest
from fused_steps import with_fusions
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import run

from planner.cost_model import BUILT_IN
from planner.step_options import StepOptions
from planner.tiled_segments import tiled_segment, tiled_segments
from znni.core.errors import InvalidInput
from znni.core.option_types import ACCURACIES
from znni.core.shapes import Vec3
from znni.engine.checks import check_runnable
from znni.engine.patch_runner import PatchRunner
from znni.engine.reading import read_input
from znni.engine.tiles import make_job, seen_by
from znni.inference.planning import search
from znni.network.layers import Activation, Add, Conv, Padding, SummedConv
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.weights import random_weights
from znni.plans.block_storage import BlockStorage, block_storage
from znni.plans.plan import Plan
from znni.plans.rewrites.block_steps import BlockSteps
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.segments import Segment
from znni.primitives.catalogue import catalogue
from znni.primitives.tiled_reference import output_at_once
from znni.volumes.array import ArrayVolume

SIZE = Vec3(14, 15, 17)
LARGE = Vec3(32, 32, 32)  # zeros around it take little
THREE = Vec3(3, 3, 3)
ALL_ROUND = Padding(Vec3(1, 1, 1), Vec3(1, 1, 1))


def padded(name: str, features: int, out: int, activation: Activation) -> Conv:
    return Conv(name, features, out, THREE, activation, padding=ALL_ROUND)


def residual(
    maps: tuple[int, ...],
    *,
    turned: bool = False,
    activation: Activation = "elu",
    middle: bool = True,
) -> Network:
    """Return residual blocks, each of which begins with a convolution and ends with a sum."""
    nodes, taken, features = [], INPUT, 1
    for number, out in enumerate(maps):
        first, inner, last, total = (f"{name}{number}" for name in ("a", "b", "c", "s"))
        nodes.append(Node(padded(first, features, out, "relu"), (taken,)))
        if middle:
            nodes.append(Node(padded(inner, out, out, "relu"), (first,)))
        nodes.append(Node(padded(last, out, out, "identity"), (inner if middle else first,)))
        inputs = (first, last) if turned else (last, first)
        nodes.append(Node(Add(total, activation), inputs))
        taken, features = total, out
    return Network("residual", 1, tuple(nodes), taken)


def planned(network: Network, patch: Vec3, size: Vec3 = SIZE, *, only_adding: bool = True) -> Plan:
    """Return a plan; without direct convolution, those by tiles are the fastest."""
    found = search(network, size, border="same", costs="built-in", threads=1, device="cpu")
    if only_adding:
        some = ("fft_tiled", "winograd", "addition")
        found = found.among([name for name in found.catalogue if name.startswith(some)])
    plan = found.fastest_for(patch)
    assert plan is not None
    return plan


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.lists(st.sampled_from([1, 2, 5, 17]), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["identity", "relu", "elu", "leaky_relu", "softmax"]),
    st.builds(Vec3, *[st.integers(5, 17)] * 3),
)
def test_blocks_give_what_one_evaluation_gives(
    maps: list[int], turned: bool, middle: bool, activation: Activation, patch: Vec3
) -> None:
    network = residual(tuple(maps), turned=turned, activation=activation, middle=middle)
    plan, weights = planned(network, patch), random_weights(network, 7)
    volume = np.random.default_rng(3).standard_normal((1, *SIZE), np.float32)
    runner = PatchRunner(plan, catalogue(plan.machine), weights)
    found = run(runner, weights, volume, border="same", pad="constant", roi=None)
    given_volume = ArrayVolume(volume)
    job = make_job(plan.network, SIZE, "same", "constant", None)
    seen = seen_by(plan.network, job)
    x = read_input(given_volume, job, seen, network.scaling)
    expected = output_at_once(plan.network, weights, x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_plan_adds_in_the_store_and_its_file_says_so() -> None:
    plan = planned(residual((16, 16)), LARGE, LARGE)
    adding = [step for step in plan.steps if isinstance(step.operation, SummedConv)]
    assert [step.takes for step in adding] == [("b0", "a0"), ("b1", "a1")]
    assert [step.gives for step in adding] == ["s0", "s1"]
    assert "c0+s0" in str(plan)
    assert Plan.from_json(plan.to_json()) == plan
    wrong = plan.to_json().replace('"b0",\n      "a0"', '"b0",\n      "b0"')
    with pytest.raises(InvalidInput, match="its steps are not its network's layers"):
        Plan.from_json(wrong)


def test_a_plan_that_adds_where_it_must_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(residual((20,)), LARGE, LARGE)
    primitives = catalogue(plan.machine)
    check_runnable(plan, primitives)
    monkeypatch.setattr(BlockStorage, "allows", lambda *_: False)
    with pytest.raises(InvalidInput, match="cannot be one step; plan again"):
        check_runnable(plan, primitives)


@pytest.mark.slow
def test_the_choice_of_sums_is_the_fastest_of_all() -> None:
    """Brute force over all choices, with enough memory."""
    plan = planned(residual((3, 16, 40)), LARGE, LARGE, only_adding=False)
    known = catalogue(plan.machine, "cpu").values()
    allowed = [each for each in known if each.accuracy <= ACCURACIES["float32"]]
    options = StepOptions(allowed, BUILT_IN)
    storage, sums = block_storage(plan.network, LARGE), fusions(plan.network).values()
    assert len(sums) == 3
    assert all(map(storage.allows, sums))
    alone = BlockSteps.layer_by_layer(plan.network.nodes, storage)

    def seconds_of(segment: Segment) -> float:
        return sum(options.whole(step, in_place=True)[0].seconds for step in segment.steps)

    choices = chain.from_iterable(combinations(sums, count) for count in range(4))
    seconds = [seconds_of(tiled_segment(with_fusions(alone, some))) for some in choices]
    offered = tiled_segments(plan.network.nodes, storage, sums, options)
    fastest = min(offered, key=seconds_of)
    assert seconds_of(fastest) == pytest.approx(min(seconds))
    assert min(seconds) < min(seconds[0], seconds[-1])  # some sums are steps of their own
    assert [step.operation for step in plan.steps] == [step.operation for step in fastest.steps]


def test_no_plan_adds_where_a_value_is_still_needed() -> None:
    nodes = (
        Node(padded("a", 1, 4, "relu"), (INPUT,)),
        Node(padded("b", 4, 4, "relu"), ("a",)),
        Node(padded("c", 4, 4, "identity"), ("b",)),
        Node(Add("s"), ("c", "a")),
        Node(Add("later"), ("s", "a")),
    )
    assert not fusions(Network("net", 1, nodes, "later"))
    assert set(fusions(Network("net", 1, nodes[:4], "s"))) == {("c", "s")}
    active = replace(nodes[2], layer=padded("c", 4, 4, "relu"))
    assert not fusions(Network("net", 1, (*nodes[:2], active, nodes[3]), "s"))


def test_no_convolution_adds_over_its_own_input() -> None:
    nodes = (
        Node(padded("a", 1, 4, "relu"), (INPUT,)),
        Node(padded("b", 4, 4, "identity"), ("a",)),
        Node(Add("s"), ("b", "a")),
    )
    assert not fusions(Network("net", 1, nodes, "s"))
