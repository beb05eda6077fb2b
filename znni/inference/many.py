"""A network over many volumes, one after the other, in one process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os.path import realpath
from pathlib import Path
from time import perf_counter
from typing import TypeAlias, Unpack

from znni.core.argument_types import checks_types
from znni.core.errors import InvalidInput, ZnniError, in_one_line, option
from znni.core.option_types import ACCURACIES
from znni.core.plan_options import check_keywords
from znni.core.text import counted, duration
from znni.core.volume import SAME_COMMAND
from znni.engine.report import Report
from znni.inference.model_choice import open_faster
from znni.inference.open_run import begin_run
from znni.inference.planning import accuracy_of
from znni.inference.request import OpenRequest, Request, RunArguments, request_for
from znni.inference.resuming import identified
from znni.inference.session import Session
from znni.inference.single_planes import refuse_slices
from znni.network.network import Network
from znni.network.weights import Weights, weights_for
from znni.plans.plan import Plan
from znni.volumes.identity import differences, then_and_now
from znni.volumes.locate import open_volume, read_ledger, split_dataset, stem, writer_at
from znni.volumes.stored import is_url

# Called after each volume with the number of volumes done and that of all.
VolumesDone: TypeAlias = Callable[[int, int], None]

# An error that leaves a volume without its output.
Unfinished: TypeAlias = ZnniError | OSError | MemoryError
ERRORS = ZnniError, OSError, MemoryError

DEFAULT_FORMAT = ".h5"

log = logging.getLogger("znni")


@dataclass(frozen=True)
class Failure:
    """A volume whose output could not be computed.

    Attributes:
        source: the volume.
        error: the reason.
    """

    source: str
    error: Unfinished

    def __str__(self) -> str:
        """Return this in words."""
        words = in_one_line(self.error)
        return words if self.source in words else f"{self.source}: {words}"


def exit_code_of(failures: Sequence[Failure]) -> int:
    """Return 0 without failures; else the exit code of all, or 1 if they differ."""
    codes = {getattr(failure.error, "exit_code", 1) for failure in failures}
    return codes.pop() if len(codes) == 1 else min(1, len(codes))


@dataclass
class ManyReport:
    """The account of runs over many volumes.

    Attributes:
        outputs: the output of each volume, by its source.
        reports: how each run went, by its source.
        finished_before: the sources whose outputs an earlier call had finished.
        failures: the volumes that failed.
        seconds: the wall time.
    """

    outputs: dict[str, Path]
    reports: dict[str, Report] = field(default_factory=dict)
    finished_before: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def voxels(self) -> int:
        """Output voxels that the runs computed, as in the report of one run."""
        return sum(report.voxels for report in self.reports.values())

    @property
    def exit_code(self) -> int:
        """0 if no volume failed; else the code of the failures, or 1 if they differ."""
        return exit_code_of(self.failures)

    def __str__(self) -> str:
        """Return a line on what was computed."""
        said = [
            f"{counted(len(self.reports), 'volume')}, {counted(self.voxels, 'voxel')} in "
            f"{duration(self.seconds)}"
        ]
        if self.finished_before:
            said.append(f"{counted(len(self.finished_before), 'volume')} finished before")
        if self.failures:
            said.append(f"{counted(len(self.failures), 'volume')} failed")
        return "; ".join(said)


@checks_types
def infer_many(
    sources: Sequence[str | Path],
    network: Network | str | Path,
    folder: str | Path,
    *,
    suffix: str | None = None,
    progress: VolumesDone = lambda _done, _total: None,
    **options: Unpack[RunArguments],
) -> ManyReport:
    """Run a network over many volumes, one after the other, and write an output for each.

    Plans and prepared kernels are kept for volumes of the same shape, within ``ram``. A volume that
    fails does not stop the others: its error is logged, and is in the report. An output that an
    earlier call has finished is left alone.

    Args:
        sources: the volumes: files or URLs, as for ``znni.infer``.
        network: a network, or its YAML file.
        folder: where the outputs are made. It is made if it does not exist.
        suffix: the end of each output's name, after the name of its volume. Its ending chooses
            the format. By default ``-NETWORK.h5``.
        progress: called after each volume with the number of volumes done and that of all.
        options: those of ``znni.infer``, for all volumes. A mask and a plan must suit each of them.

    Raises:
        InvalidInput: no volume was given, two outputs would have the same name, the folder cannot
            be made, or network, weights or plan cannot be used. Then nothing was computed.
    Errors of single volumes are in the report.
    """
    check_keywords(infer_many, RunArguments, options)
    if isinstance(sources, str) or not hasattr(sources, "__iter__"):
        kind = type(sources).__name__
        raise InvalidInput(f"sources is {sources!r}, a {kind}; give a list of volumes")
    request = request_for("", network, folder, **options)
    return compute_many(sources, request, suffix, progress)


def compute_many(
    sources: Sequence[str | Path], request: Request, suffix: str | None, progress: VolumesDone
) -> ManyReport:
    """Run a network over many volumes, as ``infer_many``, with its errors.

    Args:
        sources: the volumes.
        request: what is asked for each of them. Its output is their folder.
        suffix: as for ``infer_many``.
        progress: as for ``infer_many``.
    """
    begun = perf_counter()
    requests = requests_for(sources, request, suffix)
    report = ManyReport({source: Path(each.out) for source, each in requests.items()})
    try:
        Path(request.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_made(request.out, error) from None
    session = Session(request.options.limits, followed=True)
    account = _Account(report, progress)

    def run(source: str, request: Request) -> None:
        place = split_dataset(source)[0]
        if not (is_url(place) or Path(place).exists()):  # it may be the output of the last volume
            account.settle()
        if is_finished(request):
            asked = open_faster(request)
            weights = session.weights_for(asked.network, request.weights, request.random_seed)
            check_finished(asked, weights)
            account.finished_before(source)
            return
        account.computed(source, begin_run(request, session, opened=account.settle))

    try:
        for source, each in requests.items():
            with account.failing(source):
                run(source, each)
        account.settle()
    except BaseException as stopped:
        account.wait()
        done = len(report.reports) + len(report.finished_before)
        stopped.add_note(f"{done} of {counted(len(requests), 'volume')} are finished")
        if not any(SAME_COMMAND in note for note in stopped.__notes__):
            stopped.add_note(SAME_COMMAND)
        raise
    finally:
        session.close()
    report.seconds = perf_counter() - begun
    return report


class _Account:
    """Notes in a report what becomes of each volume, and tells the progress.

    The output of a volume may reach the disk while the next volume is opened. It counts only then.
    """

    def __init__(self, report: ManyReport, progress: VolumesDone) -> None:
        self._report = report
        self._progress = progress
        self._pending: tuple[str, Callable[[], Report]] | None = None
        self._stop: BaseException | None = None

    def finished_before(self, source: str) -> None:
        """Note that an earlier call has finished a volume."""
        self.settle()
        self._report.finished_before.append(source)
        self._tell()

    def computed(self, source: str, complete: Callable[[], Report]) -> None:
        """Note that a volume is computed, and what waits until its output is complete."""
        self._pending = source, complete

    @contextmanager
    def failing(self, source: str) -> Iterator[None]:
        """Note an error of a ``with`` block as that of a volume, unless it is one of progress."""
        try:
            yield
        except ERRORS as error:
            if error is self._stop:
                raise
            self.settle()
            self._fail(source, error)
            self._tell()

    def settle(self) -> None:
        """Wait until the computed volume is complete, and tell the progress."""
        if self._pending:
            self.wait()
            self._tell()

    def wait(self) -> None:
        """Wait until the computed volume, if there is one, is complete or has failed."""
        pending, self._pending = self._pending, None
        if pending:
            source, complete = pending
            try:
                self._report.reports[source] = complete()
            except ERRORS as error:
                self._fail(source, error)

    def _fail(self, source: str, error: Unfinished) -> None:
        self._report.failures.append(Failure(source, error))
        log.info("%s", source, exc_info=error)
        _forget_frames(error)
        log.warning("%s", self._report.failures[-1])

    def _tell(self) -> None:
        report = self._report
        done = len(report.reports) + len(report.finished_before) + len(report.failures)
        try:
            self._progress(done, len(report.outputs))
        except BaseException as error:
            self._stop = error
            raise


def requests_for(
    sources: Sequence[str | Path], request: Request, suffix: str | None
) -> dict[str, Request]:
    """Return the request for each volume, by the volume.

    Weights are read once for all, except those of a model: they depend on who computes it.

    Args:
        sources: the volumes.
        request: what is asked for each of them. Its output is their folder.
        suffix: the end of each output's name; None: the network's name and the usual format.

    Raises:
        InvalidInput: the outputs cannot have such names, or network or weights cannot be used. Or
            the volumes are the slices of one.
    """
    network = request.loaded
    if sources:
        refuse_slices(sources, network)
    request = replace(request, network=network)
    if not network.models:
        weights = weights_for(network, request.weights, request.random_seed)
        request = replace(request, weights=weights, random_seed=None)
    end = f"-{network.name}{DEFAULT_FORMAT}" if suffix is None else suffix
    names = output_names(sources, request.out, end)
    return {source: replace(request, source=source, out=out) for source, out in names.items()}


def output_names(sources: Sequence[str | Path], folder: str | Path, end: str) -> dict[str, Path]:
    """Return the name of each volume's output, by the volume.

    Args:
        sources: the volumes.
        folder: where the outputs are made.
        end: the end of each name.

    Raises:
        InvalidInput: two outputs would have the same name, an output would replace a volume, or no
            file can be written there.
    """
    if isinstance(sources, str | Path) or not all(isinstance(one, str | Path) for one in sources):
        raise InvalidInput("infer_many takes a list of files or URLs; give infer an array")
    if not sources:
        raise InvalidInput("no volume is given; give one or more")
    if is_url(str(folder)):
        raise InvalidInput(
            f"{folder}: many outputs are written into a local folder; name one, or give each "
            f"volume to a call of its own"
        )
    if "/" in end:
        raise InvalidInput(f"{option('suffix', end)}: give the end of a name without /")
    try:
        writer_at(f"volume{end}")
    except InvalidInput:
        raise InvalidInput(
            f"{option('suffix', end)}: znni writes no format with this ending; give one with .h5, "
            f".zarr, .tif, .nii.gz or .npy at its end, as {option('suffix', '-cells.tif')}"
        ) from None
    by_output: dict[Path, str] = {}
    for source in map(str, sources):
        out = Path(folder) / f"{stem(source)}{end}"
        if out in by_output:
            raise InvalidInput(
                f"{by_output[out]} and {source} would both be written to {out}; rename one, or "
                f"write one of them to another folder"
            )
        by_output[out] = source
    if existing := [out for out in by_output if os.path.lexists(out)]:
        read = {realpath(split_dataset(str(source))[0]): str(source) for source in sources}
        for out in existing:
            if (volume := read.get(realpath(out))) is not None:
                raise InvalidInput(f"{out}: is the input {volume}; name another folder or suffix")
    return {source: out for out, source in by_output.items()}


def not_made(folder: str | Path, error: OSError) -> InvalidInput:
    """Return the error about a folder for outputs that cannot be made."""
    return InvalidInput(
        f"{Path(folder)}: this folder cannot be made: {error.strerror}; name another"
    )


def is_finished(request: Request) -> bool:
    """Return whether an earlier run may have finished an output, which is left alone then."""
    existing = request.options.existing
    return existing.resume and not existing.overwrite and os.path.lexists(request.out)


def check_finished(asked: OpenRequest, weights: Weights) -> None:
    """Refuse a finished output of another run, or a less accurate one.

    Raises:
        InvalidInput: it is one, or does not say what it is.
    """
    out = asked.request.out
    remedy = f"give {option('overwrite', True)} to replace it"
    try:
        found = read_ledger(str(out))
    except InvalidInput:
        try:
            open_volume(out)
        except InvalidInput as error:  # damaged, or no file of this format
            raise InvalidInput(f"{error}; delete it, or {remedy}") from None
        raise InvalidInput(
            f"{out}: exists and does not say what it was computed from; {remedy}"
        ) from None
    differing = differences(found.identity, identified(asked, weights).identity)
    accuracy, wanted = accuracy_of(Plan.from_json(found.plan)), asked.choices.accuracy
    if ACCURACIES[accuracy] > ACCURACIES[wanted]:
        differing.append(then_and_now("the accuracy", accuracy, wanted))
    if differing:
        raise InvalidInput(
            f"{out}: exists, and was computed by another run, which differs in "
            f"{'; in '.join(differing)}; {remedy}"
        )


def _forget_frames(error: BaseException | None) -> None:
    """Release the frames that an error and its causes went through. They may hold blocks."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
