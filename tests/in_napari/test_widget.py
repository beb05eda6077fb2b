"""Every control of the widget, in napari's own viewer."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import LONG_VOLUME, voxels
from paths import SUPPORT

import znni
from znni.napari import job as jobs

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen" if "DISPLAY" not in os.environ else "xcb")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # napari and libraries below it warn as they are imported
    pytest.importorskip("qtpy", reason="napari is not installed")
    pytest.importorskip("napari.components", reason="napari is not installed")

    import napari
    from napari.components import ViewerModel
    from napari.utils.notifications import notification_manager
    from qtpy.QtWidgets import QApplication, QFileDialog, QInputDialog

    from znni.napari import form, messages, output, widget
    from znni.napari.widget import RunWidget

LONGEST_SECONDS = 60.0

pytestmark = [
    pytest.mark.usefixtures("long_case"),
    pytest.mark.filterwarnings("default"),  # of napari, of Qt and of libraries below them
]


@pytest.fixture(scope="module")
def app() -> Any:
    return QApplication.instance() or QApplication([])


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """The errors in slots of Qt; there may be none."""
    found: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda _kind, error, _trace: found.append(error))
    yield found
    assert not found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The notifications, each as its kind and its text."""
    found: list[tuple[str, str]] = []

    def note(kind: str) -> Callable[[str], None]:
        return lambda text: found.append((kind, text))

    shown = SimpleNamespace(
        show_error=note("error"), show_warning=note("warning"), show_info=note("info")
    )
    monkeypatch.setattr(messages, "notifications", shown)
    return found


@pytest.fixture
def viewer() -> Any:
    return ViewerModel()


@pytest.fixture
def window(
    app: Any, viewer: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[RunWidget]:
    """The widget, over the long case, whose process computes slow fakes."""
    request.getfixturevalue("errors")
    request.getfixturevalue("told")
    command = [sys.executable, str(SUPPORT / "slow_child.py")]
    monkeypatch.setattr(jobs, "command_of", lambda _module, number: [*command, number])
    monkeypatch.setattr(output, "LEAST_SECONDS", 0.0)
    made = RunWidget(viewer)
    yield made
    made.stop()
    wait(lambda: not made.is_busy)
    made.close()
    app.processEvents()


def wait(reached: Callable[[], bool]) -> None:
    end = monotonic() + LONGEST_SECONDS
    while not reached():
        QApplication.processEvents()
        sleep(0.005)
        assert monotonic() < end


def plan(window: RunWidget) -> None:
    window.plan.click()
    assert window.is_busy
    wait(lambda: not window.is_busy)


def run(window: RunWidget) -> None:
    plan(window)
    assert window.run.isEnabled()
    window.run.click()
    wait(lambda: not window.is_busy)


@pytest.fixture
def chosen(window: RunWidget) -> RunWidget:
    """The widget with all that a run needs."""
    window.open("volume.h5")
    window.form.network.setCurrentText("tiny.yaml")
    window.form.out.setText("out.zarr")
    window.form.ram.setText("512.4MiB")
    return window


def test_it_offers_trained_networks_and_images(window: RunWidget, viewer: Any) -> None:
    names = [window.form.network.itemText(at) for at in range(window.form.network.count())]
    assert {"cells-unet", "boundaries", "n537"} <= set(names)
    assert "n726" not in names  # without weights
    assert window.form.layer.count() == 0
    viewer.add_labels(np.zeros((4, 4, 4), int))
    layer = viewer.add_image(np.zeros((4, 4, 4)), name="one")
    assert window.form.layer.currentText() == "one"
    layer.name = "two"
    assert window.form.layer.currentText() == "two"
    assert window.threshold.layer.currentText() == "two"
    viewer.add_image(np.zeros((4, 4, 4)), name="three")
    assert window.form.layer.currentText() == "two"
    viewer.layers.remove(layer)
    assert window.form.layer.currentText() == "three"


def test_what_is_missing_is_said(window: RunWidget, told: list[tuple[str, str]]) -> None:
    window.plan.click()
    window.open("volume.h5")
    window.form.network.setCurrentText("")
    window.plan.click()
    window.form.network.setCurrentText("tiny.yaml")
    window.form.out.setText("")
    window.plan.click()
    assert [kind for kind, _ in told] == ["error"] * 3
    missing = ("there is no layer", "no network is chosen", "no output is named")
    for (_, text), said in zip(told, missing, strict=True):
        assert said in text
    assert not window.is_busy


def test_a_run_from_plan_to_output(chosen: RunWidget, viewer: Any) -> None:
    assert not chosen.run.isEnabled()
    plan(chosen)
    assert chosen.summary.text().splitlines()[0].startswith("time ")
    assert "throughput" in chosen.details.toPlainText()
    assert chosen.run.isEnabled()
    chosen.run.click()
    assert chosen.cancel.isEnabled()
    for control in (chosen.plan, chosen.form, chosen.run):
        assert not control.isEnabled()
    wait(lambda: len(viewer.layers) > 1)  # before it is complete
    assert chosen.is_busy
    unfinished = viewer.layers[1]
    unfinished.opacity, unfinished.colormap = 0.5, "viridis"
    wait(lambda: "left" in chosen.status.text())
    wait(lambda: bool(np.asarray(unfinished._slice.image.raw).any()))
    wait(lambda: not chosen.is_busy)
    assert chosen.status.text().startswith("finished: ")
    assert "predicted" in chosen.details.toPlainText()
    assert chosen.bar.value() == chosen.bar.maximum()
    first, made = viewer.layers
    assert (first.name, made.name) == ("volume.h5", "out.zarr")
    assert (made.opacity, made.colormap.name) == (0.5, "viridis")
    np.testing.assert_array_equal(np.asarray(made.data), np.asarray(znni.LazyArray("out.zarr")))
    np.testing.assert_array_equal(made.translate, (0, 0, 2, 3))
    assert chosen.threshold.layer.currentText() == "out.zarr"
    assert not chosen.run.isEnabled()  # before a new plan


def test_a_cancelled_run_goes_on(
    chosen: RunWidget, viewer: Any, told: list[tuple[str, str]]
) -> None:
    plan(chosen)
    chosen.run.click()
    wait(lambda: chosen.bar.value() > 0)
    begun = monotonic()
    chosen.cancel.click()
    assert not chosen.cancel.isEnabled()
    wait(lambda: not chosen.is_busy)
    assert monotonic() - begun < 5
    kind, text = told[-1]
    assert kind == "info"
    assert "the same command goes on from there" in text
    assert not Path("out.zarr").exists()
    plan(chosen)
    assert chosen.run.text() == "Go on"
    assert 0 < chosen.bar.value() < chosen.bar.maximum()
    chosen.run.click()
    wait(lambda: not chosen.is_busy)
    assert Path("out.zarr").is_dir()
    assert len(viewer.layers) == 2  # the layer of the first run has become the output


def test_a_changed_choice_needs_a_new_plan(chosen: RunWidget) -> None:
    controls = chosen.form
    changes: list[Callable[[], None]] = [
        lambda: controls.stored.setCurrentIndex(1),
        lambda: controls.edges.setCurrentIndex(1),
        lambda: controls.device.setCurrentText("cpu"),
        lambda: controls.ram.setText("700MiB"),
        lambda: controls.channel.setText("0"),
        lambda: controls.out.setText("other.zarr"),
        lambda: controls.overwrite.setChecked(True),
        lambda: controls.network.setCurrentText("boundaries"),
        lambda: controls.stored.setCurrentText(form.THRESHOLD),
        lambda: chosen.threshold.slider.setValue(300),
    ]
    plan(chosen)
    chosen.threshold.slider.setValue(200)
    assert chosen.run.isEnabled()  # no run depends on it, unless it stores labels above it
    for change in changes:
        chosen._planned = True
        chosen._enable()
        assert chosen.run.isEnabled()
        change()
        assert not chosen.run.isEnabled()
        assert chosen.summary.text() == widget.CHANGED


def test_the_choices_become_the_options_of_a_run(chosen: RunWidget, viewer: Any) -> None:
    controls = chosen.form
    assert controls.asked().task.options == {
        "device": "auto",
        "ram": "512.4MiB",
        "border": "valid",
    }
    controls.stored.setCurrentText(form.LABELS)
    controls.edges.setCurrentIndex(1)
    controls.device.setCurrentText("cpu")
    controls.ram.setText("")
    controls.channel.setText("0")
    controls.overwrite.setChecked(True)
    asked = controls.asked()
    assert (asked.task.source, asked.task.network, asked.task.out) == (
        "volume.h5", "tiny.yaml", "out.zarr",
    )  # fmt: skip
    assert asked.task.options == {
        "device": "cpu",
        "overwrite": True,
        "border": "same",
        "channel": 0,
        "labels": True,
    }
    controls.stored.setCurrentText(form.THRESHOLD)
    chosen.threshold.number.setValue(0.25)
    assert controls.asked().task.options["threshold"] == 0.25
    controls.stored.setCurrentText(form.CASE)
    assert controls.asked().task.source == ("volume.h5",)
    controls.stored.setCurrentText(form.VALUES)
    layer = viewer.add_image(voxels(LONG_VOLUME), name="memory", scale=(2, 1, 1))
    controls.layer.setCurrentText("memory")
    asked = controls.asked()
    assert asked.array is layer.data
    assert asked.task.options["voxel_size"] == "2,1,1"


def test_a_layer_in_memory_is_run(chosen: RunWidget, viewer: Any) -> None:
    layer = viewer.add_image(voxels(LONG_VOLUME), scale=(2, 1, 1), translate=(5, 6, 7))
    chosen.form.layer.setCurrentText(layer.name)
    run(chosen)
    made = viewer.layers["out.zarr"]
    np.testing.assert_array_equal(made.scale, (1, 2, 1, 1))
    np.testing.assert_array_equal(made.translate, (0, 5, 6 + 2, 7 + 3))


def test_labels_become_a_layer_of_labels(chosen: RunWidget, viewer: Any) -> None:
    net = Path("tiny.yaml")
    net.write_text(f"{net.read_text()}labels: {{soma: 1, axon: 3}}\n")
    chosen.form.stored.setCurrentText(form.LABELS)
    run(chosen)
    made = viewer.layers["out.zarr"]
    assert type(made).__name__ == "Labels"
    np.testing.assert_array_equal(np.asarray(made.data), znni.LazyArray("out.zarr")[0])
    shown = np.asarray(made.data[viewer.dims.current_step[0]])
    for number, name in ((1, "soma"), (3, "axon")):
        voxel = viewer.dims.current_step[0], *np.argwhere(shown == number)[0]
        assert name in made.get_status(voxel)["value"]


def test_a_run_into_another_format_is_shown_when_it_is_complete(
    chosen: RunWidget, viewer: Any
) -> None:
    chosen.form.out.setText("out.h5")
    run(chosen)
    assert [layer.name for layer in viewer.layers] == ["volume.h5", "out.h5"]


def test_what_keeps_a_run_from_beginning_is_shown(
    chosen: RunWidget, told: list[tuple[str, str]]
) -> None:
    Path("out.zarr").mkdir()
    plan(chosen)
    assert not chosen.run.isEnabled()
    kind, text = told[-1]
    assert (kind, "exists; give overwrite=True" in text) == ("error", True)
    assert text in chosen.summary.text()
    chosen.form.ram.setText("1MiB")
    plan(chosen)
    assert told[-1][0] == "error"
    assert chosen.status.text().startswith("failed: ")
    chosen.form.network.setCurrentText("no-such-network")
    plan(chosen)
    assert "no such network file" in told[-1][1]


def test_the_slider_moves_the_labels(chosen: RunWidget, viewer: Any) -> None:
    run(chosen)
    made, threshold = viewer.layers["out.zarr"], chosen.threshold
    values = np.asarray(made.data)
    threshold.shows.setChecked(True)
    labels = viewer.layers["out.zarr above threshold"]
    np.testing.assert_array_equal(np.asarray(labels.data), values > 0.5)
    np.testing.assert_array_equal(labels.translate, made.translate)
    assert not labels.editable
    threshold.slider.setValue(700)
    assert threshold.number.value() == 0.7
    np.testing.assert_array_equal(np.asarray(labels.data), values > 0.7)
    point = tuple(map(int, viewer.dims.current_step[:2]))
    np.testing.assert_array_equal(labels._slice.image.raw, values[point] > 0.7)
    threshold.number.setValue(0.25)
    assert threshold.slider.value() == 250
    threshold.layer.setCurrentText("volume.h5")
    assert "volume.h5 above threshold" in viewer.layers
    assert "out.zarr above threshold" not in viewer.layers
    threshold.shows.setChecked(False)
    assert len(viewer.layers) == 2


def test_an_output_is_named_after_its_input(window: RunWidget) -> None:
    window.open("volume.h5")
    window.form.network.setCurrentText("boundaries")
    folder = Path().absolute()
    assert window.form.out.text() == str(folder / "volume-boundaries.zarr")
    window.form.network.setCurrentText("nets/tiny.yaml")
    assert window.form.out.text() == str(folder / "volume-tiny.zarr")
    window.form.out.setText("mine.zarr")
    window.form.network.setCurrentText("n537")
    assert window.form.out.text() == "mine.zarr"


def test_the_menus_open_and_choose(
    window: RunWidget, viewer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    controls, answer = window.form, ""
    for dialog, name in (
        (QFileDialog, "getOpenFileName"),
        (QFileDialog, "getSaveFileName"),
        (QInputDialog, "getText"),
    ):
        monkeypatch.setattr(dialog, name, lambda *_: (answer, ""))
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: answer)
    menus = controls._input_menu(), controls._network_menu(), controls._output_menu()
    for menu in menus:
        for action in menu.values():
            action()  # cancelled
    assert not viewer.layers
    answer = "volume.h5"
    for action in menus[0].values():
        action()
    assert len(viewer.layers) == 3
    for answer in ("a.yaml", "results"):
        for action in menus[1].values():
            action()
            assert controls.network.currentText() == answer
    for action in menus[2].values():
        action()
        assert controls.out.text() == answer


def test_a_volume_that_cannot_be_opened(
    window: RunWidget, viewer: Any, told: list[tuple[str, str]]
) -> None:
    window.open("no.h5")
    assert told == [("error", "no.h5: no such file; check the path")]
    assert not viewer.layers


def test_a_closed_widget_stops_its_run(chosen: RunWidget) -> None:
    plan(chosen)
    chosen.run.click()
    wait(lambda: chosen.bar.value() > 0)
    (job,) = chosen._jobs
    chosen.destroyed.emit()
    assert job.is_stopping
    wait(lambda: not chosen.is_busy)
    assert Path("out.zarr.partial").is_dir()


def test_notifications_have_no_traceback() -> None:
    before = len(notification_manager.records)
    messages.show_failure(ValueError("a mistake"))
    messages.show_warning("a warning")
    messages.show_message("a message")
    records = notification_manager.records[before:]
    assert [record.message for record in records] == ["a mistake", "a warning", "a message"]


@pytest.mark.skipif("DISPLAY" not in os.environ, reason="there is no display")
def test_napari_opens_the_widget_in_its_window(app: Any) -> None:
    viewer = napari.Viewer(show=False)
    try:
        _, window = viewer.window.add_plugin_dock_widget("znni", "Run a network")
        viewer.open_sample("znni", "cells")
        viewer.open("volume.h5", plugin="znni")
        assert [layer.name for layer in viewer.layers] == ["cells", "volume.h5"]
        assert window.form.layer.currentText() == "cells"
    finally:
        viewer.close()
        app.processEvents()
