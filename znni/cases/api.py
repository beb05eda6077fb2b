"""The public calls for whole cases: a scan, a network's name, and the file of its labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from znni.core.argument_types import checks_types
from znni.core.plan_options import Choices, PlanOptions, check_keywords
from znni.core.run_options import Options
from znni.importing.nnunet_folder import Results, is_results
from znni.network.network import Network

if TYPE_CHECKING:
    from znni.cases.case_folder import Case
    from znni.cases.case_report import CaseReport
    from znni.cases.forecast import CaseForecast
    from znni.cases.networks import NetworkSet
    from znni.network.weights import Weights

# Returns a network that is changed, such as one in other windows.
Change = Callable[[Network], Network]


def as_it_is(network: Network) -> Network:
    """Return a network without a change."""
    return network


@checks_types
def infer_case(
    files: Sequence[str | Path],
    network: str | Path,
    out: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    overwrite: bool = False,
    change: Change = as_it_is,
    progress: Callable[[str, int, int], None] | None = None,
    cluster: str | Path | None = None,
    **limits: Unpack[PlanOptions],
) -> CaseReport:
    """Compute the labels of a scan, in the scan's own voxels.

    Args:
        files: the files of the scan, one for each channel. The labels of the previous stage of a
            cascade may follow.
        network: a network file with ``case:``, a results folder of nnU-Net, or a set file.
        out: the file of the labels; None: one in this folder, named after scan and networks.
        weights: the file of a single network's weights; None: the files that networks name.
        overwrite: whether to replace an existing file.
        change: changes each network, such as its windows.
        progress: called with the name of a step, the voxels done, and all voxels of the step.
        cluster: the file of a cluster that computes the networks, or ``local:N`` for N processes of
            this machine. Its workers see the folder of the output. This process does all else.
        limits: what plans may use, as in ``znni.core.plan_options.Choices``.

    Raises:
        InvalidInput: the labels exist, or an argument cannot be used.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
        RunFailed: reading, computing or writing failed.
    """
    from znni.cases.case import predict
    from znni.cases.networks import counting
    from znni.cases.on_cluster import cluster_for
    from znni.cases.steps import no_step_progress
    from znni.inference.session import Session

    check_keywords(infer_case, PlanOptions, limits)
    case, networks, given = _asked(files, network, out, weights, change, overwrite=overwrite)
    options, told = Options(limits=Choices(**limits)), progress or no_step_progress
    here, machines = cluster_for(cluster, options, case.out, networks, case.earlier)
    with machines or nullcontext(), counting(machines.idle_here if machines else 0):
        return predict(case, networks, given, Session(), here, told, cluster=machines)


@checks_types
def plan_case(
    files: Sequence[str | Path],
    network: str | Path,
    out: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    overwrite: bool = False,
    change: Change = as_it_is,
    cluster: str | Path | None = None,
    **limits: Unpack[PlanOptions],
) -> CaseForecast:
    """Predict what ``infer_case`` would take, from the headers of the scan's files.

    The arguments are those of ``infer_case``. No cluster is started. Compressed files are
    decompressed as a check, and nothing of that is kept.

    Raises:
        InvalidInput: a scan is damaged, the labels exist or cannot be written there, or an argument
            cannot be used.
        DoesNotFit: no plan stays within the memory.
        StepDoesNotFit: another step does not.
    """
    from znni.cases.forecast import forecast

    check_keywords(plan_case, PlanOptions, limits)
    case, networks, _ = _asked(files, network, out, weights, change, overwrite=overwrite)
    return forecast(case, networks, Options(limits=Choices(**limits)), cluster=cluster)


def _asked(
    files: Sequence[str | Path],
    network: str | Path,
    out: str | Path | None,
    weights: str | Path | None,
    change: Change,
    *,
    overwrite: bool,
) -> tuple[Case, NetworkSet, tuple[Weights, ...]]:
    """Return the case, its networks and their weights."""
    from znni.cases.case_folder import Case
    from znni.cases.network_set import networks_at
    from znni.cases.results_folder import previous_network
    from znni.volumes.locate import stem
    from znni.volumes.output_place import check_replaceable

    networks = networks_at(Path(network), change)
    rules = networks.rules
    name = f"{stem(str(files[0]))}-{networks.name}{rules.file_ending}"
    case = Case(tuple(map(Path, files)), Path(out or name))
    if rules.previous_stage and len(files) > len(rules.channels):
        case = replace(case, files=case.files[:-1], previous=case.files[-1])
    elif rules.previous_stage and is_results(Path(network)):
        previous = previous_network(Results(Path(network)), networks.networks[0], change)
        case = replace(case, previous=previous)
    check_replaceable(case.out, overwrite=overwrite)  # its folder is made if need be
    given = networks.weights(None if weights is None else Path(weights))
    if weights is not None:  # memory counts the weights that are read
        own = replace(networks.networks[0], weights=Path(weights))
        networks = replace(networks, networks=(own,))
    return case, networks, given
