"""Calls that Dask carries: what the engine says of workers, whatever Dask's own thread does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("distributed")

from distributed import Client, LocalCluster
from memory_nodes import write_nodes

from znni.cluster import dask_engine
from znni.cluster.calls import Answer, Call, Describe, EngineGone, Limits
from znni.cluster.cluster_file import Cluster, Group
from znni.cluster.dask_engine import DaskEngine, EnginePlugin
from znni.core.errors import RunFailed
from znni.machine import numa
from znni.machine.gpus_option import VISIBLE


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a scheduler and a worker, in this process."""
    web = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", host="127.0.0.1",
            scheduler_kwargs=web, worker_dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        yield client


@pytest.fixture
def engine(client: Client) -> DaskEngine:
    return DaskEngine(client, None, "plugin", 1, replaced=False)


def test_a_worker_is_there_whatever_dask_notes_in_between(
    client: Client, engine: DaskEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every two seconds Dask notes the scheduler without its workers, where its client looks."""
    sync = client.sync

    def and_then_note(*arguments: Any, **options: Any) -> Any:
        answer = sync(*arguments, **options)
        sync(client._update_scheduler_info)
        return answer

    monkeypatch.setattr(client, "sync", and_then_note)
    assert len(engine.workers()) == 1


async def never(**_: object) -> None:
    """Wait for ever, as for a scheduler that is stopped."""
    await asyncio.get_running_loop().create_future()


def test_a_scheduler_that_does_not_answer_ends_the_run(
    client: Client, engine: DaskEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_engine, "SCHEDULER_SECONDS", 0.1)
    monkeypatch.setattr(client.scheduler, "identity", never, raising=False)
    with pytest.raises(RunFailed, match=r"the cluster's scheduler did not answer for 0\.1 s"):
        engine.workers()


def test_workers_that_do_not_learn_of_a_run_end_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_engine, "START_SECONDS", 0.1)
    monkeypatch.setattr(client, "register_plugin", lambda _plugin: never())
    with pytest.raises(RunFailed, match=r"or a worker of the cluster did not answer for 0\.1 s"):
        dask_engine._start_engines(client, EnginePlugin(None, {}, ""))  # type: ignore[arg-type]


def test_workers_of_this_machine_share_its_gpus_or_its_nodes_of_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1}, raising=False)
    monkeypatch.setattr(numa, "NODES", write_nodes(tmp_path, "0", "1"))
    monkeypatch.setenv(VISIBLE, "a,b,c,d")

    def limits(kind: str, gpus: int) -> dict[str, Limits]:
        group = Group(name="here", count=2, gpus=gpus)
        return dask_engine._limits(Cluster(kind=kind, groups=(group,)))

    assert [it.visible for it in limits("local", 2).values()] == ["a,b", "c,d"]
    assert all(it.cores is None for it in limits("local", 2).values())
    assert [it.cores for it in limits("local", 0).values()] == [(0,), (1,)]
    assert limits("slurm", 2) == {"here": Limits(gpus=2)}


over = Event()


def answer_at_the_end(_call: Call, _plugin: str) -> Answer:
    """Stand in for the function of a worker: answer when the test is over."""
    over.wait(60)
    return Answer()


def test_calls_that_dask_itself_cancels_are_answered(
    engine: DaskEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is forgotten only if its worker is gone."""
    monkeypatch.setattr(dask_engine, "hand_on", answer_at_the_end)
    (worker,) = engine.workers()
    engine.submit(worker, Describe())
    (future,) = engine._asked[worker].values()
    future.cancel(force=True)
    (came,) = engine.completed(60.0)
    over.set()
    assert isinstance(came.answer.error, EngineGone)
