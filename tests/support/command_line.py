"""Run ``znni`` in this process, over a small network and volume in a temporary folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import h5py
import numpy as np
import typer.main
from numpy.typing import NDArray

from znni.cli import main
from znni.network.network_file import load_network
from znni.network.weights import random_weights

NET = """\
name: tiny
input: {scale: 0.01, offset: -1}
weights: tiny.npz
layers:
  - conv: {features: 3, kernel: [2, 3, 3], activation: relu}
  - pool: {window: [1, 2, 2]}
  - conv: {features: 2, kernel: [1, 2, 3], activation: sigmoid}
"""
# Two convolutions, which need no weights for a plan.
SMALL_NET = """
name: small
in_features: 1
layers:
  - conv: {features: 4, kernel: 3, activation: relu}
  - conv: {features: 1, kernel: 3}
"""
VOLUME = (7, 20, 23)
LONG_VOLUME = (140, 20, 23)
OUTPUT = (2, 6, 15, 16)
INFER = ("infer", "volume.h5", "--net", "tiny.yaml", "--out", "out.h5")


@dataclass(frozen=True)
class Outcome:
    """Exit code and printed text of a command."""

    code: int
    out: str
    err: str


# Commands and their options are the same in each call, and slow to make from their functions.
made_once = cache(typer.main.get_command)


def znni(*arguments: object) -> Outcome:
    out, err = StringIO(), StringIO()
    code = 0
    with (
        patch.object(typer.main, "get_command", made_once),
        patch.object(sys, "argv", ["znni", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def succeeds(*arguments: object) -> str:
    outcome = znni(*arguments)
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    return outcome.out


def dry_run_of_refused(*arguments: object) -> str:
    """Return the text that a dry run prints for a run that would be refused."""
    outcome = znni(*arguments, "--dry-run")
    assert (outcome.code, outcome.err) == (2, ""), outcome.err
    return outcome.out


def refused(*arguments: object, code: int = 2) -> str:
    """Return the one line on stderr of a command that must fail."""
    outcome = znni(*arguments)
    assert outcome.code == code, outcome.err
    return one_line(outcome.err)


def refused_without_trace(*arguments: object, code: int = 2) -> str:
    """Return the error of a command that must fail and leave every whole file here unchanged."""
    before = _whole_files()
    message = refused(*arguments, code=code)
    assert _whole_files() == before
    return message


def changed(arguments: Sequence[object], option: str, value: object) -> tuple[object, ...]:
    """Return arguments with another value of an option, which they have."""
    at = [*arguments].index(option) + 1
    return *arguments[:at], value, *arguments[at + 1 :]


def _whole_files() -> dict[Path, bytes]:
    files = (path for path in Path().iterdir() if path.is_file())
    return {path: path.read_bytes() for path in files if ".partial" not in path.name}


def one_line(err: str) -> str:
    """Return the message of an error, which must have one line and no traceback."""
    assert err.startswith("znni: error: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    return err.removeprefix("znni: error: ").rstrip()


def voxels(shape: tuple[int, ...] = VOLUME, dtype: str = "uint8") -> NDArray[Any]:
    return np.random.default_rng(1).integers(0, 200, shape).astype(dtype)


def write_volume(values: object, name: str = "raw", **options: object) -> None:
    """Write a new ``volume.h5`` with one dataset."""
    Path("volume.h5").unlink(missing_ok=True)  # an interrupted run may still have it open
    with h5py.File("volume.h5", "w") as file:
        file.create_dataset(name, data=values, **options)


def rewrite(path: Path | str, old: str, new: str) -> None:
    """Replace a text in a file; the file must contain it."""
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def cut(path: Path | str, share: float) -> None:
    """Keep a share of a file's bytes."""
    os.truncate(path, int(Path(path).stat().st_size * share))


def write_case(folder: Path) -> None:
    """Write ``tiny.yaml``, its weights and ``volume.h5`` into a folder."""
    for name, content in _case().items():
        (folder / name).write_bytes(content)


@cache
def _case() -> dict[str, bytes]:
    """Return the files of the small case by their names."""
    with TemporaryDirectory() as made:
        _make_case(folder := Path(made))
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def _make_case(folder: Path) -> None:
    (folder / "tiny.yaml").write_text(NET)
    network = load_network(folder / "tiny.yaml")
    weights = random_weights(network, seed=2)
    arrays = {}
    for conv in network.convolutions:
        arrays[f"{conv.name}.weight"] = weights[conv.name].weight
        arrays[f"{conv.name}.bias"] = weights[conv.name].bias
    np.savez(folder / "tiny.npz", **arrays)  # type: ignore[arg-type]
    with h5py.File(folder / "volume.h5", "w") as file:
        file.create_dataset("raw", data=voxels(), chunks=(4, 8, 8))


def read_main(path: Path | str) -> NDArray[Any]:
    with h5py.File(path, "r") as file:
        values: NDArray[Any] = file["main"][()]
        return values


def attributes(path: str = "out.h5") -> dict[str, Any]:
    """Return the attributes of an output."""
    with h5py.File(path) as file:
        return dict(file["main"].attrs)
