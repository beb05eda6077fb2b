"""Several volumes in one ``znni infer``: the report, and the report of a dry run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from znni.cli.words import echo

if TYPE_CHECKING:
    from znni.inference.many import ManyReport
    from znni.inference.many_dry_run import ManyDryRun


def show_many(report: ManyReport, folder: str) -> None:
    """Print how runs over many volumes went. If some failed, list them and exit with a code."""
    echo(f"{folder}: {report}")
    for failure in report.failures:
        echo(f"znni: error: {failure}", err=True)
    if report.failures:
        sys.exit(report.exit_code)


def show_dry_run(found: ManyDryRun) -> None:
    """Print what runs over many volumes would take. If some are refused, exit with a code."""
    echo("\n".join(found.lines))
    if found.failures:
        sys.exit(found.exit_code)
