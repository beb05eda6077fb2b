"""A Dask scheduler and workers that are started by hand, as for a cluster of kind ``address``."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
from paths import ROOT, SUPPORT
from waiting import PATIENCE, until

CHILD = "znni.cluster.child"


def computes(process: psutil.Process, folder: Path | None = None) -> bool:
    """Return whether a process is one that computes blocks, in a folder if it is given."""
    try:
        return CHILD in process.cmdline() and folder in (None, Path(process.cwd()))
    except psutil.Error:  # it has ended
        return False


class HandStarted:
    """A scheduler, and workers with an environment of their own, within a ``with`` block.

    At its end, no process that computes may be left.

    Args:
        folder: the folder in which they run.
        ram: memory of each worker, as a cluster's file has it.

    Attributes:
        file: the cluster's file.
    """

    def __init__(self, folder: Path, ram: str = "769MiB") -> None:
        self._folder = folder
        self._workers: list[subprocess.Popen[bytes]] = []
        known = folder / "scheduler.json"
        known.unlink(missing_ok=True)
        self._scheduler = self._dask(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
            "--scheduler-file", "scheduler.json",
        )  # fmt: skip
        until(lambda: known.exists() and known.read_text().endswith("}"))
        address = known.read_text().partition('"address": "')[2].partition('"')[0]
        self.file = folder / "cluster.yaml"
        self.file.write_text(
            f"kind: address\naddress: {address}\n"
            f"groups: [{{name: machine, count: 2, cores: 1, ram: {ram}}}]\n"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._workers, self._scheduler):
            self.kill(process)
        until(lambda: not self.children())  # no process that computes is left

    def start(self, altered: str = "", *, nanny: bool = False) -> subprocess.Popen[bytes]:
        """Start a worker, whose process that computes is altered (``altered/alterations.py``).

        Without Dask's nanny it is one process less, which takes a second to start.
        """
        worker = self._dask(
            "worker", "--scheduler-file", "scheduler.json", "--nthreads", "4", "--no-dashboard",
            "--name", f"machine-{len(self._workers)}", "--memory-limit", "0",
            "--nanny" if nanny else "--no-nanny", altered=altered,
        )  # fmt: skip
        self._workers.append(worker)
        return worker

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a worker with its processes, which take seconds to end if they are asked.

        Python's own process stays until it has deleted their semaphores.
        """
        with suppress(psutil.NoSuchProcess):
            worker = psutil.Process(process.pid)
            for each in (*worker.children(recursive=True), worker):
                with suppress(psutil.NoSuchProcess):
                    if not any("resource_tracker" in argument for argument in each.cmdline()):
                        each.kill()
        process.wait(PATIENCE)

    def kill_scheduler(self) -> None:
        """Kill the scheduler."""
        self._scheduler.kill()

    def children(self) -> list[psutil.Process]:
        """Return the processes that compute."""
        return [each for each in psutil.process_iter() if computes(each, self._folder)]

    def child_of(self, worker: subprocess.Popen[bytes]) -> psutil.Process | None:
        """Return the process that computes for a worker, if it is there."""
        below = psutil.Process(worker.pid).children(recursive=True)
        return next(filter(computes, below), None)

    def _dask(self, *arguments: str, altered: str = "") -> subprocess.Popen[bytes]:
        folders = (str(SUPPORT / "altered"), str(ROOT), os.environ.get("PYTHONPATH", ""))
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            cwd=self._folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(folders), "ALTERED": altered},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
