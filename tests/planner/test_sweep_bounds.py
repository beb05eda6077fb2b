"""Bounds on the time of sweeps rule out no plan that is the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import inf

import pytest
from fakes import machine
from planner_cases import (
    CHOICES,
    COLD,
    NETWORK,
    NO_OVERHEAD,
    SLOW_TO_START,
    WITH_FREE_FUSED,
    WITH_FUSED,
    bound_of_patch,
    bound_with_prices,
)

from planner.choices import Slot, choice_of
from planner.cost_model import BUILT_IN
from planner.overhead import Load
from planner.pareto import Front
from planner.partition import Partition
from planner.patch_order import quick_bounds
from planner.search import Search
from planner.segmentations import segmentations
from planner.step_options import StepOptions
from planner.sweep_bound import least_runs
from znni.core.processors import HOST
from znni.core.shapes import AXES, Axis, Vec3
from znni.network.node import INPUT
from znni.plans.device_partition import DevicePart
from znni.plans.primitive import Catalogue
from znni.plans.rewrites.fusion import Fusion
from znni.plans.rewrites.fusion_rules import fusions

OUTPUT = Vec3(8, 8, 12)


def parts_of(partition: Partition, fusible: tuple[Fusion, ...]) -> Iterator[DevicePart]:
    """Yield the parts of all segmentations, which no bound limits."""
    shape, swept = partition.input_shape, partition.swept
    for segments in segmentations(partition.nodes, shape, fusible=fusible, swept=swept):
        yield DevicePart(segments, shape, swept=swept)


def loads_in(search: Search, patch: Vec3, fusible: tuple[Fusion, ...]) -> list[Load]:
    """Return the loads of all plans in patches of a size, but for those that others beat."""
    (partition,) = search.patch_candidate(patch).cut(search.cut_points[0]).partitions
    options = StepOptions(search.catalogue.values(), BUILT_IN)
    loads = set[Load]()
    for part in parts_of(partition, fusible):
        beside, runs = part.held_beside(), part.step_runs()
        slots = [
            Slot(options(step, in_place=True), n, held, in_place=True)
            for (step, held), (_, n) in zip(beside, runs, strict=True)
        ]
        for steps in product(*(slot.options for slot in slots)):
            choice = choice_of(slots, steps)
            loads.add(Load(choice.seconds, choice.resident, choice.peak))
    front = Front()
    return [it for it in sorted(loads) if front.admits(it.resident, it.working)]


def fastest_in(search: Search, patch: Vec3, loads: list[Load]) -> float:
    """Return the least time of a job in patches of a size, by the loads that fit."""
    candidate, (cut_point,) = search.patch_candidate(patch), search.cut_points
    cut = candidate.cut(cut_point)
    allowed = candidate.budget(cut, HOST)(cut.partitions[0].input_shape)
    fitting = (load for load in loads if load.resident + load.working <= allowed)
    return min((candidate.seconds(cut_point, {HOST: load}) for load in fitting), default=inf)


@pytest.mark.slow_cases
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("catalogue", [CHOICES, WITH_FUSED, WITH_FREE_FUSED])
def test_the_sweep_that_is_found_is_the_fastest_of_all(catalogue: Catalogue, axis: Axis) -> None:
    fusible = () if catalogue is CHOICES else tuple(fusions(NETWORK).values())
    search = Search(NETWORK, OUTPUT, machine(0), catalogue, NO_OVERHEAD).sweeping(axis)
    loads = {patch: loads_in(search, patch, fusible) for patch in search.patches()}
    fitted = 0
    for memory, overhead in product((60_000, 110_000, 10**7), (NO_OVERHEAD, SLOW_TO_START, COLD)):
        search = Search(NETWORK, OUTPUT, machine(memory), catalogue, overhead).sweeping(axis)
        times = {patch: fastest_in(search, patch, each) for patch, each in loads.items()}
        quick = quick_bounds(search, list(times))
        for bound, (patch, seconds) in zip(quick, times.items(), strict=True):
            assert bound <= bound_of_patch(search, patch) <= seconds
            assert bound_with_prices(search, patch) <= seconds
        if min(times.values()) < inf:
            fitted += 1
            assert search.fastest()[0].seconds == pytest.approx(min(times.values()))
    assert fitted > 3


@pytest.mark.parametrize("axis", AXES)
def test_no_step_runs_less_often_than_its_bound(axis: Axis) -> None:
    """The bound counts the blocks at the start of a column, and is reached by some segments."""
    search = Search(NETWORK, OUTPUT, machine(10**9), WITH_FUSED, NO_OVERHEAD).sweeping(axis)
    for patch in search.patches():
        least = least_runs(search.network, patch, OUTPUT)
        assert least.pop(INPUT) == 1
        (partition,) = search.patch_candidate(patch).cut(search.cut_points[0]).partitions
        reached = dict.fromkeys(least, inf)
        for part in parts_of(partition, tuple(fusions(NETWORK).values())):
            for (step, runs), (_, n) in zip(part.step_runs(), every_run(part), strict=True):
                for layer in step.layers:
                    reached[layer.name] = min(reached[layer.name], runs / n)
        assert reached == pytest.approx(least)


def every_run(part: DevicePart) -> Iterator[tuple[object, int]]:
    """Yield each step's runs for a block that continues a column."""
    return ((step, n) for segment, n in part.runs() for step in segment.steps)
