"""Runs over a small volume that stop after some blocks, and are started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest
from command_line import voxels, write_case, znni
from fakes import fake_catalogue

from znni import api

SHAPE = (140, 20, 23)
OPTIONS: dict[str, Any] = {"ram": "512.5MiB", "threads": 1}
RUN = ("infer", "volume.h5", "--net", "tiny.yaml", "--ram", "512.5MiB", "--threads", "1")
OUTPUTS = ("out.h5", "out.zarr")


class Interrupted(Exception):
    pass


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run in, with a network and a volume of some blocks."""
    write_case(folder)
    with h5py.File(folder / "volume.h5", "w") as file:
        file["raw"] = voxels(SHAPE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("znni.planning.catalogue", lambda _machine: fake_catalogue())
    return folder


def whole(name: str, **options: Any) -> Path:
    """The output of a run that nothing interrupts, moved out of the way."""
    api.infer("volume.h5", "tiny.yaml", name, **OPTIONS | options)
    return Path(name).rename(f"alone-{name}")


def interrupt(name: str, after: int = 3, source: str = "volume.h5", **options: Any) -> Path:
    """An output of which so many blocks are finished."""
    blocks = 0

    def stop(_done: int, _all: int) -> None:
        nonlocal blocks
        blocks += 1
        if blocks == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        api.infer(source, "tiny.yaml", name, progress=stop, **OPTIONS | options)
    assert not Path(name).exists()
    return Path(f"{name}.partial")


def resumed(caplog: pytest.LogCaptureFixture, name: str, *options: str) -> str:
    """What is logged by a command that must go on with an output, and end with the whole of it."""
    caplog.clear()
    outcome = znni(*RUN, "--out", name, *options)
    assert outcome.code == 0, outcome.err
    assert "going on where an earlier run stopped, with " in caplog.text
    assert "were finished before" in outcome.out
    return caplog.text
