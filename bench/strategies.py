"""The best plan of each strategy of the paper, predicted and run, beside what ZNNi reached."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from time import perf_counter

from bench.noise import patch_input
from bench.published import published
from bench.record import Row
from planner.exhaustive import Search
from planner.partition import CutPoint
from znni.core.errors import DoesNotFit, InvalidInput, ZnniError
from znni.core.options import Costs
from znni.core.shapes import Vec3
from znni.engine.patch import PatchRunner
from znni.engine.stages import run_stages
from znni.engine.stopwatch import Stopwatch
from znni.inference.planning import fastest, search
from znni.machine.arrays import peak_memory
from znni.machine.cuda import cupy
from znni.network.network import Network
from znni.network.weights import Float32, random_weights
from znni.plans.plan import Plan
from znni.primitives.catalogue import FAMILIES, catalogue

HOST_RAM = "GPU + host RAM"

# Where a strategy passes from the host to the GPU, in a network of so many layers.
STRATEGIES: dict[str, Callable[[CutPoint, int], bool]] = {
    "CPU-only": lambda place, layers: not place.host_uses_gpu and place.layers_on_host == layers,
    "GPU-only": lambda place, _: place.layers_on_host == 0,
    HOST_RAM: lambda place, _: place.host_uses_gpu,
    "CPU-GPU": lambda place, layers: not place.host_uses_gpu and 0 < place.layers_on_host < layers,
}

# Patches that are run: the first of them is not counted, and two always are.
PATCHES = 4
LEAST_PATCHES = 2

# Where a row holds a plan, as JSON.
PLAN = "plan"


def compare_strategies(
    network: Network,
    size: int,
    machine: Path | None,
    ram: int | None,
    gpu_memory: int | None,
    costs: Costs,
    only: Sequence[str] = tuple(STRATEGIES),
) -> list[Row]:
    """A row for each strategy, which holds its plan.

    Args:
        network: to plan for.
        size: voxels per axis of the volume.
        machine: a machine's file; by default this one.
        ram: bytes of the host that a plan may take; by default what there is.
        gpu_memory: as ``ram``, of the GPU.
        costs: of the model that predicts times.
        only: the strategies wanted.

    Raises:
        InvalidInput: there is no GPU, neither here nor in the machine's file.
    """
    found = search(
        network,
        (size,) * 3,
        machine=machine,
        ram=ram,
        gpu_memory=gpu_memory,
        costs=costs,
    )
    if not found.machine.gpus:
        raise InvalidInput("strategies needs a GPU, here or in a machine's file (--machine)")
    layers = len(network.layers)
    rows = []
    for strategy in only:
        passes = STRATEGIES[strategy]
        row: Row = {
            "network": network.name,
            "strategy": strategy,
            "volume": str(Vec3.of(size)),
            "published_voxels_per_s": published(network.name, f"ZNNi {strategy}"),
        }
        wanted = [place for place in found.cut_points if passes(place, layers)]
        try:
            among = _without_convolutions_of_host(found) if strategy == HOST_RAM else found
            plan = fastest(among.through(wanted))[0]
            rows.append(row | _predicted(plan))
        except DoesNotFit as error:
            rows.append(row | {"skipped": str(error)})
    return rows


def run_planned(
    rows: Sequence[Row], each: float, seconds: float, progress: Callable[[str], None]
) -> Iterator[Row]:
    """Rows that hold plans, without these, with what some patches of each took.

    Args:
        rows: of ``compare_strategies``.
        each: seconds after which no more patches of a plan are begun, but for the first two.
        seconds: after which no more plans are.
        progress: told what is run next.
    """
    until = perf_counter() + seconds
    for planned in rows:
        row = {name: value for name, value in planned.items() if name != PLAN}
        if PLAN in planned:
            progress(f"{row['network']}, {row['strategy']}")
            row |= _measured(Plan.from_json(planned[PLAN]), each, until)
        yield row


def _measured(plan: Plan, seconds: float, until: float) -> Row:
    if perf_counter() > until:
        return {"skipped": "no time was left"}
    try:
        return _run(plan, seconds)
    except (ZnniError, MemoryError) as error:
        return {"skipped": str(error)}


def _without_convolutions_of_host(found: Search) -> Search:
    """The search for plans whose layers on the host are computed on the GPU, but for poolings."""
    of_host = tuple(chain(*FAMILIES.values()))
    return found.among([name for name in found.catalogue if not name.startswith(of_host)])


def _predicted(plan: Plan) -> Row:
    row: Row = {
        "theta": plan.layers_on_host,
        "patch": str(plan.patch),
        "predicted_voxels_per_s": plan.voxels_per_second,
        "declared_gib": plan.memory.total / 2**30,
        PLAN: plan.to_json(),
        "on_gpu": ", ".join(s.operation.name for s in plan.steps if s.uses_gpu) or "none",
    }
    if plan.gpu_memory:
        row["gpu_declared_gib"] = plan.gpu_memory.total / 2**30
        row["gpu_limit_gib"] = plan.gpu.memory / 2**30
    return row


def _run(plan: Plan, enough: float) -> Row:
    """Seconds of a patch when the stages are at work, and what host and GPU have given at most."""
    gc.collect()  # what the last plan's runner held
    free = _free() if plan.gpu_memory else 0
    with peak_memory() as peak:
        building = perf_counter()
        runner = PatchRunner(plan, catalogue(plan.machine), random_weights(plan.network, 0))
        block, done = patch_input(plan.network, plan.patch), list[float]()
        stages = [*runner.stages(Stopwatch()), lambda _: done.append(perf_counter())]
        begun = perf_counter()

        def blocks() -> Iterator[Float32]:
            for index in range(PATCHES):
                if index < LEAST_PATCHES or perf_counter() - begun < enough:
                    yield block

        run_stages(blocks(), stages, here=0)
    seconds = (done[-1] - done[0]) / (len(done) - 1)
    row: Row = {
        "building_seconds": begun - building,
        "patches": len(done),
        "seconds": seconds,
        "voxels_per_s": plan.patch.volume / seconds,
        "peak_gib": peak.highest / 2**30,
    }
    if plan.gpu_memory:
        row["gpu_peak_gib"] = (free - _free()) / 2**30
    return row


def _free() -> int:
    """Bytes of the GPU that nobody has taken."""
    cupy().get_default_memory_pool().free_all_blocks()
    return int(cupy().cuda.Device().mem_info[0])
