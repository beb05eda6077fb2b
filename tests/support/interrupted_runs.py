"""Runs over the volume of the long case that stop after some blocks, and are started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import znni

from znni.inference import api

OPTIONS: dict[str, Any] = {"ram": "512.5MiB", "threads": 1}
RUN = ("infer", "volume.h5", "--net", "tiny.yaml", "--ram", "512.5MiB", "--threads", "1")
OUTPUTS = ("out.h5", "out.zarr")


class Interrupted(Exception):
    pass


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
