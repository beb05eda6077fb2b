"""One case: prepare its scan, run the networks, and write its labels.

All intermediate files lie in the case's folder. A run that was stopped continues from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from znni.cases.case_folder import Case, check_output, discard, open_folder
from znni.cases.case_report import CaseReport
from znni.cases.joined_labels import (
    Part,
    ScanLabels,
    joined_labels,
    without_components,
    write_labels,
)
from znni.cases.memory import CaseMemory, KnownMemory, room_of_files
from znni.cases.networks import NetworkSet, alone, beside_weights
from znni.cases.npy_file import file_of_zeros
from znni.cases.preparation import (
    Preparation,
    preparation_for,
    preparation_of_all,
    running,
    stored_values,
    unit_of,
)
from znni.cases.previous_stage import INPUT, PreviousNetwork, network_input, open_labels
from znni.cases.probabilities import MAPS, write_labels_of_maps, write_probabilities
from znni.cases.scan import Scan, decompressed, look_at_scan, open_scan
from znni.cases.spacing_file import write_spacing
from znni.cases.steps import StepProgress, Steps, no_step_progress
from znni.components.rules import Rule
from znni.core.array_like import ArrayLike
from znni.core.background import meanwhile
from znni.core.errors import InvalidInput
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
from znni.machine.arrays import return_freed_memory
from znni.network.case_rules import PreviousStage
from znni.network.network import Network
from znni.network.weights import Weights

LABELS = "labels.h5"
WITHOUT = "without-components.npy"
BEFORE = "labels-before.npy"  # of the previous stage, over the scan


def predict(
    case: Case,
    networks: Network | NetworkSet,
    weights: Weights | Sequence[Weights],
    session: Session,
    options: Options = Options(),
    progress: StepProgress = no_step_progress,
    removing: Sequence[Rule] = (),
) -> CaseReport:
    """Compute and write the labels of a case.

    Arguments are those of ``CaseRun``, but a single network may be given. Errors are those of its
    three parts.
    """
    asked = alone(networks) if isinstance(networks, Network) else networks
    given = (weights,) if isinstance(weights, Weights) else weights
    run = CaseRun(case, asked, given, session, options, progress, removing)
    run.prepare()
    run.compute()
    return run.write()


class NetworkInput(NamedTuple):
    """The input of a network.

    Attributes:
        prepared: the preparation of the scan for the network.
        source: the file, or an array.
    """

    prepared: Preparation
    source: Path | ArrayLike


class CaseRun:
    """A case in three parts, to call one after the other, each in any thread.

    The networks are computed one after the other. Those that take the same input share it.

    Args:
        case: the case.
        networks: the networks, whose files describe whole cases.
        weights: the parameters of each.
        session: finds plans and keeps them ready.
        options: what plans may use.
        progress: called as steps go on.
        removing: rules by which connected components are removed, one after the other.
        known: the memory for earlier cases of the same networks, options and rules.
    """

    def __init__(
        self,
        case: Case,
        networks: NetworkSet,
        weights: Sequence[Weights],
        session: Session,
        options: Options = Options(),
        progress: StepProgress = no_step_progress,
        removing: Sequence[Rule] = (),
        known: KnownMemory | None = None,
    ) -> None:
        self.case = case
        self._networks, self._weights = networks, weights
        self._session, self._given_options, self._progress = session, options, progress
        self._removing, self._known = removing, known
        self._holding = ExitStack()
        self._inputs: dict[int, NetworkInput] = {}
        self._opened: dict[int, OpenRun] = {}
        self._reports: list[Report] = []
        self._pending: Callable[[], Report] | None = None
        self._is_over = False

    def prepare(self) -> None:
        """Do everything before the networks: unpack, crop, normalize and resample the scan.

        Meanwhile, a thread finds and prepares the plan of the first network. Then the run of this
        network is opened. If the case needs more memory than is allowed, nothing is left in
        its folder.

        Raises:
            InvalidInput: the scan, a network or an option cannot be used.
            DoesNotFit: no plan stays within the memory.
            StepDoesNotFit: another step does not.
            RunFailed: reading or writing failed.
        """
        case, networks, options = self.case, self._networks, self._given_options
        check_output(case, networks)
        rules, unit = networks.rules, unit_of(networks.networks[0])
        seen = look_at_scan(case.files, rules, unit)
        limits, _ = beside_weights(options.limits, networks, case.earlier)
        self._options = replace(options, limits=limits)
        self._steps = Steps(self._progress)
        with ExitStack() as holding:
            is_new = holding.enter_context(open_folder(case, networks, self._weights, options))
            holding.callback(self._close_runs)
            sized = Future[CaseMemory]()
            with meanwhile(partial(self._look_ahead, seen, sized)):
                decompressed(case.inputs, case.folder)
                try:
                    self._room = sized.result()
                except Exception:
                    if is_new:
                        discard(case)
                    raise
                self._scan = open_scan(case.files, rules, case.folder, unit)
                if not (rules.previous_stage and isinstance(case.previous, PreviousNetwork)):
                    self._make_inputs()
                    with suppress(Exception):  # the run raises it again
                        self._open_ahead(0)
            self._holding = holding.pop_all()

    def compute(self) -> None:
        """Compute the labels of all networks.

        Raises:
            InvalidInput: the scan, a network or an option cannot be used.
            DoesNotFit: no plan stays within the memory.
            RunFailed: reading, computing or writing failed.
        """
        self._steps.start()
        with self._holding as holding:
            if not self._inputs:
                self._make_inputs()
            for number in range(len(self._networks.networks)):
                with meanwhile(partial(self._open_ahead, number + 1)):
                    self._run(number)
            self._holding = holding.pop_all()

    def write(self) -> CaseReport:
        """Join the labels, write them in the scan's own voxels, and remove the case's folder.

        Raises:
            InvalidInput: there are too many components.
            RunFailed: reading or writing failed.
        """
        case, scan, steps = self.case, self._scan, self._steps
        steps.start()
        with self._holding:
            self._complete()
            return_freed_memory()
            found = joined_labels([self._part(number) for number in sorted(self._inputs)])
            if removing := [*self._networks.largest, *self._removing]:
                found = self._without_components(found, removing)
            if self._networks.rules.voxels == "json":
                write_spacing(case.out, scan.spacing)
            if case.probabilities:
                progress, prepared = steps.progress_of("probabilities"), self._inputs[0].prepared
                write_probabilities(scan, prepared, case.folder, case.probabilities, progress)
                steps.done("probabilities")
            write_labels(scan, found, case.out, steps.progress_of("writing"))
            steps.done("writing")
            discard(case)
        return CaseReport(case.out, steps.seconds, tuple(self._reports))

    def close(self) -> None:
        """Let other runs take the case's folder, if not all parts of this one were called."""
        self._holding.close()

    def _look_ahead(self, seen: Scan, sized: Future[CaseMemory]) -> None:
        """Find the memory for the case, and plans, while the scan is unpacked.

        Args:
            seen: the scan, of which only the header can be read.
            sized: receives the memory for the case, or why it does not suffice.
        """
        case, networks = self.case, self._networks
        try:
            limits = self._given_options.limits
            room = room_of_files(case, networks, limits, self._removing, self._known)
            sized.set_result(room)
        except BaseException as error:
            sized.set_exception(error)
            return
        for number, network in enumerate(networks.networks):
            if self._out(number).exists() or network.models:  # these are measured alone
                continue
            whole = preparation_of_all(seen, network)
            plan = self._session.plan_ahead(self._asked_ahead(number, whole))
            if plan.gpu_memory and number == 0:
                backend_of(plan.gpu).check()  # loads its libraries

    def _make_inputs(self) -> None:
        """Prepare the scan for all networks, and make the first plan ready meanwhile."""
        room, scan, networks = self._room, self._scan, self._networks.networks
        before: ArrayLike | None = None
        if stage := self._networks.rules.previous_stage:
            before = open_labels(self._labels_before(stage), scan, stage)
            self._steps.done(stage.name)
        memory = room.steps.preparing, room.process, room.allowed
        with self._session.processes.taking(*memory), ExitStack() as working:
            for group in self._networks.groups:
                first = networks[group[0]]
                progress = self._steps.progress_of("reading")
                free = room.steps.reading
                prepared = preparation_for(scan, first, self.case.folder, progress, free, before)
                self._steps.done("reading")
                if not self._inputs:
                    working.enter_context(meanwhile(partial(self._build, prepared)))
                progress, file = self._steps.progress_of("resampling"), numbered(INPUT, group[0])
                image, free = self.case.folder / file, room.steps.resampling
                source = network_input(image, scan, prepared, before, room.threads, free, progress)
                self._steps.done("resampling")
                for number in group:
                    own = prepared.shared_with(scan, networks[number])
                    self._inputs[number] = NetworkInput(own, source)

    def _build(self, prepared: Preparation) -> None:
        """Make the plan of the first network ready, unless an earlier run has its labels."""
        if self._out(0).exists() or prepared.network.models:
            return
        asked = self._asked_ahead(0, prepared)
        plan = self._session.plan_ahead(asked)
        self._session.build_ahead(plan, self._weights[0], asked.stored, self._room.allowed)

    def _open_ahead(self, number: int) -> None:
        """Open the run of a network, unless an earlier run has its labels.

        A run for which this machine may be measured is only planned, because other work goes on.
        """
        given = self._inputs.get(number)
        if given is None or self._out(number).exists() or given.prepared.network.models:
            return
        plan = self._session.plan_ahead(self._asked_ahead(number, given.prepared))
        if not may_be_measured(plan):
            self._opened[number] = self._open(number)
            if self._is_over:  # the user stopped the case meanwhile
                self._close_runs()

    def _open(self, number: int) -> OpenRun:
        """Open the run of a network."""
        request, progress = (
            self._request(number, self._inputs[number]),
            self._steps.progress_of("network"),
        )
        return OpenRun(request, self._session, progress=progress)

    def _close_runs(self) -> None:
        """Give up the runs that were opened and not computed."""
        self._is_over = True
        while self._opened:
            self._opened.popitem()[1].close()

    def _asked_ahead(self, number: int, prepared: Preparation) -> OpenRequest:
        """Return the run of a network whose input does not exist yet. Zeros stand for it."""
        shape = prepared.network.in_features, *prepared.image.target
        if self._networks.rules.previous_stage:
            zeros = np.broadcast_to(np.float32(0), shape)
            return open_faster(self._request(number, NetworkInput(prepared, zeros)))
        with file_of_zeros(self.case.folder, shape) as file:
            return open_faster(self._request(number, NetworkInput(prepared, file)))

    def _run(self, number: int) -> None:
        """Compute the output of a network, unless an earlier run has."""
        if not self._out(number).exists():
            self._complete()
            self._steps.progress_of("network")(0, 1)  # its first block may take long
            run = self._opened.pop(number, None)
            if run is None:
                with self._session.processes.running():  # this machine may be measured for it
                    run = self._open(number)
            if run.plan.seconds > MINUTE:
                name, about = run.plan.network.name, duration(run.plan.seconds)
                self._session.warn(f"network {name} takes about {about} for the scan")
            self._pending = run.compute()
        self._steps.done("network")

    def _complete(self) -> None:
        """Complete the output of the last network that was computed, when it is on the disk."""
        pending, self._pending = self._pending, None
        if pending:
            self._reports.append(pending())
            self._steps.done("network")

    def _part(self, number: int) -> Part:
        """Return the labels of a network, from its output."""
        prepared, file = self._inputs[number].prepared, self._out(number)
        if self.case.probabilities:
            progress, room = self._steps.progress_of("labels"), self._room
            with self._session.processes.taking(room.steps.labels, room.process, room.allowed):
                file = write_labels_of_maps(self.case.folder, prepared.network, progress)
            self._steps.done("labels")
        return Part(file, prepared.crop, self._networks.numbers_of(number))

    def _request(self, number: int, given: NetworkInput) -> Request:
        """Return the run of a network over an input."""
        prepared, source = given
        saved = self.case.probabilities is not None
        values = stored_values(prepared.network, probabilities=saved)
        options = replace(self._options, values=values)
        return Request(
            source, running(prepared), self._out(number), options, self._weights[number],
            afresh=f"to start afresh, delete {self.case.folder}",
        )  # fmt: skip

    def _out(self, number: int) -> Path:
        """Return the file that a network makes."""
        name = MAPS if self.case.probabilities else numbered(LABELS, number)
        return self.case.folder / name

    def _without_components(self, labels: ScanLabels, removing: Sequence[Rule]) -> ScanLabels:
        """Return labels without the connected components that rules remove."""
        room, path = self._room, self.case.folder / WITHOUT
        memory = room.steps.components, room.process, room.allowed
        with self._session.processes.taking(*memory):
            found = without_components(self._scan, labels, path, removing, room.steps.components)
        self._steps.done("postprocessing")
        return found

    def _labels_before(self, stage: PreviousStage) -> Path:
        """Return the file of the previous stage's labels. Compute it if need be.

        Raises:
            InvalidInput: neither the file nor the network is given.
        """
        case = self.case
        found = case.previous
        if found is None:
            raise InvalidInput(
                f"{case.files[0]}: the network takes the labels of {stage.name} too; give their "
                f"file after those of the scan, or the network as a results folder that lies "
                f"beside the one of {stage.name}"
            )
        files = decompressed(case.inputs, case.folder)
        if isinstance(found, Path):
            return files[-1]
        made = case.folder / BEFORE
        if not made.exists():
            earlier = Case(tuple(files), made, found.previous)
            given = self._session, self._given_options, self._progress
            predict(earlier, found.network, found.weights, *given)
        return made


def numbered(name: str, number: int) -> str:
    """Return the name of a network's file. That of the first network has no number."""
    plain = Path(name)
    return f"{plain.stem}-{number}{plain.suffix}" if number else name
