"""A worker, seen from the process that started it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

from numpy.typing import NDArray

from znni.core.child_process import signal_name
from znni.core.errors import RunFailed
from znni.engine.block import Block
from znni.engine.labels import Labels
from znni.engine.workers.processes import WorkerProcess
from znni.engine.workers.serving import Account, Failure, Prepare, Task, message_about
from znni.engine.workers.slots import Slot, SlotShape
from znni.machine.arrays import front


class WorkerTraceback(Exception):
    """The traceback of an error in a worker."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Worker:
    """A process that computes patches.

    Args:
        name: for messages.
        shape: the shape of its slots.
        process: the process. It has no task yet.

    Attributes:
        name: for messages.
        slots: hold its patches; one thread at a time uses each.
        process_id: the number of its process.
    """

    def __init__(self, name: str, shape: SlotShape, process: WorkerProcess) -> None:
        self.name = name
        self._control, self._sockets = process.control, process.sockets
        self._descriptors, self._process = process.descriptors, process.process
        self.process_id = self._process.pid
        self._shape = shape
        self._ready = False
        self._last_account: Account | None = None
        self._freeing: list[Thread] = []
        try:
            self.slots = [Slot(shape, memory) for memory in process.memory]
        except BaseException:
            process.end()
            raise
        process.close_memory()

    def prepare(self, prepare: Prepare) -> None:
        """Have it get ready. If weights are large, this waits until it begins to receive them.

        Args:
            prepare: makes the runner, in that process.
        """
        self._send(self._control, Task(prepare, self._shape, self._descriptors))

    def wait_until_ready(self) -> None:
        """Wait until it can compute. It then begins with the patches that wait for it.

        Raises:
            BaseException: what was raised in it.
            RunFailed: it is gone.
        """
        if not self._ready:
            self._receive(self._control)
            self._ready = True

    def compute(self, slot: int, block: Block, labels: Labels | None) -> NDArray[Any]:
        """Compute a slot's patch, wait for its output (f', z, y, x), and return it in the slot.

        Args:
            slot: the number of the slot.
            block: the patch, whose values are in the slot.
            labels: how the output becomes labels; None: it is stored as it is.

        Raises:
            BaseException: what was raised in it, for this patch or another.
            RunFailed: it is gone.
        """
        self._send(self._sockets[slot], message_about(block, labels))
        return front(self.slots[slot].dense, self._receive(self._sockets[slot]))

    def account(self) -> Account:
        """Wait until it is ready, and return what it has done so far, or until it was to leave.

        Raises:
            BaseException: what was raised in it.
            RunFailed: it is gone.
        """
        if self._last_account:
            return self._last_account
        self.wait_until_ready()
        self._send(self._control, None)
        answer: Account = self._receive(self._control)
        return answer

    def leave(self) -> None:
        """Begin to end it, and to free the inputs of its slots. It computes no more patches.

        Their outputs stay.

        Raises:
            BaseException: what was raised in it.
            RunFailed: it is gone.
        """
        self._last_account = self.account()
        self.kill()
        for slot in self.slots:
            self._begin(slot.free_input)

    def free(self, slot: int) -> None:
        """Begin to free a slot's memory: its last block is written, or none came.

        Args:
            slot: the number of the slot.
        """
        self._begin(self.slots[slot].free)

    def kill(self) -> None:
        """Begin to end it, whatever it does. Threads that wait for it get an error."""
        self._process.kill()

    def wait_until_gone(self) -> None:
        """Wait until the system has released all that it held."""
        self._process.wait()
        for each in self._freeing:
            each.join()

    def _begin(self, freeing: Callable[[], None]) -> None:
        thread = Thread(target=freeing)
        thread.start()
        self._freeing.append(thread)

    def _send(self, connection: Connection, what: Any) -> None:
        with suppress(OSError):  # it is gone: receiving says how
            connection.send(what)

    def _receive(self, connection: Connection) -> Any:
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            raise RunFailed(self._last_words()) from None
        if isinstance(answer, Failure):
            raise answer.error from WorkerTraceback(answer.where)
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"{self.name} ended before its work was done (exit code {code}); run again"
        return (
            f"{self.name} was killed by {signal_name(-code)}, as systems do where memory runs out; "
            f"run again, with less memory allowed or fewer GPUs"
        )


def end_all(workers: Sequence[Worker]) -> None:
    """End workers at the same time: the system takes a second to release the memory of a GPU."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.wait_until_gone()
