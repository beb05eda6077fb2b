"""The process that computes blocks, seen from its worker: every call gets an answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from znni.cluster import engine_process
from znni.cluster.calls import (
    Account,
    Answer,
    Call,
    Compute,
    Describe,
    EngineGone,
    GetReady,
    Limits,
    Probe,
    Recipe,
    Restart,
)
from znni.cluster.engine_process import EngineProcess
from znni.core.child_process import command_of_program
from znni.core.shapes import Box, Vec3
from znni.engine.tiles import Tile

RECIPE: Recipe = "any"  # type: ignore[assignment]  # these processes compute nothing
BOX = Box(Vec3(0, 0, 0), Vec3(1, 1, 1))
BLOCK = Compute(Tile(BOX, BOX))
# Takes calls, and answers those that are not for blocks with their types and its number.
TALKS = """
import os, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
connection.recv()
while True:
    number, call = connection.recv()
    if type(call).__name__ != "Compute":
        from znni.cluster.calls import Answer
        connection.send((number, Answer((type(call).__name__, os.getpid()))))
"""
READS_NOTHING = "import time; time.sleep(600)"
ENDS_ITS_SOCKET = """
import os, sys, time
os.close(int(sys.argv[1]))
time.sleep(600)
"""


@pytest.fixture
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The process of a worker, which runs the test's program."""

    def command(_module: str, *arguments: str) -> list[str]:
        return [*command_of_program(request.param), *arguments]

    monkeypatch.setattr(engine_process, "command_of", command)
    engine = EngineProcess(RECIPE, Limits())
    yield engine
    engine.close()


def asked(engine: EngineProcess, call: Call) -> SimpleQueue[Answer]:
    """Ask in another thread, and return where the answer will be."""
    answers: SimpleQueue[Answer] = SimpleQueue()
    Thread(target=lambda: answers.put(engine.ask(call)), daemon=True).start()
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("engine", [TALKS], indirect=True)
@pytest.mark.parametrize("call", [Describe(), Probe(BOX)])
def test_a_question_after_a_block_is_answered_by_another_process(
    engine: EngineProcess, call: Call
) -> None:
    """The first one looks at blocks alone. Its worker was lost and found, or has hung."""
    _, first = engine.ask(GetReady("plan")).value
    block = asked(engine, BLOCK)
    while not engine._running._begun:  # type: ignore[union-attr]
        pass
    assert engine.ask(Account()).value == ("Account", first)
    name, second = engine.ask(call).value
    assert name == type(call).__name__
    assert second != first
    assert isinstance(block.get(timeout=60).error, EngineGone)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system chooses the cores")
@pytest.mark.parametrize("engine", [TALKS], indirect=True)
def test_a_process_runs_on_the_cores_of_its_limits(engine: EngineProcess) -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    engine._limits = Limits(cores=(one,))
    _, process = engine.ask(Describe()).value
    assert os.sched_getaffinity(process) == {one}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("engine", [READS_NOTHING], indirect=True)
def test_a_process_that_reads_nothing_is_ended(engine: EngineProcess) -> None:
    """A call that is larger than the socket's buffer waits for the process to read."""
    large = asked(engine, GetReady("a long plan" * 1_000_000))
    small = asked(engine, Describe())
    while large.empty():
        engine.ask(Restart())
    assert isinstance(large.get().error, EngineGone)
    engine.close()
    assert small.get(timeout=60).error is not None


@pytest.mark.parametrize("engine", [ENDS_ITS_SOCKET], indirect=True)
def test_a_process_that_closes_its_socket_is_ended(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "END_SECONDS", 0.2)
    error = engine.ask(Describe()).error
    assert isinstance(error, EngineGone)
    assert "closed its socket, and did not end" in str(error)
    engine._running._process.wait(60)  # type: ignore[union-attr]  # its end may take longer
