"""Measuring the primitives of a catalogue, and keeping what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TypeAlias

from znni.calibration.choice import measurements_of
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.measure import Workbench
from znni.calibration.model import Fitted, MeasuredModel
from znni.calibration.record import record
from znni.calibration.shapes import FULL, QUICK, Call, Effort, designed_calls
from znni.errors import InvalidInput
from znni.machine import detect_host
from znni.primitive import Primitive, catalogue
from znni.units import in_units

Progress: TypeAlias = Callable[[int, int], None]


def calibrate_machine(
    threads: int | None, only: Sequence[str], progress: Progress, *, quick: bool, forget: bool
) -> list[Fitted]:
    """Measure the primitives of this machine's host.

    Args:
        threads: worker threads; by default all cores.
        only: names of primitives; none for all.
        progress: called after each measurement with how many are made, and planned.
        quick: for a minute at most.
        forget: first delete what was measured of them before.

    Returns:
        What is known of each of them then.

    Raises:
        InvalidInput: a name that is none of its primitives, nothing fits the memory, or the
            database cannot be used.
    """
    machine = detect_host(threads=threads)
    known = catalogue(machine)
    for name in only:
        if name not in known:
            raise InvalidInput(
                f"this machine has no primitive {name!r}; choose from {', '.join(sorted(known))}"
            )
    chosen = {name: known[name] for name in only or known}
    database = CostDatabase()
    if forget:
        for primitive in chosen.values():
            database.forget(Conditions.of(primitive.device), [primitive.name])
    calibrate(chosen.values(), QUICK if quick else FULL, machine.host.memory, database, progress)
    if not (measured := list(measurements_of(chosen, database))):
        raise InvalidInput(
            f"no call of {', '.join(chosen)} is short enough and fits "
            f"{in_units(machine.host.memory)}; free some memory, or calibrate at full length"
        )
    return list(MeasuredModel(measured, chosen).known())


def calibrate(
    primitives: Iterable[Primitive],
    effort: Effort,
    allowed: int,
    database: CostDatabase,
    progress: Progress,
) -> None:
    """Measure primitives one after the other, round by round, so that drift hits all alike.

    Args:
        primitives: what to measure.
        effort: how much.
        allowed: bytes for measuring.
        database: keeps each measurement as soon as it is made.
        progress: called after each with the measurements made, and those planned; at last with
            as many, where the time was up, which it is after one of each primitive at least.

    Raises:
        InvalidInput: the database cannot be written. This and all else that ends it carries a note
            of what was kept.
    """
    rounds = list(_rounds({p: designed_calls(p, effort, allowed) for p in primitives}))
    workbench = Workbench(list(chain.from_iterable(rounds)))
    planned = sum(map(len, rounds))
    start = time.perf_counter()
    done = 0
    try:
        for number, calls in enumerate(rounds):
            for primitive, call in calls:
                if number and time.perf_counter() - start > effort.budget:
                    progress(done, done)
                    return
                seconds = workbench.measure(primitive, call, effort.repeats).median
                record([(primitive, call, seconds)], database)
                done += 1
                progress(done, planned)
    except BaseException as error:
        error.add_note(f"{done} of {planned} measurements are kept in {database.path}")
        raise


def _rounds(calls: dict[Primitive, list[Call]]) -> Iterator[list[tuple[Primitive, Call]]]:
    """Every primitive's first call, then every one's second, and so on."""
    for taken in zip_longest(*calls.values()):
        yield [(p, call) for p, call in zip(calls, taken, strict=True) if call]
