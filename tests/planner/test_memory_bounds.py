"""Bounds on memory: which poolings of a sliding network make one fragment at a time."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from fake_stages import overhead
from fakes import fake_gpu_catalogue, gpu, machine, two_cores
from paths import MACHINES, NETWORKS
from planner_cases import CHOICES, bound_of_patch
from random_networks import chain

import znni.inference.planning
from planner.memory_bounds import most_for_arrays, slowed_poolings
from planner.overhead import Overhead
from planner.patch_order import quick_bounds
from planner.search import Search
from planner.segmentations import SecondsLimit, segmentations
from znni.core.processors import DeviceKind
from znni.core.shapes import Vec3
from znni.engine.stages.stage_order import stage_models
from znni.network.geometry import over, shapes, with_window
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.network.node import INPUT
from znni.network.window import Window
from znni.plans.plan import Plan
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.segments import Segment, Step, segment_runs
from znni.plans.stage import Counts
from znni.plans.stored_values import Stored

LAYERS = ("conv", 3), ("pool", 2), ("conv", 2), ("conv", 2), ("pool", 2), ("conv", 1)
POOLS = chain(*LAYERS, features=2)
OVERHEAD = overhead(1000, 4, 8, gpu=500, gpu_value_in=4, gpu_value_out=4)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_pooling_makes_all_fragments_only_where_they_fit(device: DeviceKind) -> None:
    """No division does so in less memory, and some of them do with little more."""
    drawn, slowed_at_all = random.Random(0), set[bool]()
    fusible = tuple(fusions(POOLS).values())
    for _ in range(60):
        patch = POOLS.granularity * Vec3(*(drawn.randint(1, 5) for _ in range(3)))
        memory = drawn.randint(2_000, 400_000)
        there = replace(machine(memory), gpus=(gpu(memory),))
        catalogue = CHOICES | fake_gpu_catalogue()
        search = Search(POOLS, patch, there, catalogue, OVERHEAD, device=device)
        candidate, (cut_point,) = search.patch_candidate(patch), search.cut_points
        cut = candidate.cut(cut_point)
        (partition,) = cut.partitions
        found = shapes(POOLS, patch)
        voxels = {name: np.array([1.0 * it.n * it.size.volume]) for name, it in found.items()}
        counts = Counts(*(np.array([float(it)]) for it in OVERHEAD.counts(POOLS, patch)))
        most = most_for_arrays(search.machine, OVERHEAD, device, POOLS, counts)
        allowed = candidate.budget(cut, device)(partition.input_shape)
        assert most[0] >= allowed
        slowed = slowed_poolings(POOLS, device, voxels, most)
        for segments in segmentations(POOLS.nodes, partition.input_shape, allowed, fusible, device):
            for step in (step for segment in segments for step in segment.steps):
                if isinstance(step.operation, Pool) and not step.pools_plainly:
                    assert not slowed[step.gives][0]
        slowed_at_all |= {bool(it[0]) for it in slowed.values()}
    assert slowed_at_all == {False, True}


@pytest.mark.slow
def test_patches_whose_fragments_do_not_fit_have_larger_bounds() -> None:
    """A pooling of single fragments reads its input once for each of them."""
    net = NETWORKS / "boundaries.yaml"
    little, much = (
        znni.inference.planning.search(
            net, (2048, 2048, 2048), machine=two_cores(memory), costs="built-in"
        )
        for memory in (2**34, 2**38)
    )
    small, large = Vec3(168, 168, 168), Vec3(504, 672, 672)
    assert bound_of_patch(little, small) == bound_of_patch(much, small)
    assert bound_of_patch(little, large) > 1.05 * bound_of_patch(much, large)
    for patch in (small, large):
        (quick,) = quick_bounds(little, [patch])
        assert quick == pytest.approx(bound_of_patch(little, patch), rel=1e-8)


def of_segment(segments: tuple[Segment, ...]) -> list[tuple[Step, int]]:
    return [(step, runs) for segment, runs in segment_runs(segments) for step in segment.steps]


@pytest.mark.parametrize("seconds", [0.0, 1000.0, 3000.0, 10_000.0, 10.0**5, inf])
def test_divisions_that_cannot_keep_a_limit_are_left_out(seconds: float) -> None:
    patch = POOLS.granularity * 2
    given = shapes(POOLS, patch)[INPUT]
    fusible = tuple(fusions(POOLS).values())

    def of_step(step: Step) -> float:
        return len(step.layers) * (5.0 + 0.01 * step.shape_out.n * step.shape_out.size.volume)

    layers = {node.name: 5.0 for node in POOLS.nodes}
    limit = SecondsLimit(seconds, layers, of_step)
    every = list(segmentations(POOLS.nodes, given, fusible=fusible))
    kept = list(segmentations(POOLS.nodes, given, fusible=fusible, limit=limit))
    least = [sum(limit.of_runs(*it) for it in of_segment(segments)) for segments in every]
    assert kept == [it for it, bound in zip(every, least, strict=True) if bound < seconds]


@pytest.mark.slow
def test_few_prices_are_needed_where_memory_is_short() -> None:
    """Memory rules most patches out before they are priced, and a fast plan is soon known."""
    search = znni.inference.planning.search(
        NETWORKS / "boundaries.yaml", (2048, 2048, 2048), machine=two_cores(), costs="built-in"
    )
    search.sweeps = False  # they have prices of their own
    search.fastest()
    assert search.calls < 6000


def on_titan(edge: int) -> Search:
    """Return a search in which the first convolution's workspace decides which patches fit."""
    search = znni.inference.planning.search(
        NETWORKS / "n537.yaml", (edge, edge, edge), machine=MACHINES / "titanx-e7.yaml",
        device="gpu", costs="built-in",
    )  # fmt: skip
    return search.among({"gpu_fft_pruned", "gpu_max_pooling", "gpu_max_pooling_fragments"})


def test_a_first_layer_that_does_not_fit_rules_a_patch_out() -> None:
    """It is priced whole, and as one fragment of the pooling after it needs it."""
    search = on_titan(2048)
    assert search.fastest_for(Vec3(64, 64, 72)) is None
    assert search.calls <= 2


@pytest.mark.slow
def test_patches_that_do_not_fit_leave_prices_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first plan that fits is half as fast as the best one, which takes 100 prices more."""
    monkeypatch.setattr("planner.search.MOST_PRICES", 100)
    plan = on_titan(512).fastest()[0]
    best = on_titan(512).fastest_for(Vec3(48, 72, 72))
    assert best
    assert plan.seconds <= best.seconds


@pytest.mark.parametrize("overlap", [0.0, 0.5])
def test_windows_fit_the_memory_that_their_plan_takes(overlap: float) -> None:
    """A GPU holds the input of the windows computed at once, not that of a whole block."""
    whole, patch = Vec3(48, 48, 64), Vec3(40, 40, 56)
    one = Network.chain("windows", 8, (Conv("conv", 8, 2, Vec3.of(1), "relu"),))
    network = over(with_window(one, Window(Vec3.of(8), overlap).over(whole)), Vec3.of(8))
    stored = Stored()
    stages = stage_models(machine(), stored, None)
    beside = Overhead(0, stages, stored=stored)

    def fastest(memory: int) -> Plan | None:
        there = replace(machine(10**10), gpus=(gpu(memory),))
        search = Search(network, whole, there, fake_gpu_catalogue(), beside, device="gpu")
        (bound,) = quick_bounds(search, [patch])
        plan = search.fastest_for(patch)
        assert plan is None or bound <= plan.seconds
        return plan

    plan = fastest(10**9)
    assert plan is not None
    assert plan.gpu_memory is not None
    again = fastest(plan.gpu_memory.total)
    assert again is not None
    assert again.seconds == plan.seconds
    assert fastest(plan.gpu_memory.blocks // 2) is None
