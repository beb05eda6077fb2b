"""Workers that are jobs of SLURM: submitting jobs, and finding those that are gone."""

from __future__ import annotations

import getpass
import logging
import signal
import subprocess
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import dask
from distributed import Scheduler, Security, SpecCluster
from distributed.deploy.spec import ProcessInterface

from znni.cluster.cluster_file import Cluster, Group
from znni.cluster.dask_clusters import CALLS_AT_A_TIME, web_server
from znni.core.errors import RunFailed

# Importing dask-jobqueue replaces what Ctrl-C does: it would end the process without an error.
_handler = signal.getsignal(signal.SIGINT)
from dask_jobqueue.slurm import SLURMJob  # noqa: E402

signal.signal(signal.SIGINT, _handler)

log = logging.getLogger("znni")

DEATH_SECONDS = 60  # after which a worker ends that finds no scheduler
FRUITLESS = 3  # times that all jobs may end before a first worker joins


class _Job(SLURMJob):  # type: ignore[misc]  # Dask has no types
    """A job. If SLURM does not take it, the cluster finds it ended, and why."""

    refused = ""

    async def start(self) -> None:
        """Submit it."""
        try:
            await super().start()
        except (OSError, RuntimeError) as error:
            self.refused = " ".join(str(error).rpartition("stderr:")[2].split())
            await ProcessInterface.start(self)


class SlurmCluster(SpecCluster):  # type: ignore[misc]  # Dask has no types
    """A scheduler in this process, and workers that are jobs.

    Args:
        cluster: groups of machines, each of which is submitted ``count`` times.
        folder: for certificates and the jobs' logs. All machines see it, nobody else reads it.

    Raises:
        RunFailed: SLURM does not take a job.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        dask.config.set({"jobqueue.slurm.walltime": None})  # else it is 30 minutes
        self._folder = folder
        self._ended: set[str] = set()
        self._fruitless = 0
        security = _certificates(folder)
        common = {
            "cores": CALLS_AT_A_TIME,
            "processes": 1,
            "nanny": True,
            "worker_extra_args": ["--memory-limit", "0", "--no-dashboard"],
            "death_timeout": DEATH_SECONDS,
            "interface": cluster.interface,
            "protocol": "tls://",
            "security": security,
            "log_directory": str(folder),
            "job_name": "znni",
        }
        workers = {
            f"{group.name}-{index}": {"cls": _Job, "options": common | _options(group)}
            for group in cluster.groups
            for index in range(group.count)
        }
        scheduler = {"protocol": "tls://", "interface": cluster.interface, "security": security}
        super().__init__(
            workers=workers,
            scheduler={"cls": Scheduler, "options": scheduler | web_server(cluster)},
            security=security,
            silence_logs=logging.CRITICAL,
        )
        if refused := next((job.refused for job in self.workers.values() if job.refused), ""):
            self.close()
            raise RunFailed(f"SLURM does not take a job: {refused}")

    def forget_ended(self, joined: set[str]) -> None:
        """Forget jobs that have ended, so that ``scale`` submits others in their place.

        Dask notices the end of a worker that has joined. It waits for ever for the worker of a job
        that ends before. A job has ended if two calls in a row find it so.

        Raises:
            RunFailed: all jobs end before a worker joins.
        """
        if joined:
            self._fruitless = 0
        running = _running_jobs()
        if running is None:
            return
        ended = {
            name: job
            for name, job in tuple(self.workers.items())  # another thread may add to them
            if str(job.job_id) not in running and name not in joined
        }
        for name in ended.keys() & self._ended:
            del self.workers[name]
            said = ended[name].refused or self._last_words(ended[name].job_id)
            log.warning("the job of worker %s ended before the worker joined: %s", name, said)
            self._fruitless += 1
            if self._fruitless >= FRUITLESS * len(self.worker_spec):
                raise RunFailed(
                    f"{self._fruitless} jobs ended before a worker joined, the last one with: "
                    f"{said}; correct that, or the cluster file"
                )
        self._ended = set(ended)

    def _last_words(self, job: str) -> str:
        """Return the last line that a job has written."""
        for ending in ("err", "out"):
            with suppress(OSError):
                lines = (self._folder / f"znni-{job}.{ending}").read_text("utf-8", "replace")
                if lines.strip():
                    return lines.strip().rpartition("\n")[2]
        return "it wrote nothing"


def started(cluster: Cluster, folder: str) -> SlurmCluster:
    """Submit the jobs, and return Dask's object of them."""
    return SlurmCluster(cluster, Path(folder))


def _options(group: Group) -> dict[str, Any]:
    """Return the options of the jobs of a group."""
    assert group.ram is not None, "a group of SLURM has it"
    directives = list(group.directives)
    if group.gpus:
        directives.append(f"--gres=gpu:{group.gpus}")
    return {
        "memory": f"{group.ram}B",
        "job_mem": f"{ceil(group.ram / 2**20)}M",
        "job_cpu": group.cores,
        "queue": group.partition,
        "account": group.account,
        "walltime": _in_words(group.walltime),
        "job_extra_directives": directives,
    }


def _in_words(walltime: float | None) -> str | None:
    """Return a walltime as SLURM takes it, in minutes and seconds."""
    return None if walltime is None else f"{int(walltime) // 60}:{int(walltime) % 60:02}"


def _certificates(folder: Path) -> Security:
    """Write certificates that are made for this run, and return where."""
    made = Security.temporary().get_tls_config_for_role("worker")
    names = {name: folder / f"{name}.pem" for name in ("ca_file", "cert", "key")}
    for name, path in names.items():
        path.touch(0o600)
        path.write_text(made[name])
    ca, cert, key = (str(path) for path in names.values())
    roles = {
        f"tls_{role}_{name}": path
        for role in ("client", "scheduler", "worker")
        for name, path in (("cert", cert), ("key", key))
    }
    return Security(tls_ca_file=ca, require_encryption=True, **roles)


def _running_jobs() -> set[str] | None:
    """Return the numbers of this user's jobs that wait or run; None if SLURM does not answer."""
    asked = ["squeue", "-h", "-u", getpass.getuser(), "-o", "%A"]
    try:
        told = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(told.stdout.split())
