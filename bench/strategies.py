"""The best plan of each strategy of the paper, predicted and run, beside what ZNNi reached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from bench.noise import patch_input
from bench.published import published
from bench.record import Row
from planner.strategy import Place
from znni.cuda import cupy
from znni.engine.patch import PatchRunner
from znni.engine.stages import run_stages
from znni.engine.stopwatch import Stopwatch
from znni.errors import DoesNotFit, InvalidInput, RunFailed
from znni.network import Network
from znni.options import Costs
from znni.planning import fastest, search
from znni.plans import Plan
from znni.primitive import catalogue
from znni.weights import random_weights

# Where a strategy passes from the host to the GPU, in a network of so many layers.
STRATEGIES: dict[str, Callable[[Place, int], bool]] = {
    "CPU-only": lambda place, layers: not place.host_uses_gpu and place.on_host == layers,
    "GPU-only": lambda place, _: place.on_host == 0,
    "GPU + host RAM": lambda place, _: place.host_uses_gpu,
    "CPU-GPU": lambda place, layers: not place.host_uses_gpu and 0 < place.on_host < layers,
}

# Patches that are run: the first of them is not counted.
PATCHES = 4


def compare_strategies(
    network: Network,
    size: int,
    machine: Path | None,
    ram: int | None,
    gpu_memory: int | None,
    costs: Costs,
    *,
    measure: bool,
) -> list[Row]:
    """A row for each strategy.

    Args:
        network: to plan for.
        size: voxels per axis of the volume.
        machine: a machine's file; by default this one.
        ram: bytes of the host that a plan may take; by default what there is.
        gpu_memory: as ``ram``, of the GPU.
        costs: of the model that predicts times.
        measure: run some patches of each plan, too.

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
    for strategy, passes in STRATEGIES.items():
        row: Row = {
            "network": network.name,
            "strategy": strategy,
            "published_voxels_per_s": published(network.name, f"ZNNi {strategy}"),
        }
        wanted = [place for place in found.places if passes(place, layers)]
        try:
            plan = fastest(found.through(wanted))[0]
            rows.append(row | _predicted(plan) | (_run(plan) if measure else {}))
        except (DoesNotFit, RunFailed, MemoryError) as error:
            rows.append(row | {"skipped": str(error)})
    return rows


def _predicted(plan: Plan) -> Row:
    row: Row = {
        "theta": plan.layers_on_host,
        "patch": str(plan.patch),
        "predicted_voxels_per_s": plan.voxels_per_second,
        "declared_gib": plan.memory.total / 2**30,
        "on_gpu": ", ".join(s.operation.name for s in plan.steps if s.uses_gpu) or "none",
    }
    if plan.gpu_memory:
        row["gpu_declared_gib"] = plan.gpu_memory.total / 2**30
        row["gpu_limit_gib"] = plan.gpu.memory / 2**30
    return row


def _run(plan: Plan) -> Row:
    """Seconds of a patch when the stages are at work, and the bytes that the GPU has given."""
    free = _free() if plan.gpu_memory else 0
    runner = PatchRunner(plan, catalogue(plan.machine), random_weights(plan.network, 0))
    block, done = patch_input(plan.network, plan.patch), list[float]()
    stages = [*runner.stages(Stopwatch()), lambda _: done.append(perf_counter())]
    run_stages([block] * PATCHES, stages, here=0)
    seconds = (done[-1] - done[0]) / (PATCHES - 1)
    row: Row = {"seconds": seconds, "voxels_per_s": plan.patch.volume / seconds}
    if plan.gpu_memory:
        row["gpu_peak_gib"] = (free - _free()) / 2**30
    return row


def _free() -> int:
    """Bytes of the GPU that nobody has taken."""
    cupy().get_default_memory_pool().free_all_blocks()
    return int(cupy().cuda.Device().mem_info[0])
