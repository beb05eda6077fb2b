"""Runs over the long case's volume that stop after some blocks, and are started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import changed, znni

from znni.inference import api

OPTIONS: dict[str, Any] = {"ram": "512.4MiB", "threads": 1}
RAM = "512.4MiB"
RUN = ("infer", "volume.h5", "--net", "tiny.yaml", "--ram", RAM, "--threads", "1")
OUTPUTS = ("out.h5", "out.zarr")


class Interrupted(Exception):
    pass


def whole(name: str, **options: Any) -> Path:
    """Write the output of an uninterrupted run under another name; return its path."""
    api.infer("volume.h5", "tiny.yaml", name, **OPTIONS | options)
    return Path(name).rename(f"alone-{name}")


def interrupt(name: str, after: int = 3, source: str = "volume.h5", **options: Any) -> Path:
    """Stop a run after some blocks; return the path of its unfinished output."""
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


def resumed(caplog: pytest.LogCaptureFixture, name: str, *options: str, ram: str = RAM) -> str:
    """Return the log of a command that must resume an output and finish it."""
    caplog.clear()
    outcome = znni(*changed(RUN, "--ram", ram), "--out", name, *options)
    assert outcome.code == 0, outcome.err
    assert "going on where an earlier run stopped, with " in caplog.text
    assert "were finished before" in outcome.out
    return caplog.text
