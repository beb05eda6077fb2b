"""Which GPUs compute patches at the same time, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from znni.errors import InvalidInput, option
from znni.machine import Device, Machine
from znni.options import Choices
from znni.units import counted

ALL = "all"

# What CUDA takes of a GPU for a process that begins with it, measured on an H200, with room. The
# process that looked at the GPUs has its own by then, and each that computes takes another.
CONTEXT_BYTES = 640 * 2**20

VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose_gpus(machine: Machine, choices: Choices) -> Machine:
    """A machine whose first GPUs are those that were chosen.

    Where there are several, each has as much memory as the one that has the least.

    Raises:
        InvalidInput: there are not so many, layers are to run on the host, too, or a GPU that is
            not to be used has a limit.
    """
    if choices.device == "cpu" and choices.gpu_memory is not None:
        raise InvalidInput(
            f"{option('gpu_memory', choices.gpu_memory)} limits a GPU, and no layer is to run on "
            f"one: {option('device', 'cpu')}; leave one of them out"
        )
    there = len(machine.gpus)
    numbers = _numbers(choices.gpus, there)
    if numbers == [0] or (choices.gpus == ALL and not there):
        return machine
    if len(numbers) > 1 and choices.device not in ("auto", "gpu"):
        raise InvalidInput(
            f"{counted(len(numbers), 'GPU')} compute all layers, and "
            f"{option('device', choices.device)} has some on the host; give {option('gpus', 1)}, "
            f"or {option('device', 'gpu')}"
        )
    if not there:
        raise InvalidInput(
            f"{option('gpus', choices.gpus)}: there is no GPU that can be used; leave it out"
        )
    if max(numbers) >= there:
        raise InvalidInput(
            f"{option('gpus', choices.gpus)}: there {'is' if there == 1 else 'are'} "
            f"{counted(there, 'GPU')}, numbered from 0; give {option('gpus', ALL)} for all"
        )
    gpus = [replace(gpu, number=number) for number, gpu in enumerate(machine.gpus)]
    chosen = [gpus[number] for number in numbers]
    if len(chosen) > 1:
        taken = 0 if choices.gpu_memory else CONTEXT_BYTES
        least = max(1, min(gpu.memory for gpu in chosen) - taken)
        chosen = [replace(gpu, memory=least) for gpu in chosen]
    others = [gpu for gpu in gpus if gpu.number not in numbers]
    return replace(machine, gpus=(*chosen, *others), used_gpus=len(chosen))


def _numbers(gpus: int | str, there: int) -> list[int]:
    """The places of the GPUs chosen among those that there are."""
    given = str(gpus).strip()
    if given == ALL:
        return list(range(max(1, there)))
    parts = given.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InvalidInput(
            f"{option('gpus', gpus)}: give how many, {ALL}, or which, as {option('gpus', '0,2')}"
        )
    numbers = [int(part) for part in parts]
    if len(numbers) == 1:
        numbers = list(range(numbers[0]))
    if not numbers or len(set(numbers)) < len(numbers):
        raise InvalidInput(f"{option('gpus', gpus)}: give one GPU or more, and each of them once")
    return numbers


def seeing_only(gpu: Device) -> Mapping[str, str]:
    """The environment of a process that sees no other GPU."""
    visible = os.environ.get(VISIBLE)
    return {VISIBLE: visible.split(",")[gpu.number] if visible else str(gpu.number)}
