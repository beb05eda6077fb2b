"""Runs of ``znni`` that are killed outright at a step, each in a forked process.

Run this as ``python killed_runs.py OUT STRIDE [PARTS]`` in a folder with a case
(``command_line.py``). With PARTS, the output is computed in so many parts, and then finished. A
step is a change of the file system: a write, a rename or a deletion. A run killed at a write has
done half of it. Runs are killed at every STRIDE-th step and then resumed. Their outputs are
compared with the output of an undisturbed run. The script prints a line of JSON for each.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import h5py  # noqa: F401
import zarr.storage._local
from fakes import fake_catalogue

import znni.inference.api
import znni.inference.planning
import znni.volumes.fingerprint
import znni.volumes.formats.zarr.shared_output
from bench.same_output import difference
from znni.cli import main
from znni.inference import exporting
from znni.plans.plan import _adapter
from znni.volumes.formats.zarr.output import ZarrOutput  # noqa: F401
from znni.volumes.locate import read_ledger
from znni.volumes.partial_file import PartialFile
from znni.volumes.shared_files import LocalFiles
from znni.volumes.shared_ledger import SharedLedger

NEVER = 10**9
ARGUMENTS = ["infer", "volume.h5", "--net", "tiny.yaml", "--ram", "512.4MiB", "--threads", "1"]


class Steps:
    """Counts steps, and kills the process at one of them."""

    def __init__(self, last: int) -> None:
        self.count = 0
        self._last = last

    def take(self, tear: Callable[[], object] = lambda: None) -> None:
        self.count += 1
        if self.count == self._last:
            tear()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: Any, name: str, tear: Callable[..., object] = lambda *_: None) -> None:
        """Count every call of a function as a step."""
        original = getattr(owner, name)

        def stepping(*arguments: Any, **options: Any) -> Any:
            self.take(lambda: tear(original, *arguments))
            return original(*arguments, **options)

        setattr(owner, name, stepping)


def half_written(write: Callable[..., object], descriptor: int, data: Any, place: int) -> None:
    write(descriptor, data[: len(data) // 2], place)


def half_of_hdf5(write: Callable[..., object], file: PartialFile, data: Any) -> None:
    write(file, bytes(data)[: len(data) // 2])


def half_of_zarr(_put: Callable[..., object], path: Path, value: Any, *_: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = value.to_bytes()
    path.with_suffix(f".{uuid4().hex}.partial").write_bytes(data[: len(data) // 2])


def commands(out: str, parts: int) -> list[list[str]]:
    """Return the commands that compute an output."""
    command = [*ARGUMENTS, "--out", out]
    if not parts:
        return [command]
    return [*([*command, "--part", f"{n}/{parts}"] for n in range(parts)), ["finish", out]]


def run(commands: list[list[str]], last: int) -> int:
    """Run the commands in a child process, to their end or to a step.

    What a child that ended has imported, this process imports, so that the next ones need not.

    Returns:
        Number of steps taken; 0 if the child was killed.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run_here(commands, last, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return 0
    assert os.waitstatus_to_exitcode(status) == 0, status
    count, *modules = told.decode().split()
    for name in modules:
        if name not in sys.modules:
            with suppress(ImportError):
                import_module(name)
    _adapter()
    gc.collect()
    gc.freeze()
    return int(count)


def _run_here(commands: list[list[str]], last: int, writer: int) -> NoReturn:
    code = 1
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
        steps = Steps(last)
        for name in ("replace", "rename", "unlink", "ftruncate", "fsync", "mkdir", "sync", "link"):
            steps.watch(os, name)
        steps.watch(os, "pwrite", half_written)
        steps.watch(PartialFile, "write", half_of_hdf5)
        steps.watch(zarr.storage._local, "_put", half_of_zarr)
        steps.watch(exporting._Copy, "read")
        for command in commands:
            sys.argv = ["znni", *command]
            main()
        with os.fdopen(writer, "w") as pipe:
            print(steps.count, *sys.modules, file=pipe)
        code = 0
    finally:
        os._exit(code)


def take_away(out: str) -> None:
    for path in Path().glob(f"{out}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def finished_blocks(partial: Path) -> int:
    """Return how many blocks of an unfinished output are noted as finished."""
    with suppress(Exception):  # there is no ledger yet
        logs = Path(f"{partial}.ledger")
        if logs.is_dir():
            return len(SharedLedger(LocalFiles(logs)).blocks().finished)
        return len(read_ledger(str(partial)).checksums)
    return 0


if __name__ == "__main__":
    out, stride, parts = sys.argv[1], int(sys.argv[2]), int([*sys.argv, "0"][3])
    znni.inference.planning.catalogue = lambda _: fake_catalogue()  # type: ignore[assignment]
    given = commands(out, parts)
    run(given, NEVER)  # this one imports, and keeps its plan
    take_away(out)
    count = run(given, NEVER)
    alone = Path("alone-" + out)
    Path(out).rename(alone)
    for step in range(1, count + 1, stride):
        take_away(out)
        if taken := run(given, step):
            assert taken < step  # the number of steps depends a little on the threads
            continue
        whole = Path(out).exists()
        partial = Path(f"{out}.partial")
        blocks = 0 if whole else finished_blocks(partial)
        taken = 0 if whole else run(given, NEVER)
        row = {"step": step, "of": count, "blocks": blocks, "whole": whole, "taken": taken}
        row["difference"] = difference(alone, Path(out))
        row["left"] = sorted(str(p) for p in Path().glob(f"{out}.*")) if not whole else []
        print(json.dumps(row), flush=True)
