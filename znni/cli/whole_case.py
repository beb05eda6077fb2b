"""A whole case in ``znni infer``: the volumes are a scan's files, and the output is its labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from znni.cases.set_file import is_set
from znni.cli.options import WindowOptions
from znni.cli.plan import plan_text
from znni.cli.values import in_windows
from znni.cli.words import echo
from znni.core.errors import InvalidInput, option
from znni.core.options import Choices
from znni.importing.nnunet_folder import Results, is_results

if TYPE_CHECKING:
    from znni.cases.case_folder import Case
    from znni.cases.networks import NetworkSet
    from znni.network.network import Network


def is_whole_case(net: Path, *, asked: bool) -> bool:
    """Return whether a whole case is computed: if asked for, or for a folder, or several networks.

    Args:
        net: the network, as the user names it.
        asked: whether the user asks for a whole case.
    """
    return asked or (net.is_dir() and is_results(net)) or is_set(net)


def check_suits_cases(*groups: Any, **others: object) -> None:
    """Refuse options that do not apply to whole cases.

    Args:
        groups: groups of options. None of them applies.
        others: further options by name; None: not given.

    Raises:
        InvalidInput: one is given.
    """
    given = {name: value for name, value in others.items() if value is not None}
    for group in groups:
        plain = type(group)()
        given |= {
            name: value for name, value in vars(group).items() if value != getattr(plain, name)
        }
    for name, value in given.items():
        raise InvalidInput(
            f"{option(name, value)} does not apply to whole cases, whose steps the network file "
            f"describes; leave it out"
        )


def infer_case(
    volumes: Sequence[str],
    net: Path,
    windows: WindowOptions,
    weights: Path | None,
    out: str | None,
    limits: Choices,
    *,
    overwrite: bool,
    dry_run: bool,
) -> None:
    """Compute the labels of a scan, and print a report.

    Args:
        volumes: the files of the scan, one for each channel. The labels of the previous stage of a
            cascade may follow.
        net: a network file, a results folder of nnU-Net, or a set file.
        windows: the windows that the user chose.
        weights: the file of a single network's weights; None: the files that networks name.
        out: the file of the labels; None: one in this folder, named after scan and networks.
        limits: what plans may use.
        overwrite: whether to replace an existing file.
        dry_run: whether to print the plan and the memory, and not to run.

    Raises:
        InvalidInput: the labels exist, or an argument cannot be used.
    """
    from znni.cases.case import predict
    from znni.cases.forecast import forecast
    from znni.cases.network_set import networks_at
    from znni.cli.progress import show_progress
    from znni.core.run_options import Options
    from znni.inference.session import Session

    def adapted(network: Network) -> Network:
        return in_windows(network, windows)

    networks = networks_at(net, adapted)
    case = _case_of(volumes, net, networks, adapted, out)
    if case.out.exists() and not overwrite:
        raise InvalidInput(
            f"{case.out}: exists; give {option('overwrite', True)} to replace it, or another output"
        )
    options = Options(limits=limits)
    if dry_run:
        found = forecast(case, networks, options)
        plans = (plan_text(plan, limits.accuracy) for plan in found.plans)
        echo("\n".join([*plans, str(found)]))
        return
    with show_progress() as progress:
        report = predict(
            case,
            networks,
            networks.weights(weights),
            Session(),
            options,
            lambda step, done, total: progress(done, total, step, rated=False),
        )
    echo(report)


def _case_of(
    volumes: Sequence[str],
    net: Path,
    networks: NetworkSet,
    adapted: Callable[[Network], Network],
    out: str | None,
) -> Case:
    """Return the case of these files.

    Args:
        volumes: as for ``infer_case``.
        net: as for ``infer_case``.
        networks: the networks that it names.
        adapted: returns a network in the windows that the user chose.
        out: as for ``infer_case``.
    """
    from znni.cases.case_folder import Case
    from znni.cases.results_folder import previous_network
    from znni.volumes.locate import stem

    rules = networks.rules
    case = Case(
        tuple(map(Path, volumes)),
        Path(out or f"{stem(volumes[0])}-{networks.name}{rules.file_ending}"),
    )
    if not rules.previous_stage:
        return case
    if len(volumes) > len(rules.channels):
        return replace(case, files=case.files[:-1], previous=case.files[-1])
    if not is_results(net):
        return case
    return replace(case, previous=previous_network(Results(net), networks.networks[0], adapted))
