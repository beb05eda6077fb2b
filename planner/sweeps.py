"""A plan among its neighbours, as values: under other limits, in other patches, layer by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, log

from planner.exhaustive import Search
from planner.patch_sizes import axis_sizes
from znni.core.shapes import Vec3
from znni.plans.plan import Plan
from znni.plans.segments import Step

# The strategy of all primitives.
ANY = "any"

# How many points the views have.
LIMITS = 8
CUBES = 10

# The cubes that are looked at, by their edges as shares of that of the plan's patch.
LEAST_EDGE, MOST_EDGE = 1 / 8, 3 / 2

# Patches whose extents are within this factor of a cube's are near it.
NEAR = 1.25


@dataclass(frozen=True)
class StepView:
    """What a step takes of a patch.

    Attributes:
        step: that one.
        seconds: predicted for all its runs.
        memory: the most bytes of its device that the whole run holds while it is computed.
        throughout: of these, what it holds whatever layer is computed.
    """

    step: Step
    seconds: float
    memory: int
    throughout: int


@dataclass(frozen=True)
class Views:
    """What surrounds a plan.

    Attributes:
        plan: that one.
        by_memory: fast plans under rising limits of its last device, which are those of their
            machines; the plan itself is the last.
        by_patch: for each strategy, the fastest plans in cubes of rising size that fit, if any
            does: first ``ANY``, then families of primitives.
    """

    plan: Plan
    by_memory: tuple[Plan, ...]
    by_patch: Mapping[str, tuple[Plan, ...]]


def views(search: Search, plan: Plan, families: Mapping[str, Collection[str]]) -> Views:
    """Look around a plan.

    Args:
        search: the one that found the plan.
        plan: the fastest.
        families: names of primitives that are a strategy, each.
    """
    own = edge(plan.patch)
    patches = cubes(search, at_equal_ratios(LEAST_EDGE * own, MOST_EDGE * own, CUBES))
    searches = {ANY: search} | {name: search.among(some) for name, some in families.items()}
    by_patch = {
        name: plans
        for name, some in searches.items()
        if (plans := tuple(by_patch_size(some, patches)))
    }
    return Views(plan, tuple(by_memory(search, plan)), by_patch)


def by_patch_size(search: Search, patches: Iterable[Vec3]) -> Iterator[Plan]:
    """The fastest plan with each patch that fits."""
    for patch in patches:
        if found := search.fastest_for(patch):
            yield found


def by_memory(search: Search, plan: Plan, count: int = LIMITS) -> list[Plan]:
    """Fast plans under limits that rise from the least that any takes to that of this plan.

    They are found in seconds: of the other plans only those are looked at that compute each
    layer's batch whole, in patches near a cube: the fastest of all may be some percent faster.

    Args:
        search: the one that found the plan.
        plan: the fastest under its own limit.
        count: of limits, at equal ratios.
    """
    undivided = search.on(plan.device).undivided()
    most, kind = plan.last_device.memory, plan.last_device.kind
    least = min(most, undivided.smallest().device_memory.total)
    limits = {ceil(limit) for limit in at_equal_ratios(least, most, count)[:-1]} - {most}
    patches = list(near_cubes(search))
    found = [plan]
    for limit in sorted(limits, reverse=True):
        within = undivided.within(limit, kind)
        # what is fastest under more memory, and fits, is fastest under less
        if found[-1].device_memory.total <= limit:
            found.append(replace(found[-1], machine=within.machine))
        elif fastest := within.fastest_of(patches):
            found.append(fastest)
    return found[::-1]


def near_cubes(search: Search) -> Iterator[Vec3]:
    """Of the patches that a search tries, those near a cube."""
    edges = {float(extent) for patch in search.patches() for extent in patch}
    all_cubes = cubes(search, sorted(edges))
    for patch in search.patches():
        if any(_near(patch, cube) for cube in all_cubes):
            yield patch


def cubes(search: Search, edges: Iterable[float]) -> list[Vec3]:
    """Patches as near to cubes of these edges as extents fitted to the output allow.

    Those that come to the same are listed once.
    """
    axes = [
        axis_sizes(extent, pooling)
        for extent, pooling in zip(search.output, search.network.total_pooling, strict=True)
    ]
    patches = (Vec3(*(_nearest(wanted, sizes) for sizes in axes)) for wanted in edges)
    return list(dict.fromkeys(patches))


def edge(patch: Vec3) -> float:
    """Of a cube of as many voxels."""
    return float(patch.volume ** (1 / 3))


def steps(plan: Plan) -> Iterator[StepView]:
    """What each step of a plan takes, first to last."""
    for part in plan.parts:
        memory, _ = plan.limits[part.device]
        beside = memory.total - memory.working
        runs = [n for segment, n in part.runs() for _ in segment.steps]
        for (step, peak), n in zip(part.peaks(), runs, strict=True):
            yield StepView(step, n * step.seconds, beside + peak, beside)


def at_equal_ratios(least: float, most: float, count: int) -> list[float]:
    """So many numbers, two at least, from the least to the most."""
    return [least * (most / least) ** (index / (count - 1)) for index in range(count)]


def _nearest(wanted: float, sizes: Iterable[int]) -> int:
    return min(sizes, key=lambda size: abs(log(size / wanted)))


def _near(patch: Vec3, cube: Vec3) -> bool:
    return all(max(a, b) <= NEAR * min(a, b) for a, b in zip(patch, cube, strict=True))
