"""Dry runs over folders of cases: predict what each would take, without touching any output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from znni.cases.case_folder import Case
from znni.cases.concurrency import THREE_EACH, Concurrency
from znni.cases.folder import shared_out
from znni.cases.forecast import CaseForecast, forecast
from znni.cases.networks import NetworkSet
from znni.components.rules import KeepLargest
from znni.core.run_options import Options
from znni.inference.many import ERRORS, Failure
from znni.inference.many_dry_run import ManyDryRun


def rehearse_cases(
    cases: Sequence[Case],
    networks: NetworkSet,
    options: Options = Options(),
    *,
    skip_finished: bool = False,
    removing: Sequence[KeepLargest] = (),
    most: Concurrency = THREE_EACH,
    cluster: str | Path | None = None,
) -> ManyDryRun[CaseForecast]:
    """Predict what ``predict_cases`` would do with the same arguments. No cluster is started.

    Raises:
        InvalidInput: a network, an option or the cluster cannot be used.
    """
    rehearsal = ManyDryRun[CaseForecast]({str(it.files[0]): it.out for it in cases}, "case")
    if not cases:
        return rehearsal
    here, *_ = shared_out(cluster, options, cases[0].out, networks, cases[0].earlier, most)
    left = [case for case in cases if not (skip_finished and case.is_finished)]
    rehearsal.finished_before += [str(case.files[0]) for case in cases if case not in left]
    arguments = networks, here if cluster is None else options, removing, cluster
    for case in left:
        source = str(case.files[0])
        try:
            rehearsal.runs[source] = forecast(case, *arguments, followed=len(left) > 1)
        except ERRORS as error:
            rehearsal.failures.append(Failure(source, error))
    return rehearsal
