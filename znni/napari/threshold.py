"""A slider for the threshold of probabilities, whose labels follow it at once."""

from __future__ import annotations

from typing import Any

from qtpy.QtCore import Qt, Signal
from qtpy.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QFormLayout,
    QGroupBox,
    QHBoxLayout,
    QSlider,
    QWidget,
)

from znni.inference.viewing.view import View
from znni.napari.arrays import Above, Threshold
from znni.napari.layers import offer_layers

STEPS = 1000  # of the slider, from 0 to 1


class ThresholdBox(QGroupBox):
    """A slider, and the layer of labels that shows where values are above it.

    Attributes:
        changed: the signal that the threshold has changed.
        layer: the layer of the values, by name.
        slider: the threshold in thousandths.
        number: the threshold, which may also be below 0 or above 1.
        shows: whether the labels are shown.
    """

    changed = Signal()

    def __init__(self, viewer: Any) -> None:
        super().__init__("Threshold of probabilities")
        self._viewer = viewer
        self._layers: dict[str, Any] = {}
        self._threshold = Threshold(0.5)
        self._labels: Any = None
        self.layer, self.shows = QComboBox(), QCheckBox("show labels")
        self.slider, self.number = QSlider(Qt.Horizontal), QDoubleSpinBox()
        self.slider.setRange(0, STEPS)
        self.number.setRange(-1e6, 1e6)
        self.number.setDecimals(3)
        self.number.setSingleStep(0.01)
        self._set(self._threshold.value)
        both = QWidget()
        beside = QHBoxLayout(both)
        beside.setContentsMargins(0, 0, 0, 0)
        beside.addWidget(self.slider, 1)
        beside.addWidget(self.number)
        rows = QFormLayout(self)
        rows.addRow("Layer", self.layer)
        rows.addRow(self.shows, both)
        self.slider.valueChanged.connect(lambda thousandths: self._set(thousandths / STEPS))
        self.number.valueChanged.connect(self._set)
        self.layer.currentTextChanged.connect(lambda _: self._show_anew())
        self.shows.toggled.connect(lambda _: self._show_anew())

    @property
    def value(self) -> float:
        """The threshold."""
        return self._threshold.value

    def set_layers(self, layers: list[Any]) -> None:
        """Offer the layers of values."""
        chosen = self._layers.get(self.layer.currentText())
        self._layers = {layer.name: layer for layer in layers}
        offer_layers(self.layer, self._layers, chosen)

    def choose(self, layer: Any) -> None:
        """Choose the layer of the values."""
        self.layer.setCurrentText(layer.name)

    def _set(self, value: float) -> None:
        """Take a threshold, show it in both controls, and show its labels."""
        self._threshold.value = value
        for control, shown in ((self.slider, round(value * STEPS)), (self.number, value)):
            control.blockSignals(True)
            control.setValue(shown)
            control.blockSignals(False)
        if self._labels is not None and self._labels in self._viewer.layers:
            self._labels.refresh()
        self.changed.emit()

    def _show_anew(self) -> None:
        """Show the labels of the chosen layer, or none."""
        if self._labels is not None and self._labels in self._viewer.layers:
            self._viewer.layers.remove(self._labels)
        self._labels = None
        values = self._layers.get(self.layer.currentText())
        if values is None or not self.shows.isChecked():
            return
        levels = list(values.data) if values.multiscale else [values.data]
        above = [View(Above(level, self._threshold)) for level in levels]
        self._labels = self._viewer.add_labels(
            above if values.multiscale else above[0],
            name=f"{values.name} above threshold",
            multiscale=values.multiscale,
            scale=values.scale,
            translate=values.translate,
            rotate=values.rotate,
            affine=values.affine,
            units=values.units,
        )
        self._labels.editable = False  # they follow from the values
