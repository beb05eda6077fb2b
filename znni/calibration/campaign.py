"""Measuring the primitives of a catalogue, and keeping the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import TypeAlias, get_args

from znni.calibration.choice import measurements_of
from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.calibration.device_measure import DeviceWorkbench
from znni.calibration.effort import Effort, effort_for
from znni.calibration.measure import Workbench
from znni.calibration.model import Fitted, MeasuredModel
from znni.calibration.record import record
from znni.calibration.several_gpus import alike_gpus, measure_on_gpus
from znni.calibration.shapes import Call, designed_calls
from znni.core.errors import InvalidInput, option
from znni.core.option_types import Calibrated
from znni.core.processors import FASTEST, GPU, HOST, DeviceKind
from znni.core.text import in_units
from znni.machine.detect import detect_for
from znni.machine.gpus import why_no_gpu
from znni.machine.machine import Machine
from znni.plans.primitive import Catalogue, Primitive, on_device, without_gpu
from znni.primitives.catalogue import catalogue

Progress: TypeAlias = Callable[[int, int], None]


def calibrate_machine(
    threads: int | None,
    only: Sequence[str],
    progress: Progress,
    *,
    device: Calibrated = "all",
    gpus: int | str = 1,
    quick: bool,
    forget: bool,
) -> list[Fitted]:
    """Measure the primitives of this machine: of its host, of its GPU, or of both.

    Args:
        threads: worker threads of the host; by default all cores.
        only: names of primitives; none means all.
        progress: function called after each measurement with the number made and planned.
        device: device to measure; ``all`` is the host and, if there is one, a GPU.
        gpus: the GPUs that share the measurements, as for runs. They are of one kind.
        quick: measure for at most a minute per device.
        forget: first delete earlier measurements of these primitives.

    Returns:
        The accuracy of predictions for each primitive.

    Raises:
        InvalidInput: there is no such device, a name is none of its primitives, no call fits into
            memory, or the database cannot be used.
        RunFailed: the GPU fails.
    """
    machine = detect_for(HOST if device == HOST else FASTEST, threads=threads)
    # Clocks of other backends are not known.
    machine = replace(machine, gpus=tuple(it for it in machine.gpus if not it.backend))
    chosen, numbers = _chosen(machine, only, device), alike_gpus(machine, gpus)
    database = CostDatabase()
    if forget:
        for primitive in chosen.values():
            database.forget(Conditions.of(primitive.device), [primitive.name])
    by_device = [(kind, on_device(chosen, kind)) for kind in get_args(DeviceKind)]
    campaigns = {
        kind: Campaign(found.values(), effort_for(kind, quick=quick))
        for kind, found in by_device
        if found
    }
    shared = campaigns.pop(GPU, None) if len(numbers) > 1 else None
    calibrate(campaigns.values(), database, progress)
    if shared:
        conditions = Conditions.of(machine.gpus[numbers[0]])
        before = _times(database, conditions)

        def look() -> None:
            progress(_times(database, conditions) - before, shared.planned)

        measure_on_gpus(numbers, list(on_device(chosen, GPU)), look, quick=quick)
    if not (measured := list(measurements_of(chosen, database))):
        memory = max(primitive.device.memory for primitive in chosen.values())
        raise InvalidInput(
            f"no call of {', '.join(chosen)} is short enough and fits "
            f"{in_units(memory)}; free some memory, or calibrate at full length"
        )
    return list(MeasuredModel(measured, chosen).known())


def _times(database: CostDatabase, conditions: Conditions) -> int:
    """Return the number of measurements that were made under these conditions."""
    return sum(it.times for it in database.measured(conditions))


def _chosen(machine: Machine, only: Sequence[str], device: Calibrated) -> dict[str, Primitive]:
    """Return the primitives to measure, by name."""
    if device == GPU and not machine.gpus:
        raise InvalidInput(
            f"{option('device', 'gpu')}: {why_no_gpu()}; give {option('device', 'cpu')}"
        )
    everything = catalogue(machine)
    # Primitives that use a GPU from the host are predicted from the GPU's own ones and the link.
    known: Catalogue = {**without_gpu(everything), **on_device(everything, GPU)}
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
        primitives: primitives to measure.
        effort: limits of the measurements.
        allowed: bytes for measuring; by default all that plans for the device may use.

    Attributes:
        effort: limits of the measurements.
        rounds: the first call of every primitive, then the second of every one, and so on. So drift
            affects all primitives alike.
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
        """The number of planned measurements."""
        return sum(map(len, self.rounds))

    def run(self) -> Iterator[tuple[Primitive, Call, float]]:
        """Make the measurements until the time is up; yield each primitive, call and seconds.

        At least one call of each primitive is measured.

        Raises:
            RunFailed: a GPU fails.
        """
        calls = list(chain.from_iterable(self.rounds))
        if not calls:
            return
        on_gpu = calls[0][0].device.has_own_memory
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
        campaigns: campaigns, each for the primitives of one device.
        database: database that stores each measurement as soon as it is made.
        progress: function called after each measurement with the number made and planned. If a
            campaign runs out of time, the number planned drops.

    Raises:
        InvalidInput: the database cannot be written. Any exception carries a note of how many
            measurements were kept.
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
