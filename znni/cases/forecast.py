"""The size, the memory and the time of a case, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from znni.cases.case import look_at_case
from znni.cases.case_folder import Case, check_output, check_scan
from znni.cases.memory import CaseMemory, checked_room, search_for
from znni.cases.networks import (
    NetworkSet,
    alone,
    beside_weights,
    bytes_kept,
    counting,
    leaving,
    noting_weights,
)
from znni.cases.on_cluster import CaseCluster, cluster_for, without_devices
from znni.cases.preparation import Preparation, preparation_of_all, running, stored_values
from znni.cases.previous_stage import PreviousNetwork
from znni.cases.scan import Scan
from znni.components.rules import KeepLargest
from znni.core.resampling import Resampling
from znni.core.run_options import Options
from znni.core.shapes import Vec3
from znni.core.text import aligned, in_units
from znni.inference.dry_run import Prediction
from znni.inference.planning import as_here, fastest
from znni.network.input_scaling import InputScaling
from znni.network.network import Network
from znni.plans.band import NOT_CALIBRATED, Limits, sum_of_limits, with_limits
from znni.plans.plan import Plan

if TYPE_CHECKING:
    from znni.cluster.forecast import Forecast

PREVIOUS = "previous stage"  # the step of a cascade's earlier network

# Seconds of a core of 14 GB/s, as measured. To unpack a byte of a compressed scan:
UNPACKED = 11e-9
# To look for the crop, to compute statistics of it too, or of a mask, for a value of the scan:
CROPPED, COUNTED, MASKED = 5e-9, 13e-9, 26e-9
# To resample by splines of order 3, linearly, or not at all, for a value before or after that:
SPLINE, LINEAR, COPIED = 16e-9, 6e-9, 4e-9
# To find components of labels, and to compress and write them, for a voxel of the scan:
JOINED, WRITTEN = 8e-9, 6e-9
# To find labels and sums for probabilities, and to compute and deflate these, for a value:
SUMMED, DEFLATED = 10e-9, 200e-9


@dataclass(frozen=True)
class CaseForecast:
    """The size, the memory and the time of a case. A scan that is cropped takes less.

    Attributes:
        scan: the extents of the scan.
        input: the extents of the network's input; of several networks, the largest.
        plans: the plan of each network, if this machine computes them.
        allowed: the bytes that the process may take.
        memory: the peak bytes of the process in each step.
        seconds: the seconds of each step.
        between: the seconds between which each step ends nine times of ten.
        on_cluster: the run of each network, if a cluster computes them.
    """

    scan: Vec3
    input: Vec3
    plans: tuple[Plan, ...]
    allowed: int
    memory: dict[str, int]
    seconds: dict[str, float]
    between: dict[str, Limits]
    on_cluster: tuple[Forecast, ...] = ()

    @property
    def prediction(self) -> Prediction:
        """The time and the memory of the case, if it is one of many."""
        seconds = sum(self.seconds.values())
        computing = tuple((plan, plan.patches) for plan in self.plans)
        beside = seconds - sum(plan.seconds for plan in self.plans)
        return Prediction(seconds, max(self.memory.values()), computing, beside)

    def __str__(self) -> str:
        """Return a table of the steps, without the plans."""
        steps = [
            (name, in_units(taken), with_limits(self.seconds[name], self.between[name]))
            for name, taken in self.memory.items()
        ]
        taken, all_between = self.prediction, sum_of_limits(self.between.values())
        steps.append(("all", in_units(taken.memory), with_limits(taken.seconds, all_between)))
        return "\n".join(
            [
                f"the scan has {self.scan} voxels, and the network's input at most {self.input}",
                *aligned([("step", "memory", "time"), *steps], left=1),
                f"memory is at most this, and nine times of ten, time is between the numbers in "
                f"brackets; {in_units(self.allowed)} allowed",
            ]
        )


def forecast(
    case: Case,
    networks: Network | NetworkSet,
    options: Options = Options(),
    removing: Sequence[KeepLargest] = (),
    cluster: str | Path | None = None,
    *,
    followed: bool = False,
) -> CaseForecast:
    """Predict the size, the memory and the time of a case from the headers of its files.

    What would stop the run before it computes is an error here too. So compressed files are
    decompressed once, and nothing of that is kept.

    Args:
        networks: the networks, whose files describe whole cases.
        options: what plans may use.
        removing: the rules by which components are removed, beside those of the networks.
        cluster: the file of a cluster that computes the networks, or ``local:N``; None: this
            machine does.
        followed: whether another case begins before this one has ended.

    Raises:
        InvalidInput: the scan, the cluster, a network or an option cannot be used.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
    """
    asked = alone(networks) if isinstance(networks, Network) else networks
    check_output(case, asked)
    scan = look_at_case(case, asked)
    check_scan(case)
    given = options
    options, machines = cluster_for(cluster, options, case.out, asked, case.earlier)
    limits, others = beside_weights(options.limits, asked, case.earlier)
    prepared = [preparation_of_all(scan, network) for network in asked.networks]
    saved = case.probabilities is not None
    searches = [search_for(each, limits, probabilities=saved) for each in prepared]
    searches = [replace(it, overhead=replace(it.overhead, followed=followed)) for it in searches]
    runs: tuple[Forecast, ...] = ()
    if machines:
        runs = tuple(_run_on(machines, each, probabilities=saved) for each in prepared)
    rules = [*asked.largest, *removing]
    with counting(machines.idle_here if machines else 0):
        room = checked_room(
            case, asked, options.limits, scan, prepared, searches, rules,
            here=not cluster, whole=True,
        )  # fmt: skip
        with noting_weights(others):
            plans = () if cluster else tuple(as_here(fastest(search)[0]) for search in searches)
    taken = {name: room.process + each for name, each in room.steps._asdict().items() if each}
    taken["network"] = max((plan.memory.total for plan in plans), default=room.process)
    memory = {name: each + others for name, each in taken.items()}
    order = (PREVIOUS, "reading", "resampling", "network", "labels", "components", "writing")
    distinct = [prepared[group[0]] for group in asked.groups]
    seconds = _seconds(scan, distinct, room)
    slowdown = max((plan.slowdown for plan in plans), default=1.0)
    rough = NOT_CALIBRATED._replace(slowdown=slowdown)
    computing = [(plan.seconds, plan.band or rough) for plan in plans]
    computing += [(run.seconds, rough) for run in runs]
    seconds["network"] = sum(each for each, _ in computing)
    if saved:
        values = scan.volume.size.volume * asked.networks[0].out_features
        seconds["labels"] = values * SUMMED
        seconds["writing"] += values * DEFLATED
    between = {name: rough.limits(each) for name, each in seconds.items()}
    between["network"] = sum_of_limits(band.limits(each) for each, band in computing)
    if isinstance(stage := case.previous, PreviousNetwork):
        kept = sum(map(bytes_kept, asked.networks))
        ram = leaving((without_devices(given) if machines else given).limits, kept).ram
        rest = replace(given, limits=replace(given.limits, ram=ram))
        with noting_weights(kept):
            found = forecast(case.before(stage), stage.network, rest, cluster=cluster)
        memory[PREVIOUS] = kept + max(found.memory.values())
        seconds[PREVIOUS] = sum(found.seconds.values())
        between[PREVIOUS] = sum_of_limits(found.between.values())
    return CaseForecast(
        scan.volume.size,
        max((each.image.target for each in prepared), key=lambda size: size.volume),
        plans,
        room.allowed + others * (limits.ram is not None),
        {name: memory[name] for name in order if name in memory},
        {name: seconds[name] for name in order if name in memory},
        {name: between[name] for name in order if name in memory},
        runs,
    )


def _run_on(machines: CaseCluster, prepared: Preparation, *, probabilities: bool) -> Forecast:
    """Predict the run of a network on a cluster."""
    from znni.cluster import forecast as of_cluster

    values = stored_values(prepared.network, probabilities=probabilities)
    return of_cluster.forecast(
        running(prepared), prepared.image.target, machines.cluster,
        values=values, choices=machines.limits,
    )  # fmt: skip


def _seconds(scan: Scan, distinct: Sequence[Preparation], room: CaseMemory) -> dict[str, float]:
    """Return the seconds of all steps but the network."""
    voxels, maps = scan.volume.size.volume, scan.volume.features
    packed = scan.volume.pieces is None  # then it is unpacked first, once
    looked = sum(_looked(each.network.scaling) for each in distinct)
    return {
        "reading": voxels * maps * (packed * scan.volume.itemsize * UNPACKED + looked),
        "resampling": maps * sum(_resampled(each.image) for each in distinct) / room.threads,
        "components": voxels * JOINED,
        "writing": voxels * WRITTEN,
    }


def _looked(scaling: InputScaling) -> float:
    """Return the seconds for a value of the scan to find its crop, mask and statistics."""
    if scaling.is_fixed:
        return 0.0
    if scaling.within == "nonzero":
        return MASKED
    return CROPPED if scaling.has_numbers else COUNTED


def _resampled(change: Resampling) -> float:
    """Return the seconds of a core for one map."""
    resampled = SPLINE if 3 in change.orders else LINEAR
    values = max(change.target.volume, change.source.volume)
    return values * (resampled if change.changes else COPIED)
