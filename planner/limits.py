"""The memory and time of a run, and the error for a plan that exceeds its limits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from planner.overhead import Load, Overhead
from znni.core.memory_errors import DoesNotFit
from znni.core.processors import GPU, HOST, DeviceKind
from znni.core.shapes import Vec3
from znni.network.network import Network
from znni.plans.device_partition import DevicePart, bytes_of
from znni.plans.plan import Plan
from znni.plans.stage import Setting
from znni.plans.totals import PlanMemory, PlanTime


def memory_of_run(
    network: Network, patch: Vec3, parts: Iterable[DevicePart], overhead: Overhead
) -> tuple[PlanMemory, PlanMemory | None]:
    """Return the peak bytes on the host and on the GPU.

    The GPU's bytes are None if no layer runs there and no layer of the host uses it.

    Args:
        network: the network to run.
        patch: the output voxels of a patch.
        parts: the layers on each device.
        overhead: the memory of the run beside its layers.
    """
    by_device = {part.device: part for part in parts}
    on_host, on_gpu = by_device.get(HOST), by_device.get(GPU)
    run = _setting(network, by_device.values(), overhead)
    each = overhead.counts(
        network,
        patch,
        first_input=on_gpu.first_input.elements if on_gpu else 0,
        handed=on_host.output_shape.nbytes if on_host and on_host.hands_on else 0,
    )
    host = _with_layers(overhead.of_host(run, each), by_device, HOST)
    if not run.uses_gpu:
        return host, None
    gpu = overhead.of_gpu(run, each, host.working if run.host_uses_gpu else 0)
    return host, _with_layers(gpu, by_device, GPU)


def time_of_run(
    network: Network, patch: Vec3, parts: Collection[DevicePart], overhead: Overhead
) -> PlanTime:
    """Return the predicted time of a run by purpose.

    Args:
        network: the network to run.
        patch: the output voxels of a patch.
        parts: the layers on each device.
        overhead: the time of the run beside its layers.
    """
    loads: dict[DeviceKind, Load] = {}
    brought = 0
    for part in parts:
        working, _ = part.working_peak()
        loads[part.device] = Load(part.seconds, part.resident, working)
        brought = part.input_shape.nbytes if part.has_own_memory else 0
    handed = brought if HOST in loads else 0
    each = overhead.counts(network, patch, handed=handed, brought=brought)
    each = each._replace(kept=float(sum(part.kept_bytes for part in parts)))
    run = _setting(network, parts, overhead)
    return replace(overhead.time_of_run(run, each, loads), beside=overhead.beside(run, each))


def _setting(network: Network, parts: Collection[DevicePart], overhead: Overhead) -> Setting:
    devices = {part.device for part in parts}
    host_uses_gpu = any(part.uses_gpu for part in parts)
    return overhead.setting(network, devices, host_uses_gpu=host_uses_gpu)


def _with_layers(
    beside: PlanMemory, parts: Mapping[DeviceKind, DevicePart], device: DeviceKind
) -> PlanMemory:
    resident, working = bytes_of(parts.values(), device)
    return replace(beside, resident=resident, working=working)


def does_not_fit(smallest: Plan, overhead: Overhead) -> DoesNotFit:
    """Return the error that tells how much memory the smallest patch takes, and on which device.

    Args:
        smallest: the plan for it.
        overhead: the memory of the run beside its layers.
    """
    memory, device = next(
        (memory, device)
        for memory, device in smallest.limits.values()
        if memory.total > device.memory
    )
    part = smallest.part(device.kind) or smallest.parts[0]
    _, step = part.working_peak()
    on_host = not device.has_own_memory
    processes = 1 + _setting(smallest.network, smallest.parts, overhead).workers
    return DoesNotFit(
        needed=memory.total,
        allowed=device.memory,
        device=device.kind,
        layer=step.operation.name,
        patch=smallest.patch,
        process=memory.process if on_host else 0,
        gpu_libraries=overhead.cuda * processes if on_host else 0,
        along=smallest.network.swept_along or "",
    )
