"""Processes for workers, which may start before their task is known.

They start before NumPy is loaded, so this module needs no arrays.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from socket import socketpair
from typing import Any

from znni.core import child_process, system

# Slots of each worker: while a patch is computed, the next is read and the last one is written.
SLOTS = 3


class WorkerProcess:
    """A process that waits for the task of a worker.

    It is a new process of the same interpreter, with the same search path for modules. The current
    folder is not added to that path, because it may have any file. Ctrl-C in a terminal does not
    reach the process: the process that started it ends it. It also ends when that process is gone.

    Args:
        environment: variables that it has beside those of this process.
        modules: if any, it starts CUDA and imports these before its task comes.

    Attributes:
        control: the connection for its task.
        sockets: for each slot, the connection that asks for patches.
        memory: for each slot, the descriptor of its memory, which has no extent yet.
        descriptors: for each slot, the descriptors that the process has of memory and connection.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        child_process.check_takes_descriptors()
        self.memory = [new_memory() for _ in range(SLOTS)]
        ours, theirs = zip(*(_connection() for _ in range(1 + SLOTS)), strict=True)
        self.control, *self.sockets = (_socket(descriptor) for descriptor in ours)
        self.descriptors = tuple(zip(self.memory, theirs[1:], strict=True))
        try:
            self.process = child_process.start_with(
                [*theirs, *self.memory],
                child_process.command_of("znni.engine.workers", str(theirs[0]), *modules),
                environment,
            )
        except BaseException:
            self.close_memory()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def close_memory(self) -> None:
        """Close the descriptors of the memory, which stays as long as anybody has mapped it."""
        while self.memory:
            os.close(self.memory.pop())

    def end(self) -> None:
        """Kill the process, and wait until the system has released all that it held."""
        self.process.kill()
        self.process.wait()
        self.close_memory()


class WaitingProcesses:
    """Processes that start while the run that they are for is planned.

    Processes that nobody has taken end once nobody refers to this object.

    Args:
        environments: the variables of each.
        modules: those that they import.
    """

    def __init__(self, environments: Iterable[Mapping[str, str]], modules: Sequence[str]) -> None:
        self._waiting: dict[frozenset[tuple[str, str]], WorkerProcess] = {}
        weakref.finalize(self, _end_waiting, self._waiting, os.getpid())
        for each in environments:
            self._waiting[_key(each)] = WorkerProcess(each, modules)

    def take(self, environment: Mapping[str, str]) -> WorkerProcess:
        """Return the process with such variables, or a new one if there is none."""
        return self._waiting.pop(_key(environment), None) or WorkerProcess(environment)


def new_memory() -> int:
    """Return a descriptor of new memory, whose extent the first slot in it sets."""
    return system.new_memory()


def _key(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(environment.items())


def _end_waiting(waiting: dict[frozenset[tuple[str, str]], WorkerProcess], started_by: int) -> None:
    if os.getpid() != started_by:  # a fork of that process
        return
    for each in waiting.values():
        each.process.kill()  # all at the same time: each may hold memory of a GPU
    for each in waiting.values():
        each.end()


def _socket(descriptor: int) -> Connection[Any, Any]:
    return Connection(descriptor)


def _connection() -> tuple[int, int]:
    """Return the descriptors of both ends of a new connection."""
    ours, theirs = socketpair()
    return ours.detach(), theirs.detach()
