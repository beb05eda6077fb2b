"""Workers of a Dask cluster, which hand calls on to the processes that compute.

Dask finds workers, replaces those that are gone, and carries calls and answers. It never carries
arrays, and it does not choose which worker computes what.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue
from threading import current_thread, main_thread
from typing import Any, NamedTuple
from uuid import uuid4

import dask
from distributed import Client, Future, get_worker
from distributed.comm import CommClosedError
from distributed.diagnostics.plugin import WorkerPlugin

from znni.cluster.calls import Answer, Answered, Call, EngineGone, Limits, Recipe
from znni.cluster.cluster_file import Cluster
from znni.cluster.dask_clusters import CONNECT_SECONDS, connected, started_cluster
from znni.cluster.engine_process import EngineProcess
from znni.core.errors import InvalidInput, RunFailed, ZnniError
from znni.core.text import duration
from znni.machine.gpus_option import VISIBLE
from znni.machine.numa import cores_of_processes

LOST_SECONDS = 60  # without an answer; Dask then counts a worker as lost
STOP_SECONDS = 10
SCHEDULER_SECONDS = 120  # to answer; it takes milliseconds
START_SECONDS = 600  # for all workers to learn of a run; a scheduler may wait for one for 5 min
ANSWER_SECONDS = 10  # to fetch an answer that is there
SETTINGS = {
    # A lost worker's calls are taken back by the coordinator, which counts their attempts itself.
    "distributed.scheduler.allowed-failures": 100,
    "distributed.scheduler.worker-ttl": f"{LOST_SECONDS}s",
    "distributed.deploy.lost-worker-timeout": "5s",
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.limit": "60s",
    # Dask's looks at itself took 6 % of the coordinator's core at the default intervals.
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.comm.timeouts.connect": f"{CONNECT_SECONDS}s",
}


class EnginePlugin(WorkerPlugin):  # type: ignore[misc]  # Dask has no types
    """Starts the process that computes, on every worker that joins, and ends it with the worker.

    Args:
        recipe: what the workers compute.
        limits: the limits of workers, by their names or by the names of their groups.
        only: the key of the limits for all other workers.

    Attributes:
        name: tells this run from others on the same scheduler.
    """

    def __init__(self, recipe: Recipe, limits: Mapping[str, Limits], only: str) -> None:
        self._recipe = recipe
        self._limits = dict(limits)
        self._only = only
        self.name = f"znni-{uuid4().hex[:12]}"
        self.engine: EngineProcess | None = None

    def setup(self, worker: Any) -> None:
        """Start the process."""
        if current_thread() is main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the coordinator alone
        name = str(worker.name)
        beginning = [it for it in self._limits if name == it or name.startswith(f"{it}-")]
        limits = self._limits.get(max(beginning, key=len, default=self._only)) or Limits()
        self.engine = EngineProcess(self._recipe, limits)

    def teardown(self, worker: Any) -> None:  # noqa: ARG002 - Dask's signature
        """End the process."""
        if self.engine:
            with suppress(RunFailed):  # it does not end; the worker does
                self.engine.close()


def _share_of_gpus(index: int, gpus: int) -> str:
    """Return the GPUs of one of several workers of a machine, as ``CUDA_VISIBLE_DEVICES``."""
    visible = os.environ.get(VISIBLE)
    names = visible.split(",") if visible else [str(number) for number in range(64)]
    return ",".join(names[index * gpus : (index + 1) * gpus])


def hand_on(call: Call, plugin: str) -> Answer:
    """Pass a call on to this worker's child process, and return its answer."""
    engine = get_worker().plugins[plugin].engine
    answer: Answer = engine.ask(call)
    return answer


class DaskEngine:
    """A Dask cluster that computes blocks.

    Args:
        client: connected to its scheduler.
        started: the cluster, if this process has started it; else None.
        plugin: name of the plugin that starts the processes of this run.
        workers: how many workers are wanted.
        replaced: whether workers that are gone are replaced without being asked for.

    Attributes:
        wanted: how many workers are wanted.
    """

    def __init__(
        self, client: Client, started: Any, plugin: str, workers: int, *, replaced: bool
    ) -> None:
        self.wanted = workers
        self._plugin = plugin
        self._replaced = replaced
        self._client = client
        self._started = started
        self._numbers = count()
        self._answers: SimpleQueue[Answered | RunFailed] = SimpleQueue()
        self._asked: dict[str, dict[str, Future]] = {}

    def workers(self) -> dict[str, str]:
        """Return the names of the workers that are there, by address."""
        if self._client.status != "running":
            raise RunFailed("the cluster's scheduler is gone")
        try:
            # ``scheduler_info`` may return what another thread of Dask noted without the workers.
            asked = self._client.scheduler.identity
            known = self._client.sync(asked, callback_timeout=SCHEDULER_SECONDS)["workers"]
        except TimeoutError:
            waited = duration(SCHEDULER_SECONDS)
            raise RunFailed(f"the cluster's scheduler did not answer for {waited}") from None
        except Exception as error:  # of its connection
            raise RunFailed(f"the cluster's scheduler is gone: {error}") from error
        for address in set(self._asked) - set(known):
            for future in self._asked.pop(address).values():
                future.cancel(force=True)
        return {address: str(worker["name"]) for address, worker in known.items()}

    def replace_lost(self) -> None:
        """Have workers that are gone started again, if this process has started the cluster.

        Raises:
            RunFailed: the scheduler is gone, or jobs end before their workers join.
        """
        if self._started is not None and not self._replaced:
            if hasattr(self._started, "forget_ended"):
                self._started.forget_ended(set(self.workers().values()))
            self._started.scale(self.wanted)

    def submit(self, worker: str, call: Call) -> None:
        """Hand a call to a worker."""
        key = f"{self._plugin}-{next(self._numbers)}"
        future = self._client.submit(
            hand_on, call, self._plugin,
            key=key, workers=[worker], allow_other_workers=False, pure=False,
        )  # fmt: skip
        self._asked.setdefault(worker, {})[key] = future
        # Each is fetched by itself: a machine that is stopped must not keep all others waiting.
        loop = self._client.loop
        future.add_done_callback(lambda done: loop.add_callback(self._fetch, worker, call, done))

    def completed(self, timeout: float) -> Iterator[Answered]:
        """Yield the answers that have come, after waiting for the first one."""
        while True:
            try:
                came = self._answers.get(timeout=timeout)
            except Empty:
                return
            timeout = 0
            if isinstance(came, RunFailed):
                raise came
            yield came

    async def _fetch(self, worker: str, call: Call, future: Future) -> None:
        """Fetch an answer that is there."""
        came: Answered | RunFailed
        try:
            if future.key not in self._asked.get(worker, {}):  # its worker is gone
                return
            gathering = self._client.gather(future, asynchronous=True)
            came = Answered(worker, call, await asyncio.wait_for(gathering, ANSWER_SECONDS))
        except (TimeoutError, CancelledError, asyncio.CancelledError):
            # Dask would wait for the same worker to answer again, which is gone with its answer.
            came = Answered(worker, call, Answer(error=EngineGone("the worker's answer is lost")))
        except CommClosedError as error:
            came = RunFailed(f"the cluster's scheduler is gone: {error}")
        except Exception as error:  # raised while the worker handed the call on
            came = Answered(worker, call, Answer(error=_told(error)))
        self._asked.get(worker, {}).pop(future.key, None)
        self._answers.put(came)
        future.release()

    def forget(self) -> None:
        """Have the workers end the processes of this run."""
        with suppress(Exception):  # a scheduler that is gone has nothing left to end
            if self._client.status == "running":
                self._client.unregister_worker_plugin(self._plugin)


class DaskCluster(NamedTuple):
    """A Dask cluster that runs.

    Attributes:
        cluster: its description.
        client: connected to its scheduler.
        started: Dask's object of it, if this process has started it; else None.
    """

    cluster: Cluster
    client: Client
    started: Any

    @property
    def is_running(self) -> bool:
        """Return whether the scheduler is there."""
        return str(self.client.status) == "running"


@contextmanager
def dask_cluster(cluster: Cluster, folder: str) -> Iterator[DaskCluster]:
    """Start a cluster, or connect to one, for a ``with`` block.

    Args:
        cluster: what to start, or where to connect.
        folder: for files of workers; nobody else may read it.

    Raises:
        InvalidInput: a library is missing, or no scheduler answers.
        RunFailed: the processes of the cluster do not start.
    """
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] == "distributed":  # the coordinator says what is of interest
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with dask.config.set({**SETTINGS, "temporary-directory": folder}):
        started: Any = None
        client: Client | None = None
        try:
            if cluster.kind == "address":
                client = connected(cluster)
            else:
                started = started_cluster(cluster, folder)
                client = Client(started, timeout=CONNECT_SECONDS)
            yield DaskCluster(cluster, client, started)
        finally:
            for each in (client, started):
                with suppress(Exception):  # a scheduler that is gone has nothing left to end
                    if each is not None:
                        each.close(timeout=STOP_SECONDS)


@contextmanager
def engine_on(there: DaskCluster, recipe: Recipe, *, stay: bool) -> Iterator[DaskEngine]:
    """Have the workers of a cluster compute a run within a ``with`` block.

    Args:
        recipe: what the workers compute.
        stay: whether they stay for another run, unless this one is stopped.

    Raises:
        RunFailed: the scheduler is gone.
        InvalidInput: a worker cannot run znni.
    """
    cluster, client, started = there
    limits = _limits(cluster)
    only = next(iter(limits)) if len(limits) == 1 else ""
    plugin = EnginePlugin(recipe, limits, only)
    kubernetes = cluster.kind == "kubernetes"
    engine = DaskEngine(client, started, plugin.name, cluster.workers, replaced=kubernetes)
    forgets = started is None
    try:
        _start_engines(client, plugin)
        yield engine
        forgets |= stay
    except ZnniError:
        forgets |= stay
        raise
    finally:
        if forgets:
            engine.forget()


def _start_engines(client: Client, plugin: EnginePlugin) -> None:
    """Start the process that computes on every worker that is there or comes."""

    async def register() -> None:
        await client.register_plugin(plugin)

    try:
        client.sync(register, callback_timeout=START_SECONDS)
    except TimeoutError:
        raise RunFailed(
            f"the scheduler or a worker of the cluster did not answer for {duration(START_SECONDS)}"
        ) from None
    except OSError as error:  # of the connection
        raise RunFailed(f"the cluster's scheduler is gone: {error}") from error
    except Exception as error:  # of a worker
        raise _told(error) from error


def _limits(cluster: Cluster) -> dict[str, Limits]:
    """Return the limits of each group's workers, or of each worker on this machine, by name.

    Workers on this machine share its GPUs or its nodes of memory. Dask names them by numbers.
    """
    limits = {
        group.name: Limits(
            ram=group.znni_ram,
            threads=group.cores,
            gpus=group.gpus if cluster.kind != "address" or group.gpus else None,
        )
        for group in cluster.groups
    }
    if cluster.kind != "local":
        return limits
    (alike,), count = limits.values(), cluster.workers
    if alike.gpus:
        return {
            str(index): replace(alike, visible=_share_of_gpus(index, alike.gpus))
            for index in range(count)
        }
    cores = enumerate(cores_of_processes(count))
    return {str(index): replace(alike, cores=near) for index, near in cores}


def _told(error: BaseException) -> BaseException:
    if isinstance(error, ImportError | AttributeError | KeyError):
        return InvalidInput(
            f"a worker cannot run znni ({type(error).__name__}: {error}); install the same version "
            f"there as here"
        )
    return error
