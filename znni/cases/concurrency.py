"""The numbers of cases that are prepared and written at the same time, and the memory for that.

The networks of cases run in turn: ``inference/turns.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from znni.core.plan_options import Choices
from znni.core.run_options import Options
from znni.inference.exporting import LABELS_ROOM
from znni.inference.plan_choice import machine_here

CORES_OF_ONE = 4  # that are busy while a case is prepared or written, about
SHARE = 8  # writing may take this part of the allowed memory: one eighth


class Concurrency(NamedTuple):
    """The most cases that are worked on at the same time."""

    preparing: int
    writing: int


THREE_EACH = Concurrency(3, 3)  # as nnU-Net has it


def concurrency(limits: Choices, most: Concurrency) -> Concurrency:
    """Return how many cases are worked on at the same time, by cores and memory.

    Each case that is prepared also waits for memory. So this number only bounds it.
    """
    preparing, writing = by_cores(limits, most)
    by_memory = machine_here(limits).host.memory // SHARE // LABELS_ROOM
    return Concurrency(preparing, max(1, min(writing, by_memory)))


def by_cores(limits: Choices, most: Concurrency) -> Concurrency:
    """Return how many cases are worked on at the same time if there is memory for all."""
    cores = machine_here(limits).host.threads // CORES_OF_ONE
    return Concurrency(max(1, min(most.preparing, cores)), max(1, min(most.writing, cores)))


def computed_at_once(limits: Choices) -> int:
    """Return how many cases are in their networks at the same time: two if there is a GPU.

    The GPU then computes one while the other begins or ends. A processor has nothing to wait for.
    """
    return 2 if machine_here(limits).gpus else 1


def beside_writing(options: Options, cases: int) -> Options:
    """Return options that leave memory to write the labels of some cases.

    If the user gives no limit, znni leaves enough of the available memory anyway.
    """
    limits = options.limits
    if limits.ram is None:
        return options
    left = machine_here(limits).host.memory - cases * LABELS_ROOM
    return replace(options, limits=replace(limits, ram=max(left, LABELS_ROOM)))


def with_limit(options: Options) -> Options:
    """Return options with a limit of the host's memory: by default what is there now.

    If it were looked up while a case runs, it would not contain this process's own memory.
    """
    limits = options.limits
    if limits.ram is not None:
        return options
    return replace(options, limits=replace(limits, ram=machine_here(limits).host.memory))
