"""Calibration by several GPUs of one kind: each measures a part of the primitives."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import IO

from znni.calibration.conditions import Conditions
from znni.core.child_process import command_of, start_with
from znni.core.errors import InvalidInput, RunFailed, option
from znni.core.text import counted
from znni.machine.gpus_option import numbers_of, seeing_only
from znni.machine.machine import Machine

LOOK_SECONDS = 1.0  # from one look at the measurements to the next


def alike_gpus(machine: Machine, gpus: int | str) -> list[int]:
    """Return the positions of the GPUs that share the measurements.

    Args:
        machine: this machine.
        gpus: the choice, as for runs.

    Raises:
        InvalidInput: it is no choice, there are fewer GPUs, or they are of different kinds.
    """
    there = len(machine.gpus)
    numbers = numbers_of(gpus, there)
    if numbers == [0]:
        return numbers
    if max(numbers) >= there:
        raise InvalidInput(
            f"{option('gpus', gpus)}: this machine has {counted(there, 'GPU')}, numbered from 0"
        )
    kinds = {Conditions.of(machine.gpus[number]) for number in numbers}
    if len(kinds) > 1:
        raise InvalidInput(
            f"{option('gpus', gpus)}: times hold for one kind of GPU, and these are of "
            f"{len(kinds)} kinds; choose GPUs that are alike"
        )
    return numbers


def measure_on_gpus(
    numbers: Sequence[int], names: Sequence[str], look: Callable[[], None], *, quick: bool
) -> None:
    """Have a process on each GPU measure its part of the primitives, and wait for all.

    Args:
        numbers: the positions of the GPUs.
        names: the names of the primitives.
        look: function that is called again and again meanwhile.
        quick: measure for at most a minute.

    Raises:
        RunFailed: a process fails. The others are ended.
    """
    command = ["calibrate", "--device", "gpu", *["--quick"] * quick]
    with ExitStack() as stack:
        running: list[tuple[int, subprocess.Popen[bytes], IO[bytes]]] = []
        for place, number in enumerate(numbers):
            only = [part for name in names[place :: len(numbers)] for part in ("--only", name)]
            if only:
                said: IO[bytes] = stack.enter_context(TemporaryFile())
                process = start_with(
                    [], command_of("znni", *command, *only), seeing_only(number), output=said
                )
                stack.callback(_end, process)
                running.append((number, process, said))
        for number, process, output in running:
            while (code := _code(process)) is None:
                look()
            if code:
                output.seek(0)
                lines = output.read().decode(errors="replace").splitlines() or ["it said nothing"]
                raise RunFailed(
                    f"measuring on GPU {number} failed (exit code {code}): "
                    f"{lines[-1].removeprefix('znni: error: ')}"
                )
        look()


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a process; None if it has not ended after a while."""
    try:
        return process.wait(LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
