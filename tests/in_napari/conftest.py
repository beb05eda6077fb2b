"""napari's viewer, the widget in it, and what it tells the user."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paths import SUPPORT
from slow_child import HOLD


@pytest.fixture(scope="session")
def app() -> Any:
    import napari_window  # noqa: F401 - skips the test if napari is missing
    from qtpy.QtWidgets import QApplication

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
    import napari_window  # noqa: F401

    from znni.napari import messages

    found: list[tuple[str, str]] = []

    def note(kind: str) -> Callable[[str], None]:
        return lambda text: found.append((kind, text))

    shown = SimpleNamespace(
        show_error=note("error"), show_warning=note("warning"), show_info=note("info")
    )
    monkeypatch.setattr(messages, "notifications", shown)
    return found


@pytest.fixture
def viewer(request: pytest.FixtureRequest) -> Any:
    request.getfixturevalue("app")
    from napari.components import ViewerModel

    return ViewerModel()


@pytest.fixture
def window(
    app: Any, viewer: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Any]:
    """The widget, whose process computes slow fakes."""
    from napari_window import wait

    from znni.napari import job, output
    from znni.napari.widget import RunWidget

    request.getfixturevalue("errors")
    request.getfixturevalue("told")
    command = [sys.executable, str(SUPPORT / "slow_child.py")]
    monkeypatch.setattr(job, "command_of", lambda _module, number: [*command, number])
    monkeypatch.setattr(output, "LEAST_SECONDS", 0.0)
    made = RunWidget(viewer)
    yield made
    made.stop()
    wait(lambda: not made.is_busy)
    made.close()
    app.processEvents()


@pytest.fixture
def held(own_folder: Path) -> Path:
    """The file that holds each run after its first progress, until it is deleted."""
    HOLD.touch()
    return own_folder / HOLD


@pytest.fixture
def chosen(window: Any) -> Any:
    """The widget with all that a run needs."""
    window.open("volume.h5")
    window.form.network.setCurrentText("tiny.yaml")
    window.form.out.setText("out.zarr")
    window.form.ram.setText("512.4MiB")
    return window
