"""The option ``gpus``: which GPUs it names, by position, before any GPU is inspected."""

from __future__ import annotations

import os
from collections.abc import Mapping

from znni.core.errors import InvalidInput, option
from znni.core.processors import FASTEST, GPU, DeviceChoice
from znni.machine.gpus import has_driver

ALL = "all"

# The most processes that start before the GPUs are inspected. A larger number may be a mistake.
MOST_UNSEEN = 16

VISIBLE = "CUDA_VISIBLE_DEVICES"


def numbers_of(gpus: int | str, there: int) -> list[int]:
    """Return the positions of the chosen GPUs among all GPUs of the machine.

    Args:
        gpus: the choice.
        there: the number of GPUs of the machine, if all are chosen.

    Raises:
        InvalidInput: it is no choice.
    """
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


def several_named(device: DeviceChoice, gpus: int | str) -> list[int]:
    """Return the positions of the chosen GPUs if several are named; nothing is looked at.

    Args:
        device: where the layers run.
        gpus: the choice.

    Raises:
        InvalidInput: it is no choice.
    """
    if device not in (FASTEST, GPU) or not has_driver():
        return []
    numbers = numbers_of(gpus, there=0)
    visible = os.environ.get(VISIBLE)
    if visible is not None and max(numbers) >= len(visible.split(",")):
        return []  # others may be at work on the GPUs that this process does not see
    return numbers if 1 < len(numbers) <= MOST_UNSEEN else []


def seeing_only(number: int) -> Mapping[str, str]:
    """Return the environment variables that let a process see one GPU only.

    Args:
        number: the position of the GPU among those that this process sees.
    """
    visible = os.environ.get(VISIBLE)
    others = visible.split(",") if visible else []
    return {VISIBLE: others[number] if number < len(others) else str(number)}
