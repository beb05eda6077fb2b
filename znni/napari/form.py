"""The form of a run: what the user chooses, and the task that follows from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qtpy.QtCore import Signal
from qtpy.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QInputDialog,
    QLineEdit,
    QMenu,
    QToolButton,
    QWidget,
)

import znni
from znni.core.errors import InvalidInput
from znni.core.plan_options import memory_size
from znni.core.run_options import parse_channel
from znni.core.shipped import NETWORKS
from znni.napari.layers import PLACE, offer_layers, scan_files, source_of, voxel_size_of
from znni.napari.task import Task
from znni.napari.words import OVERWRITE

VALUES, LABELS, THRESHOLD = "values", "labels of the largest map", "1 above the threshold, else 0"
CASE = "labels of a whole scan"
EDGES = {"valid: voxels with all context": "valid", "same: all voxels, with mirrored edges": "same"}
DEVICES = ("auto", "cpu", "gpu", "cpu+gpu")
MARGIN = 16  # around the dots of a button, in points of the screen
NETWORK_FILES = "Networks (*.yaml *.yml *.onnx *.pt2);;All files (*)"


@dataclass(frozen=True)
class Asked:
    """The run that a form asks for.

    Attributes:
        task: the run.
        layer: the layer of the input.
        array: the array to read; None: the task names the input.
    """

    task: Task
    layer: Any
    array: Any = None


class Form(QWidget):
    """The controls that describe a run.

    Attributes:
        opened: the signal that the user opens a volume as input, with its name.
        changed: the signal that a choice has changed.
        layer: the layer of the input, by name.
        network: the name or path of the network.
        channel: the only map to read.
        stored: what is stored.
        edges: how the edges are treated.
        out: the output.
        ram: the memory that the run may use.
        device: where layers run.
        overwrite: whether an existing output is replaced.
    """

    opened = Signal(str)
    changed = Signal()

    def __init__(self, threshold: Callable[[], float]) -> None:
        super().__init__()
        self._threshold = threshold
        self._layers: dict[str, Any] = {}
        self._suggested = ""
        self.layer, self.network, self.stored = QComboBox(), QComboBox(), QComboBox()
        self.edges, self.device = QComboBox(), QComboBox()
        self.channel, self.out, self.ram = QLineEdit(), QLineEdit(), QLineEdit()
        self.overwrite = QCheckBox("overwrite")
        self._fill()
        rows = QFormLayout(self)
        rows.setContentsMargins(0, 0, 0, 0)
        rows.setFieldGrowthPolicy(QFormLayout.AllNonFixedFieldsGrow)
        menus = {
            self.layer: self._input_menu(),
            self.network: self._network_menu(),
            self.out: self._output_menu(),
        }
        for name, control, about in (
            ("Input", self.layer, "The layer to compute."),
            (
                "Network",
                self.network,
                "The name of a network that comes with znni; or a network file (YAML, ONNX or "
                ".pt2), or a results folder of nnU-Net.",
            ),
            ("Store", self.stored, "What the output holds."),
            ("Edges", self.edges, "Voxels near the edges of the volume lack context."),
            ("Output", self.out, "The file to make."),
            ("", self.overwrite, "Replace an existing output. An unfinished one goes on."),
            ("Memory", self.ram, "The memory that the run may use."),
            ("Device", self.device, "auto: the fastest choice."),
            ("Channel", self.channel, "The only map to read, if the volume has several."),
        ):
            control.setToolTip(about)
            menu = menus.get(control)
            rows.addRow(name, self._with_menu(control, menu) if menu else control)
        self._watch()

    def set_layers(self, layers: list[Any]) -> None:
        """Offer these layers as input. The chosen one stays, if it is still there."""
        chosen = self._layers.get(self.layer.currentText())
        self._layers = {layer.name: layer for layer in layers}
        offer_layers(self.layer, self._layers, chosen)
        if self._layers.get(self.layer.currentText()) is not chosen:
            self._note_change()

    def asked(self) -> Asked:
        """Return what the form asks for."""
        layer = self._layers.get(self.layer.currentText())
        network, out = self.network.currentText().strip(), self.out.text().strip()
        if layer is None:
            raise InvalidInput("there is no layer to compute; open a volume by the button of Input")
        if not network:
            raise InvalidInput("no network is chosen; choose one by its name, or a file")
        if not out:
            raise InvalidInput("no output is named; name a file, such as cells.zarr")
        _check_network(network)
        _check_output(out, overwrite=self.overwrite.isChecked())
        options: dict[str, Any] = {"device": self.device.currentText()}
        if ram := self.ram.text().strip():
            try:
                options["ram"] = memory_size(ram)
            except ValueError as error:
                raise InvalidInput(str(error)) from None
        if self.overwrite.isChecked():
            options["overwrite"] = True
        if self.stored.currentText() == CASE or znni.is_whole_case(network):
            return Asked(Task(scan_files(layer), network, out, options), layer)
        options["border"] = EDGES[self.edges.currentText()]
        if channel := self.channel.text().strip():
            options["channel"] = parse_channel(channel)
        if self.stored.currentText() == LABELS:
            options["labels"] = True
        elif self.stored.currentText() == THRESHOLD:
            options["threshold"] = self._threshold()
        source = source_of(layer)
        if isinstance(source, str):
            return Asked(Task(source, network, out, options), layer)
        if voxels := voxel_size_of(layer):
            options["voxel_size"] = voxels
        return Asked(Task("", network, out, options), layer, source)

    def suggest_output(self) -> None:
        """Name the output after input and network, unless the user has named it."""
        layer = self._layers.get(self.layer.currentText())
        network = self.network.currentText().strip()
        if layer is None or not network or self.out.text() not in ("", self._suggested):
            return
        place = layer.metadata.get(PLACE) or layer.source.path
        folder = Path(str(place).split(":/")[0]).parent if place else _folder_for_outputs()
        name = layer.name
        for ending in (".nii.gz", Path(name).suffix):
            name = name.removesuffix(ending)
        ending = ".nii.gz" if znni.is_whole_case(network) else ".zarr"
        self._suggested = str(folder.absolute() / f"{name}-{Path(network).stem}{ending}")
        self.out.setText(self._suggested)

    def _fill(self) -> None:
        """Fill the controls with their choices."""
        self.network.setEditable(True)
        trained = [name for name, found in znni.shipped_networks().items() if found.weights]
        self.network.addItems(trained)
        self.stored.addItems([VALUES, LABELS, THRESHOLD, CASE])
        self.edges.addItems(list(EDGES))
        self.device.addItems(DEVICES)
        self.ram.setPlaceholderText("such as 8GiB; else 9/10 of what is available")
        self.channel.setPlaceholderText("all")
        self.out.setPlaceholderText(f"such as {_full_name('cells.zarr')}")

    def _watch(self) -> None:
        """Note every change of a control."""
        for choice in (self.layer, self.network, self.stored, self.edges, self.device):
            choice.currentTextChanged.connect(self._note_change)
        for text in (self.channel, self.ram, self.out):
            text.textChanged.connect(lambda _: self.changed.emit())
        self.out.textChanged.connect(self._show_full_name)
        self.overwrite.toggled.connect(lambda _: self.changed.emit())

    def _show_full_name(self, name: str) -> None:
        """Show where the output will be: a name alone is in the folder that napari started in."""
        place = f": {_full_name(name.strip())}" if name.strip() else "."
        self.out.setToolTip(f"The file to make{place}")

    def _note_change(self, *_chosen: object) -> None:
        self.suggest_output()
        self.changed.emit()

    def _with_menu(self, control: QWidget, entries: dict[str, Callable[[], None]]) -> QWidget:
        """Return a control with a button beside it that opens a menu."""
        row, button, menu = QWidget(), QToolButton(), QMenu(self)
        button.setText("...")
        # The arrow of a menu would cover the dots.
        button.setStyleSheet("QToolButton::menu-indicator { image: none; width: 0px; }")
        button.setMinimumWidth(button.fontMetrics().horizontalAdvance("...") + MARGIN)
        button.setToolTip("Choose by a dialog")
        button.setPopupMode(QToolButton.InstantPopup)
        for name, action in entries.items():
            menu.addAction(name).triggered.connect(lambda *_, action=action: action())
        button.setMenu(menu)
        layout = QHBoxLayout(row)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(control, 1)
        layout.addWidget(button)
        return row

    def _input_menu(self) -> dict[str, Callable[[], None]]:
        return {
            "Open a file...": lambda: self._open(QFileDialog.getOpenFileName(self, "Volume")[0]),
            "Open a folder...": lambda: self._open(
                QFileDialog.getExistingDirectory(self, "Volume")
            ),
            "Open an address...": lambda: self._open(
                QInputDialog.getText(self, "Volume", "URL of a Zarr, or FILE:/DATASET")[0]
            ),
        }

    def _network_menu(self) -> dict[str, Callable[[], None]]:
        return {
            "File...": lambda: self._choose(
                self.network.setCurrentText,
                QFileDialog.getOpenFileName(self, "Network", "", NETWORK_FILES)[0],
            ),
            "Results folder of nnU-Net...": lambda: self._choose(
                self.network.setCurrentText, QFileDialog.getExistingDirectory(self, "Network")
            ),
        }

    def _output_menu(self) -> dict[str, Callable[[], None]]:
        return {
            "File...": lambda: self._choose(
                self.out.setText, QFileDialog.getSaveFileName(self, "Output", self.out.text())[0]
            )
        }

    def _open(self, place: str) -> None:
        """Open a volume as input, unless the user has cancelled the dialog."""
        if place:
            self.opened.emit(place)

    def _choose(self, take: Callable[[str], None], name: str) -> None:
        """Take a name, unless the user has cancelled the dialog."""
        if name:
            take(name)


def _check_network(name: str) -> None:
    """Refuse a network that is not there."""
    if not NETWORKS.found(Path(name)).exists():
        raise InvalidInput(f"{name}: no such network file; check the path")


def _check_output(name: str, *, overwrite: bool) -> None:
    """Refuse an output on this machine that exists and may not be replaced."""
    if not overwrite and Path(name).exists():
        raise InvalidInput(f"{name} exists; {OVERWRITE}")


def _folder_for_outputs() -> Path:
    """Return the folder in which napari was started, or the user's own if it cannot be written."""
    here = Path.cwd()
    return here if os.access(here, os.W_OK) else Path.home()


def _full_name(name: str) -> str:
    """Return the full path of an output. A URL stays as it is."""
    return name if "://" in name else str(Path(name).absolute())
