"""The machine to plan for: this one, or one that is given, within limits."""

from __future__ import annotations

from pathlib import Path

from znni.core.errors import InvalidInput, option
from znni.core.processors import FASTEST, DeviceChoice
from znni.core.text import in_units
from znni.machine.detect import AVAILABLE_SHARE, detect_for
from znni.machine.machine import Device, Machine, limited


def machine_for(
    given: Machine | str | Path | None,
    ram: int | str | None,
    threads: int | None,
    gpu_memory: int | str | None = None,
    device: DeviceChoice = FASTEST,
) -> Machine:
    """Return the machine to plan for, within limits.

    Args:
        given: a machine, the path of a machine file, or the name of a machine that comes with
            znni; by default this machine.
        ram: bytes of host memory that a plan may use, as a number or as ``8GiB``. The default is
            the machine's memory less a margin.
        threads: number of worker threads; by default one for every core.
        gpu_memory: bytes of each GPU's memory, as for ``ram``.
        device: where the layers run; for ``cpu`` this machine's GPUs are not touched.

    Raises:
        InvalidInput: the file is not a machine's, or a limit is not a size, not positive or more
            than the file's machine has.
    """
    if given is None:
        return detect_for(device, ram, threads, gpu_memory)
    if isinstance(given, Machine):
        return limited(given, ram, threads, gpu_memory)
    from znni.machine.machine_file import load_machine  # few plans need it

    whole = load_machine(given)
    part = limited(whole, ram, threads, gpu_memory)
    _check_installed("ram", ram, part.host, whole.host, given)
    for allowed, gpu in zip(part.gpus, whole.gpus, strict=True):
        _check_installed("gpu_memory", gpu_memory, allowed, gpu, given)
    return part


def _check_installed(
    name: str, given: int | str | None, allowed: Device, whole: Device, path: str | Path
) -> None:
    """Check that a limit is no more than the memory that a machine file gives for a device.

    Raises:
        InvalidInput: it is more.
    """
    if allowed.memory > (installed := round(whole.memory / AVAILABLE_SHARE)):
        raise InvalidInput(
            f"{option(name, given)} is more than {whole.name} has by {path}, "
            f"{in_units(installed)}; give less, or another machine file"
        )
