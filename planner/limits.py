"""What plans take, in memory on each device, and in time; and what is beyond the limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planner.overhead import Load, Overhead
from znni.errors import DoesNotFit
from znni.machine import DeviceKind, Processors
from znni.network import Network
from znni.plan_memory import PlanMemory
from znni.plan_time import PlanTime
from znni.plans import Plan
from znni.shapes import Vec3
from znni.sides import Side


def memory_of_run(
    network: Network, patch: Vec3, sides: Iterable[Side], overhead: Overhead
) -> tuple[PlanMemory, PlanMemory | None]:
    """Peak bytes on the host, and on the GPU if layers run there.

    Args:
        network: what is run.
        patch: output voxels.
        sides: its layers.
        overhead: what the run takes beside them.
    """
    by_device = {side.device: side for side in sides}
    on_host, on_gpu = by_device.get("cpu"), by_device.get("gpu")
    handed = on_host.output_shape.nbytes if on_host and on_host.hands_on else 0
    uses: Processors = "gpu" if not on_host else "cpu+gpu" if on_gpu else "cpu"
    host = overhead.of_host(network, patch, uses, handed)
    gpu = overhead.of_gpu(network, patch, on_gpu.first_input) if on_gpu else None
    return (
        _with_layers(host, on_host) if on_host else host,
        _with_layers(gpu, on_gpu) if gpu and on_gpu else None,
    )


def time_of_run(
    network: Network, patch: Vec3, sides: Iterable[Side], overhead: Overhead
) -> PlanTime:
    """How long a run takes, and what for.

    Args:
        network: what is run.
        patch: output voxels.
        sides: its layers.
        overhead: what the run takes beside them.
    """
    loads: dict[DeviceKind, Load] = {}
    brought = 0
    for side in sides:
        working, _ = side.working_peak()
        loads[side.device] = Load(side.seconds, side.resident, working)
        brought = side.input_shape.nbytes if side.device == "gpu" else 0
    return overhead.time_of_run(network, patch, loads, brought)


def _with_layers(beside: PlanMemory, side: Side) -> PlanMemory:
    working, _ = side.working_peak()
    return replace(beside, resident=side.resident, working=working)


def does_not_fit(smallest: Plan) -> DoesNotFit:
    """The error that says how much the smallest patch would take, and where."""
    memory, device = next(
        (memory, device)
        for memory, device in smallest.limits.values()
        if memory.total > device.memory
    )
    side = smallest.side(device.kind) or smallest.sides[0]
    _, step = side.working_peak()
    return DoesNotFit(
        needed=memory.total,
        allowed=device.memory,
        device=device.kind,
        layer=step.operation.name,
        patch=smallest.patch,
    )
