"""The GPUs that compute: those that the option ``gpus`` chooses among the machine's."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache

from znni.core.errors import InvalidInput, option
from znni.core.plan_options import Choices
from znni.core.processors import FASTEST, GPU, HOST, may_use_gpu
from znni.core.text import counted
from znni.engine.backends.registry import backend_of
from znni.machine.gpus import missing_for_gpu, why_no_gpu
from znni.machine.gpus_option import ALL, numbers_of
from znni.machine.machine import Machine

log = logging.getLogger("znni")

# Memory that CUDA takes for a process on a GPU, measured on an H200, with a margin. The process
# that looked at the GPUs already has its own share; every worker process takes another.
CONTEXT_BYTES = 640 * 2**20

CPU = option("device", HOST)
LEAVE_OUT = "without a GPU, leave it out"


def choose_gpus(machine: Machine, choices: Choices) -> Machine:
    """Return the machine with the chosen GPUs first.

    If several GPUs are chosen, each gets as much memory as the smallest of them has.

    Raises:
        InvalidInput: the machine has fewer GPUs. Or several GPUs are chosen and layers must run on
            the host too. Or a memory limit is given for a GPU that is not used.
    """
    if not may_use_gpu(choices.device) and choices.gpu_memory is not None:
        raise InvalidInput(
            f"{option('gpu_memory', choices.gpu_memory)} limits a GPU, and no layer runs on one "
            f"with {CPU}; leave one of them out"
        )
    there = len(machine.gpus)
    if choices.device == FASTEST and not there and not machine.absent:
        _warn_of_gpu_libraries_in_vain()
    if choices.gpu_memory is not None and not there:
        raise InvalidInput(
            f"{option('gpu_memory', choices.gpu_memory)} limits a GPU, and {why_none(machine)}; "
            f"{LEAVE_OUT}"
        )
    numbers = numbers_of(choices.gpus, there)
    if numbers == [0] and (there or choices.gpus != ALL):
        return machine
    if len(numbers) > 1 and choices.device not in (FASTEST, GPU):
        raise InvalidInput(
            f"{counted(len(numbers), 'GPU')} compute all layers, and "
            f"{option('device', choices.device)} has some on the host; give {option('gpus', 1)}, "
            f"or {option('device', GPU)}"
        )
    if not there:
        raise InvalidInput(f"{option('gpus', choices.gpus)}: {why_none(machine)}; {LEAVE_OUT}")
    if max(numbers) >= there:
        raise InvalidInput(
            f"{option('gpus', choices.gpus)}: there {'is' if there == 1 else 'are'} "
            f"{counted(there, 'GPU')}, numbered from 0; give {option('gpus', ALL)} for all"
        )
    gpus = [replace(gpu, number=number) for number, gpu in enumerate(machine.gpus)]
    chosen = [gpus[number] for number in numbers]
    if len(chosen) > 1:
        if unable := [gpu.name for gpu in chosen if not backend_of(gpu).several]:
            raise InvalidInput(
                f"{option('gpus', choices.gpus)}: {unable[0]} computes alone; give "
                f"{option('gpus', 1)}"
            )
        taken = 0 if choices.gpu_memory else CONTEXT_BYTES
        least = max(1, min(gpu.memory for gpu in chosen) - taken)
        chosen = [replace(gpu, memory=least) for gpu in chosen]
    others = [gpu for gpu in gpus if gpu.number not in numbers]
    return replace(machine, gpus=(*chosen, *others), used_gpus=len(chosen))


@cache
def _warn_of_gpu_libraries_in_vain() -> None:
    """Warn, once in a process, if the processors compute because libraries for GPUs do not work."""
    missing = missing_for_gpu()
    if missing.in_vain:
        log.warning("no GPU is used: %s", missing.what)


def why_none(machine: Machine) -> str:
    """Return the reason why a machine has no GPU."""
    if machine.absent:
        return "the machine described has no GPU"
    return why_no_gpu() or "the machine given has no GPU"
