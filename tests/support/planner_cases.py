"""A network, catalogues and a brute-force search that tests of the planner share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import inf

from fake_stages import overhead
from fakes import Fake, fake_catalogue

from planner.choices import Slot, all_on_gpu, bytes_on_gpu
from planner.overhead import Load, SecondsOnce
from planner.partition import CutPoint
from planner.patch_candidate import PatchCandidate
from planner.search import Search
from znni.core.shapes import Vec3
from znni.engine.stages.read import ReadModel
from znni.engine.stages.write import WriteModel
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.plans.primitive import convolved, convolved_and_pooled

CONV = Conv("conv1", 1, 2, Vec3(3, 3, 3), "relu")
NETWORK = Network.chain(
    "test",
    1,
    (
        CONV,
        Pool("pool1", Vec3(2, 2, 2)),
        Conv("conv2", 2, 5, Vec3(3, 2, 3), "relu"),
        Pool("pool2", Vec3(1, 2, 3)),
        Conv("conv3", 5, 1, Vec3(2, 2, 2), "sigmoid"),
    ),
)
NO_OVERHEAD = overhead()
SLOW_TO_READ = overhead(0, 0, 0, ReadModel(value=1e-4, lost_value=1e-6), WriteModel(value=3e-5))
SLOW_TO_START = overhead(
    0,
    0,
    0,
    ReadModel(value=1e-9),
    WriteModel(lost_value=1e-8),
    once=SecondsOnce(1.0, 2.0, resident=1e-6, touched=3e-7),
)
# Most plans take more bytes than are warm.
COLD = overhead(
    0,
    0,
    0,
    ReadModel(value=1e-9),
    once=SecondsOnce(resident=1e-4, touched=3e-5, cold=4e-3),
    warm=30_000,
)

CONVOLUTIONS = (
    Fake("quick_but_large", convolved, flops=10.0, workspace=40_000),
    Fake("quick_but_resident", convolved, flops=12.0, resident=30_000),
    Fake("medium", convolved, flops=40.0, workspace=9_000, resident=2_000),
)
CHOICES = fake_catalogue(*CONVOLUTIONS)
# One output voxel of the fused primitives takes eight voxels of the first convolution, or six of
# the second.
WITH_FUSED = fake_catalogue(
    *CONVOLUTIONS,
    Fake("fused", convolved_and_pooled, flops=90.0, resident=1_000),
    Fake("slow_fused", convolved_and_pooled, flops=400.0),
)
# This fused primitive is faster at all offsets than a convolution at all voxels. Hardly any real
# primitive is.
WITH_FREE_FUSED = fake_catalogue(*CONVOLUTIONS, Fake("fused", convolved_and_pooled, flops=2.0))


def layers_alone(seconds: float, _resident: int, _peak: int) -> float:
    return seconds


def combinations(choices: list[Slot]) -> Iterator[tuple[float, int, int]]:
    """Yield the seconds, the resident and the peak memory of all combinations of steps.

    Those that take too many bytes of a GPU are left out.
    """
    for steps in product(*(slot.options for slot in choices)):
        resident = sum(s.cost.memory.resident for s in steps)
        peak = max(
            slot.held + s.cost.memory.working for slot, s in zip(choices, steps, strict=True)
        )
        seconds = sum(slot.runs * s.seconds for slot, s in zip(choices, steps, strict=True))
        if all_on_gpu(*bytes_on_gpu(steps), peak) > choices[0].on_gpu:
            continue
        yield seconds, resident, peak


def by_brute_force(
    choices: list[Slot], allowed: int, job_of: Callable[[float, int, int], float] = layers_alone
) -> float:
    """Return the least time of a job over all combinations of steps within the memory allowed."""
    return min(
        (
            job_of(seconds, resident, peak)
            for seconds, resident, peak in combinations(choices)
            if resident + peak <= allowed
        ),
        default=inf,
    )


def bound_of_patch(search: Search, patch: Vec3) -> float:
    """Return the least seconds of a patch's cut points, before the search prices its shapes."""
    return min(
        bound
        for some in search._by_windows_at_once()
        for bound in map(some.patch_candidate(patch).least_seconds, some.cut_points)
    )


def bound_with_prices(search: Search, patch: Vec3) -> float:
    """Return the least seconds of a patch's cut points, with prices of its shapes."""
    candidate = search.patch_candidate(patch)
    able = (it for it in search.cut_points if candidate.least_seconds(it) < inf)
    return min(bound_of_cut_point(search, candidate, it) for it in able)


def bound_of_cut_point(search: Search, candidate: PatchCandidate, cut_point: CutPoint) -> float:
    """Return a lower bound on a job's seconds with a cut point, with prices of its shapes."""
    cut, loads = candidate.cut(cut_point), candidate.least_loads(cut_point)
    for partition in cut.partitions:
        least_of = search._searches[partition.processor]._partition_bounds
        most = candidate.budget(cut, partition.device)(partition.input_shape._replace(n=1))
        seconds = sum(least_of.seconds(partition, most, inf).values())
        loads[partition.device] = Load(seconds, 0, least_of.working(partition))
    return (1 - 1e-9) * candidate.seconds(cut_point, loads)
