"""The process in which a worker's blocks are computed.

It answers calls that come through a socket. The engine's pipeline reads, computes and writes at the
same time, so several blocks may be on their way. The process ends when the socket is closed.
"""

from __future__ import annotations

import os
import pickle
import platform
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from znni.calibration.conditions import GPU_LIBRARIES, LIBRARIES
from znni.cluster.calls import (
    Account,
    Answer,
    Call,
    Compute,
    Describe,
    Description,
    GetReady,
    Limits,
    Machinery,
    MakePlan,
    Probe,
    Probed,
    Recipe,
)
from znni.cluster.cluster_plan import plan_to_share
from znni.core import system
from znni.core.errors import InvalidInput, RunFailed
from znni.core.option_types import Bits
from znni.core.plan_options import Choices
from znni.core.processors import HOST
from znni.core.shapes import Axis, Box, Vec3
from znni.core.version import __version__
from znni.engine.block_reader import BlockReader
from znni.engine.pipeline import PreparedPlan, run_volume
from znni.engine.recheck import allowed_difference, state_of_block
from znni.engine.run_state import RunState
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Tile
from znni.inference.build_runner import prepare
from znni.inference.model_choice import shared_form
from znni.inference.output_attributes import as_run
from znni.inference.parts import memory_ran_out
from znni.inference.plan_choice import found_for, given_or_found
from znni.inference.request import OpenRequest, open_request, parameters_of
from znni.inference.resuming import identified
from znni.machine.arrays import high_water_mark
from znni.machine.detect import detect_for
from znni.machine.device_arena import device_peak
from znni.machine.gpus import look_at_gpus, why_no_gpu
from znni.machine.machine import Machine
from znni.plans.plan import Plan
from znni.volumes.identity import differences
from znni.volumes.ledger_entries import box_of
from znni.volumes.locate import writer_at

# Set by SLURM in its jobs; the end, in seconds since 1970, by version 23.02 and later.
JOB = "SLURM_JOB_ID"
JOB_ENDS = "SLURM_JOB_END_TIME"


class Handed:
    """The blocks that are handed to this process, one by one."""

    voxels = 0
    total = 0

    def __init__(self) -> None:
        self._tiles: SimpleQueue[Tile | None] = SimpleQueue()

    def put(self, tile: Tile) -> None:
        """Hand over a patch."""
        self._tiles.put(tile)

    def columns(self, _patch: Vec3, *, swept: Axis | None = None) -> Iterator[list[Tile]]:  # noqa: ARG002
        """Yield patches as they come, until ``stop``."""
        while tile := self._tiles.get():
            yield [tile]

    def stop(self) -> None:
        """End the wait for the next patch: no more are taken."""
        self._tiles.put(None)

    def take_off(self, _box: Box) -> None:
        """Do nothing: who handed the block out keeps account of it."""


class Child:
    """Answers the calls that come through a connection.

    Once a block has come, only blocks and ``Account`` may follow.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = Lock()
        self._calls: SimpleQueue[tuple[int, Call] | None] = SimpleQueue()
        self._handed = Handed()
        self._started = False
        self._waiting: dict[Box, int] = {}  # calls for blocks that are on their way
        self._stopwatch = Stopwatch()
        self._limits = Limits()
        self._asked: OpenRequest | None = None
        self._recipe: Recipe
        self._prepared: PreparedPlan
        self._state: RunState

    def serve(self) -> None:
        """Answer calls until the connection is closed, or until a block fails."""
        self._recipe, self._limits = self._connection.recv()
        Thread(target=self._receive, daemon=True).start()
        while call := self._calls.get():
            number, what = call
            error = self._reply(number, what)
            if error and isinstance(what, GetReady):
                self._fail_all(error)
                return
        try:
            run_volume(self._state, self._prepared, self._stopwatch)
        except MemoryError as error:
            short = memory_ran_out(self._prepared.plan, HOST)
            short.__cause__ = error
            self._fail_all(short)
        except BaseException as error:
            self._fail_all(error)

    def _receive(self) -> None:
        """Take calls. When the connection is closed, end this process, whatever it is at."""
        try:
            while True:
                number, call = self._connection.recv()
                if isinstance(call, Compute):
                    self._waiting[call.tile.written] = number
                    self._handed.put(call.tile)
                    if not self._started:
                        self._started = True
                        self._calls.put(None)
                elif isinstance(call, Account):
                    self._reply(number, call)
                else:
                    self._calls.put((number, call))
        except (EOFError, OSError):
            os._exit(0)
        except BaseException:  # a call that cannot be read: nobody would take the next one
            traceback.print_exc()
            os._exit(1)

    def _reply(self, number: int, call: Call) -> BaseException | None:
        """Send the answer to a call. If that is an error, also return it."""
        try:
            value = self._answer(call)
        except BaseException as error:
            self._fail([number], error)
            return error
        self._send(number, Answer(value))
        return None

    def _answer(self, call: Call) -> Any:
        if isinstance(call, Describe):
            return self._describe()
        if isinstance(call, MakePlan):
            return self._make_plan(call.given, call.workers).to_json()
        if isinstance(call, GetReady):
            return self._get_ready(Plan.from_json(call.plan), call.bits)
        if isinstance(call, Probe):
            return self._probe(call.block)
        if isinstance(call, Account) and self._started:
            return self._measured()
        raise RunFailed(f"{type(call).__name__} is no call that this process answers")

    def _describe(self) -> Description:
        """Open the volume, and check that this process computes what the coordinator wants."""
        asked = self._opened()
        differing = differences(dict(self._recipe.identity), dict(self._wanted.identity))
        if differing:
            raise InvalidInput(
                f"{platform.node()} sees something else than the coordinator: it differs in "
                f"{'; in '.join(differing)}; give all machines the same input, network and weights"
            )
        return Description(platform.node(), machinery(asked.choices), job_ends())

    def _make_plan(self, given: Plan | None, workers: int) -> Plan:
        asked = self._opened()
        found = given_or_found(given, asked)
        if given or workers == 1:
            return found
        return plan_to_share(found, workers, asked)

    def _opened(self) -> OpenRequest:
        """Open the volume, unless that is done, and return what is asked."""
        if self._asked:
            return self._asked
        request, limits = self._recipe.request, self._limits
        if limits.gpus and not look_at_gpus():
            raise InvalidInput(
                f"the worker's group has gpus: {limits.gpus}, and its machine has no GPU that can "
                f"be used: {why_no_gpu()}"
            )
        network = shared_form(request.loaded).network
        options = replace(request.options, limits=limits.within(request.options.limits))
        asked = open_request(replace(request, network=network, options=options))
        self._asked = asked
        self._weights = parameters_of(asked)
        self._wanted = identified(asked, self._weights)
        return asked

    def _get_ready(self, plan: Plan, bits: Bits) -> float:
        asked = self._opened()
        if bits == "class" and kind_of(plan.machine) != kind_of(detect_for(asked.choices.device)):
            chosen = found_for(plan, asked)
        else:
            chosen = given_or_found(plan, asked)
        reader = BlockReader(asked.volume, asked.job, asked.network, self._weights, asked.mask)
        self._output = writer_at(str(asked.request.out)).blocks(self._wanted, self._note)
        self._state = RunState(
            reader, self._output, asked.stored.dtype, self._handed, labels=asked.labels
        )
        self._prepared = prepare(chosen, self._weights, stored=asked.stored)
        self._prepared.wait_until_ready()
        return chosen.time.for_job(chosen.patches).total / max(1, chosen.patches)

    def _probe(self, block: Box) -> Probed:
        asked = self._opened()
        again, found = state_of_block(block, self._state, self._output, asked.job)
        run_volume(again, self._prepared, Stopwatch())
        plan = self._prepared.plan
        allowed = allowed_difference(
            plan.network, asked.choices.accuracy, asked.stored.dtype, asked.labels is not None
        )
        return Probed(found.same, found.largest, allowed)

    def _note(self, entry: Mapping[str, Any]) -> None:
        """Answer the call for a block that is written now."""
        self._send(self._waiting.pop(box_of(entry["block"])), Answer(entry))

    def _measured(self) -> dict[str, Any]:
        peak = high_water_mark() + self._prepared.workers_memory
        spent, skipped = self._stopwatch.seconds, self._state.reader.skipped
        run = as_run([self._prepared.plan], spent, peak, skipped, device_peak())
        return {name: value for name, value in run.items() if name != "plan"}

    def _send(self, number: int, answer: Answer) -> None:
        with self._sending, suppress(OSError):
            self._connection.send((number, answer))

    def _fail(self, numbers: list[int], error: BaseException) -> None:
        where = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # of some library, whose errors cannot travel
            error = RunFailed(f"{type(error).__name__}: {error}")
        answer = Answer(error=error, where=where)
        for number in numbers:
            self._send(number, answer)

    def _fail_all(self, error: BaseException) -> None:
        self._fail(list(self._waiting.values()), error)


def job_ends() -> float | None:
    """Return when this process's job is ended, in seconds since 1970; None: not known to end."""
    if JOB_ENDS in os.environ:
        return float(os.environ[JOB_ENDS])
    if JOB not in os.environ:
        return None
    asked = ["squeue", "-h", "-j", os.environ[JOB], "-o", "%e"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        told = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=30)
        return datetime.fromisoformat(told.stdout.strip()).timestamp()
    return None


def machinery(choices: Choices) -> Machinery:
    """Return what the results of this process depend on."""
    found = {"znni": __version__, "python": platform.python_version()}
    for name in (*LIBRARIES, *GPU_LIBRARIES):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return Machinery(kind_of(detect_for(choices.device)), found)


def kind_of(machine: Machine) -> str:
    """Return the names of a machine's processor, and of its GPU if it has one."""
    return ", ".join([machine.host.name, *(gpu.name for gpu in machine.gpus[:1])])


def main() -> None:
    """Serve the worker that has started this process."""
    system.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker ends this process
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    Child(connection).serve()
    os._exit(0)  # a thread of some library may not keep the process, which answers no more


def connection_pair() -> tuple[Connection[Any, Any], int]:
    """Return one end of a new connection, and the descriptor of the other."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), theirs.detach()


if __name__ == "__main__":
    main()
