"""The machines of a cluster. Their workers compute one run, or several one after the other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from znni.cluster.calls import Recipe
from znni.cluster.cluster_file import DASK_BYTES, Cluster, load_cluster
from znni.cluster.workers import Engine
from znni.core.errors import InvalidInput, ZnniError, option
from znni.core.plan_options import Choices
from znni.core.processors import needs_gpu
from znni.core.text import in_units
from znni.machine.detect import detect_host
from znni.volumes.stored import is_url

if TYPE_CHECKING:
    from znni.cluster.dask_engine import DaskCluster


class Machines:
    """The machines of a cluster, which start for the first run.

    Args:
        given: the cluster, its YAML file, or ``local:N``.
        choices: limits and choices for plans.
        out: the output. For jobs, files of workers lie beside it, where all machines see them.
        stay: whether workers wait for further runs, until ``close``. A run that is stopped ends
            them, or one that loses the scheduler.
        leaving: the bytes that this process takes while workers compute, if these are of this
            machine, and share its memory or that of an option.

    Attributes:
        cluster: the cluster, with the limits of its workers if they are of this machine.
        sharing: how many workers share the memory of an option or of this machine; 0 if the
            cluster's file has it.
        leaving: the bytes of this memory that they leave to this process.

    Raises:
        InvalidInput: the cluster's file cannot be used, an option contradicts it, or this machine
            has too little memory.
    """

    def __init__(
        self,
        given: Cluster | str | Path,
        choices: Choices,
        out: str | Path,
        *,
        stay: bool = False,
        leaving: int = 0,
    ) -> None:
        found = given if isinstance(given, Cluster) else load_cluster(given)
        self.sharing = _sharing(found)
        self.leaving = leaving if self.sharing else 0
        self.cluster = _with_limits(found, choices, self.leaving)
        self._beside = Path() if is_url(str(out)) else Path(out).parent
        self._stay = stay
        self._holding = ExitStack()
        self._there: DaskCluster | None = None

    @property
    def ram_here(self) -> int:
        """The bytes of this machine's memory that all workers may take while they compute.

        Those of idle workers are not among them.
        """
        if self.cluster.kind != "local":
            return 0
        return sum(group.count * (group.znni_ram or 0) for group in self.cluster.groups)

    @property
    def idle_here(self) -> int:
        """The bytes of this machine's memory that all workers take while they stay and wait."""
        return self.cluster.workers * DASK_BYTES if self.cluster.kind == "local" else 0

    @contextmanager
    def engine(self, recipe: Recipe) -> Iterator[Engine]:
        """Have the workers compute a run within a ``with`` block."""
        try:
            from znni.cluster.dask_engine import dask_cluster, engine_on
        except ImportError as error:
            raise InvalidInput(
                f"a cluster needs {error.name}, which is not installed; install it with: pip "
                f"install 'znni[cluster]'"
            ) from None
        stays = False
        try:
            if self._there is None:
                folder = self._holding.enter_context(_scratch(self.cluster, self._beside))
                self._there = self._holding.enter_context(dask_cluster(self.cluster, folder))
            with engine_on(self._there, recipe, stay=self._stay) as engine:
                yield engine
            stays = self._stay
        except ZnniError:
            stays = self._stay and self._there is not None and self._there.is_running
            raise
        finally:
            if not stays:
                self.close()

    def close(self) -> None:
        """End the workers that this process has started. The next run starts others."""
        self._there = None
        self._holding.close()


def _shared_out(cluster: Cluster, choices: Choices, leaving: int) -> Cluster:
    """Return a local cluster whose workers share this machine's memory and cores."""
    if len(cluster.groups) > 1:
        raise InvalidInput(
            f"a local cluster has {len(cluster.groups)} groups, and its workers are all alike; "
            f"give one group"
        )
    (group,) = cluster.groups
    here = detect_host(choices.ram, choices.threads)
    threads = group.cores or max(1, here.host.threads // group.count)
    ram = group.ram or max(0, here.host.memory - leaving) // group.count
    if ram <= DASK_BYTES:
        raise InvalidInput(
            f"each of {group.count} workers gets {in_units(ram)} of memory, and Dask alone takes "
            f"{in_units(DASK_BYTES)}; start fewer, or give them more by {option('ram', 'SIZE')}"
        )
    group = group.model_copy(update={"cores": threads, "ram": ram})
    return cluster.model_copy(update={"groups": (group,)})


def _sharing(cluster: Cluster) -> int:
    """Return how many workers share memory that the cluster's file does not give."""
    in_file = cluster.kind != "local" or any(group.ram for group in cluster.groups)
    return 0 if in_file else cluster.workers


def _with_limits(cluster: Cluster, choices: Choices, leaving: int) -> Cluster:
    """Return the cluster with the limits of its workers, if they are of this machine."""
    device, gpus = choices.device, choices.gpus
    if str(gpus) != "1":
        raise InvalidInput(
            f"{option('gpus', gpus)} is about one machine; leave it out, and give gpus: in the "
            f"cluster file"
        )
    if needs_gpu(device) and cluster.groups and not any(g.gpus for g in cluster.groups):
        raise InvalidInput(
            f"{option('device', device)}, and no group of the cluster has GPUs; give gpus: in the "
            f"cluster file, or leave it out"
        )
    for name, key in (("ram", "ram"), ("threads", "cores")):
        value: object = getattr(choices, name)
        if value is not None and any(getattr(group, key) for group in cluster.groups):
            raise InvalidInput(
                f"{option(name, value)}, and the cluster file has {key}: for its workers; leave "
                f"one of them out"
            )
    return _shared_out(cluster, choices, leaving) if cluster.kind == "local" else cluster


@contextmanager
def _scratch(cluster: Cluster, beside: Path) -> Iterator[str]:
    """Make a folder that only this user may read, and delete it afterwards.

    For jobs it lies where all machines see it: beside the output, or in the current folder if the
    output is at a URL.
    """
    place = beside.absolute() if cluster.kind == "slurm" else None
    folder = tempfile.mkdtemp(prefix="znni-cluster-", dir=place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
