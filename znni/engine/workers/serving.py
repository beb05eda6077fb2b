"""The work of a worker process: to compute the patches that come through its slots."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import RunFailed
from znni.engine.pipeline import Runner, convert
from znni.engine.stages import Work, run_stages, through
from znni.engine.stopwatch import Stopwatch
from znni.engine.workers.slots import Slot, SlotShape
from znni.machine.arrays import high_water_mark
from znni.machine.device_arena import device_peak
from znni.plans.job_seconds import JobSeconds

# Makes the runner. It is pickled.
Prepare: TypeAlias = Callable[[], Runner]


@dataclass(frozen=True)
class Task:
    """The task of a worker.

    Attributes:
        prepare: makes the runner.
        shape: the shape of a slot.
        slots: for each slot, the descriptors of its memory and of the socket that asks for patches.
    """

    prepare: Prepare
    shape: SlotShape
    slots: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Failure:
    """The message of a worker that failed, sent through all its sockets before it ends.

    Attributes:
        error: what was raised.
        where: its traceback.
    """

    error: BaseException
    where: str


@dataclass(frozen=True)
class Account:
    """The answer of a worker that is asked about itself.

    Attributes:
        seconds: how long its stages have worked.
        peak_memory: the most bytes that were resident.
        gpu_peak_memory: the most bytes of a GPU that its arrays took.
    """

    seconds: JobSeconds
    peak_memory: int
    gpu_peak_memory: int


class _Asked(NamedTuple):
    """A patch on its way through the stages.

    Attributes:
        socket: takes the answer.
        slot: where the patch came, and where its output goes.
        values: the input; later what the last stage made of it.
    """

    socket: Connection
    slot: Slot
    values: NDArray[np.generic]

    def through(self, stage: Work) -> _Asked:
        """Return the patch after one stage more."""
        return self._replace(values=stage(self.values))


def serve(control: Connection) -> None:
    """Do the task that comes first, and answer all that comes after it.

    An empty answer through the first socket says that all is ready. An empty answer through the
    socket of a slot says that its patch is done. Later messages through the first socket are
    answered by an ``Account``.
    """
    sockets = [control]
    try:
        task: Task = control.recv()
        slots: dict[Connection, Slot] = {}
        for memory, descriptor in task.slots:
            sockets.append(Connection(descriptor))
            slots[sockets[-1]] = Slot(task.shape, memory)
        runner = task.prepare()
        control.send(None)
        _compute(runner, control, slots)
    except BaseException as error:
        failure = Failure(_picklable(error), traceback.format_exc())
        for socket in sockets:
            with suppress(OSError):
                socket.send(failure)


def _compute(runner: Runner, control: Connection, slots: dict[Connection, Slot]) -> None:
    stopwatch = Stopwatch()
    failed, failing = Pipe(duplex=False)

    def asked() -> Iterator[_Asked]:
        sources = failed, control, *slots
        while True:
            ready = wait(sources)
            for socket in (socket for socket in sources if socket in ready):
                try:
                    socket.recv()
                except EOFError:
                    return
                if socket is control:
                    control.send(Account(stopwatch.seconds, high_water_mark(), device_peak()))
                else:
                    yield _Asked(socket, slots[socket], slots[socket].block)

    def answer(patch: _Asked) -> None:
        patch.slot.dense[...] = convert(patch.values, patch.slot.shape.dtype)
        patch.socket.send(None)

    stages = *map(through, runner.stages(stopwatch)), answer
    run_stages(asked(), stages, here=0, stop=failing.close)


def _picklable(error: BaseException) -> BaseException:
    """Return the error, or one that says the same if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunFailed(f"{type(error).__name__}: {error}")
    return error
