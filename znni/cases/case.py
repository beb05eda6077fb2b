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

import numpy as np

from znni.cases.labels import Part, joined_labels, without_components, write_labels
from znni.cases.networks import NetworkSet, alone, beside_weights
from znni.cases.preparation import (
    Preparation,
    preparation_for,
    rules_of,
    unit_of,
    write_input,
)
from znni.cases.scan import decompressed, open_scan
from znni.components.rules import Rule
from znni.core.errors import InvalidInput
from znni.core.run_options import Options, ValueOptions
from znni.core.text import duration
from znni.core.user_cache import state_of_source, write_whole
from znni.engine.report import Report
from znni.engine.run_state import Progress
from znni.inference.api import compute
from znni.inference.plan_choice import machine_here
from znni.inference.request import Request
from znni.inference.session import Session
from znni.network.input_scaling import AS_STORED
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.weights import Weights
from znni.volumes.locate import writer_at
from znni.volumes.partial_file import hold

IDENTITY = "case"  # the file that says which scan and network a folder is of
INPUT = "input.npy"
LABELS = "labels.h5"
WITHOUT = "without-components.npy"

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


@dataclass(frozen=True)
class Case:
    """A case to compute.

    Attributes:
        files: the files of the scan, one for each channel.
        out: the labels to make.
    """

    files: tuple[Path, ...]
    out: Path

    @property
    def folder(self) -> Path:
        """The folder for everything between the scan and the labels."""
        return self.out.with_name(f"{self.out.name}.case")


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


def begin(case: Case, networks: NetworkSet, weights: Sequence[Weights], options: Options) -> None:
    """Make the folder of a case, and decompress its scan. This takes long, but little memory.

    Args:
        case: the case.
        networks: the networks, whose files describe whole cases.
        weights: the parameters of each.
        options: what plans may use.

    Raises:
        InvalidInput: the scan cannot be read, or its folder cannot be made.
    """
    check_output(case)
    _open_folder(case, networks, weights, options)
    with _held(case):
        decompressed(case.files, case.folder)


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
        RunFailed: reading, computing or writing failed.
    """
    rules, unit = networks.rules, unit_of(networks.networks[0])
    begin(case, networks, weights, options)
    options, _ = beside_weights(options, networks)
    seconds: dict[str, float] = {}
    begun = perf_counter()

    def done(step: str) -> None:
        nonlocal begun
        now = perf_counter()
        seconds[step], begun = seconds.get(step, 0.0) + now - begun, now

    def told(step: str) -> Progress:
        return lambda done, total: progress(step, done, total)

    reports: list[Report] = []
    parts: dict[int, Part] = {}
    with ExitStack() as holding:
        holding.enter_context(_held(case))
        scan = open_scan(case.files, rules, case.folder, unit)
        for group in networks.groups:
            network = networks.networks[group[0]]
            prepared = preparation_for(scan, network, case.folder, told("reading"))
            done("reading")
            image = case.folder / numbered(INPUT, group[0])
            if not image.exists():
                threads = machine_here(options.limits).host.threads
                write_input(scan, prepared, image, threads, told("resampling"))
            done("resampling")
            for number in group:
                own = prepared.shared_with(scan, networks.networks[number])
                labels = case.folder / numbered(LABELS, number)
                if not labels.exists():
                    asked = replace(options, values=stored_values(own.network))
                    request = Request(image, running(own), labels, asked, weights[number])
                    reports.append(compute(request, session, progress=told("network"))())
                parts[number] = Part(labels, own.crop, networks.numbers_of(number))
                done("network")
        found = joined_labels([parts[number] for number in sorted(parts)])
        if removing := [*networks.largest, *removing]:
            found = without_components(scan, found, case.folder / WITHOUT, removing)
            done("postprocessing")
        held = holding.pop_all()

    def write() -> CaseReport:
        nonlocal begun
        begun = perf_counter()
        with held:
            write_labels(scan, found, case.out, told("writing"))
            done("writing")
            shutil.rmtree(case.folder)
        return CaseReport(case.out, seconds, tuple(reports))

    return write


def stored_values(network: Network) -> ValueOptions:
    """Return how the output of a network is stored: as labels, or as masks."""
    masks = rules_of(network).masks
    if masks is None:
        return ValueOptions(labels=True)
    # A value counts that is not below the number, but a threshold must be exceeded.
    return ValueOptions(threshold=float(np.nextafter(np.float32(masks), np.float32(-np.inf))))


def numbered(name: str, number: int) -> str:
    """Return the name of a network's file. That of the first network has no number."""
    plain = Path(name)
    return f"{plain.stem}-{number}{plain.suffix}" if number else name


def running(prepared: Preparation) -> Network:
    """Return the network for the prepared input. Its output is resampled to the scan's voxels."""
    network, window = prepared.network, prepared.network.window
    if window is None:
        raise InvalidInput(
            f"network {network.name} has no windows, which whole cases need; add window: to its "
            f"file"
        )
    extents = prepared.image.target
    if rules_of(network).beyond == "none" and not window.size.within(extents):
        raise InvalidInput(
            f"the scan has {extents} voxels for network {network.name}, and its windows have "
            f"{window.size}: what they see beyond the scan is not zero in training; pad the scan"
        )
    output = prepared.output if prepared.output.changes else None
    return replace(
        network,
        scaling=AS_STORED,
        spacing=None,
        window=replace(window, volume=None, inside=None, resampled=output),
    )


def _open_folder(
    case: Case, networks: NetworkSet, weights: Sequence[Weights], options: Options
) -> None:
    """Make the folder of a case. Empty it first if another scan or network filled it.

    Raises:
        InvalidInput: it cannot be made, or something else lies there.
    """
    files = [(str(file.resolve()), *_stamp(file)) for file in case.files]
    rules = [
        (network_text(it), it.case, it.spacing, it.has_regions, it.labels)
        for it in networks.networks
    ]
    hashes = [each.sha256 for each in weights]
    code = state_of_source(Path(__file__).parents[1])
    accuracy = options.limits.accuracy
    content = repr((files, rules, networks.numbers, hashes, accuracy, code))
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


def check_output(case: Case) -> None:
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
