"""Plans, runs, and their layers in napari's own viewer."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import LONG_VOLUME, voxels
from napari_window import plan, run, wait
from tiny_network import close, expected

import znni
from znni.napari import form, messages, widget
from znni.napari.messages import show_in_window
from znni.napari.task import Planned, Progressed
from znni.napari.widget import RunWidget

pytestmark = [
    pytest.mark.usefixtures("long_case"),
    pytest.mark.filterwarnings("default"),  # of napari, of Qt and of libraries below them
]


def test_a_run_from_plan_to_output(
    chosen: RunWidget, viewer: Any, held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not chosen.run.isEnabled()
    said, show = list[str](), chosen.status.setText
    monkeypatch.setattr(chosen.status, "setText", lambda text: (said.append(text), show(text)))
    plan(chosen)
    assert chosen.summary.text().splitlines()[0].startswith("time ")
    assert "throughput" in chosen.details.toPlainText()
    assert chosen.run.isEnabled()
    chosen.run.click()
    assert chosen.cancel.isEnabled()
    for control in (chosen.plan, chosen.form, chosen.run):
        assert not control.isEnabled()
    assert chosen.status.text().startswith("starting")
    wait(lambda: len(viewer.layers) > 1)  # before it is complete
    assert chosen.is_busy
    assert chosen.threshold.layer.currentText() == "out.zarr"
    unfinished = viewer.layers[1]
    unfinished.opacity, unfinished.colormap = 0.5, "viridis"
    held.unlink()
    wait(lambda: bool(np.asarray(unfinished._slice.image.raw).any()))
    wait(lambda: not chosen.is_busy)
    assert any(text.endswith(" left") for text in said)  # a busy machine shows several at once
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


def test_the_status_says_what_follows_the_last_block(window: RunWidget) -> None:
    window._now.begin()
    window._take(Progressed(1, 2))
    assert window.status.text() == "50%"
    window._take(Progressed(2, 2))
    assert window.status.text() == "100%, completing the output"


def test_the_text_below_is_shown_in_a_window(window: RunWidget) -> None:
    window.details.setPlainText("x" * 200)
    shown = show_in_window(window.details)
    assert shown.isWindow()
    assert shown.toPlainText() == "x" * 200
    assert shown.width() > shown.fontMetrics().horizontalAdvance("x" * 200)
    shown.close()


def test_a_cancelled_run_goes_on(
    chosen: RunWidget, viewer: Any, told: list[tuple[str, str]], held: Path
) -> None:
    plan(chosen)
    chosen.run.click()
    wait(lambda: chosen.bar.value() > 0)
    chosen.cancel.click()
    assert not chosen.cancel.isEnabled()
    wait(lambda: not chosen.is_busy)
    kind, text = told[-1]
    assert kind == "info"
    assert text == chosen.status.text()
    assert re.fullmatch(r"cancelled: \d+% is finished, and stays. Press Plan to go on", text)
    assert not Path("out.zarr").exists()
    plan(chosen)
    assert chosen.run.text() == "Go on"
    assert 0 < chosen.bar.value() < chosen.bar.maximum()
    held.unlink()
    chosen.run.click()
    wait(lambda: not chosen.is_busy)
    assert Path("out.zarr").is_dir()
    assert len(viewer.layers) == 2  # the layer of the first run has become the output


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


def test_an_existing_output_is_replaced_only_if_that_is_ticked(
    chosen: RunWidget, viewer: Any
) -> None:
    run(chosen)
    values = np.asarray(znni.LazyArray("out.zarr"))
    chosen.form.stored.setCurrentText(form.THRESHOLD)
    chosen.threshold.slider.setValue(300)
    chosen.plan.click()
    assert not chosen.is_busy
    assert not chosen.run.isEnabled()
    chosen.form.overwrite.setChecked(True)
    run(chosen)
    assert len(viewer.layers) == 2
    made = viewer.layers["out.zarr"]
    assert type(made).__name__ == "Labels"
    np.testing.assert_array_equal(np.asarray(made.data), values > 0.3)


def test_all_voxels_of_a_chosen_map(chosen: RunWidget, viewer: Any) -> None:
    values = voxels(LONG_VOLUME)
    layer = viewer.add_image(np.stack([np.zeros_like(values), values]))
    chosen.form.layer.setCurrentText(layer.name)
    chosen.form.channel.setText("1")
    chosen.form.edges.setCurrentText(next(iter(form.EDGES)))
    run(chosen)
    np.testing.assert_array_equal(viewer.layers["out.zarr"].translate, (0, 0, 2, 3))
    assert close(np.asarray(znni.LazyArray("out.zarr")), expected(values))
    chosen.form.edges.setCurrentIndex(1)
    chosen.form.out.setText("all.zarr")
    run(chosen)
    made = viewer.layers["all.zarr"]
    assert made.data.shape[1:] == LONG_VOLUME
    np.testing.assert_array_equal(made.translate, (0, 0, 0, 0))


def test_a_gpu_that_is_not_there_is_an_error(
    chosen: RunWidget, told: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    chosen.form.device.setCurrentText("gpu")
    plan(chosen)
    kind, text = told[-1]
    assert (kind, "GPU" in text) == ("error", True)
    assert not chosen.run.isEnabled()


def test_planning_can_be_cancelled(chosen: RunWidget) -> None:
    chosen.plan.click()
    chosen.cancel.click()
    wait(lambda: not chosen.is_busy)
    assert chosen.status.text().startswith("cancelled: ")
    assert not chosen.run.isEnabled()


def test_what_keeps_a_run_from_beginning_is_shown(
    chosen: RunWidget, told: list[tuple[str, str]]
) -> None:
    chosen.form.ram.setText("1MiB")
    plan(chosen)
    assert told[-1][0] == "error"
    assert "give Memory " in told[-1][1]
    assert chosen.status.text().startswith("failed: ")
    chosen._take(Planned("time", "layers", obstacles=("the disk is full",)))
    assert told[-1] == ("error", "the disk is full")
    assert chosen.status.text() == "not possible now: the disk is full"
    assert not chosen.run.isEnabled()


def test_wrong_names_are_errors_before_a_plan(
    chosen: RunWidget, told: list[tuple[str, str]]
) -> None:
    chosen._take(Planned("an earlier plan", "layers"))
    Path("out.zarr").mkdir()
    chosen.plan.click()
    assert not chosen.is_busy
    said = "out.zarr exists; tick overwrite, or name another output"
    assert told[-1] == ("error", said)
    assert chosen.status.text() == f"failed: {said}"
    assert chosen.summary.text() == widget.HINT
    assert not chosen.details.toPlainText()
    for name in ("no-such-network", "nets/none.yaml"):
        chosen.form.network.setCurrentText(name)
        chosen.plan.click()
        assert not chosen.is_busy
        assert "no such network file" in told[-1][1]
    chosen.form.network.setCurrentText("tiny.yaml")
    chosen.form.out.setText("other.zarr")
    chosen.form.ram.setText("lots")
    chosen.plan.click()
    assert not chosen.is_busy
    assert "'lots' is not a size of memory" in told[-1][1]


def test_a_volume_that_cannot_be_opened_is_an_error(
    window: RunWidget, told: list[tuple[str, str]]
) -> None:
    window.open("volume.h5:/nope")
    assert told[-1][0] == "error"
    assert "has no dataset '/nope'" in told[-1][1]
    assert window.status.text() == f"failed: {told[-1][1]}"
    assert not window.run.isEnabled()
    assert not window.cancel.isEnabled()


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


@pytest.mark.usefixtures("held")
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
    from napari.utils.notifications import notification_manager

    before = len(notification_manager.records)
    messages.show_failure(ValueError("a mistake"))
    messages.show_warning("a warning")
    messages.show_message("a message")
    records = notification_manager.records[before:]
    assert [record.message for record in records] == ["a mistake", "a warning", "a message"]


@pytest.mark.skipif("DISPLAY" not in os.environ, reason="there is no display")
def test_napari_opens_the_widget_in_its_window(app: Any) -> None:
    import napari

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
