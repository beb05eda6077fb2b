"""The machine to plan for: this one, or one that is given, within limits."""

from __future__ import annotations

from pathlib import Path

from znni.core.options import DeviceChoice
from znni.machine.detect import detect_for
from znni.machine.machine import Machine, limited


def machine_for(
    given: Machine | str | Path | None,
    ram: int | str | None,
    threads: int | None,
    gpu_memory: int | str | None = None,
    device: DeviceChoice = "auto",
) -> Machine:
    """Return the machine to plan for, within limits.

    Args:
        given: a machine, or the path of a machine file; by default this machine.
        ram: bytes of host memory that a plan may use, as a number or as ``8GiB``. The default is
            the machine's memory less a margin.
        threads: number of worker threads; by default one for every core.
        gpu_memory: bytes of each GPU's memory, as for ``ram``.
        device: where the layers run; for ``cpu`` this machine's GPUs are not touched.

    Raises:
        InvalidInput: the file is not a machine's, or a limit is not a size or not positive.
    """
    if given is None:
        return detect_for(device, ram, threads, gpu_memory)
    if isinstance(given, Machine):
        return limited(given, ram, threads, gpu_memory)
    from znni.machine.machine_file import load_machine  # few plans need it

    return limited(load_machine(given), ram, threads, gpu_memory)
