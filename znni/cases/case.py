"""One case: prepare its scan, run the networks, and write its labels.

All intermediate files lie in the case's folder. A run that was stopped continues from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from znni.cases.case_folder import Case, check_output, discard, held, open_folder
from znni.cases.labels import Part, joined_labels, without_components, write_labels
from znni.cases.memory import Room, check_fits, room_of_files, search_for
from znni.cases.networks import NetworkSet, alone, beside_weights
from znni.cases.preparation import (
    Preparation,
    preparation_for,
    running,
    stored_values,
    unit_of,
)
from znni.cases.previous_stage import INPUT, network_input, open_labels
from znni.cases.probabilities import MAPS, write_labels_of_maps, write_probabilities
from znni.cases.scan import Scan, decompressed, open_scan
from znni.cases.spacing_file import write_spacing
from znni.components.rules import Rule
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput
from znni.core.run_options import Options
from znni.core.text import duration
from znni.engine.report import Report
from znni.engine.run_state import Progress
from znni.inference.api import compute
from znni.inference.request import Request
from znni.inference.session import Session
from znni.machine.arrays import return_freed_memory
from znni.network.case_rules import PreviousStage
from znni.network.network import Network
from znni.network.weights import Weights

LABELS = "labels.h5"
WITHOUT = "without-components.npy"
BEFORE = "labels-before.npy"  # of the previous stage, over the scan

# Called with the name of a step, the voxels done, and all voxels of the step.
StepProgress = Callable[[str, int, int], None]


def no_step_progress(_step: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class CaseReport:
    """The account of a case.

    Attributes:
        out: the labels.
        seconds: the seconds of each step, by its name.
        reports: the report on each network, but for those whose labels an earlier run computed.
    """

    out: Path
    seconds: dict[str, float]
    reports: tuple[Report, ...]

    def __str__(self) -> str:
        """Return a line on the case."""
        steps = ", ".join(f"{name} {duration(taken)}" for name, taken in self.seconds.items())
        return f"{self.out}: {duration(sum(self.seconds.values()))} ({steps})"


def predict(
    case: Case,
    networks: Network | NetworkSet,
    weights: Weights | Sequence[Weights],
    session: Session,
    options: Options = Options(),
    progress: StepProgress = no_step_progress,
    removing: Sequence[Rule] = (),
) -> CaseReport:
    """Compute and write the labels of a case.

    Arguments and errors are as in ``compute_labels``, but a single network may be given.
    """
    asked = alone(networks) if isinstance(networks, Network) else networks
    given = (weights,) if isinstance(weights, Weights) else weights
    return compute_labels(case, asked, given, session, options, progress, removing)()


def begin(
    case: Case,
    networks: NetworkSet,
    weights: Sequence[Weights],
    options: Options,
    removing: Sequence[Rule] = (),
) -> Room:
    """Make the folder of a case, and decompress its scan. This takes long, but little memory.

    If the case needs more memory than is allowed, nothing is made.

    Args:
        case: the case.
        networks: the networks, whose files describe whole cases.
        weights: the parameters of each.
        options: what plans may use.
        removing: as for ``compute_labels``.

    Returns:
        The memory for the case.

    Raises:
        InvalidInput: the scan cannot be read, or its folder cannot be made.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
    """
    check_output(case, networks)
    room = room_of_files(case, networks, options.limits, removing)
    open_folder(case, networks, weights, options)
    with held(case):
        decompressed(case.inputs, case.folder)
    return room


def compute_labels(
    case: Case,
    networks: NetworkSet,
    weights: Sequence[Weights],
    session: Session,
    options: Options = Options(),
    progress: StepProgress = no_step_progress,
    removing: Sequence[Rule] = (),
) -> Callable[[], CaseReport]:
    """Compute the labels of a case, and return the function that writes them.

    The networks are computed one after the other. Those that take the same input share it.

    Args:
        case: the case.
        networks: the networks, whose files describe whole cases.
        weights: the parameters of each.
        session: finds plans and keeps them ready.
        options: what plans may use.
        progress: called as steps go on.
        removing: rules by which connected components are removed, one after the other.

    Returns:
        A function to call once, in any thread. It writes the labels in the scan's own voxels, and
        raises ``RunFailed`` if it cannot.

    Raises:
        InvalidInput: the scan, a network or an option cannot be used.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
        RunFailed: reading, computing or writing failed.
    """
    rules, unit = networks.rules, unit_of(networks.networks[0])
    room = begin(case, networks, weights, options, removing)
    limits, _ = beside_weights(options.limits, networks, case.earlier)
    options = replace(options, limits=limits)
    steps, parts = _Steps(progress), dict[int, Part]()
    with ExitStack() as holding:
        holding.enter_context(held(case))
        scan = open_scan(case.files, rules, case.folder, unit)
        work = _Work(case, scan, room, session, options, steps)
        before: ArrayLike | None = None
        if stage := rules.previous_stage:
            file = _labels_before(case, stage, session, options, progress)
            before = open_labels(file, scan, stage)
            steps.done(stage.name)
        for group in networks.groups:
            first = networks.networks[group[0]]
            prepared, source = _prepared(work, first, numbered(INPUT, group[0]), before)
            for number in group:
                own = prepared.shared_with(scan, networks.networks[number])
                labels = _labels_of(work, own, source, weights[number], numbered(LABELS, number))
                parts[number] = Part(labels, own.crop, networks.numbers_of(number))
        return_freed_memory()
        found = joined_labels([parts[number] for number in sorted(parts)])
        if removing := [*networks.largest, *removing]:
            session.make_room(room.process + room.steps.components, room.allowed)
            path = case.folder / WITHOUT
            found = without_components(scan, found, path, removing, room.steps.components)
            steps.done("postprocessing")
        keeping = holding.pop_all()

    def write() -> CaseReport:
        steps.start()
        return_freed_memory()
        with keeping:
            if rules.voxels == "json":
                write_spacing(case.out, scan.spacing)
            if case.probabilities:
                told = steps.told("probabilities")
                write_probabilities(scan, prepared, case.folder, case.probabilities, told)
                steps.done("probabilities")
            write_labels(scan, found, case.out, steps.told("writing"))
            steps.done("writing")
            discard(case)
        return CaseReport(case.out, steps.seconds, tuple(work.reports))

    return write


class _Steps:
    """The seconds of a case's steps, and their progress.

    Args:
        progress: called as steps go on.

    Attributes:
        seconds: the seconds of each step so far, by its name.
    """

    def __init__(self, progress: StepProgress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self.start()

    def start(self) -> None:
        """Begin a step now."""
        self._begun = perf_counter()

    def done(self, step: str) -> None:
        """End a step, and begin the next one."""
        begun = self._begun
        self.start()
        self.seconds[step] = self.seconds.get(step, 0.0) + self._begun - begun

    def told(self, step: str) -> Progress:
        """Return the progress of a step, called with voxels done and all voxels."""
        return lambda done, total: self._progress(step, done, total)


@dataclass(frozen=True)
class _Work:
    """The objects that the steps of a case share, and the reports on its networks so far."""

    case: Case
    scan: Scan
    room: Room
    session: Session
    options: Options
    steps: _Steps
    reports: list[Report] = field(default_factory=list)


def _prepared(
    work: _Work, network: Network, name: str, before: ArrayLike | None
) -> tuple[Preparation, Path | ArrayLike]:
    """Return the preparation of a scan for a network, and the network's input.

    Args:
        work: the case.
        network: the network.
        name: the name of the input's file.
        before: the labels of the previous stage over the scan; None: there are none.
    """
    scan, room, steps, folder = work.scan, work.room, work.steps, work.case.folder
    work.session.make_room(room.process + room.steps.preparing, room.allowed)
    told = steps.told("reading")
    prepared = preparation_for(scan, network, folder, told, room.steps.reading, before)
    steps.done("reading")
    told = steps.told("resampling")
    threads, free = room.threads, room.steps.resampling
    source = network_input(folder / name, scan, prepared, before, threads, free, told)
    steps.done("resampling")
    return prepared, source


def _labels_of(
    work: _Work, prepared: Preparation, source: Path | ArrayLike, weights: Weights, name: str
) -> Path:
    """Return the labels of a network. Compute them, unless an earlier run has.

    Args:
        work: the case.
        prepared: its preparation for the network.
        source: the network's input.
        weights: its parameters.
        name: the name of the labels' file.
    """
    case, steps, options, room = work.case, work.steps, work.options, work.room
    saved = case.probabilities is not None
    if prepared.network.scaling.crops:
        check_fits(search_for(prepared, options.limits, probabilities=saved))
    values = stored_values(prepared.network, probabilities=saved)
    out = case.folder / (MAPS if saved else name)
    if not out.exists():
        asked = replace(options, values=values)
        request = Request(source, running(prepared), out, asked, weights)
        work.reports.append(compute(request, work.session, progress=steps.told("network"))())
    steps.done("network")
    if saved:
        work.session.make_room(room.process + room.steps.labels, room.allowed)
        out = write_labels_of_maps(case.folder, prepared.network, steps.told("labels"))
        steps.done("labels")
    return out


def numbered(name: str, number: int) -> str:
    """Return the name of a network's file. That of the first network has no number."""
    plain = Path(name)
    return f"{plain.stem}-{number}{plain.suffix}" if number else name


def _labels_before(
    case: Case, stage: PreviousStage, session: Session, options: Options, progress: StepProgress
) -> Path:
    """Return the file of the previous stage's labels. Compute it if need be.

    Raises:
        InvalidInput: neither the file nor the network is given.
    """
    found = case.previous
    if found is None:
        raise InvalidInput(
            f"{case.files[0]}: the network takes the labels of {stage.name} too; give their file "
            f"after those of the scan, or the network as a results folder that lies beside the one "
            f"of {stage.name}"
        )
    files = decompressed(case.inputs, case.folder)
    if isinstance(found, Path):
        return files[-1]
    made = case.folder / BEFORE
    if not made.exists():
        earlier = Case(tuple(files), made, found.previous)
        predict(earlier, found.network, found.weights, session, options, progress)
    return made
