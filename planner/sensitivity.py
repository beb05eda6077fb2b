"""Sensitivity of a plan: the fastest plans under other memory limits, and in other patches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log

from planner.patch_sizes import axis_sizes
from planner.search import Search
from znni.core.processors import DeviceKind
from znni.core.shapes import Vec3
from znni.plans.plan import Plan
from znni.plans.segments import Step

# The strategy that allows all primitives.
ANY = "any"

# The number of memory limits, and of patches, that are tried.
LIMITS = 8
CUBES = 10

WELL_OFF = 16  # times the least memory; more makes plans hardly faster
STEPS = 9  # limits tried from the least memory to that, each 1.4 times the one before
EDGES = 12  # cubes tried under each

# The smallest and largest cubes that are tried: their edges as shares of the plan's edge.
LEAST_EDGE, MOST_EDGE = 1 / 8, 3 / 2

# A patch is near a cube if their extents differ by no more than this factor.
NEAR = 1.25


@dataclass(frozen=True)
class StepView:
    """The time and memory of one step of a plan.

    Attributes:
        seconds: the predicted seconds of all its runs for a patch.
        memory: the most bytes of its device that the whole run holds during the step.
        throughout: the part of these bytes that the run holds during every step.
    """

    step: Step
    seconds: float
    memory: int
    throughout: int


@dataclass(frozen=True)
class Views:
    """The plans around a plan.

    Attributes:
        by_memory: fast plans under rising limits of its last device. Each plan's machine has its
            limit. The last is the plan itself.
        by_patch: for each strategy, the fastest plans in cubes of rising size. Strategies without
            a plan that fits are left out. The first is ``ANY``; then come families of primitives.
    """

    plan: Plan
    by_memory: tuple[Plan, ...]
    by_patch: Mapping[str, tuple[Plan, ...]]


def views(search: Search, plan: Plan, families: Mapping[str, Collection[str]]) -> Views:
    """Return the plans around a plan.

    Args:
        search: the search that found the plan.
        plan: the fastest plan.
        families: the strategies, each with the names of its primitives.
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
    """Yield the fastest plan with each patch that fits."""
    for patch in patches:
        if plan := search.fastest_for(patch):
            yield plan


def by_memory(search: Search, plan: Plan, count: int = LIMITS) -> list[Plan]:
    """Return fast plans under rising limits, from the least that any plan needs to the plan's own.

    They are found in seconds, because only some plans are tried. These compute each layer's batch
    whole, in patches near a cube. The fastest of all plans may be some percent faster.

    Args:
        search: the search that found the plan.
        plan: the fastest plan under its own limit.
        count: the number of limits, at equal ratios.
    """
    undivided = search.on(plan.device).undivided()
    most, kind = plan.last_device.memory, plan.last_device.kind
    least = min(most, undivided.smallest().device_memory.total)
    limits = {ceil(limit) for limit in at_equal_ratios(least, most, count)[:-1]} - {most}
    patches = list(near_cubes(search))
    plans = [plan]
    for limit in sorted(limits, reverse=True):
        limited = undivided.within(limit, kind)
        # a plan that is fastest under more memory is also fastest under less, if it fits
        if plans[-1].device_memory.total <= limit:
            plans.append(replace(plans[-1], machine=limited.machine))
        elif fastest := limited.fastest_of(patches):
            plans.append(fastest)
    return plans[::-1]


def memory_for_half(search: Search, least: int, device: DeviceKind) -> int:
    """Return about the least memory of a device under which a plan is half as fast as the best.

    Args:
        search: the search.
        least: bytes of the device that the smallest plan takes.
        device: the device whose memory is varied.
    """
    plan = half_as_fast(search, least, device)
    return max(least, _bytes_on(device, plan)) if plan else least


def half_as_fast(search: Search, least: int, device: DeviceKind) -> Plan | None:
    """Return about the smallest plan that is half as fast as the best; None if no plan is found.

    The best plan is that under 16 times the least memory. Only cubes and boxes between two cubes
    are tried, with whole batches, so this takes about a second.

    Args:
        search: the search.
        least: bytes of the device that the smallest plan takes.
        device: the device whose memory is varied.
    """
    undivided = search.undivided()

    def plan_within(memory: float) -> Plan | None:
        return undivided.within(ceil(memory), device).fastest_of(patches)

    some = cubes(undivided, at_equal_ratios(4, max(search.output), EDGES))
    patches = some + [box for a, b in pairwise(some) for box in _between(a, b)]
    best = last = plan_within(WELL_OFF * least)
    for memory in reversed(at_equal_ratios(least, WELL_OFF * least, STEPS)[:-1]):
        if last is None or _bytes_on(device, last) <= memory:
            continue  # the plan found fits
        plan = plan_within(memory)
        if plan is None or best is None or plan.seconds > 2 * best.seconds:
            break
        last = plan
    return last


def _bytes_on(device: DeviceKind, plan: Plan) -> int:
    return plan.limits[device][0].total if device in plan.limits else 0


def best_split(search: Search) -> Plan | None:
    """Return about the fastest plan with layers on both devices, if the search allows one.

    Cubes and whole batches choose the number of layers on the host. Then all plans with this
    number are searched.
    """
    layers = len(search.network.nodes)
    places = [it for it in search.cut_points if 0 < it.layers_on_host < layers]
    if not places:
        return None
    some = cubes(search, at_equal_ratios(4, max(search.output), EDGES))
    quick = search.undivided().through(places).fastest_of(some)
    if quick is None:
        return None
    same = [it for it in places if it.layers_on_host == quick.layers_on_host]
    return next(iter(search.through(same).fastest(known=quick)), quick)


def _between(small: Vec3, large: Vec3) -> list[Vec3]:
    """Return the boxes that are as wide as the larger of two cubes along x, or along y and x."""
    return [small._replace(x=large.x), large._replace(z=small.z)]


def near_cubes(search: Search) -> Iterator[Vec3]:
    """Yield the patches near a cube among those that a search tries."""
    edges = {float(extent) for patch in search.patches() for extent in patch}
    all_cubes = cubes(search, sorted(edges))
    for patch in search.patches():
        if any(_near(patch, cube) for cube in all_cubes):
            yield patch


def cubes(search: Search, edges: Iterable[float]) -> list[Vec3]:
    """Return patches as near to cubes of these edges as extents fitted to the output allow.

    Equal patches are listed once.
    """
    axes = [
        axis_sizes(extent, pooling)
        for extent, pooling in zip(search.output, search.network.granularity, strict=True)
    ]
    patches = (Vec3(*(_nearest(wanted, sizes) for sizes in axes)) for wanted in edges)
    return list(dict.fromkeys(patches))


def edge(patch: Vec3) -> float:
    """Return the edge of a cube with as many voxels as the patch."""
    return float(patch.volume ** (1 / 3))


def steps(plan: Plan) -> Iterator[StepView]:
    """Yield the time and memory of each step of a plan, first to last."""
    for part in plan.parts:
        memory, _ = plan.limits[part.device]
        beside = memory.total - memory.working
        for (step, peak), (_, n) in zip(part.peaks(), part.step_runs(), strict=True):
            yield StepView(step, n * step.seconds, beside + peak, beside)


def at_equal_ratios(least: float, most: float, count: int) -> list[float]:
    """Return ``count`` numbers, at least two, at equal ratios from the least to the most."""
    return [least * (most / least) ** (index / (count - 1)) for index in range(count)]


def _nearest(wanted: float, sizes: Iterable[int]) -> int:
    return min(sizes, key=lambda size: abs(log(size / wanted)))


def _near(patch: Vec3, cube: Vec3) -> bool:
    return all(max(a, b) <= NEAR * min(a, b) for a, b in zip(patch, cube, strict=True))
