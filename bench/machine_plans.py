"""What is planned for a machine, on each of its devices, beside what ZNNi reached on its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.published import published
from bench.record import Row
from znni.core.errors import DoesNotFit
from znni.core.options import Costs
from znni.inference.planning import fastest, search
from znni.machine.machine import Machine, Processors
from znni.network.network import Network
from znni.primitives.catalogue import families

# The strategies of the paper.
STRATEGIES: dict[Processors, str] = {
    "cpu": "ZNNi CPU-only",
    "gpu": "ZNNi GPU-only",
    "cpu+gpu": "ZNNi CPU-GPU",
}


def plan_on(
    network: Network,
    size: int,
    machine: Path | None,
    device: Processors,
    costs: Costs,
    among: Sequence[str] = (),
) -> Row:
    """The fastest plan with the layers there: a row with the primitive of each layer.

    Args:
        network: to plan for.
        size: voxels per axis of the volume.
        machine: a machine's file; by default this one.
        device: where the layers run.
        costs: of the model that predicts times.
        among: families of the primitives to choose from; none for all.
    """
    started = search(network, (size,) * 3, machine=machine, device=device, costs=costs)
    if among:
        known = families(started.catalogue)
        started = started.among(set[str]().union(*(known.get(name, ()) for name in among)))
    row: Row = {
        "network": network.name,
        "processor": _name(started.machine, device),
        "primitives": " + ".join(among) or "all",
        "published_voxels_per_s": published(network.name, STRATEGIES[device]),
    }
    try:
        plan = fastest(started)[0]
    except DoesNotFit as error:
        return row | {"skipped": str(error)}
    return row | {
        "predicted_voxels_per_s": plan.voxels_per_second,
        "patch": str(plan.patch),
        "declared_gib": plan.device_memory.total / 2**30,
        "layers": ", ".join(f"{step.operation.name} {step.primitive}" for step in plan.steps),
    }


def _name(machine: Machine, device: Processors) -> str:
    gpu = [machine.gpus[0].name] if device != "cpu" else []
    return " + ".join([machine.host.name, *gpu] if device != "gpu" else gpu)
