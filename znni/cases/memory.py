"""The memory that the steps of a case take on the host.

All steps but the network work slab by slab: on whole planes, as many as the memory allows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from planner.limits import does_not_fit
from planner.search import Search
from znni.cases.case_folder import Case
from znni.cases.input_file import preparing_bytes
from znni.cases.networks import (
    NetworkSet,
    alone,
    beside_weights,
    bytes_kept,
    leaving,
    noting_weights,
)
from znni.cases.preparation import (
    Preparation,
    preparation_of_all,
    rules_of,
    running,
    scaling_bytes,
    stored_values,
    unit_of,
)
from znni.cases.previous_stage import PreviousNetwork, bytes_of_label, labels_before_bytes
from znni.cases.probabilities import labels_of_maps_bytes
from znni.cases.scan import Scan, look_at_scan
from znni.cases.slabs import components_slab, mask_slab
from znni.components.rules import KeepLargest
from znni.core.memory_errors import DoesNotFit, StepDoesNotFit
from znni.core.plan_options import Choices
from znni.core.processors import has_own_memory
from znni.core.resampling import Resampling
from znni.core.shapes import FLOAT_BYTES, ONE, Vec3
from znni.engine.statistics import statistics_bytes
from znni.inference.exporting import LABELS_ROOM
from znni.inference.plan_cache import smallest_cached_or_found
from znni.inference.planning import fastest, search
from znni.network.network import Network

# The least that is left of a scan that is cropped.
ONE_VOXEL = Resampling(ONE, ONE, (0, 0, 0))


@dataclass(frozen=True)
class CaseMemory:
    """The memory for a case.

    If there are several networks, it is that for the largest.

    Attributes:
        allowed: the bytes that the whole process may take, without the weights of other networks.
        process: the bytes of the process, its libraries and the weights, during any step.
        threads: the number of threads.
        steps: the bytes that each step but the network takes beside them, and may take.
    """

    allowed: int
    process: int
    threads: int
    steps: StepBytes


# The errors of a network's plan, and of another step.
TooLittle: TypeAlias = DoesNotFit | StepDoesNotFit

# The memory for cases, by the forms of their scans.
KnownMemory: TypeAlias = dict[Hashable, CaseMemory]


class StepBytes(NamedTuple):
    """The bytes that steps take beside the process and the weights. 0: there is no such step.

    Attributes:
        reading: to find the box and the mask of voxels that are not 0, and to compute statistics.
        resampling: to normalize and resample the scan, and the labels of the previous stage.
        labels: to compute labels and sums from the maps for probabilities.
        components: to remove connected components.
        writing: to write the labels, and probabilities.
    """

    reading: int
    resampling: int
    labels: int
    components: int
    writing: int

    @property
    def preparing(self) -> int:
        """The bytes of the steps before the network."""
        return max(self.reading, self.resampling)


def room_of_files(
    case: Case,
    networks: NetworkSet,
    limits: Choices,
    removing: Sequence[KeepLargest] = (),
    known: KnownMemory | None = None,
    *,
    here: bool = True,
    whole: bool = False,
) -> CaseMemory:
    """Return the memory for a case, from the headers of its files.

    Args:
        networks: the networks, whose files describe whole cases.
        limits: the memory that is allowed, and what plans may use.
        removing: the rules by which components are removed, beside those of the networks.
        known: the memory for earlier cases of the same networks, limits and rules. It is taken for
            a scan of the same form, and receives that of others.
        here: whether this machine computes the networks, so that their plans have to fit.
        whole: whether plans have to fit even if the scan is not cropped.

    Raises:
        InvalidInput: the scan, a network or an option cannot be used.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
    """
    known = {} if known is None else known
    scan = look_at_scan(case.files, networks.rules, unit_of(networks.networks[0]))
    left, _ = beside_weights(limits, networks, case.earlier)
    saved = case.probabilities is not None
    prepared = [preparation_of_all(scan, network) for network in networks.networks]
    volume = scan.volume
    before = bytes_of_label(case.previous) if networks.rules.previous_stage else 0
    form = *prepared, volume.features, volume.itemsize, volume.pieces, before, saved
    if form not in known:
        searches = [search_for(each, left, probabilities=saved) for each in prepared]
        rules = [*networks.largest, *removing]
        known[form] = checked_room(
            case, networks, limits, scan, prepared, searches, rules, here=here, whole=whole
        )
    return known[form]


def checked_room(
    case: Case,
    networks: NetworkSet,
    limits: Choices,
    scan: Scan,
    prepared: Sequence[Preparation],
    searches: Sequence[Search],
    removing: Sequence[KeepLargest],
    *,
    here: bool,
    whole: bool,
) -> CaseMemory:
    """Return the memory for a case. All networks, steps and earlier stages are checked.

    If one does not fit, the error is that of the one that needs the most. So the memory that it
    names suffices for all of them.

    Args:
        limits: the memory that is allowed for all of them.
        prepared: its preparation for each network, as if it were not cropped.
        searches: the search for the plan of each network.
        removing: all rules by which components are removed.
        here: whether this machine computes the networks, so that their plans have to fit.
        whole: whether plans have to fit even if the scan is not cropped.
    """
    left, others = beside_weights(limits, networks, case.earlier)
    saved, unfit = case.probabilities is not None, list[TooLittle]()
    with _gathering(unfit), noting_weights(others):
        room = room_for(case, scan, prepared, searches, removing)
    for each, found in zip(prepared, searches, strict=True) if here else ():
        least = found
        if not whole and each.network.scaling.crops:
            smallest = replace(each, image=ONE_VOXEL, output=ONE_VOXEL)
            least = search_for(smallest, left, probabilities=saved)
        with _gathering(unfit), noting_weights(others):
            check_fits(least)
    if isinstance(stage := case.previous, PreviousNetwork):
        kept = sum(map(bytes_kept, networks.networks))
        rest, before = leaving(limits, kept), case.before(stage)
        with _gathering(unfit), noting_weights(kept):
            room_of_files(before, alone(stage.network), rest, here=here, whole=whole)
    if not unfit:
        return room
    of_whole = list[TooLittle]()
    for found in searches if here else ():
        with _gathering(of_whole), noting_weights(others):
            check_fits(found, explain=whole)
    raise max([*of_whole, *unfit], key=_on_gpu_and_needed)


@contextmanager
def _gathering(errors: list[TooLittle]) -> Iterator[None]:
    """Gather the errors of too little memory in a ``with`` block."""
    try:
        yield
    except (DoesNotFit, StepDoesNotFit) as error:
        errors.append(error)


def _on_gpu_and_needed(error: TooLittle) -> tuple[bool, int]:
    """Return whether an error is about a GPU, and the bytes that it names."""
    return isinstance(error, DoesNotFit) and has_own_memory(error.device), error.needed


def check_fits(found: Search, *, explain: bool = False) -> None:
    """Check that a plan of a case's network stays within the memory.

    Args:
        found: the search for the plan.
        explain: whether the error says how much memory makes half of the best speed.
    """
    smallest = smallest_cached_or_found(found)
    if any(taken.total > on.memory for taken, on in smallest.limits.values()):
        if explain:
            fastest(found)  # raises the error
        raise does_not_fit(smallest, found.overhead)


def search_for(prepared: Preparation, limits: Choices, *, probabilities: bool = False) -> Search:
    """Return the search for the plan of a case's network."""
    stored = stored_values(prepared.network, probabilities=probabilities)
    return search(
        running(prepared),
        prepared.image.target,
        labels=stored.labels,
        threshold=stored.threshold,
        **vars(limits),
    )


def room_for(
    case: Case,
    scan: Scan,
    prepared: Sequence[Preparation],
    searches: Sequence[Search],
    removing: Sequence[KeepLargest] = (),
) -> CaseMemory:
    """Return the memory for a case.

    Args:
        prepared: its preparation for each network. If it was not cropped, each step takes what any
            crop takes, or more.
        searches: the search for the plan of each network.
        removing: the rules by which components are removed.

    Raises:
        StepDoesNotFit: a step takes more than is allowed, even with slabs of one plane.
    """
    host, size = searches[0].machine.host, prepared[0].crop.size
    process = max(map(_process_bytes, prepared, searches))
    free, first = host.memory - process, prepared[0]
    resampling = max(preparing_bytes(scan, each, host.threads, free) for each in prepared)
    label_bytes, labels = 0, 0
    if rules_of(first.network).previous_stage:
        label_bytes = bytes_of_label(case.previous)
        before = labels_before_bytes(scan, first, label_bytes, host.threads, free)
        resampling = max(resampling, before)
    if case.probabilities:
        labels = labels_of_maps_bytes(size, first.network.out_features)
    steps = StepBytes(
        max(_reading_bytes(scan, each.network, size, free, label_bytes) for each in prepared),
        resampling,
        labels,
        components_slab(size, removing, free).nbytes if removing else 0,
        LABELS_ROOM,
    )
    name, most = max(steps._asdict().items(), key=itemgetter(1))
    if (needed := process + most) > host.memory:
        raise StepDoesNotFit(name, needed=needed, allowed=host.memory, process=process)
    return CaseMemory(host.memory, process, host.threads, steps)


def _process_bytes(prepared: Preparation, found: Search) -> int:
    """Return the bytes of the process with the weights of a network."""
    weights = FLOAT_BYTES * prepared.network.held_parameters
    return found.overhead.process + found.overhead.cuda + weights


def _reading_bytes(scan: Scan, network: Network, size: Vec3, room: int, label_bytes: int) -> int:
    maps, itemsize = scan.volume.features, scan.volume.itemsize
    nbytes = 0 if network.scaling.is_fixed else statistics_bytes(network, scan.volume)
    if network.scaling.within == "nonzero":
        mask = mask_slab(size, maps, itemsize, room, label_bytes).nbytes
        nbytes = max(nbytes, mask, scaling_bytes(size, maps, itemsize))
    return nbytes
