"""A whole case in ``znni infer``: the volumes are a scan's files, and the output is its labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from znni.cli.plan import plan_text
from znni.cli.words import echo
from znni.core.errors import InvalidInput, option
from znni.core.options import Choices
from znni.importing.nnunet_folder import Results, is_results

if TYPE_CHECKING:
    from znni.cases.case import Case
    from znni.network.network import Network


def is_whole_case(net: Path, *, asked: bool) -> bool:
    """Return whether a whole case is computed: if asked for, or if the network is a folder."""
    return asked or (net.is_dir() and is_results(net))


def case_network(net: Path) -> Network:
    """Return the network of a file, or of a results folder of nnU-Net."""
    if is_results(net):
        from znni.cases.results_folder import network_of_results

        return network_of_results(Results(net))
    from znni.network.network_file import load_network

    return load_network(net)


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
    adapted: Callable[[Network], Network],
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
        net: the file of the network, or a results folder of nnU-Net.
        adapted: returns a network in the windows that the user chose.
        weights: the file of its weights; None: the file that the network names.
        out: the file of the labels; None: one in this folder, named after the scan and the network.
        limits: what plans may use.
        overwrite: whether to replace an existing file.
        dry_run: whether to print the plan and the memory, and not to run.

    Raises:
        InvalidInput: the labels exist, or an argument cannot be used.
    """
    from znni.cases.case import predict
    from znni.cases.forecast import forecast
    from znni.cli.progress import show_progress
    from znni.core.run_options import Options
    from znni.inference.session import Session
    from znni.network.weights import weights_for

    network = adapted(case_network(net))
    case = _case_of(volumes, net, network, adapted, out)
    if case.out.exists() and not overwrite:
        raise InvalidInput(
            f"{case.out}: exists; give {option('overwrite', True)} to replace it, or another output"
        )
    options = Options(limits=limits)
    if dry_run:
        found = forecast(case, network, options)
        echo(f"{plan_text(found.plan, limits.accuracy)}\n{found}")
        return
    with show_progress() as progress:
        report = predict(
            case,
            network,
            weights_for(network, weights, None),
            Session(),
            options,
            lambda step, done, total: progress(done, total, step, rated=False),
        )
    echo(report)


def _case_of(
    volumes: Sequence[str],
    net: Path,
    network: Network,
    adapted: Callable[[Network], Network],
    out: str | None,
) -> Case:
    """Return the case of these files. The arguments are those of ``infer_case``."""
    from znni.cases.case import Case
    from znni.cases.preparation import rules_of
    from znni.cases.results_folder import previous_network
    from znni.volumes.locate import stem

    rules = rules_of(network)
    case = Case(
        tuple(map(Path, volumes)),
        Path(out or f"{stem(volumes[0])}-{network.name}{rules.file_ending}"),
    )
    if not rules.previous_stage:
        return case
    if len(volumes) > len(rules.channels):
        return replace(case, files=case.files[:-1], previous=case.files[-1])
    if not is_results(net):
        return case
    return replace(case, previous=previous_network(Results(net), network, adapted))
