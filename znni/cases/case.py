"""One case: prepare its scan, run the networks, and write its labels.

All intermediate files lie in the case's folder. A run that was stopped continues from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

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
from znni.cases.network_runs import NetworkInput, NetworkRuns, numbered
from znni.cases.networks import (
    NetworkSet,
    alone,
    beside_weights,
    bytes_kept,
    leaving,
    noting_weights,
)
from znni.cases.on_cluster import CaseCluster
from znni.cases.preparation import preparation_for, unit_of
from znni.cases.previous_stage import INPUT, PreviousNetwork, network_input, open_labels
from znni.cases.probabilities import write_labels_of_maps, write_probabilities
from znni.cases.scan import Scan, decompressed, look_at_scan, open_scan
from znni.cases.spacing_file import write_spacing
from znni.cases.steps import StepProgress, Steps, no_step_progress
from znni.components.rules import KeepLargest
from znni.core.array_like import ArrayLike
from znni.core.background import meanwhile
from znni.core.errors import InvalidInput
from znni.core.run_options import Options
from znni.inference.session import Session
from znni.machine.arrays import return_freed_memory
from znni.network.network import Network
from znni.network.weights import Weights

WITHOUT = "without-components.npy"


def predict(
    case: Case,
    networks: Network | NetworkSet,
    weights: Weights | Sequence[Weights],
    session: Session,
    options: Options = Options(),
    progress: StepProgress = no_step_progress,
    removing: Sequence[KeepLargest] = (),
    cluster: CaseCluster | None = None,
) -> CaseReport:
    """Compute and write the labels of a case.

    Arguments are those of ``CaseRun``, but a single network may be given. Errors are those of its
    three parts.
    """
    asked = alone(networks) if isinstance(networks, Network) else networks
    given = (weights,) if isinstance(weights, Weights) else weights
    run = CaseRun(case, asked, given, session, options, progress, removing, cluster=cluster)
    run.prepare()
    run.compute()
    return run.write()


def look_at_case(case: Case, networks: NetworkSet) -> Scan:
    """Open the files of a case for their headers, among them given labels of the previous stage.

    Raises:
        InvalidInput: a file cannot be used. It is named as the user has named it. Or the network
            needs a previous stage, and neither its labels nor its network are given.
    """
    rules = networks.rules
    scan = look_at_scan(case.files, rules, unit_of(networks.networks[0]))
    if (stage := rules.previous_stage) and case.previous is None:
        raise InvalidInput(
            f"{case.files[0]}: the network takes the labels of {stage.name} too; give their "
            f"file after those of the scan, or the network as a results folder that lies "
            f"beside the one of {stage.name}"
        )
    if stage and isinstance(case.previous, Path):
        open_labels(case.previous, scan, stage)
    return scan


class CaseRun:
    """A case in three parts, to call one after the other, each in any thread.

    The networks are computed one after the other. Those that take the same input share it.

    Args:
        networks: the networks, whose files describe whole cases.
        weights: the parameters of each.
        session: finds plans and keeps them ready.
        options: what plans may use here.
        progress: called as steps go on.
        removing: rules by which connected components are removed, one after the other.
        known: the memory for earlier cases of the same networks, options and rules.
        cluster: computes the networks; None: this machine does.
    """

    def __init__(
        self,
        case: Case,
        networks: NetworkSet,
        weights: Sequence[Weights],
        session: Session,
        options: Options = Options(),
        progress: StepProgress = no_step_progress,
        removing: Sequence[KeepLargest] = (),
        known: KnownMemory | None = None,
        cluster: CaseCluster | None = None,
    ) -> None:
        self.case = case
        self._networks, self._weights = networks, weights
        self._session, self._given_options, self._progress = session, options, progress
        self._removing, self._known, self._cluster = removing, known, cluster
        self._holding = ExitStack()

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
        seen = look_at_case(case, networks)
        limits, self._others = beside_weights(options.limits, networks, case.earlier)
        self._steps = Steps(self._progress)
        self._runs = NetworkRuns(
            case, networks, self._weights, self._session, replace(options, limits=limits),
            self._steps, self._cluster,
        )  # fmt: skip
        with ExitStack() as holding:
            is_new = holding.enter_context(open_folder(case, networks, self._weights, options))
            holding.callback(self._runs.close)
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
                        self._runs.open_ahead(0)
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
            if not self._runs.inputs:
                self._make_inputs()
            for number in range(len(self._networks.networks)):
                ahead = partial(self._runs.open_ahead, number + 1)
                with meanwhile(ahead), noting_weights(self._others):
                    self._runs.run(number, self._room.process, self._room.allowed)
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
            self._runs.complete()
            return_freed_memory()
            labels = joined_labels([self._part(number) for number in sorted(self._runs.inputs)])
            if removing := [*self._networks.largest, *self._removing]:
                labels = self._without_components(labels, removing)
            if self._networks.rules.voxels == "json":
                write_spacing(case.out, scan.spacing)
            if case.probabilities:
                progress, prepared = (
                    steps.progress_of("probabilities"),
                    self._runs.inputs[0].prepared,
                )
                maps = self._runs.out(0)
                write_probabilities(scan, prepared, maps, case.probabilities, progress)
                steps.done("probabilities")
            noted = self._networks.attributes(self._weights)
            write_labels(scan, labels, case.out, noted, steps.progress_of("writing"))
            steps.done("writing")
            discard(case)
        reports, on_cluster = tuple(self._runs.reports), tuple(self._runs.on_cluster)
        return CaseReport(case.out, steps.seconds, reports, on_cluster)

    def close(self) -> None:
        """Let other runs take the case's folder, if not all parts of this one were called."""
        self._holding.close()

    def _look_ahead(self, seen: Scan, sized: Future[CaseMemory]) -> None:
        """Find the memory for the case, and plans, while the scan is unpacked.

        ``sized`` receives the memory for the case, or why it does not suffice.
        """
        case, networks = self.case, self._networks
        try:
            limits = self._given_options.limits
            here = self._cluster is None
            room = room_of_files(case, networks, limits, self._removing, self._known, here=here)
            sized.set_result(room)
        except BaseException as error:
            sized.set_exception(error)
            return
        self._runs.plan_ahead(seen)

    def _make_inputs(self) -> None:
        """Prepare the scan for all networks, and make the first plan ready meanwhile."""
        room, scan, networks = self._room, self._scan, self._networks.networks
        before: ArrayLike | None = None
        if stage := self._networks.rules.previous_stage:
            before = open_labels(self._labels_before(), scan, stage)
            self._steps.done(stage.name)
        memory = room.steps.preparing, room.process, room.allowed
        with self._session.prepared.taking(*memory), ExitStack() as working:
            for group in self._networks.groups:
                first = networks[group[0]]
                progress = self._steps.progress_of("reading")
                free = room.steps.reading
                prepared = preparation_for(scan, first, self.case.folder, progress, free, before)
                self._steps.done("reading")
                if not self._runs.inputs:
                    build = partial(self._runs.build_ahead, prepared, room.allowed)
                    working.enter_context(meanwhile(build))
                progress, file = self._steps.progress_of("resampling"), numbered(INPUT, group[0])
                image, free = self.case.folder / file, room.steps.resampling
                source = network_input(image, scan, prepared, before, room.threads, free, progress)
                self._steps.done("resampling")
                for number in group:
                    own = prepared.shared_with(scan, networks[number])
                    self._runs.inputs[number] = NetworkInput(own, source)

    def _part(self, number: int) -> Part:
        """Return the labels of a network, from its output."""
        prepared, file = self._runs.inputs[number].prepared, self._runs.out(number)
        if self.case.probabilities:
            progress, room = self._steps.progress_of("labels"), self._room
            with self._session.prepared.taking(room.steps.labels, room.process, room.allowed):
                file = write_labels_of_maps(file, prepared.network, progress)
            self._steps.done("labels")
        return Part(file, prepared.crop, self._networks.numbers_of(number))

    def _without_components(
        self, labels: ScanLabels, removing: Sequence[KeepLargest]
    ) -> ScanLabels:
        """Return labels without the connected components that rules remove."""
        room, path = self._room, self.case.folder / WITHOUT
        memory = room.steps.components, room.process, room.allowed
        with self._session.prepared.taking(*memory):
            found = without_components(labels, path, removing, room.steps.components)
        self._steps.done("postprocessing")
        return found

    def _labels_before(self) -> Path:
        """Return the file of the previous stage's labels. Compute it if need be."""
        case = self.case
        found = case.previous
        assert found is not None  # as ``look_at_case`` has checked
        files = decompressed(case.inputs, case.folder)
        if isinstance(found, Path):
            return files[-1]
        earlier, options = case.before(found), self._given_options
        if not earlier.out.exists():
            earlier = replace(earlier, files=tuple(files))
            kept = sum(map(bytes_kept, self._networks.networks))
            limits = leaving(options.limits, kept)
            given = self._session, replace(options, limits=limits), self._progress
            with noting_weights(kept):
                predict(earlier, found.network, found.weights, *given, cluster=self._cluster)
        return earlier.out
