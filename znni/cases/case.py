"""One case: prepare its scan, run the network, and write its labels.

All intermediate files lie in a folder beside the labels, ``LABELS.case``. A run that was stopped
continues from them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter

from znni.cases.labels import remove_components, write_labels
from znni.cases.memory import Room, check_network, room_of_files
from znni.cases.preparation import (
    preparation_for,
    rules_of,
    running,
    unit_of,
)
from znni.cases.previous_stage import PreviousNetwork, network_input, open_labels
from znni.cases.probabilities import MAPS, write_labels_of_maps, write_probabilities
from znni.cases.scan import decompressed, open_scan
from znni.cases.spacing_file import spacing_file, write_spacing
from znni.components.rules import Rule
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput
from znni.core.run_options import Options
from znni.core.text import duration
from znni.core.user_cache import state_of_source, write_whole
from znni.engine.report import Report
from znni.engine.run_state import Progress
from znni.inference.api import compute
from znni.inference.request import Request
from znni.inference.session import Session
from znni.machine.arrays import return_freed_memory
from znni.network.case_rules import PreviousStage
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.weights import Weights
from znni.volumes.locate import writer_at
from znni.volumes.partial_file import hold

IDENTITY = "case"  # the file that says which scan and network a folder is of
LABELS = "labels.h5"
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
        report: the report on the network; None if an earlier run had computed its labels.
    """

    out: Path
    seconds: dict[str, float]
    report: Report | None

    def __str__(self) -> str:
        """Return a line on the case."""
        steps = ", ".join(f"{name} {duration(taken)}" for name, taken in self.seconds.items())
        return f"{self.out}: {duration(sum(self.seconds.values()))} ({steps})"


@dataclass(frozen=True)
class Case:
    """A case to compute.

    Attributes:
        files: the files of the scan, one for each channel.
        out: the labels to make.
        previous: the labels of the previous stage of a cascade, or the network that computes them.
            None: the network is no later stage.
        probabilities: a file ``NAME.npz`` to make, as nnU-Net's, with ``NAME.pkl`` beside it. None:
            none are saved.
    """

    files: tuple[Path, ...]
    out: Path
    previous: Path | PreviousNetwork | None = None
    probabilities: Path | None = None

    @property
    def is_finished(self) -> bool:
        """True if all that it makes exists."""
        made = (self.out, self.probabilities) if self.probabilities else (self.out,)
        return all(path.exists() for path in made)

    @property
    def inputs(self) -> tuple[Path, ...]:
        """All files that are read: those of the scan, and labels of the previous stage."""
        return (*self.files, self.previous) if isinstance(self.previous, Path) else self.files

    @property
    def folder(self) -> Path:
        """The folder for everything between the scan and the labels."""
        return self.out.with_name(f"{self.out.name}.case")


def predict(
    case: Case,
    network: Network,
    weights: Weights,
    session: Session,
    options: Options = Options(),
    progress: StepProgress = no_step_progress,
    removing: Sequence[Rule] = (),
) -> CaseReport:
    """Compute and write the labels of a case. Arguments and errors are as in ``compute_labels``."""
    return compute_labels(case, network, weights, session, options, progress, removing)()


def begin(
    case: Case,
    network: Network,
    weights: Weights,
    options: Options,
    removing: Sequence[Rule] = (),
) -> Room:
    """Make the folder of a case, and decompress its scan. This takes long, but little memory.

    If the case needs more memory than is allowed, nothing is made.

    Args:
        case: the case.
        network: the network, whose file describes whole cases.
        weights: its parameters.
        options: what plans may use.
        removing: as for ``compute_labels``.

    Returns:
        The memory for the case.

    Raises:
        InvalidInput: the scan cannot be read, or its folder cannot be made.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
    """
    check_output(case)
    room = room_of_files(case.files, network, options.limits, removing)
    _open_folder(case, network, weights, options)
    with _held(case):
        decompressed(case.inputs, case.folder)
    return room


def compute_labels(
    case: Case,
    network: Network,
    weights: Weights,
    session: Session,
    options: Options = Options(),
    progress: StepProgress = no_step_progress,
    removing: Sequence[Rule] = (),
) -> Callable[[], CaseReport]:
    """Compute the labels of a case, and return the function that writes them.

    Args:
        case: the case.
        network: the network, whose file describes whole cases.
        weights: its parameters.
        session: finds plans and keeps them ready.
        options: what plans may use.
        progress: called as steps go on.
        removing: rules by which connected components are removed, one after the other.

    Returns:
        A function to call once, in any thread. It writes the labels in the scan's own voxels, and
        raises ``RunFailed`` if it cannot.

    Raises:
        InvalidInput: the scan, the network or an option cannot be used.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
        RunFailed: reading, computing or writing failed.
    """
    rules, unit = rules_of(network), unit_of(network)
    room = begin(case, network, weights, options, removing)
    seconds: dict[str, float] = {}
    begun = perf_counter()

    def done(step: str) -> None:
        nonlocal begun
        now = perf_counter()
        seconds[step], begun = now - begun, now

    def told(step: str) -> Progress:
        return lambda done, total: progress(step, done, total)

    with ExitStack() as holding:
        holding.enter_context(_held(case))
        scan = open_scan(case.files, rules, case.folder, unit)
        before: ArrayLike | None = None
        if stage := rules.previous_stage:
            before = open_labels(
                _labels_before(case, stage, session, options, progress), scan, stage
            )
            done(stage.name)
        session.make_room(room.process + room.steps.preparing, room.allowed)
        prepared = preparation_for(scan, network, case.folder, told("reading"), room.free, before)
        if network.scaling.crops:
            check_network(prepared, options.limits)
        done("reading")
        source = network_input(case.folder, scan, prepared, before, room, told("resampling"))
        done("resampling")
        asked = replace(options.values, labels=case.probabilities is None)
        request = Request(
            source,
            running(prepared),
            case.folder / (MAPS if case.probabilities else LABELS),
            replace(options, values=asked),
            weights,
        )
        labels, report = _computed(request, session, told("network"))
        done("network")
        if case.probabilities:
            labels = write_labels_of_maps(case.folder, network, told("labels"))
            done("labels")
        return_freed_memory()
        if removing:
            session.make_room(room.process + room.steps.components, room.allowed)
            labels = remove_components(scan, labels, removing, room.free)
            done("postprocessing")
        held = holding.pop_all()

    def write() -> CaseReport:
        nonlocal begun
        begun = perf_counter()
        return_freed_memory()
        with held:
            if rules.voxels == "json":
                write_spacing(case.out, scan.spacing)
            if case.probabilities:
                write_probabilities(
                    scan, prepared, case.folder, case.probabilities, told("probabilities")
                )
                done("probabilities")
            write_labels(scan, prepared, labels, case.out, told("writing"))
            done("writing")
            _discard(case)
        return CaseReport(case.out, seconds, report)

    return write


def _computed(request: Request, session: Session, progress: Progress) -> tuple[Path, Report | None]:
    """Return the output of a network, and the report; None if an earlier run has computed it."""
    out = Path(str(request.out))
    report = None if out.exists() else compute(request, session, progress=progress)()
    return out, report


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


def discard_left(case: Case) -> None:
    """Remove the folder of a case whose labels are complete, if a run was killed before it did."""
    if (case.folder / IDENTITY).exists():
        with suppress(InvalidInput), _held(case):
            _discard(case)


def _discard(case: Case) -> None:
    """Remove the folder of a case. The file that says whose it is goes last, in case of a kill."""
    for path in case.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != IDENTITY:
            path.unlink()
    shutil.rmtree(case.folder)


def _is_partial(path: Path) -> bool:
    """Return whether a file of the folder was not complete when its run was killed."""
    return path.suffix == ".partial"


def _open_folder(case: Case, network: Network, weights: Weights, options: Options) -> None:
    """Make the folder of a case. Empty it first if another scan or network filled it.

    Raises:
        InvalidInput: it cannot be made, or something else lies there.
    """
    files = [(str(file.resolve()), *_stamp(file)) for file in case.inputs]
    beside = spacing_file(case.files[0])
    if rules_of(network).voxels == "json" and beside.exists():
        files.append((str(beside.resolve()), *_stamp(beside)))
    networks, stage = [_described(network, weights)], case.previous
    while isinstance(stage, PreviousNetwork):
        networks.append(_described(stage.network, stage.weights))
        stage = stage.previous
    code = state_of_source(Path(__file__).parents[1])
    content = repr((files, networks, options.limits.accuracy, code))
    identity = sha256(content.encode())
    noted = case.folder / IDENTITY
    try:
        if noted.exists() and noted.read_bytes() == identity.digest():
            return
        if case.folder.exists():
            if not noted.exists() and not all(map(_is_partial, case.folder.iterdir())):
                raise InvalidInput(
                    f"{case.folder}: this folder is not znni's; remove it, or write elsewhere"
                )
            _discard(case)
        write_whole(noted, identity.digest())
    except OSError as error:
        raise InvalidInput(
            f"{case.folder}: this folder cannot be made: {error.strerror}; write elsewhere"
        ) from None


def _described(network: Network, weights: Weights) -> tuple[str, ...]:
    """Return all on which the labels of a network depend, beside its input."""
    rules = repr((network.case, network.spacing, network.has_regions, network.labels))
    return network_text(network), rules, weights.sha256


@contextmanager
def _held(case: Case) -> Iterator[None]:
    """Keep other runs from the folder of a case within a ``with`` block.

    Raises:
        InvalidInput: another run holds it.
    """
    descriptor = os.open(case.folder, os.O_RDONLY)
    try:
        hold(descriptor, case.folder)
        try:
            yield
        except BaseException as error:
            error.add_note(
                f"{case.folder} keeps what is finished, and the same command goes on there"
            )
            raise
    finally:
        os.close(descriptor)


def check_output(case: Case) -> None:
    """Check that the labels can be written, before anything takes long.

    Raises:
        InvalidInput: the file would replace the scan, or no format has such an ending.
    """
    for file in case.inputs:
        writer_at(case.out, file)


def _stamp(file: Path) -> tuple[int, int]:
    """Return the size of a file, and the time when it was changed.

    Raises:
        InvalidInput: there is no such file.
    """
    try:
        found = file.stat()
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror}; check the path") from None
    return found.st_size, found.st_mtime_ns
