"""The account of a case: the seconds of its steps, and the reports on its networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from znni.core.text import duration
from znni.engine.report import Report
from znni.plans.band import sum_of_limits, with_limits

if TYPE_CHECKING:
    from znni.cluster.run import ClusterReport


@dataclass(frozen=True)
class CaseReport:
    """The account of a case.

    Attributes:
        out: the labels.
        seconds: the seconds of each step, by its name.
        reports: the report on each network, but for those whose labels an earlier run computed.
        on_cluster: the same, for networks that a cluster computed.
    """

    out: Path
    seconds: dict[str, float]
    reports: tuple[Report, ...]
    on_cluster: tuple[ClusterReport, ...] = ()

    def __str__(self) -> str:
        """Return a line on the case."""
        steps = ", ".join(f"{name} {duration(taken)}" for name, taken in self.seconds.items())
        return f"{self.out}: {duration(sum(self.seconds.values()))} ({steps}){self._predicted}"

    @property
    def _predicted(self) -> str:
        """The predicted time of the networks' blocks, and its band; empty if none was computed."""
        running = [report.plan.time.for_job(report.plan.patches).running for report in self.reports]
        bands = [report.plan.band for report in self.reports]
        limits = [band.limits(each) for band, each in zip(bands, running, strict=True) if band]
        if not limits:
            return ""
        return f"; network predicted {with_limits(sum(running), sum_of_limits(limits))}"
