"""One case: prepare its scan, run the network, and write its labels.

Everything between the scan and the labels lies in a folder beside the labels, ``LABELS.case``. A
run that was stopped goes on there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter

from znni.cases.labels import remove_components, write_labels
from znni.cases.preparation import (
    preparation_for,
    preparation_of_all,
    preparing_bytes,
    rules_of,
    running,
    unit_of,
)
from znni.cases.previous_stage import PreviousNetwork, network_input, open_labels
from znni.cases.probabilities import MAPS, write_labels_of_maps, write_probabilities
from znni.cases.scan import decompressed, look_at_scan, open_scan
from znni.components.rules import Rule
from znni.core.array_like import ArrayLike
from znni.core.errors import InvalidInput
from znni.core.run_options import Options
from znni.core.shapes import Vec3
from znni.core.text import duration, in_units
from znni.core.user_cache import state_of_source, write_whole
from znni.engine.report import Report
from znni.engine.run_state import Progress
from znni.inference.api import compute
from znni.inference.exporting import LABELS_ROOM
from znni.inference.plan_choice import machine_here
from znni.inference.planning import plan
from znni.inference.request import Request
from znni.inference.session import Session
from znni.network.case_rules import PreviousStage
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.weights import Weights
from znni.plans.plan import Plan
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


def begin(case: Case, network: Network, weights: Weights, options: Options) -> None:
    """Make the folder of a case, and decompress its scan. This takes long, but little memory.

    Args:
        case: the case.
        network: the network, whose file describes whole cases.
        weights: its parameters.
        options: what plans may use.

    Raises:
        InvalidInput: the scan cannot be read, or its folder cannot be made.
    """
    _check_output(case)
    _open_folder(case, network, weights, options)
    with _held(case):
        decompressed(case.inputs, case.folder)


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
        RunFailed: reading, computing or writing failed.
    """
    rules, unit = rules_of(network), unit_of(network)
    begin(case, network, weights, options)
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
            file = _labels_before(case, stage, session, options, progress)
            before = open_labels(file, scan, stage)
            done(stage.name)
        prepared = preparation_for(scan, network, case.folder, told("reading"), before)
        done("reading")
        threads = machine_here(options.limits).host.threads
        source = network_input(case.folder, scan, prepared, before, threads, told("resampling"))
        done("resampling")
        values = replace(options.values, labels=case.probabilities is None)
        options = replace(options, values=values)
        labels = case.folder / (MAPS if case.probabilities else LABELS)
        report: Report | None = None
        if not labels.exists():
            request = Request(source, running(prepared), labels, options, weights)
            report = compute(request, session, progress=told("network"))()
        done("network")
        if case.probabilities:
            labels = write_labels_of_maps(case.folder, network, told("labels"))
            done("labels")
        if removing:
            labels = remove_components(scan, labels, removing)
            done("postprocessing")
        held = holding.pop_all()

    def write() -> CaseReport:
        nonlocal begun
        begun = perf_counter()
        with held:
            if case.probabilities:
                told_of = told("probabilities")
                write_probabilities(scan, prepared, case.folder, case.probabilities, told_of)
                done("probabilities")
            write_labels(scan, prepared, labels, case.out, told("writing"))
            done("writing")
            shutil.rmtree(case.folder)
        return CaseReport(case.out, seconds, report)

    return write


@dataclass(frozen=True)
class CaseForecast:
    """The size and the memory of a case before it runs. A scan that is cropped takes less.

    Attributes:
        scan: the extents of the scan.
        input: the extents of the network's input.
        plan: the plan of the network.
        preparing: the peak bytes on the host while the scan is prepared.
    """

    scan: Vec3
    input: Vec3
    plan: Plan
    preparing: int

    @property
    def memory(self) -> int:
        """The peak bytes on the host."""
        return max(self.preparing, self.plan.memory.total) + LABELS_ROOM

    def __str__(self) -> str:
        """Return sizes and memory in words, without the plan."""
        return (
            f"the scan has {self.scan} voxels, and the network's input at most {self.input}\n"
            f"memory        at most {in_units(self.memory)}: {in_units(self.preparing)} to prepare "
            f"the scan, {in_units(self.plan.memory.total)} for the network"
        )


def forecast(case: Case, network: Network, options: Options = Options()) -> CaseForecast:
    """Predict the size and the memory of a case from the headers of its files.

    Args:
        case: the case.
        network: the network, whose file describes whole cases.
        options: what plans may use.

    Raises:
        InvalidInput: the scan, the network or an option cannot be used.
        DoesNotFit: no plan stays within the memory.
    """
    _check_output(case)
    scan = look_at_scan(case.files, rules_of(network), unit_of(network))
    prepared = preparation_of_all(scan, network)
    found = plan(running(prepared), prepared.image.target, labels=True, **vars(options.limits))
    threads = machine_here(options.limits).host.threads
    preparing = found.memory.process + preparing_bytes(prepared, threads)
    if isinstance(stage := case.previous, PreviousNetwork):
        earlier = Case(case.files, case.folder / BEFORE, stage.previous)
        preparing = max(preparing, forecast(earlier, stage.network, options).memory)
    return CaseForecast(scan.volume.size, prepared.image.target, found, preparing)


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


def _open_folder(case: Case, network: Network, weights: Weights, options: Options) -> None:
    """Make the folder of a case. Empty it first if another scan or network filled it.

    Raises:
        InvalidInput: it cannot be made, or something else lies there.
    """
    files = [(str(file.resolve()), *_stamp(file)) for file in case.inputs]
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
            if not noted.exists() and any(case.folder.iterdir()):
                raise InvalidInput(
                    f"{case.folder}: this folder is not znni's; remove it, or write elsewhere"
                )
            shutil.rmtree(case.folder)
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
        yield
    finally:
        os.close(descriptor)


def _check_output(case: Case) -> None:
    """Check that the labels can be written, before anything takes long.

    Raises:
        InvalidInput: the file would replace the scan, or no format has such an ending.
    """
    for file in case.files:
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
