"""The widget of the plugin: a form, the plan, the run with its progress, and the threshold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from napari.layers import Image
from napari.qt.threading import create_worker
from qtpy.QtCore import Qt
from qtpy.QtGui import QFontDatabase
from qtpy.QtWidgets import (
    QApplication,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QProgressBar,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from znni.core.errors import ZnniError, in_one_line
from znni.napari.form import THRESHOLD, Form
from znni.napari.job import ENDS, Job
from znni.napari.layers import layer_of
from znni.napari.messages import show_failure, show_in_window, show_message, show_warning
from znni.napari.output import OutputLayer, added
from znni.napari.status import COMPILING, PLANNING, STARTING, RunStatus
from znni.napari.task import Began, Cancelled, Event, Failed, Finished, Planned, Progressed, Warned
from znni.napari.threshold import ThresholdBox

PARTS = 1000  # of the progress bar

HINT = "Choose a layer and a network, then press Plan."
MEANWHILE = "The plan will be here in some seconds."
COMPLETE = "The output is complete. Below is the report."
NO_PLAN = "cancelled: no plan was made"
CHANGED = "The choices have changed. Press Plan."


class RunWidget(QWidget):
    """Plans a run of a network over a layer, runs it, and shows its output while it is written.

    The user can run a plan as soon as it is shown.
    """

    def __init__(self, napari_viewer: Any) -> None:
        super().__init__()
        # The proxy that napari gives makes new objects for its layers each time.
        self._viewer = getattr(napari_viewer, "__wrapped__", napari_viewer)
        jobs = self._jobs = list[Job]()  # the job that goes on, if there is one
        self._output: OutputLayer | None = None
        self._planned = False
        self._found = Planned("", "")  # the latest plan
        self._now = RunStatus()
        self.plan, self.run, self.cancel = map(QPushButton, ("Plan", "Run", "Cancel"))
        self.summary, self.status = QLabel(HINT), QLabel("")
        self.details, self.bar = QPlainTextEdit(), QProgressBar()
        self.larger = QPushButton("Show the text below in a window")
        self.threshold = ThresholdBox(self._viewer)
        self.form = Form(lambda: self.threshold.value)
        self._arrange()
        self.threshold.changed.connect(self._note_threshold)
        self.form.changed.connect(self._invalidate)
        self.form.opened.connect(self.open)
        self.plan.clicked.connect(lambda: self._start(runs=False))
        self.run.clicked.connect(lambda: self._start(runs=True))
        self.cancel.clicked.connect(self.stop)
        self.larger.clicked.connect(lambda: show_in_window(self.details))
        layers = self._viewer.layers
        for changed in (layers.events.inserted, layers.events.removed, layers.events.renamed):
            changed.connect(self._offer_layers)
        # A closed widget can no longer stop its run, so closing stops it. A later run continues it.
        for closing in (self.destroyed, QApplication.instance().aboutToQuit):
            closing.connect(lambda: _stop(jobs))
        self._offer_layers()
        self._enable()

    def open(self, place: str) -> None:
        """Open a volume as a layer, and choose it as input."""
        try:
            layer = added(self._viewer, layer_of(place))
        except ZnniError as error:
            self._show_failed(in_one_line(error))
        else:
            self.form.layer.setCurrentText(layer.name)

    def stop(self) -> None:
        """Stop the job that goes on. Finished blocks are kept."""
        _stop(self._jobs)
        self.cancel.setEnabled(False)
        if self.is_busy:
            ends = ": the block that is computed ends first" if self._now.is_computing else ""
            self.status.setText(f"stopping{ends}")

    @property
    def is_busy(self) -> bool:
        """True while a plan is made, or a run goes on."""
        return bool(self._jobs)

    def _start(self, *, runs: bool) -> None:
        """Begin to plan, or to run."""
        try:
            asked = self.form.asked()
        except ZnniError as error:
            self._show_failed(in_one_line(error))
            self._enable()
            return
        job = Job(replace(asked.task, runs=runs), asked.array)
        self._jobs.append(job)
        starting = COMPILING if self._found.compiles else STARTING
        self._now = RunStatus(starting if runs else PLANNING, self._found.finished)
        self._output = OutputLayer(self._viewer, asked.task.out, asked.layer) if runs else None
        self.status.setText(self._now.waiting())
        if not runs:
            self.summary.setText(MEANWHILE)
            self.details.clear()
        self.bar.setRange(0, 0)  # busy, until the first block is finished
        self._enable()
        worker = create_worker(_events, job, _start_thread=False)
        worker.yielded.connect(self._take)
        worker.finished.connect(self._end)
        worker.start()

    def _take(self, event: Event | None) -> None:
        """Show what a job tells."""
        if isinstance(event, ENDS):
            self._now.end()
        match event:
            case Began():
                self._now.begin()
            case Progressed():
                self._show_progress(event)
            case Warned():
                show_warning(event.text)
            case Planned():
                self._show_plan(event)
            case Finished():
                self._show_finished(event)
            case Cancelled():
                self._show_end(self._now.cancelled() if self._output else NO_PLAN)
                if not self._output:
                    self.summary.setText(HINT)
                show_message(self.status.text())
            case Failed():
                self._show_failed(event.text)
            case None:
                self._show_waiting()
                self._show_output()

    def _end(self) -> None:
        """End a job: another one may begin."""
        self._jobs.clear()
        self.bar.setRange(0, PARTS)
        self._enable()

    def _show_plan(self, plan: Planned) -> None:
        self.summary.setText("\n".join([plan.summary, *plan.obstacles]))
        self.details.setPlainText(plan.details)
        self._set_bar(plan.finished)
        self.run.setText("Go on" if plan.finished else "Run")
        self._planned, self._found = not plan.obstacles, plan
        press = f"planned: press {self.run.text()}"
        why = f"not possible now: {'; '.join(plan.obstacles)}"
        self.status.setText(press if self._planned else why)
        for obstacle in plan.obstacles:
            show_failure(obstacle)

    def _show_progress(self, event: Progressed) -> None:
        self._set_bar(event.done / max(1, event.total))
        self.status.setText(self._now.progressed(event))
        self._show_output()

    def _show_waiting(self) -> None:
        """Show what happens before the first block is finished, or a plan is, and for how long."""
        words = self._now.waiting()
        if words and not any(job.is_stopping for job in self._jobs):
            self.status.setText(words)

    def _show_output(self) -> None:
        """Show the blocks that are written. The threshold is that of the output from then on."""
        layer = self._output.update() if self._output else None
        if isinstance(layer, Image):
            self.threshold.choose(layer)

    def _show_finished(self, event: Finished) -> None:
        self._set_bar(1.0)
        self.summary.setText(COMPLETE)
        self.details.setPlainText(event.report)
        self._show_end(f"finished: {event.report.partition(';')[0]}")
        if self._output is None:
            return
        try:
            layer = self._output.complete()
        except ZnniError as error:
            show_failure(error)
            return
        if isinstance(layer, Image):
            self.threshold.choose(layer)

    def _show_failed(self, text: str) -> None:
        """Show an error. An earlier plan is cleared."""
        self._show_end(f"failed: {text}")
        self.summary.setText(HINT)
        self.details.clear()
        self._set_bar(0.0)
        show_failure(text)

    def _show_end(self, text: str) -> None:
        """Show how a job ended. Its plan no longer holds: part of the output may be finished."""
        self.status.setText(text)
        self.run.setText("Run")
        self._planned = False

    def _set_bar(self, share: float) -> None:
        self.bar.setRange(0, PARTS)
        self.bar.setValue(round(share * PARTS))

    def _invalidate(self) -> None:
        """Note that the choices have changed, so that a plan no longer holds."""
        if self._planned:
            self.summary.setText(CHANGED)
        self._planned = False
        self._enable()

    def _note_threshold(self) -> None:
        """Note that the threshold has changed, on which few runs depend."""
        if self.form.stored.currentText() == THRESHOLD:
            self._invalidate()

    def _enable(self) -> None:
        """Enable only the buttons that can do something now."""
        self.form.setEnabled(not self.is_busy)
        self.plan.setEnabled(not self.is_busy)
        self.run.setEnabled(self._planned and not self.is_busy)
        self.cancel.setEnabled(self.is_busy)

    def _offer_layers(self, _event: object = None) -> None:
        """Offer the layers of the viewer as inputs, and as values for the threshold."""
        images = [layer for layer in self._viewer.layers if isinstance(layer, Image)]
        self.form.set_layers(images)
        self.threshold.set_layers(images)

    def _arrange(self) -> None:
        """Lay the controls out."""
        fixed = QFontDatabase.systemFont(QFontDatabase.FixedFont)
        for text in (self.summary, self.details):
            text.setFont(fixed)
        for text in (self.summary, self.status):
            text.setWordWrap(True)
            text.setTextInteractionFlags(Qt.TextSelectableByMouse)
        self.details.setReadOnly(True)
        self.details.setLineWrapMode(QPlainTextEdit.NoWrap)
        self.details.setPlaceholderText("The whole plan, and the report of the run")
        self.bar.setRange(0, PARTS)
        buttons = QHBoxLayout()
        for button in (self.plan, self.run, self.cancel):
            buttons.addWidget(button)
        column = QVBoxLayout(self)
        column.addWidget(self.form)
        column.addLayout(buttons)
        parts = self.summary, self.bar, self.status, self.larger, self.details, self.threshold
        for part in parts:
            column.addWidget(part)
        column.setStretchFactor(self.details, 1)


def _events(job: Job) -> Iterator[Event | None]:
    """Do a job, and yield what happens."""
    with suppress(ImportError):
        import zarr  # noqa: F401 - it takes a second, for which the window need not wait
    yield from job.events()


def _stop(jobs: list[Job]) -> None:
    """Ask jobs to stop."""
    for job in jobs:
        job.stop()
