"""A run that is stopped after its output took its name says that the output is complete."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import LONG_VOLUME, refused, succeeds, voxels
from numpy.typing import NDArray

from znni.core.shapes import Box, Vec3
from znni.inference.session import Session
from znni.volumes.locate import open_volume
from znni.volumes.remote_output import RemoteFolder

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")

STOPPED = 128 + signal.SIGINT
OUTPUTS = ("out.h5", "out.zarr", "out.tif", "out.npy")


def stop() -> None:
    """Do what Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)
    time.sleep(10)  # Python may call the handler late


def then_stop(method: Callable[..., Any], out: str = "") -> Callable[..., Any]:
    """Return a method that stops the run afterwards.

    Args:
        method: the method.
        out: the name that a path has to take; empty: any.
    """

    def stopping(self: Any, *given: Any, **named: Any) -> Any:
        found = method(self, *given, **named)
        if not out or Path(*given) == Path(out):
            stop()
        return found

    return stopping


def content(out: str) -> NDArray[Any]:
    volume = open_volume(out)
    return np.asarray(volume.read(Box(Vec3(0, 0, 0), volume.size)))


def run(volume: str, out: str) -> tuple[str, ...]:
    limits = ("--ram", "512.5MiB") if volume == "long.npy" else ()
    return ("infer", volume, "--net", "tiny.yaml", "--out", out, *limits)


@pytest.mark.slow_cases
@pytest.mark.parametrize("there", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("volume", ["volume.h5", "long.npy"], ids=["one block", "many blocks"])
@pytest.mark.parametrize("out", OUTPUTS)
def test_just_after_the_output_took_its_name(
    out: str, volume: str, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save("long.npy", voxels(LONG_VOLUME))
    succeeds(*run(volume, f"whole-{out}"))
    if there:
        succeeds(*run(volume, out), "--dtype", "uint8")
    before = set(Path().iterdir()) | {Path(out)}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", then_stop(Path.replace, out))
        patch.setattr(Path, "rename", then_stop(Path.rename, out))
        message = refused(*run(volume, out), "--overwrite", code=STOPPED)
    assert message == f"stopped by SIGINT; {out} is complete"
    np.testing.assert_array_equal(content(out), content(f"whole-{out}"))
    left = set(Path().iterdir()) - before
    assert left <= {Path(f"{out}.replaced")}  # which the next run deletes


def test_while_the_memory_of_the_plan_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def stopped_after(_self: Session, _runner: Any) -> Iterator[None]:
        yield
        stop()

    monkeypatch.setattr(Session, "releasing", stopped_after)
    message = refused(*run("volume.h5", "out.h5"), code=STOPPED)
    assert message == "stopped by SIGINT; out.h5 is complete"
    assert not Path("out.h5.partial").exists()


@pytest.mark.parametrize("method", ["done", "note_phases"])
def test_while_the_times_of_the_run_are_noted(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, method, then_stop(getattr(Session, method)))
    message = refused(*run("volume.h5", "out.h5"), code=STOPPED)
    assert message == "stopped by SIGINT; out.h5 is complete"


@pytest.mark.usefixtures("memory_files")
@pytest.mark.parametrize("volume", ["volume.h5", "long.npy"], ids=["one block", "many blocks"])
def test_just_after_the_marker_of_a_url_is_removed(
    volume: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save("long.npy", voxels(LONG_VOLUME))
    out = "memory://out.zarr"
    succeeds(*run(volume, "whole.zarr"))
    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "complete", then_stop(RemoteFolder.complete))
        message = refused(*run(volume, out), code=STOPPED)
    assert message == f"stopped by SIGINT; {out} is complete"
    np.testing.assert_array_equal(content(out), content("whole.zarr"))
