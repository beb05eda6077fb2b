"""A whole case in ``znni infer``: the volumes are a scan's files, and the output is its labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from znni.cli.options import WindowOptions
from znni.cli.plan import plan_text
from znni.cli.values import in_windows
from znni.cli.words import echo, lead_to_picture
from znni.core.errors import InvalidInput, option
from znni.core.plan_options import Choices

if TYPE_CHECKING:
    from znni.network.network import Network


def check_suits_cases(*groups: Any, **others: object) -> None:
    """Refuse options that do not apply to whole cases."""
    given = {name: value for name, value in others.items() if value is not None}
    for group in groups:
        plain = type(group)()
        given |= {
            name: value for name, value in vars(group).items() if value != getattr(plain, name)
        }
    if given.pop("resume", None) is False:
        raise InvalidInput(
            f"{option('resume', False)} does not apply to whole cases; to start afresh, delete the "
            f"folder OUT.case beside the labels"
        )
    for name, value in given.items():
        raise InvalidInput(
            f"{option(name, value)} does not apply to whole cases, whose steps the network file "
            f"describes; leave it out"
        )


def show_case(
    volumes: Sequence[str],
    net: Path,
    windows: WindowOptions,
    weights: Path | None,
    out: str | None,
    limits: Choices,
    *,
    cluster: str | None,
    overwrite: bool,
    dry_run: bool,
) -> None:
    """Compute the labels of a scan, and print a report.

    Raises:
        InvalidInput: the labels exist, they are to be a folder, or an argument cannot be used.
    """
    from znni.cases.api import infer_case, plan_case
    from znni.cli.progress import show_progress

    if out is not None and not Path(out).suffix:
        raise InvalidInput(
            f"--out {out}: give the name of a file for the labels of one scan, such as "
            f"{out.rstrip('/')}.nii.gz; for a folder of scans, give znni nnunet predict -i SCANS "
            f"-o {out} -m {net}"
        )

    def change(network: Network) -> Network:
        return in_windows(network, windows)

    chosen = {
        "weights": weights, "overwrite": overwrite, "change": change, "cluster": cluster,
        **vars(limits),
    }  # fmt: skip
    if dry_run:
        found = plan_case(volumes, net, out, **chosen)
        plans = (plan_text(plan, limits.accuracy) for plan in found.plans)
        echo("\n".join([*plans, *map(str, found.on_cluster), str(found)]))
        return
    with show_progress() as progress:
        report = infer_case(
            volumes,
            net,
            out,
            progress=lambda step, done, total: progress(done, total, step, rated=False),
            **chosen,
        )
    echo(report)
    lead_to_picture(volumes[0], str(report.out), "--labels")
