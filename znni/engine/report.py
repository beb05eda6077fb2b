"""The report of a run: measured time and memory, beside the prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from znni.core import html
from znni.core.text import aligned, counted, duration, in_units
from znni.engine.block_reader import Skipped
from znni.plans.band import MEASURED_HERE, Band, with_limits
from znni.plans.job_seconds import JobSeconds, in_words
from znni.plans.plan import Plan

LONG = 5.0  # seconds of running from which predictions are compared
NOTED = 1.0  # seconds of compilation from which the report names them
FAR = Band(0.5, 2.0)  # no run within these shares of its prediction is named


@dataclass(frozen=True)
class Report:
    """The measured time and memory of a run.

    Attributes:
        plan: the first plan.
        fallbacks: the plans that the run went on with after memory ran out, in order.
        voxels: output voxels that the run computed.
        time: where the wall time went, until the output was complete: from the start of the process
            if it was given, else from the call.
        peak_memory: the process's peak resident bytes.
        attributes: how the output came to be, as stored with it.
        accuracy_note: a note on its accuracy; empty if it is float32 and nothing else was allowed.
        finished_before: output voxels that earlier runs had finished.
        skipped: blocks that needed no work.
        gpu_peak_memory: the most bytes that arrays took of a GPU; if there are several, of the one
            where they took the most.
        compiling: the seconds in which the first blocks waited for kernels of the host that this
            machine had not compiled before.
        no_blocks: why a part of an output has no blocks; empty if it has some.
    """

    plan: Plan
    fallbacks: tuple[Plan, ...]
    voxels: int
    time: JobSeconds
    peak_memory: int
    attributes: dict[str, Any]
    accuracy_note: str
    finished_before: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    gpu_peak_memory: int = 0
    compiling: float = 0.0
    no_blocks: str = ""

    @property
    def seconds(self) -> float:
        """The wall time."""
        return self.time.total

    def __str__(self) -> str:
        """Return a line on the run, and a table of measured and predicted numbers."""
        said = [f"{counted(self.voxels, 'voxel')} in {duration(self.seconds)}"]
        said.append(self.no_blocks or self._bottleneck())
        if self.finished_before:
            said.append(f"{counted(self.finished_before, 'voxel')} were finished before")
        if self.fallbacks:
            said.append(f"memory ran out {counted(len(self.fallbacks), 'time')}")
        if self.compiling >= NOTED:
            said.append(
                f"kernels were compiled for {duration(self.compiling)}, once on this machine"
            )
        if skipped := str(self.skipped):
            said.append(skipped)
        if self.accuracy_note:
            said.append(f"accuracy {self.accuracy_note}")
        said.append(f"time predicted {self._how_sure()} ({self.plan.costs})")
        lines = ["; ".join(said), *aligned(self._rows(), left=1), *self._advice()]
        return "\n".join(map(str.rstrip, lines))

    def _repr_html_(self) -> str:
        first, *_ = str(self).split("\n")
        busy = self.time.busy.by_stage().items()
        stages = [(in_words(stage), took, duration(took)) for stage, took in busy if took]
        advice = "".join(map(html.text, self._advice()))
        return html.text(first) + html.table(self._rows()) + html.bars("busy", stages) + advice

    def _how_sure(self) -> str:
        """Return the band of the predicted time, or its error.

        No plan predicts what happens only once on a machine. So the band counts these seconds as
        they came.
        """
        if band := self.plan.band:
            around = self.time.around
            once = self.compiling + around.importing + around.measuring
            return band.around(self._predicted().total, once)
        return f"+- {self.plan.error:.0%}"

    def _advice(self) -> Iterator[str]:
        """Yield what to do if the blocks took far longer than predicted, or far less."""
        taken, predicted = self.time.running - self.compiling, self._expected().running
        masked_windows = self.plan.network.window and self.attributes.get("mask")
        if max(taken, predicted) < LONG or self.fallbacks or masked_windows or not self.voxels:
            return  # the plan says nothing about such runs
        stage, band = self.time.busy.bottleneck, self.plan.band or FAR
        if taken > max(band.longest, FAR.most) * predicted:
            said = f"running took {taken / predicted:.1f} times as long as predicted"
            if stage in ("reading", "writing"):
                yield f"{said}: {stage} set the pace; look for a faster disk or network"
                return
        elif taken < min(band.least, FAR.least) * predicted:
            said = f"running took {taken / predicted:.0%} of the time predicted"
        else:
            return
        if self.plan.costs.startswith(MEASURED_HERE):
            remedy = "measure this machine again with znni calibrate --forget"
        else:
            remedy = "znni calibrate measures this machine, and then predictions are closer"
        yield f"{said}; if that was not for other programs, {remedy}"

    def _expected(self) -> JobSeconds:
        """Return the predicted seconds of the blocks that were computed."""
        share = self.voxels / max(1, self.voxels + self.finished_before)
        blocks = ceil(share * self.plan.patches) - self.skipped.total
        return self.plan.time.for_job(max(1, blocks))

    def _rate(self, time: JobSeconds) -> str:
        return f"{self.voxels / time.total:,.0f}" if self.voxels else ""

    def _predicted(self) -> JobSeconds:
        """Return the predicted seconds of the measured time, which ends before the exit."""
        expected = self._expected()
        start = expected.around.start if self.time.around.start else 0.0  # else it began before
        return replace(expected, around=replace(expected.around, start=start, exit=0.0))

    def _rows(self) -> list[tuple[str, ...]]:
        expected, exit_seconds = self._predicted(), self._expected().around.exit
        promised = self.plan.memory.total
        times, predicted = (self.time, expected), duration(expected.total)
        if band := self.plan.band:
            predicted = with_limits(expected.total, band.limits(expected.total))
        return [
            ("", "measured", "predicted", "waiting"),
            ("voxels/s", *map(self._rate, times), ""),
            ("time", duration(self.time.total), predicted, ""),
            *self._phases(expected),
            *[("exit", "", duration(exit_seconds), "")] * bool(self.time.around.start),
            ("at a time", "", "", ""),
            *self._stages(expected),
            ("peak memory", in_units(self.peak_memory), in_units(promised), ""),
            *self._on_gpu(),
        ]

    def _phases(self, expected: JobSeconds) -> Iterator[tuple[str, ...]]:
        """Return a row for each phase that took time, or was expected to."""
        predicted = expected.phases
        for phase, taken in self.time.phases.items():
            if taken or predicted[phase]:
                yield f"  {phase}", duration(taken), duration(predicted[phase]), ""

    def _stages(self, expected: JobSeconds) -> Iterator[tuple[str, ...]]:
        """Return a row for each stage: how long it worked, and how long it waited for others."""
        predicted = expected.busy.by_stage()
        for stage, busy in self.time.busy.by_stage().items():
            if busy or predicted[stage]:
                waiting = duration(max(0.0, self.time.running - busy))
                yield f"  {in_words(stage)}", duration(busy), duration(predicted[stage]), waiting

    def _bottleneck(self) -> str:
        stage = self.time.busy.bottleneck
        return f"{in_words(stage)} set the pace, busy {self.time.share(stage):.0%} of the time"

    def _on_gpu(self) -> list[tuple[str, ...]]:
        promised = self.plan.gpu_memory
        if promised is None:
            return []
        return [("GPU memory", in_units(self.gpu_peak_memory), in_units(promised.total), "")]
