"""Dry run over many volumes: predict what each would take, without touching any output."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, Protocol, TypeAlias, TypeVar

from znni.core.errors import ZnniError
from znni.core.text import aligned, counted, duration, in_units
from znni.inference.dry_run import DryRun, Prediction, rehearse
from znni.inference.many import (
    Failure,
    check_finished,
    exit_code_of,
    is_finished,
    not_made,
    requests_for,
)
from znni.inference.model_choice import open_faster
from znni.inference.request import Request, parameters_of
from znni.inference.session import Session
from znni.plans.job_seconds import NOTHING_AROUND

Wrong: TypeAlias = ZnniError | OSError | MemoryError


class Predicted(Protocol):
    """The prediction for one run."""

    @property
    def prediction(self) -> Prediction:
        """The time and the memory of the run, if it is one of many."""


Run = TypeVar("Run", bound=Predicted)


@dataclass
class ManyDryRun(Generic[Run]):
    """Prediction for many runs, one after the other.

    Attributes:
        outputs: the output of each run, by its source.
        noun: the word for a source.
        runs: the prediction for each run, by its source.
        finished_before: the sources whose outputs are finished.
        failures: the sources whose runs would fail.
    """

    outputs: dict[str, Path]
    noun: str = "volume"
    runs: dict[str, Run] = field(default_factory=dict)
    finished_before: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The predicted time. Plans and code are made ready once for sources of the same shape."""
        seconds = 0.0
        built: set[Hashable] = set()
        for prediction in self._predictions.values():
            seconds += prediction.beside
            for plan, blocks in prediction.computing:
                if not built:
                    seconds += plan.time.around.total
                alone = replace(plan.time, around=NOTHING_AROUND)
                if (key := (plan.network.name, plan.patch, plan.segments)) in built:
                    alone = replace(alone, building=0.0, warming=0.0)
                built.add(key)
                seconds += alone.total(blocks) if blocks else 0.0
        return seconds

    @property
    def _predictions(self) -> dict[str, Prediction]:
        return {source: run.prediction for source, run in self.runs.items()}

    @property
    def exit_code(self) -> int:
        """The exit code that the runs would have."""
        return exit_code_of(self.failures)

    @property
    def lines(self) -> list[str]:
        """Lines to print: one for each run, and one for all."""
        predictions = self._predictions
        failed = {failure.source: str(failure.error) for failure in self.failures}
        rows = []
        for source, out in self.outputs.items():
            if source in predictions:
                run = predictions[source]
                share = f"{run.finished:.0%} finished" if run.finished else ""
                rows.append((str(out), duration(run.seconds), in_units(run.memory), share))
            elif source in failed:
                rows.append((str(out), "refused now", failed[source], ""))
            else:
                rows.append((str(out), "finished before", "", ""))
        most = max((run.memory for run in predictions.values()), default=0)
        said = [
            f"{counted(len(self.runs), self.noun)} in {duration(self.seconds)} together and "
            f"{in_units(most)}, as predicted"
        ]
        if self.finished_before:
            said.append(f"{counted(len(self.finished_before), self.noun)} finished before")
        if self.failures:
            said.append(f"{counted(len(self.failures), self.noun)} refused")
        return [*map(str.rstrip, aligned(rows, left=4)), "; ".join(said)]


def rehearse_many(
    sources: Sequence[str | Path], request: Request, suffix: str | None = None
) -> ManyDryRun[DryRun]:
    """Predict what ``compute_many`` would do with the same arguments.

    Raises:
        InvalidInput: nothing would be computed, as for ``znni.infer_many``.
    """
    requests, folder = requests_for(sources, request, suffix), Path(request.out)
    rehearsal = ManyDryRun[DryRun]({source: Path(each.out) for source, each in requests.items()})
    session = Session(request.options.limits, measures=False, followed=True)
    with closing(session), _looked_at(folder) as place:
        for source, each in requests.items():
            try:
                if is_finished(each):
                    asked = open_faster(each)
                    check_finished(asked, parameters_of(asked))
                    rehearsal.finished_before.append(source)
                    continue
                out = place / Path(each.out).name
                run = rehearse(replace(each, out=out), session.plan_for)
                if run.obstacles:
                    raise run.obstacles[0]
                rehearsal.runs[source] = run
            except (ZnniError, OSError, MemoryError) as error:
                rehearsal.failures.append(Failure(source, _about(folder, place, error)))
    return rehearsal


@contextmanager
def _looked_at(folder: Path) -> Iterator[Path]:
    """Yield the folder of outputs. If there is none yet, yield an empty one on the same disk.

    The empty one is deleted afterwards.

    Raises:
        InvalidInput: the folder cannot be made.
    """
    if folder.is_dir():
        yield folder
        return
    above = next(parent for parent in folder.absolute().parents if os.path.lexists(parent))
    try:
        empty = TemporaryDirectory(prefix=".znni-", dir=folder if folder.exists() else above)
    except OSError as error:
        raise not_made(folder, error) from None
    with empty as place:
        yield Path(place)


def _about(folder: Path, place: Path, error: Wrong) -> Wrong:
    """Return an error with the folder that the user named, in place of the empty one."""
    if folder == place:
        return error
    if isinstance(error, OSError) and error.filename is not None:
        error.filename = str(error.filename).replace(str(place), str(folder))
    elif not isinstance(error, OSError):
        error.args = tuple(str(said).replace(str(place), str(folder)) for said in error.args)
    return error
