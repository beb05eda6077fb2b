"""The size, the memory and the time of a case, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from znni.cases.case import BEFORE, Case, check_output
from znni.cases.memory import Room, room_for, search_for
from znni.cases.preparation import Preparation, preparation_of_all, rules_of, unit_of
from znni.cases.previous_stage import PreviousNetwork
from znni.cases.scan import Scan, look_at_scan
from znni.components.rules import Rule
from znni.core.run_options import Options
from znni.core.shapes import Vec3
from znni.core.text import aligned, duration, in_units
from znni.inference.planning import as_here, fastest
from znni.network.network import Network
from znni.plans.plan import Plan

PREVIOUS = "previous stage"  # the step of a cascade's earlier network

# Seconds of a core of 14 GB/s, as measured. To unpack a byte of a compressed scan:
UNPACKED = 11e-9
# To look for the crop, to compute statistics of it too, or of a mask, for a value of the scan:
CROPPED, COUNTED, MASKED = 5e-9, 13e-9, 26e-9
# To resample by splines of order 3, linearly, or not at all, for a value before or after that:
SPLINE, LINEAR, COPIED = 16e-9, 6e-9, 4e-9
# To find components of labels, and to compress and write them, for a voxel of the scan:
JOINED, WRITTEN = 8e-9, 6e-9


@dataclass(frozen=True)
class CaseForecast:
    """The size, the memory and the time of a case. A scan that is cropped takes less.

    Attributes:
        scan: the extents of the scan.
        input: the extents of the network's input.
        plan: the plan of the network.
        allowed: the bytes that the process may take.
        memory: the peak bytes of the process in each step.
        seconds: the seconds of each step.
    """

    scan: Vec3
    input: Vec3
    plan: Plan
    allowed: int
    memory: dict[str, int]
    seconds: dict[str, float]

    def __str__(self) -> str:
        """Return a table of the steps, without the plan."""
        steps = [
            (name, in_units(taken), duration(self.seconds[name]))
            for name, taken in self.memory.items()
        ]
        most, all_seconds = max(self.memory.values()), sum(self.seconds.values())
        steps.append(("all", in_units(most), duration(all_seconds)))
        return "\n".join(
            [
                f"the scan has {self.scan} voxels, and the network's input at most {self.input}",
                *aligned([("step", "memory", "time"), *steps], left=1),
                f"memory and time are at most these; {in_units(self.allowed)} are allowed",
            ]
        )


def forecast(
    case: Case, network: Network, options: Options = Options(), removing: Sequence[Rule] = ()
) -> CaseForecast:
    """Predict the size, the memory and the time of a case from the headers of its files.

    Args:
        case: the case.
        network: the network, whose file describes whole cases.
        options: what plans may use.
        removing: the rules by which components are removed.

    Raises:
        InvalidInput: the scan, the network or an option cannot be used.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
    """
    check_output(case)
    scan = look_at_scan(case.files, rules_of(network), unit_of(network))
    prepared = preparation_of_all(scan, network)
    search = search_for(prepared, options.limits)
    plan = as_here(fastest(search)[0])
    room = room_for(scan, prepared, search, removing)
    memory = {name: room.process + taken for name, taken in room.steps._asdict().items() if taken}
    order = (PREVIOUS, "reading", "resampling", "network", "components", "writing")
    memory["network"] = plan.memory.total
    seconds = _seconds(scan, prepared, room) | {"network": plan.seconds}
    if isinstance(stage := case.previous, PreviousNetwork):
        earlier = forecast(
            Case(case.files, case.folder / BEFORE, stage.previous), stage.network, options
        )
        memory[PREVIOUS] = max(earlier.memory.values())
        seconds[PREVIOUS] = sum(earlier.seconds.values())
    return CaseForecast(
        scan.volume.size,
        prepared.image.target,
        plan,
        room.allowed,
        {name: memory[name] for name in order if name in memory},
        {name: seconds[name] for name in order if name in memory},
    )


def _seconds(scan: Scan, prepared: Preparation, room: Room) -> dict[str, float]:
    """Return the seconds of all steps but the network."""
    voxels, maps = scan.volume.size.volume, scan.volume.features
    scaling, change = prepared.network.scaling, prepared.image
    packed = scan.volume.pieces is None  # then it cannot be read in parts
    looked = CROPPED if scaling.has_numbers else COUNTED
    if scaling.is_fixed:
        looked = 0.0
    elif scaling.within == "nonzero":
        looked = MASKED
    resampled = SPLINE if 3 in change.orders else LINEAR
    values = maps * max(change.target.volume, change.source.volume)
    return {
        "reading": voxels * maps * (packed * scan.volume.itemsize * UNPACKED + looked),
        "resampling": values * (resampled if change.changes else COPIED) / room.threads,
        "components": voxels * JOINED,
        "writing": voxels * WRITTEN,
    }
