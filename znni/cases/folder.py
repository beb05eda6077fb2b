"""Folders of cases: which files belong to a case, and one case after the other."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from znni.cases.case import Case, CaseReport, StepProgress, no_step_progress, predict
from znni.cases.preparation import rules_of
from znni.components.rules import Rule
from znni.core.errors import InvalidInput
from znni.core.run_options import Options
from znni.core.text import counted, duration
from znni.inference.many import ERRORS, Failure, exit_code_of
from znni.inference.session import Session
from znni.network.case_rules import CaseRules
from znni.network.network import Network
from znni.network.weights import weights_for

log = logging.getLogger("znni")

# Called with the number of cases done, and that of all.
CasesDone = Callable[[int, int], None]


def no_cases_done(_done: int, _total: int) -> None:
    """Ignore the progress."""


@dataclass
class CasesReport:
    """The account of many cases.

    Attributes:
        reports: how each case went, by its labels.
        finished_before: the labels that were there already.
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
        """Return a line on what was computed."""
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

    Args:
        folder: the folder.
        out: where the labels are made.
        rules: the steps of a case.

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
        raise InvalidInput(
            f"{folder} has no scans; their names end in _0000{ending}, and further channels in "
            f"_0001{ending} and so on"
        )
    return [Case(tuple(each), out / f"{name}{ending}") for name, each in files.items()]


def predict_cases(
    cases: Sequence[Case],
    network: Network,
    options: Options = Options(),
    *,
    skip_finished: bool = False,
    removing: Sequence[Rule] = (),
    progress: StepProgress = no_step_progress,
    done: CasesDone = no_cases_done,
) -> CasesReport:
    """Compute the labels of cases, one after the other.

    Weights, plans and kernels are kept from case to case. A case that fails does not stop the
    others.

    Args:
        cases: the cases.
        network: the network, whose file describes whole cases, and names its weights.
        options: what plans may use.
        skip_finished: whether labels that exist are left as they are. Else they are made again.
        removing: rules by which connected components of labels are removed.
        progress: called as the steps of a case go on.
        done: called after each case.

    Raises:
        InvalidInput: the network cannot be used. Errors of single cases are in the report.
    """
    begun, report = perf_counter(), CasesReport()
    rules_of(network)
    weights = weights_for(network, None, None)
    session = Session(options.limits)
    try:
        for number, case in enumerate(cases, start=1):
            if skip_finished and case.out.exists():
                report.finished_before.append(case.out)
            else:
                try:
                    found = predict(case, network, weights, session, options, progress, removing)
                    report.reports[case.out] = found
                    log.info("%s", found)
                except ERRORS as error:
                    report.failures.append(Failure(str(case.files[0]), error))
                    log.warning("%s", report.failures[-1])
                    log.info("%s", case.out, exc_info=error)
            done(number, len(cases))
    finally:
        session.close()
    report.seconds = perf_counter() - begun
    return report
