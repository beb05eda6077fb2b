"""A user's steps in the window of the plugin. If napari is not installed, tests are skipped."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from time import monotonic, sleep

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen" if "DISPLAY" not in os.environ else "xcb")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # napari and libraries below it warn as they are imported
    pytest.importorskip("qtpy", reason="napari is not installed")
    pytest.importorskip("napari.components", reason="napari is not installed")

    from qtpy.QtWidgets import QApplication

    from znni.napari.widget import RunWidget

LONGEST_SECONDS = 300.0  # on a busy machine


def wait(reached: Callable[[], bool]) -> None:
    """Let the window work until something is reached."""
    end = monotonic() + LONGEST_SECONDS
    while not reached():
        QApplication.processEvents()
        sleep(0.005)
        assert monotonic() < end


def plan(window: RunWidget) -> None:
    """Press Plan, and wait for the end."""
    window.plan.click()
    assert window.is_busy
    wait(lambda: not window.is_busy)


def run(window: RunWidget) -> None:
    """Plan and run."""
    plan(window)
    assert window.run.isEnabled()
    window.run.click()
    wait(lambda: not window.is_busy)
