"""The memory of plans on each device, and whether it is within the limits of a machine."""

from __future__ import annotations

from dataclasses import replace

from planner.overhead import Overhead
from znni.errors import DoesNotFit
from znni.machine import Device, Machine
from znni.network import Network
from znni.plan_memory import PlanMemory
from znni.plans import Plan, working_peak
from znni.shapes import Vec3


def memory_of_run(
    network: Network, patch: Vec3, device: Device, overhead: Overhead, resident: int, working: int
) -> tuple[PlanMemory, PlanMemory | None]:
    """Peak bytes on the host, and on the GPU if the layers run there.

    Args:
        network: what is run.
        patch: output voxels.
        device: where the layers run.
        overhead: what the run takes beside them.
        resident: bytes that primitives keep between patches.
        working: bytes of the layers' arrays and workspace at their highest.
    """
    on_host = overhead.of_run(network, patch, device.kind)
    if device.kind == "cpu":
        return replace(on_host, resident=resident, working=working), None
    on_gpu = overhead.of_gpu(network, patch)
    return on_host, replace(on_gpu, resident=resident, working=working)


def allowed_to_layers(
    network: Network, patch: Vec3, machine: Machine, device: Device, overhead: Overhead
) -> int:
    """Bytes left for what the layers hold; none where the rest does not fit into the host."""
    on_host, on_gpu = memory_of_run(network, patch, device, overhead, resident=0, working=0)
    left = machine.host.memory - on_host.total
    if on_gpu is None:
        return left
    return device.memory - on_gpu.total if left >= 0 else 0


def fits(plan: Plan) -> bool:
    """Whether a plan is within the limits of its machine."""
    on_host = plan.memory.total <= plan.machine.host.memory
    return on_host and plan.device_memory.total <= plan.device.memory


def does_not_fit(smallest: Plan) -> DoesNotFit:
    """The error that says how much the smallest patch would take, and where."""
    _, step = working_peak(smallest.segments, smallest.input_shape)
    on_host = smallest.memory.total > smallest.machine.host.memory
    device = smallest.machine.host if on_host else smallest.device
    return DoesNotFit(
        needed=(smallest.memory if on_host else smallest.device_memory).total,
        allowed=device.memory,
        device=device.kind,
        layer=step.operation.name,
        patch=smallest.patch,
    )
