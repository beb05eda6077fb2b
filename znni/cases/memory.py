"""The memory that the steps of a case take on the host.

All steps but the network work slab by slab: on whole planes, as many as the memory allows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from planner.limits import does_not_fit
from planner.search import Search
from znni.cases.input_file import preparing_bytes
from znni.cases.networks import NetworkSet, beside_weights, noting_weights
from znni.cases.preparation import (
    Preparation,
    preparation_of_all,
    running,
    scaling_bytes,
    stored_values,
    unit_of,
)
from znni.cases.scan import Scan, look_at_scan
from znni.cases.slabs import components_slab, mask_slab
from znni.components.rules import Rule
from znni.core.errors import StepDoesNotFit
from znni.core.options import Choices
from znni.core.resampling import Resampling
from znni.core.shapes import FLOAT_BYTES, Vec3
from znni.engine.statistics import statistics_bytes
from znni.inference.exporting import LABELS_ROOM
from znni.inference.planning import search
from znni.network.network import Network

# The least that is left of a scan that is cropped.
ONE_VOXEL = Resampling(Vec3(1, 1, 1), Vec3(1, 1, 1), (0, 0, 0))


@dataclass(frozen=True)
class Room:
    """The memory for a case.

    If there are several networks, it is that for the largest.

    Attributes:
        allowed: the bytes that the whole process may take, without the weights of other networks.
        process: the bytes of the process, its libraries and the weights, during any step.
        threads: the number of threads.
        steps: the bytes that each step but the network takes beside them.
    """

    allowed: int
    process: int
    threads: int
    steps: StepBytes

    @property
    def free(self) -> int:
        """The bytes for a step."""
        return self.allowed - self.process


# The memory for cases, by the forms of their scans.
KnownRooms: TypeAlias = dict[Hashable, Room]


class StepBytes(NamedTuple):
    """The bytes that steps take beside the process and the weights. 0: there is no such step.

    Attributes:
        reading: to find the box and the mask of voxels that are not 0, and to compute statistics.
        resampling: to normalize and resample the scan.
        components: to remove connected components.
        writing: to write the labels.
    """

    reading: int
    resampling: int
    components: int
    writing: int

    @property
    def preparing(self) -> int:
        """The bytes of the steps before the network."""
        return max(self.reading, self.resampling)


def room_of_files(
    files: Sequence[Path],
    networks: NetworkSet,
    limits: Choices,
    removing: Sequence[Rule] = (),
    known: KnownRooms | None = None,
) -> Room:
    """Return the memory for a case, from the headers of its files.

    Args:
        files: the files of the scan.
        networks: the networks, whose files describe whole cases.
        limits: the memory that is allowed, and what plans may use.
        removing: the rules by which components are removed, beside those of the networks.
        known: the memory for earlier cases of the same networks, limits and rules. It is taken for
            a scan of the same form, and receives that of others.

    Raises:
        InvalidInput: the scan, a network or an option cannot be used.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
    """
    known = {} if known is None else known
    scan = look_at_scan(files, networks.rules, unit_of(networks.networks[0]))
    limits, others = beside_weights(limits, networks)
    prepared = [preparation_of_all(scan, network) for network in networks.networks]
    volume = scan.volume
    form = *prepared, volume.features, volume.itemsize, volume.pieces
    if form in known:
        return known[form]
    with noting_weights(others):
        searches = [search_for(each, limits) for each in prepared]
        for each, found in zip(prepared, searches, strict=True):
            least = replace(each, image=ONE_VOXEL, output=ONE_VOXEL)
            crops = each.network.scaling.crops
            check_fits(search_for(least, limits) if crops else found)
        known[form] = room_for(scan, prepared, searches, [*networks.largest, *removing])
    return known[form]


def check_fits(found: Search) -> None:
    """Check that a plan of a case's network stays within the memory.

    Args:
        found: the search for the plan.

    Raises:
        DoesNotFit: no plan does.
    """
    smallest = found.smallest()
    if any(taken.total > on.memory for taken, on in smallest.limits.values()):
        raise does_not_fit(smallest, found.overhead)


def search_for(prepared: Preparation, limits: Choices) -> Search:
    """Return the search for the plan of a case's network."""
    stored = stored_values(prepared.network)
    return search(
        running(prepared),
        prepared.image.target,
        labels=stored.labels,
        threshold=stored.threshold,
        **vars(limits),
    )


def room_for(
    scan: Scan,
    prepared: Sequence[Preparation],
    searches: Sequence[Search],
    removing: Sequence[Rule] = (),
) -> Room:
    """Return the memory for a case.

    Args:
        scan: the scan.
        prepared: its preparation for each network. If it was not cropped, each step takes what any
            crop takes, or more.
        searches: the search for the plan of each network.
        removing: the rules by which components are removed.

    Raises:
        StepDoesNotFit: a step takes more than is allowed, even with slabs of one plane.
    """
    host, size = searches[0].machine.host, prepared[0].crop.size
    process = max(map(_process_bytes, prepared, searches))
    free = host.memory - process
    steps = StepBytes(
        max(_reading_bytes(scan, each.network, size, free) for each in prepared),
        max(preparing_bytes(scan, each, host.threads, free) for each in prepared),
        components_slab(size, removing, free).nbytes if removing else 0,
        LABELS_ROOM,
    )
    for name, taken in steps._asdict().items():
        if process + taken > host.memory:
            needed = process + taken
            raise StepDoesNotFit(name, needed=needed, allowed=host.memory, process=process)
    return Room(host.memory, process, host.threads, steps)


def _process_bytes(prepared: Preparation, found: Search) -> int:
    """Return the bytes of the process with the weights of a network."""
    weights = FLOAT_BYTES * prepared.network.held_parameters
    return found.overhead.process + found.overhead.cuda + weights


def _reading_bytes(scan: Scan, network: Network, size: Vec3, room: int) -> int:
    maps, itemsize = scan.volume.features, scan.volume.itemsize
    found = 0 if network.scaling.is_fixed else statistics_bytes(network, scan.volume)
    if network.scaling.within == "nonzero":
        mask = mask_slab(size, maps, itemsize, room).nbytes
        found = max(found, mask, scaling_bytes(size, maps, itemsize))
    return found
