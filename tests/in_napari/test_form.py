"""Every control of the form, in napari's own viewer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import LONG_VOLUME, voxels
from napari_window import plan
from paths import ROOT

from znni.core.plan_options import memory_size
from znni.napari import form, widget
from znni.napari.widget import RunWidget

pytestmark = [
    pytest.mark.usefixtures("long_case"),
    pytest.mark.filterwarnings("default"),  # of napari, of Qt and of libraries below them
]


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
        "ram": memory_size("512.4MiB"),
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


def test_every_control_has_a_tooltip(window: RunWidget) -> None:
    controls = window.form
    for control in (
        controls.layer, controls.network, controls.stored, controls.edges, controls.out,
        controls.overwrite, controls.ram, controls.device, controls.channel,
    ):  # fmt: skip
        assert control.toolTip()
    controls.out.setText("mine.zarr")
    assert str(Path("mine.zarr").absolute()) in controls.out.toolTip()
    assert str(Path().absolute()) in controls.out.placeholderText()
    controls.out.setText("s3://bucket/mine.zarr")
    assert controls.out.toolTip().endswith(" s3://bucket/mine.zarr")


def test_the_menus_open_and_choose(
    window: RunWidget, viewer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qtpy.QtWidgets import QFileDialog, QInputDialog, QToolButton

    controls, answer = window.form, ""
    for dialog, name in (
        (QFileDialog, "getOpenFileName"),
        (QFileDialog, "getSaveFileName"),
        (QInputDialog, "getText"),
    ):
        monkeypatch.setattr(dialog, name, lambda *_: (answer, ""))
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: answer)
    menus = [button.menu().actions() for button in controls.findChildren(QToolButton)]
    assert [len(actions) for actions in menus] == [3, 2, 1]  # of input, network and output
    before = controls.network.currentText(), controls.out.text()
    for actions in menus:
        for action in actions:
            action.trigger()  # cancelled
    assert not viewer.layers
    assert (controls.network.currentText(), controls.out.text()) == before
    answer = "volume.h5"
    for action in menus[0]:
        action.trigger()
    assert len(viewer.layers) == 3
    for answer in ("a.yaml", "results"):
        for action in menus[1]:
            action.trigger()
            assert controls.network.currentText() == answer
    menus[2][0].trigger()
    assert controls.out.text() == answer


def test_the_page_describes_every_control(window: RunWidget) -> None:
    from qtpy.QtWidgets import QLabel

    page = (ROOT / "docs" / "how-to" / "napari.md").read_text()
    names = {label.text() for label in window.form.findChildren(QLabel)} - {""}
    names.add(window.form.overwrite.text())
    assert {"Input", "Memory", "overwrite"} < names
    described = set(re.findall(r"^\| (\w+) \||^\*\*(\w+)\*\*", page, re.MULTILINE))
    assert names <= {one or other for one, other in described}


def test_a_volume_that_cannot_be_opened(
    window: RunWidget, viewer: Any, told: list[tuple[str, str]]
) -> None:
    window.open("no.h5")
    assert told == [("error", "no.h5: no such file; check the path")]
    assert not viewer.layers
