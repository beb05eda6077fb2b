"""The runs of a case's networks, one after the other, here or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from znni.cases.case_folder import Case
from znni.cases.networks import NetworkSet
from znni.cases.npy_file import file_of_zeros
from znni.cases.on_cluster import CaseCluster
from znni.cases.preparation import Preparation, preparation_of_all, running, stored_values
from znni.cases.scan import Scan
from znni.cases.steps import Steps
from znni.core.array_like import ArrayLike
from znni.core.logged import MINUTE
from znni.core.run_options import Options
from znni.core.text import duration
from znni.engine.backends.registry import backend_of
from znni.engine.report import Report
from znni.inference.first_measurement import may_be_measured
from znni.inference.model_choice import open_faster
from znni.inference.open_run import OpenRun
from znni.inference.request import OpenRequest, Request
from znni.inference.session import Session
from znni.network.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from znni.cluster.run import ClusterReport

LABELS = "labels.h5"
MAPS = "maps.h5"  # for probabilities
ENDINGS = (".h5", ".zarr")  # of a network's output, from here and from a cluster


class NetworkInput(NamedTuple):
    """The input of a network.

    Attributes:
        prepared: the preparation of the scan for the network.
        source: the file, or an array.
    """

    prepared: Preparation
    source: Path | ArrayLike


class NetworkRuns:
    """The runs of a case's networks.

    Attributes:
        inputs: the input of each network by its number, as far as they are made.
        reports: the report on each network that was computed here.
        on_cluster: the report on each network that the cluster computed.
    """

    def __init__(
        self,
        case: Case,
        networks: NetworkSet,
        weights: Sequence[Weights],
        session: Session,
        options: Options,
        steps: Steps,
        cluster: CaseCluster | None = None,
    ) -> None:
        self.inputs: dict[int, NetworkInput] = {}
        self.reports: list[Report] = []
        self.on_cluster: list[ClusterReport] = []
        self._case, self._networks, self._weights = case, networks, weights
        self._session, self._options, self._steps = session, options, steps
        self._cluster = cluster
        self._opened: dict[int, OpenRun] = {}
        self._pending: Callable[[], Report] | None = None
        self._is_over = False

    def plan_ahead(self, seen: Scan) -> None:
        """Find the plans of all networks that run here, and load the libraries of the first."""
        for number, network in enumerate(self._networks.networks):
            if not self._is_planned_ahead(number):
                continue
            plan = self._session.plan_ahead(
                self._asked_ahead(number, preparation_of_all(seen, network))
            )
            if plan.gpu_memory and plan.workers == 1 and number == 0:
                backend_of(plan.gpu).check()  # loads its libraries

    def build_ahead(self, prepared: Preparation, allowed: int) -> None:
        """Make the plan of the first network ready, if it is to run here."""
        if self._is_planned_ahead(0):
            asked = self._asked_ahead(0, prepared)
            plan = self._session.plan_ahead(asked)
            self._session.build_ahead(plan, self._weights[0], asked.stored, allowed)

    def open_ahead(self, number: int) -> None:
        """Open the run of a network, if it is planned here and its input exists.

        If this machine may be measured for the run, it is only planned, because other work goes on.
        """
        given = self.inputs.get(number)
        if given is None or not self._is_planned_ahead(number):
            return
        plan = self._session.plan_ahead(self._asked_ahead(number, given.prepared))
        if not may_be_measured(plan):
            self._opened[number] = self._open(number)
            if self._is_over:  # the user stopped the case meanwhile
                self.close()

    def run(self, number: int, process: int, allowed: int) -> None:
        """Compute the output of a network, unless an earlier run has.

        Args:
            number: the number of the network.
            process: the bytes of this process beside workers of this machine.
            allowed: the bytes of the host that may be taken in all.
        """
        if not self.out(number).exists():
            self.complete()
            progress = self._steps.progress_of("network")
            progress(0, 1)  # its first block may take long
            if self._cluster:
                memory = self._cluster.ram_here, process, allowed
                with self._session.prepared.taking(*memory):
                    request, folder = self._request(number), self._case.folder
                    self.on_cluster.append(self._cluster.compute(request, folder, progress))
            else:
                self._run_here(number)
        self._steps.done("network")

    def complete(self) -> None:
        """Complete the output of the last network that was computed, when it is on the disk."""
        pending, self._pending = self._pending, None
        if pending:
            self.reports.append(pending())
            self._steps.done("network")

    def close(self) -> None:
        """Give up the runs that were opened and not computed."""
        self._is_over = True
        while self._opened:
            self._opened.popitem()[1].close()

    def out(self, number: int) -> Path:
        """Return the file that a network makes, or that an earlier run has made."""
        name = MAPS if self._case.probabilities else numbered(LABELS, number)
        made = [(self._case.folder / name).with_suffix(ending) for ending in ENDINGS]
        return next((file for file in made if file.exists()), made[self._cluster is not None])

    def _is_planned_ahead(self, number: int) -> bool:
        """Return whether the plan of a network is found while the scan is prepared."""
        is_model = self._networks.networks[number].models  # these are measured alone
        return not (self._cluster or self.out(number).exists() or is_model)

    def _run_here(self, number: int) -> None:
        """Compute the output of a network on this machine."""
        run = self._opened.pop(number, None)
        if run is None:
            with self._session.prepared.running() as turn:
                turn.wait_to_compute()
                turn.wait_to_finish()  # nothing else computes: this machine may be measured
                run = self._open(number)
        if run.plan.seconds > MINUTE:
            name, about = run.plan.network.name, duration(run.plan.seconds)
            self._session.warn(f"network {name} takes about {about} for the scan")
        self._pending = run.compute()
        self._weights[number].give_back()

    def _open(self, number: int) -> OpenRun:
        """Open the run of a network."""
        progress = self._steps.progress_of("network")
        return OpenRun(self._request(number), self._session, progress=progress)

    def _asked_ahead(self, number: int, prepared: Preparation) -> OpenRequest:
        """Return the run of a network whose input does not exist yet. Zeros stand for it."""
        shape = prepared.network.in_features, *prepared.image.target
        if self._networks.rules.previous_stage:
            zeros = np.broadcast_to(np.float32(0), shape)
            return open_faster(self._request(number, NetworkInput(prepared, zeros)))
        with file_of_zeros(self._case.folder, shape) as file:
            return open_faster(self._request(number, NetworkInput(prepared, file)))

    def _request(self, number: int, given: NetworkInput | None = None) -> Request:
        """Return the run of a network over an input, by default over its own."""
        prepared, source = given or self.inputs[number]
        saved = self._case.probabilities is not None
        values = stored_values(prepared.network, probabilities=saved)
        options = replace(self._options, values=values)
        return Request(
            source, running(prepared), self.out(number), options, self._weights[number],
            afresh=f"to start afresh, delete {self._case.folder}",
        )  # fmt: skip


def numbered(name: str, number: int) -> str:
    """Return the name of a network's file. That of the first network has no number."""
    plain = Path(name)
    return f"{plain.stem}-{number}{plain.suffix}" if number else name
