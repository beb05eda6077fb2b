"""Layers on the host and on a GPU: the search finds the optimum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf
from typing import NamedTuple

import pytest
from fake_stages import FakeBlocks, Timed
from fakes import (
    FUSED,
    Fake,
    FakeOnGpu,
    FakeUsingGpu,
    fake_catalogue,
    fake_gpu_catalogue,
    gpu,
    machine,
)
from planner_cases import bound_of_cut_point, bound_of_patch, bound_with_prices

from planner.cost_model import BUILT_IN
from planner.limits import memory_of_run, time_of_run
from planner.overhead import Overhead, SecondsOnce
from planner.partition import Partition, cut_network
from planner.patch_sizes import patch_sizes
from planner.search import Search
from planner.segmentations import segmentations
from planner.step_options import StepOptions
from znni.core.memory_errors import DoesNotFit
from znni.core.processors import Processors
from znni.core.shapes import Vec3
from znni.engine.stages.download import DownloadModel
from znni.engine.stages.layers import LayersModel
from znni.engine.stages.read import ReadModel
from znni.engine.stages.upload import UploadModel
from znni.machine.machine import Machine
from znni.network.layers import Conv, Pool
from znni.network.network import Network
from znni.network.node import INPUT
from znni.plans.device_partition import parts_of
from znni.plans.primitive import convolved, on_device
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.segments import Segment

NETWORK = Network.chain(
    "net",
    1,
    (
        Conv("conv1", 1, 2, Vec3(2, 3, 2), "relu"),
        Pool("pool1", Vec3(1, 2, 2)),
        Conv("conv2", 2, 3, Vec3(2, 2, 2), "relu"),
        Conv("conv3", 3, 1, Vec3(1, 2, 1), "relu"),
    ),
)
OUTPUT = Vec3(3, 4, 6)
PATCHES = list(patch_sizes(OUTPUT, NETWORK.total_pooling, isotropic=False))
CATALOGUE = (
    fake_catalogue(Fake("large", convolved, flops=10.0, workspace=4_000, resident=900), FUSED)
    | fake_gpu_catalogue(resident=500)
    | {"gpu_large": FakeOnGpu("gpu_large", convolved, flops=5.0, workspace=3_000)}
)
# Layers on the host may take more of the GPU, to be faster.
BASE = FakeOnGpu("gpu_conv", convolved, flops=3.0)
USING = {
    name: FakeUsingGpu(name, convolved, flops, gpu_resident=kept, gpu_working=pieces, base=BASE)
    for name, flops, kept, pieces in (
        ("few", 9.0, 0, 1_000),
        ("kept", 7.0, 1_500, 1_000),
        ("many", 3.0, 200, 5_000),
    )
}
BLOCKS = FakeBlocks(1, 2, 4, 2)
BESIDE = Overhead(100, (BLOCKS, Timed(LayersModel())), cuda=50, gpu=30)
OVERHEADS = {
    "nothing beside": BESIDE,
    "a slow link": replace(
        BESIDE,
        stages=(BLOCKS, *map(Timed, (LayersModel(), UploadModel(3e-8, 2e-8), DownloadModel(1e-7)))),
    ),
    "a slow start": replace(
        BESIDE,
        stages=(BLOCKS, Timed(LayersModel()), Timed(ReadModel(1e-7))),
        once=SecondsOnce(cuda=1e-3, resident=1e-7, touched=1e-8, pinned=1e-8),
    ),
}


class Enumerated(NamedTuple):
    """The time and memory of a plan."""

    device: Processors
    seconds: float
    host: int
    gpu: int


@cache
def every(beside: str, *, host_uses_gpu: bool = False) -> list[Enumerated]:
    """Return all possible plans."""
    uses = host_uses_gpu
    return [found for patch in PATCHES for found in all_in(patch, OVERHEADS[beside], uses=uses)]


def all_in(patch: Vec3, overhead: Overhead, *, uses: bool) -> Iterator[Enumerated]:
    between = NETWORK.shapes(patch)
    patches = OUTPUT.ceil_div(patch).volume
    for place in range(uses, len(NETWORK.layers) + 1):
        where = cut_network(NETWORK, between, place, host_uses_gpu=uses)
        for candidates in product(*map(all_candidates, where.partitions)):
            parts = parts_of(
                tuple(part for segments in candidates for part in segments), between[INPUT]
            )
            if uses and not parts[0].uses_gpu:
                continue
            memory, gpu_memory = memory_of_run(NETWORK, patch, parts, overhead)
            seconds = time_of_run(NETWORK, patch, parts, overhead).total(patches)
            on_gpu = gpu_memory.total if gpu_memory else 0
            yield Enumerated(where.device, seconds, memory.total, on_gpu)


@cache
def all_candidates(partition: Partition) -> list[tuple[Segment, ...]]:
    """Return every division of the layers, with every combination of primitives."""
    primitives = on_device(CATALOGUE | USING if partition.uses_gpu else CATALOGUE, partition.device)
    options = StepOptions(primitives.values(), BUILT_IN)
    fusible = tuple(fusions(NETWORK).values()) if partition.device == "cpu" else ()
    found = []
    for some in (
        n for n in range(1, partition.input_shape.n + 1) if partition.input_shape.n % n == 0
    ):
        first_input = partition.input_shape._replace(n=some)
        for bare in segmentations(
            partition.nodes, first_input, fusible=fusible, device=partition.device
        ):
            choices = [
                [*options(step), *options(step, in_place=True)] for p in bare for step in p.steps
            ]
            for chosen in product(*map(dict.fromkeys, choices)):
                steps = iter(chosen)
                found.append(
                    tuple(
                        replace(part, steps=tuple(next(steps) for _ in part.steps)) for part in bare
                    )
                )
    return found


def limits(found: list[Enumerated]) -> Iterator[tuple[int, int]]:
    """Return memory limits of both devices, some above and some below the needs of plans."""
    host = sorted({candidate.host for candidate in found})
    on_gpu = sorted({candidate.gpu for candidate in found})
    for share_of_host, share_of_gpu in product((0.0, 0.1, 1.0), repeat=2):
        yield (
            host[int(share_of_host * (len(host) - 1))],
            on_gpu[int(share_of_gpu * (len(on_gpu) - 1))],
        )


@pytest.mark.slow
@pytest.mark.parametrize("beside", OVERHEADS)
@pytest.mark.parametrize("workers", [1, 3])
def test_prices_raise_the_bounds_of_places_but_not_beyond_their_plans(
    beside: str, workers: int
) -> None:
    there = Machine(machine().host, (gpu(),))
    several = replace(OVERHEADS[beside], workers=workers)
    search = Search(NETWORK, OUTPUT, there, CATALOGUE, several)
    for patch, place in product(PATCHES, search.cut_points):
        job = search.patch_candidate(patch)
        bound = bound_of_cut_point(search, job, place)
        plan = search.through([place]).fastest_for(patch)
        assert plan
        assert (1 - 1e-8) * job.least_seconds(place) <= bound <= plan.seconds


@pytest.mark.slow
@pytest.mark.parametrize("beside", OVERHEADS)
def test_the_plan_is_the_optimum_over_all_places_to_pass_to_the_gpu(beside: str) -> None:
    found = every(beside)
    best_on = set()
    for host, on_gpu in limits(found):
        allowed = replace(machine(host), gpus=(gpu(on_gpu),))
        for device in ("auto", "cpu", "gpu", "cpu+gpu"):
            fitting = [
                it
                for it in found
                if it.host <= host and it.gpu <= on_gpu and device in ("auto", it.device)
            ]
            best = min((candidate.seconds for candidate in fitting), default=inf)
            search = Search(NETWORK, OUTPUT, allowed, CATALOGUE, OVERHEADS[beside], device=device)
            if best == inf:
                with pytest.raises(DoesNotFit):
                    search.fastest()
                continue
            plan = search.fastest()[0]
            assert plan.seconds == pytest.approx(best)
            assert plan.memory.total <= host
            assert plan.gpu_memory is None or plan.gpu_memory.total <= on_gpu
            assert device in ("auto", plan.device)
            assert bound_of_patch(search, plan.patch) <= plan.seconds
            assert bound_with_prices(search, plan.patch) <= plan.seconds
            best_on |= {plan.device} if device == "auto" else set()
    assert len(best_on) > 1


@pytest.mark.slow_cases
@pytest.mark.parametrize("beside", ["a slow link", "a slow start"])
def test_host_and_gpu_share_the_gpu_s_memory_at_best(beside: str) -> None:
    """Pieces, what is kept for them, and the GPU's own layers: no other division is faster."""
    patch, overhead = PATCHES[0], OVERHEADS[beside]
    found = list(all_in(patch, overhead, uses=True))
    helped = set[int]()
    for host, share in product((10_000, 10**6), (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)):
        on_gpu = int(share * max(it.gpu for it in found))
        fitting = [it for it in found if it.host <= host and it.gpu < on_gpu]  # two sums round up
        allowed = replace(machine(host), gpus=(replace(gpu(on_gpu), link=1e15),))
        search = Search(NETWORK, OUTPUT, allowed, CATALOGUE | USING, overhead)
        places = [it for it in search.cut_points if it.host_uses_gpu]
        plan = search.through(places).fastest_for(patch)
        if fitting:
            assert plan
            assert plan.seconds <= min(it.seconds for it in fitting) * (1 + 1e-9)
        if plan and any(step.uses_gpu for step in plan.steps):
            assert plan.memory.total <= host
            assert plan.gpu_memory
            assert plan.gpu_memory.total <= on_gpu
            helped.add(plan.layers_on_host)
    assert len(helped) > 1
