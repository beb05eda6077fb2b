"""The workers of a run."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.background import in_background
from znni.core.errors import RunFailed
from znni.engine.block import Block
from znni.engine.labels import Labels, LabelType
from znni.engine.pipeline import BlockSlot
from znni.engine.stopwatch import Stopwatch
from znni.engine.workers.processes import SLOTS, WaitingProcesses
from znni.engine.workers.serving import Prepare
from znni.engine.workers.slots import Slot, SlotShape
from znni.engine.workers.worker import Worker, end_all
from znni.machine.gpus import forget_gpus
from znni.network.geometry import extents_read
from znni.plans.job_seconds import ReportStage
from znni.plans.plan import Plan
from znni.plans.stored_values import AS_COMPUTED, Stored


@dataclass(frozen=True)
class Member:
    """The parts that a worker is made from.

    Attributes:
        name: for messages.
        prepare: makes the runner, in the worker's process.
        environment: variables that this process has beside those of the parent process, for example
            the one that says which GPU it sees.
    """

    name: str
    prepare: Prepare
    environment: Mapping[str, str]


@dataclass(frozen=True)
class _WorkerOutput:
    """The output of windows that a worker has made, as it is stored. It is a ``BlendedBlock``.

    Attributes:
        values: the values, or the labels (f', z, y, x).
        wanted: the voxels (z, y, x) that need output; the others are stored as 0. None: all.
    """

    values: NDArray[Any]
    wanted: NDArray[np.bool_] | None

    def maps(self) -> NDArray[Any]:
        """Return the values."""
        return self.values

    def labels(self, _labels: Labels) -> NDArray[Any]:
        """Return the labels."""
        return self.values


class Fleet:
    """A plan prepared in workers, which compute its patches until nobody refers to them.

    While they get ready, the first blocks of a run are read. An error while they get ready is
    raised by that run. If a run fails they are ended, and started afresh for the next.

    A thread works for each slot of a worker: it reads a block into the slot, waits for the worker,
    and writes the result. So while a worker computes one patch, others of its patches are read and
    written.

    Args:
        plan: what they run.
        members: what each worker is made from.
        stored: how values are stored at both ends.
        waiting: processes that have started already. It keeps those that it has no member for.

    Attributes:
        plan: what they run.
    """

    def __init__(
        self,
        plan: Plan,
        members: Sequence[Member],
        stored: Stored = AS_COMPUTED,
        waiting: WaitingProcesses | None = None,
    ) -> None:
        self.plan = plan
        self._members = members
        network = plan.network
        labels: LabelType = "uint16" if stored.label_itemsize > 1 else "uint8"
        self._shape = SlotShape(
            (network.in_features, *extents_read(network, plan.patch)),
            plan.input_itemsize,
            (stored.label_maps or network.out_features, *plan.patch),
            labels if stored.label_maps else stored.dtype,
        )
        self._crew = _Crew()
        self._accounted: Mapping[ReportStage, float] = {}
        weakref.finalize(self, self._crew.end)
        self._start(waiting or _none_waiting())

    def _start(self, waiting: WaitingProcesses) -> None:
        self._accounted = {}
        try:
            for member in self._members:
                process = waiting.take(member.environment)
                self._crew.workers.append(Worker(member.name, self._shape, process))
        except BaseException:
            self._crew.end()
            raise
        self._crew.prepare([member.prepare for member in self._members])
        self._crew.touch(min(SLOTS, -(-self.plan.patches // len(self._members))))

    def block_slots(
        self, _stopwatch: Stopwatch, labels: Labels | None = None
    ) -> list[list[BlockSlot]]:
        """Return a ``BlockSlot`` for each slot of each worker."""
        workers = self._crew.workers
        if not workers:  # an earlier run failed
            self._start(_none_waiting())
        return [
            [self._block_slot(worker, slot, labels) for slot in range(SLOTS)] for worker in workers
        ]

    def _block_slot(self, worker: Worker, slot: int, labels: Labels | None) -> BlockSlot:
        """Return the way of blocks through one slot of a worker."""
        plan = self.plan

        def compute(block: Block) -> Any:
            output = worker.compute(slot, block, labels)
            if plan.network.window is None:
                return output
            return _WorkerOutput(output, block.with_output(plan.network.window))

        return BlockSlot(
            lambda: [compute],
            worker.slots[slot].block,
            one_at_a_time=True,
            free=partial(worker.free, slot),
        )

    def wait_until_ready(self) -> None:
        """Wait until all workers can compute.

        Raises:
            BaseException: what was raised in one of them as it got ready.
            RunFailed: one is gone.
        """
        self._crew.wait_until_sent()
        try:
            for worker in self._crew.workers:
                worker.wait_until_ready()
        except RunFailed:
            forget_gpus()  # CUDA may have lost one that earlier runs found
            raise

    @contextmanager
    def in_use(self, stopwatch: Stopwatch) -> Iterator[None]:
        """Have the workers compute within a ``with`` block. If it raises, they are killed.

        Args:
            stopwatch: learns how long a worker was at each stage, on average.
        """
        try:
            yield
        except BaseException:
            self._crew.end()
            raise
        before, self._accounted = self._accounted, self._busy()
        for stage, seconds in self._accounted.items():
            stopwatch.add(stage, (seconds - before.get(stage, 0.0)) / len(self._members))

    def _busy(self) -> dict[ReportStage, float]:
        """Return the seconds that all workers together have been at each stage."""
        accounts = [worker.account().seconds.busy.by_stage() for worker in self._crew.workers]
        return {stage: sum(busy[stage] for busy in accounts) for stage in accounts[0]}

    def leave(self, number: int) -> None:
        """Begin to end a worker that has computed all its blocks. No run follows."""
        self._crew.stop_touching()
        self._crew.workers[number].leave()

    def end(self) -> Callable[[], None]:
        """Begin to end them, and to free the slots. No run may be at work, and none may follow.

        Returns:
            A function that waits until the system has released all that they held.
        """
        ending = Thread(target=self._crew.end_and_free)
        ending.start()
        return ending.join

    @property
    def workers_memory(self) -> int:
        """The peak resident bytes of all workers, added up, without those of slots.

        Slots are also mapped by this process, and count there.
        """
        return sum(worker.account().peak_memory for worker in self._crew.workers)

    @property
    def gpu_peak_memory(self) -> int:
        """The most bytes that arrays took of one of the GPUs."""
        return max(worker.account().gpu_peak_memory for worker in self._crew.workers)


def _none_waiting() -> WaitingProcesses:
    return WaitingProcesses((), ())


class _Crew:
    """The workers of a fleet that have started, and the threads that prepare them and their slots.

    Attributes:
        workers: the workers; none before they start, and after they have ended.
    """

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self._process = os.getpid()
        self._over = Event()
        self._touching: Thread | None = None
        self._sending: Future[None] | None = None

    def prepare(self, each: Sequence[Prepare]) -> None:
        """Begin to have each worker get ready.

        A task contains the weights, which a socket cannot buffer. So a thread waits until the
        workers have started CUDA. It sends one task after the other: each is a copy of the weights.

        Args:
            each: for each worker, what makes its runner.
        """
        tasks = list(zip(self.workers, each, strict=True))
        self._sending = in_background(partial(_send_all, tasks))

    def wait_until_sent(self) -> None:
        """Wait until all workers have their tasks, or are gone.

        Raises:
            BaseException: a task cannot be sent.
        """
        if self._sending:
            self._sending.result()

    def touch(self, slots: int) -> None:
        """Begin to touch so many slots of each worker, in the order of their first blocks."""
        touched = [worker.slots[number] for number in range(slots) for worker in self.workers]
        self._over = Event()
        self._touching = Thread(target=_touch, args=(touched, self._over), daemon=True)
        self._touching.start()

    def stop_touching(self) -> None:
        """Have no more slots touched: those that blocks come into are in use."""
        self._over.set()

    def end(self) -> None:
        """End the workers, unless this process is a fork of the one that started them.

        A garbage collection in any thread may do this. So it does not wait for the thread that
        touches slots.
        """
        if os.getpid() == self._process:
            self.stop_touching()
            end_all(self.workers)
        self.workers.clear()

    def end_and_free(self) -> None:
        """End the workers, and free all slots together: each takes a tenth of a second or more."""
        slots = [slot for worker in self.workers for slot in worker.slots]
        self.end()
        if self._sending:
            self._sending.exception()  # until then, a thread holds workers
        if self._touching:
            self._touching.join()  # it holds slots
        freeing = [Thread(target=slots.pop) for _ in slots]
        for each in freeing:
            each.start()
        for each in freeing:
            each.join()


def _send_all(tasks: list[tuple[Worker, Prepare]]) -> None:
    try:
        while tasks:
            worker, prepare = tasks.pop(0)
            worker.prepare(prepare)
            del worker  # its slots are freed as soon as nobody else refers to it
    finally:
        tasks.clear()


def _touch(slots: Sequence[Slot], over: Event) -> None:
    for slot in slots:
        slot.touch(over)
