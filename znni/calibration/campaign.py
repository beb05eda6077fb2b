"""Measuring the primitives of a catalogue, and keeping what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TypeAlias, get_args

from znni.calibration.choice import measurements_of
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.device_measure import DeviceWorkbench
from znni.calibration.measure import Workbench
from znni.calibration.model import Fitted, MeasuredModel
from znni.calibration.record import record
from znni.calibration.shapes import Call, Effort, designed_calls, effort_for
from znni.core.errors import InvalidInput, option
from znni.core.options import Calibrated
from znni.core.text import in_units
from znni.machine.detect import detect_for
from znni.machine.gpus import why_no_gpu
from znni.machine.machine import DeviceKind
from znni.plans.primitive import Primitive, on_device, without_gpu
from znni.primitives.catalogue import catalogue

Progress: TypeAlias = Callable[[int, int], None]


def calibrate_machine(
    threads: int | None,
    only: Sequence[str],
    progress: Progress,
    *,
    device: Calibrated = "all",
    quick: bool,
    forget: bool,
) -> list[Fitted]:
    """Measure the primitives of this machine: of its host, of its first GPU, or of both.

    Args:
        threads: worker threads of the host; by default all cores.
        only: names of primitives; none for all.
        progress: called after each measurement with how many are made, and planned.
        device: whose primitives; ``all`` are those of the host and, if there is one, of a GPU.
        quick: for a minute at most, on each.
        forget: first delete what was measured of them before.

    Returns:
        What is known of each of them then.

    Raises:
        InvalidInput: there is no such device, a name is none of its primitives, nothing fits the
            memory, or the database cannot be used.
        RunFailed: the GPU fails.
    """
    chosen = _chosen(threads, only, device)
    database = CostDatabase()
    if forget:
        for primitive in chosen.values():
            database.forget(Conditions.of(primitive.device), [primitive.name])
    by_device = [(kind, on_device(chosen, kind)) for kind in get_args(DeviceKind)]
    campaigns = [
        Campaign(found.values(), effort_for(kind, quick=quick))
        for kind, found in by_device
        if found
    ]
    calibrate(campaigns, database, progress)
    if not (measured := list(measurements_of(chosen, database))):
        memory = max(primitive.device.memory for primitive in chosen.values())
        raise InvalidInput(
            f"no call of {', '.join(chosen)} is short enough and fits "
            f"{in_units(memory)}; free some memory, or calibrate at full length"
        )
    return list(MeasuredModel(measured, chosen).known())


def _chosen(threads: int | None, only: Sequence[str], device: Calibrated) -> dict[str, Primitive]:
    """The primitives to be measured, by name."""
    machine = detect_for("cpu" if device == "cpu" else "auto", threads=threads)
    if device == "gpu" and not machine.gpus:
        raise InvalidInput(
            f"{option('device', 'gpu')}: {why_no_gpu()}; give {option('device', 'cpu')}"
        )
    everything = catalogue(machine)
    # What uses a GPU from the host is predicted from that GPU's own and the link.
    known = without_gpu(everything) | on_device(everything, "gpu")
    if device != "all":
        known = on_device(known, device)
    for name in only:
        if name not in known:
            raise InvalidInput(
                f"this machine has no primitive {name!r}; choose from {', '.join(sorted(known))}"
            )
    return {name: known[name] for name in only or known}


class Campaign:
    """Measurements of the primitives of one device, in the order in which they are made.

    Args:
        primitives: what to measure.
        effort: how much.
        allowed: bytes for measuring; by default all that the device's plans may use.

    Attributes:
        effort: how much.
        rounds: every primitive's first call, then every one's second, and so on, so that drift
            hits all alike.
    """

    def __init__(
        self, primitives: Iterable[Primitive], effort: Effort, allowed: int | None = None
    ) -> None:
        self.effort = effort
        designed = {
            primitive: designed_calls(primitive, effort, allowed or primitive.device.memory)
            for primitive in primitives
        }
        self.rounds = [
            [(p, call) for p, call in zip(designed, taken, strict=True) if call]
            for taken in zip_longest(*designed.values())
        ]

    @property
    def planned(self) -> int:
        """How many measurements there are."""
        return sum(map(len, self.rounds))

    def run(self) -> Iterator[tuple[Primitive, Call, float]]:
        """Make them, until the time is up: each call of a primitive, with its seconds.

        The time is up after one of each primitive at the earliest.

        Raises:
            RunFailed: a GPU fails.
        """
        calls = list(chain.from_iterable(self.rounds))
        if not calls:
            return
        on_gpu = calls[0][0].device.kind == "gpu"
        workbench = DeviceWorkbench(calls) if on_gpu else Workbench(calls)
        start = time.perf_counter()
        for number, measured in enumerate(self.rounds):
            for primitive, call in measured:
                if number and time.perf_counter() - start > self.effort.budget:
                    return
                yield (
                    primitive,
                    call,
                    workbench.measure(primitive, call, self.effort.repeats).median,
                )


def calibrate(campaigns: Iterable[Campaign], database: CostDatabase, progress: Progress) -> None:
    """Make all measurements, one campaign after the other.

    Args:
        campaigns: each of the primitives of one device.
        database: keeps each measurement as soon as it is made.
        progress: called after each with the measurements made, and those planned; at the end of a
            campaign whose time was up, with those that are still to come.

    Raises:
        InvalidInput: the database cannot be written. This and all else that ends it carries a note
            of what was kept.
        RunFailed: a GPU fails.
    """
    waiting = list(campaigns)
    done, planned = 0, sum(campaign.planned for campaign in waiting)
    try:
        for campaign in waiting:
            before = done
            for primitive, call, seconds in campaign.run():
                record([(primitive, call, seconds)], database)
                done += 1
                progress(done, planned)
            left_out = campaign.planned - (done - before)
            if left_out:
                planned -= left_out
                progress(done, planned)
    except BaseException as error:
        error.add_note(f"{done} of {planned} measurements are kept in {database.path}")
        raise
