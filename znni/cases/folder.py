"""Folders of cases: find the files of each case, and compute them.

Threads prepare the next cases and write the labels of the cases before, while the networks of a
case run. On a GPU, the networks of two cases take turns, each in a thread.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import TypeVar

from znni.cases.case import CaseRun
from znni.cases.case_folder import Case, discard_left
from znni.cases.case_report import CaseReport
from znni.cases.concurrency import (
    THREE_EACH,
    Concurrency,
    beside_writing,
    by_cores,
    computed_at_once,
    concurrency,
    with_limit,
)
from znni.cases.memory import KnownMemory
from znni.cases.networks import NetworkSet, alone, bytes_kept, counting, leaving
from znni.cases.on_cluster import CaseCluster, cluster_for, without_devices
from znni.components.rules import KeepLargest
from znni.core.errors import InvalidInput
from znni.core.run_options import Options
from znni.core.text import counted, duration
from znni.inference.exporting import LABELS_ROOM
from znni.inference.many import ERRORS, Failure, exit_code_of
from znni.inference.session import Session
from znni.network.case_rules import CaseRules
from znni.network.network import Network

Result = TypeVar("Result")

log = logging.getLogger("znni")

ENDING = ("reading", "resampling", "network")  # steps that end when the user stops the run

# Called with a case, the name of its step, the voxels done, and all voxels of the step.
CaseProgress = Callable[[Case, str, int, int], None]

# Called with the number of cases done, and the number of all cases.
CasesDone = Callable[[int, int], None]


def no_case_progress(_case: Case, _step: str, _done: int, _total: int) -> None:
    """Ignore the progress."""


def no_cases_done(_done: int, _total: int) -> None:
    """Ignore the progress."""


@dataclass
class CasesReport:
    """The account of many cases.

    Attributes:
        reports: the account of each case, by the file of its labels.
        finished_before: the files of labels that existed already.
        failures: the cases that failed.
        seconds: the wall time.
    """

    reports: dict[Path, CaseReport] = field(default_factory=dict)
    finished_before: list[Path] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 if no case failed; else the code of the failures, or 1 if they differ."""
        return exit_code_of(self.failures)

    def __str__(self) -> str:
        """Return a line on all cases."""
        said = [f"{counted(len(self.reports), 'case')} in {duration(self.seconds)}"]
        if self.finished_before:
            said.append(f"{len(self.finished_before)} finished before")
        if self.failures:
            said.append(f"{len(self.failures)} failed")
        return "; ".join(said)


def cases_in(folder: Path, out: Path, rules: CaseRules) -> list[Case]:
    """Return the cases in a folder, by name.

    The files of a case are ``NAME_0000``, ``NAME_0001`` and so on, one for each channel, with the
    ending of the network's scans.

    Raises:
        InvalidInput: the folder has no such files.
    """
    ending = rules.file_ending
    form = re.compile(rf"(.+)_(\d{{4}}){re.escape(ending)}")
    files: dict[str, list[Path]] = {}
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise InvalidInput(f"{folder}: {error.strerror}; give a folder of scans") from None
    for name in names:
        if found := form.fullmatch(name):
            files.setdefault(found[1], []).append(folder / name)
    if not files:
        others = [name for name in names if name.endswith(ending)]
        there = f" among its {counted(len(others), 'file')} such as {others[0]}" if others else ""
        example = others[0].removesuffix(ending) if others else "NAME"
        raise InvalidInput(
            f"{folder} has no scans{there}: the name of a scan's first channel ends in "
            f"_0000{ending}, of the second in _0001{ending}; name it {example}_0000{ending}, or "
            f"make such a link"
        )
    return [Case(tuple(each), out / f"{name}{ending}") for name, each in files.items()]


def predict_cases(
    cases: Sequence[Case],
    networks: Network | NetworkSet,
    options: Options = Options(),
    *,
    skip_finished: bool = False,
    removing: Sequence[KeepLargest] = (),
    progress: CaseProgress = no_case_progress,
    done: CasesDone = no_cases_done,
    most: Concurrency = THREE_EACH,
    cluster: str | Path | None = None,
) -> CasesReport:
    """Compute the labels of cases, one after the other.

    Plans and kernels stay in memory from case to case. While the networks of a case run,
    the next cases are prepared, if memory allows, and the labels of earlier cases are written.
    A case that fails does not stop the others.

    Args:
        networks: the networks, whose files describe whole cases, and name their weights.
        options: what plans may use.
        skip_finished: whether labels that exist stay as they are. Otherwise they are made again.
        removing: rules by which connected components of labels are removed.
        progress: called as the steps of a case go on, in several threads.
        done: called after each case.
        most: the most cases that are prepared, and written, at the same time.
        cluster: the file of a cluster that computes the networks of each case in turn, or
            ``local:N``. None: this machine does.

    Raises:
        InvalidInput: a network or the cluster cannot be used. Errors of single cases are in the
            report.
    """
    begun = perf_counter()
    asked = alone(networks) if isinstance(networks, Network) else networks
    _ = asked.rules  # an error before anything is read
    weights = asked.weights()
    out, earlier = (cases[0].out, cases[0].earlier) if cases else (Path(), ())
    options, machines, most, withheld = shared_out(cluster, options, out, asked, earlier, most)
    account = _Account(len(cases), done)
    left = [case for case in cases if not (skip_finished and case.is_finished)]
    sizes = list(map(bytes_kept, (*asked.networks, *earlier)))
    limits = leaving(options.limits, sum(sizes) - min(sizes))  # whichever network runs
    # A single case uses no plan again.
    session = Session(limits, followed=True) if len(left) > 1 else Session()
    for case in cases:
        if case not in left:
            discard_left(case)
            account.finished_before(case)
    stopped, known = Event(), KnownMemory()

    def report(case: Case, step: str, done: int, total: int) -> None:
        if stopped.is_set() and step in ENDING:
            raise KeyboardInterrupt
        progress(case, step, done, total)

    def begun_run(case: Case) -> CaseRun:
        tell = partial(report, case)
        return CaseRun(case, asked, weights, session, options, tell, removing, known, machines)

    def compute(run: CaseRun, prepared: Future[None]) -> Future[CaseReport]:
        with counting(withheld):
            prepared.result()
            run.compute()
        return writing.submit(run.write)

    at_once = computed_at_once(options.limits)
    with (
        machines or nullcontext(),
        ThreadPoolExecutor(most.preparing, "znni-read") as reading,
        ThreadPoolExecutor(at_once, "znni-network") as networks_of,
        ThreadPoolExecutor(most.writing, "znni-write") as writing,
    ):
        try:
            runs = _prepared_ahead(map(begun_run, left), reading, most.preparing)
            with closing(runs):
                for run, prepared in runs:
                    if at_once > 1:
                        computed = networks_of.submit(compute, run, prepared)
                    else:
                        computed = _done_here(partial(compute, run, prepared))
                    computed.add_done_callback(partial(_close_cancelled, run))
                    account.pending.append((run.case, computed))
                    account.settle(most.writing + at_once - 1)
            account.settle()
        except BaseException:
            stopped.set()
            networks_of.shutdown(cancel_futures=True)
            raise
        finally:
            reading.shutdown()
            networks_of.shutdown()
            session.close()
    account.report.seconds = perf_counter() - begun
    return account.report


def shared_out(
    cluster: str | Path | None,
    options: Options,
    out: Path,
    networks: NetworkSet,
    earlier: Sequence[Network],
    most: Concurrency,
) -> tuple[Options, CaseCluster | None, Concurrency, int]:
    """Return the options of a case, the cluster, how many cases go on, and what they withhold.

    These are the bytes that a case may not take of a limit, if that is as large as needed.
    """
    here = (options if cluster is None else without_devices(options)).limits
    allowed, most = by_cores(here, most), concurrency(here, most)
    options, machines = cluster_for(cluster, options, out, networks, earlier, most.writing)
    withheld = allowed.writing * LABELS_ROOM + (machines.idle_here if machines else 0)
    return with_limit(beside_writing(options, most.writing)), machines, most, withheld


def _done_here(work: Callable[[], Result]) -> Future[Result]:
    """Do work in this thread, and return its result or its error."""
    done = Future[Result]()
    try:
        done.set_result(work())
    except ERRORS as error:
        done.set_exception(error)
    return done


def _close_cancelled(run: CaseRun, computed: Future[Future[CaseReport]]) -> None:
    """Let other runs take the folder of a case whose networks will not run."""
    if computed.cancelled():
        run.close()


def _prepared_ahead(
    runs: Iterator[CaseRun], reading: ThreadPoolExecutor, most: int
) -> Generator[tuple[CaseRun, Future[None]], None, None]:
    """Yield each case with its preparation. Meanwhile, other cases are prepared."""

    def begin(count: int) -> list[tuple[CaseRun, Future[None]]]:
        return [(run, reading.submit(run.prepare)) for run in islice(runs, count)]

    ahead = deque(begin(most))
    try:
        while ahead:
            now = ahead.popleft()
            ahead.extend(begin(1))
            yield now
    finally:
        for run, prepared in ahead:  # the user stopped the run

            def release(_: object, run: CaseRun = run) -> None:
                run.close()

            prepared.add_done_callback(release)


def _is_over(computed: Future[Future[CaseReport]]) -> bool:
    """Return whether a case has failed, or its labels are complete."""
    return computed.done() and (computed.exception() is not None or computed.result().done())


class _Account:
    """The account of cases while they are computed.

    Attributes:
        report: the account so far.
        pending: the cases that are computed or written, in order, each with the result of
            its networks. That holds the result of writing its labels.
    """

    def __init__(self, total: int, done: CasesDone) -> None:
        self.report = CasesReport()
        self.pending = deque[tuple[Case, Future[Future[CaseReport]]]]()
        self._total = total
        self._done = done

    def finished_before(self, case: Case) -> None:
        """Note a case whose labels exist already."""
        self.report.finished_before.append(case.out)
        self._tell()

    def settle(self, most: int = 0) -> None:
        """Note labels that are complete or have failed, in order. Wait until few are left."""
        while self.pending and (len(self.pending) > most or _is_over(self.pending[0][1])):
            case, computed = self.pending.popleft()
            with self.failing(case):
                self.report.reports[case.out] = computed.result().result()
                log.info("%s", self.report.reports[case.out])
                self._tell()

    @contextmanager
    def failing(self, case: Case) -> Iterator[None]:
        """Note an error of a ``with`` block as the failure of a case."""
        try:
            yield
        except ERRORS as error:
            self.report.failures.append(Failure(str(case.files[0]), error))
            log.warning("%s", self.report.failures[-1])
            log.info("%s", case.out, exc_info=error)
            self._tell()

    def _tell(self) -> None:
        report = self.report
        done = len(report.reports) + len(report.finished_before) + len(report.failures)
        self._done(done, self._total)
