"""Description of a machine: its processors, its GPUs, and the primitives that each GPU has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from znni.core.errors import option
from znni.core.text import counted, in_units
from znni.inference.gpu_choice import why_none
from znni.machine.machine import Device, Machine
from znni.machine.numa import memory_nodes
from znni.machine.nvrtc import why_no_compiler
from znni.primitives.catalogue import gpu_offers
from znni.primitives.installed import installed


def describe_machine(machine: Machine) -> str:
    """Return the figures of a machine, and why primitives of its GPUs are missing.

    Its memory is what a plan may use. GPUs with the same primitives are listed together.
    """
    host = machine.host
    lines = [
        f"processor     {host.name}, {host.threads} threads, {_rates(host)}",
        *_of_packages(host),
        *([] if machine.absent else _memory_nodes()),
    ]
    missing = why_no_compiler() if machine.gpus and not machine.absent else ""
    for primitives, alike in groupby(machine.gpus, lambda gpu: list(_primitives(gpu, missing))):
        lines += [*map(_gpu, alike), *primitives]
    if not machine.gpus:
        lines.append(f"GPU           none: {why_none(machine)}")
    return "\n".join(lines)


def _memory_nodes() -> Iterator[str]:
    """Yield the line on this machine's nodes of memory, if there are several."""
    nodes = memory_nodes()
    if len(nodes) > 1:
        each = ", ".join(
            f"{counted(len(it.cores), 'core')} with {in_units(it.memory)}" for it in nodes
        )
        yield f"memory nodes  {each}; {option('cluster', f'local:{len(nodes)}')} computes on each"


def _gpu(gpu: Device) -> str:
    capability = f"{gpu.capability / 10:.1f}" if gpu.capability else "unknown"
    return f"GPU           {gpu.name}, compute capability {capability}, {_rates(gpu)}"


def _primitives(gpu: Device, missing: str) -> Iterator[str]:
    """Yield the lines on a GPU's primitives.

    Args:
        missing: what all of them lack; nothing if they lack nothing.
    """
    if missing:
        yield f"  {'all primitives':<26}missing: {missing}"
        return
    for offer in gpu_offers(gpu):
        if offer.names:
            yield f"  {offer.family:<26}{', '.join(offer.names)}"
        else:
            yield f"  {offer.family:<26}missing: needs {offer.needs}"
    yield from _of_packages(gpu)


def _of_packages(device: Device) -> Iterator[str]:
    """Yield the lines on a device's primitives that installed packages bring."""
    for it in installed(device):
        if it.primitives:
            package = f"{it.offer.package} {it.offer.version}"
            yield f"  {it.offer.entry.name:<26}{', '.join(it.primitives)}, of package {package}"


def _rates(device: Device) -> str:
    return (
        f"{in_units(device.memory)} for a plan, {device.flops / 1e12:.1f} Tflop/s, "
        f"{device.bandwidth / 1e9:,.0f} GB/s"
    )
