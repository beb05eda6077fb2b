"""The work of a worker process: to compute the patches that come through its slots."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import RunFailed
from znni.engine.after_blending import BlendedBlock
from znni.engine.block import Block, ComputeStage, one_stage
from znni.engine.labels import Labels
from znni.engine.pipeline import PatchStages
from znni.engine.stage_chain import Work, passing_items, run_stages
from znni.engine.stages.convert import convert
from znni.engine.stopwatch import Stopwatch
from znni.engine.workers.slots import Slot, SlotShape, SlotType
from znni.machine.arrays import front, high_water_mark, resident_shared_memory
from znni.machine.device_arena import device_peak
from znni.machine.io_threads import finish, io_threads, mapped
from znni.plans.job_seconds import JobSeconds

# Bytes of an output that a thread hands over at a time. One thread alone maps 2.3 GB of new pages
# a second.
PIECE_BYTES = 8 * 2**20

# Makes the runner. It is pickled.
Prepare: TypeAlias = Callable[[], PatchStages]


@dataclass(frozen=True)
class Task:
    """The task of a worker.

    Attributes:
        prepare: makes the runner.
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
        peak_memory: the most bytes that were resident, without those of slots.
        gpu_peak_memory: the most bytes of a GPU that its arrays took.
    """

    seconds: JobSeconds
    peak_memory: int
    gpu_peak_memory: int


class Outline(NamedTuple):
    """The values of a block that lie in a slot, as a message describes them.

    Attributes:
        shape: their extents (f, z, y, x).
        dtype: their type.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Asked(NamedTuple):
    """The message that asks for a block, whose values are in a slot.

    Attributes:
        block: the block, with an ``Outline`` of its values.
        labels: how its output becomes labels; None: it is stored as it is.
    """

    block: Block
    labels: Labels | None


def message_about(block: Block, labels: Labels | None) -> Asked:
    """Return the message about a block whose values are in a slot, and its labels."""
    outline = Outline(block.values.shape, block.values.dtype)
    return Asked(block._replace(values=outline), labels)


class _BlockInSlot(NamedTuple):
    """A block on its way through the stages, and its slot.

    Attributes:
        socket: takes the answer.
        slot: where the patch came, and where its output goes.
    """

    socket: Connection
    slot: Slot
    block: Block

    def through(self, stage: ComputeStage) -> _BlockInSlot:
        """Return the block after one stage more."""
        return self._replace(block=self.block.through(stage))


def serve(control: Connection) -> None:
    """Receive a task, do it, and answer all later messages.

    An empty answer through the first socket says that all is ready. The socket of a slot takes a
    message ``Asked``. The answer, the extents of the output, says that the block is done. Later
    messages through the first socket are answered by an ``Account``.
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


def _compute(runner: PatchStages, control: Connection, slots: dict[Connection, Slot]) -> None:
    stopwatch = Stopwatch()
    labels: Labels | None = None
    first = list[_BlockInSlot]()  # the first block of a run whose labels are others
    waiting = list[tuple[Connection, Asked]]()
    peak_before, shared_before = high_water_mark(), resident_shared_memory()

    def own_peak() -> int:
        # Slots only gain pages until the last block.
        of_slots = resident_shared_memory() - shared_before
        return max(peak_before, high_water_mark() - of_slots)

    def account() -> Account:
        return Account(stopwatch.seconds, own_peak(), device_peak())

    def in_slot(socket: Connection, block: Block) -> _BlockInSlot:
        slot = slots[socket]
        return _BlockInSlot(socket, slot, block._replace(values=slot.block(*block.values)))

    def asked(failed: Connection) -> Iterator[_BlockInSlot]:
        nonlocal labels
        while first:
            yield first.pop()
        for socket, message in _messages((control, failed, *slots), waiting, account):
            patch = in_slot(socket, message.block)
            if message.labels != labels:
                labels = message.labels
                first.append(patch)
                return
            yield patch

    def stored(block: Block, labels: Labels | None) -> NDArray[Any]:
        """Return the values of blended windows, or their labels."""
        blended: BlendedBlock = block.values
        with stopwatch.during("host_layers"):
            return blended.labels(labels) if labels else blended.maps()

    def answer(patch: _BlockInSlot, labels: Labels | None) -> None:
        output, slot = patch.block.values, patch.slot
        if labels and output.dtype != labels.dtype:
            output = labels.apply(output)
        _put(output, front(slot.dense, output.shape), slot.shape.dtype)
        patch.socket.send(output.shape)

    never, _open = Pipe(duplex=False)
    for block in asked(never):  # the first block says whether labels are made
        first.append(block)
        break
    while first:
        failed, failing = Pipe(duplex=False)
        stages = list(runner.stages(stopwatch, labels))
        if runner.plan.network.window:  # in one stage: the means lie where those of later blocks do
            stages[-1] = one_stage([stages[-1], partial(stored, labels=labels)])
        works: list[Work] = [*map(passing_items, stages), partial(answer, labels=labels)]
        run_stages(asked(failed), works, here=0, stop=failing.close)
        stages.clear()  # their memory is free before the next run's stages take theirs
        works.clear()


def _messages(
    sources: Sequence[Connection],
    waiting: list[tuple[Connection, Asked]],
    account: Callable[[], Account],
) -> Iterator[tuple[Connection, Asked]]:
    """Yield the messages that ask for blocks, with their sockets, until a socket is closed.

    Of the blocks that wait, the one that was read first comes next.

    Args:
        sources: the sockets. The first one asks for an account.
        waiting: takes the messages that have come and are not yielded yet.
        account: returns the account.
    """
    while True:
        readable = wait(sources, 0 if waiting else None)
        for socket in (socket for socket in sources if socket in readable):
            try:
                message = socket.recv()
            except EOFError:
                return
            if socket is sources[0]:
                socket.send(account())
            else:
                waiting.append((socket, message))
        if waiting:
            waiting.sort(key=lambda it: it[1].block.number)
            yield waiting.pop(0)


def _put(values: NDArray[Any], into: NDArray[Any], dtype: SlotType) -> None:
    """Set an output (f', z, y, x) to values as they are stored, by several threads.

    Args:
        values: the values, in that type or as float32; or labels.
        into: the output.
        dtype: its type.
    """

    def put(planes: slice) -> None:
        part = values[:, planes]
        into[:, planes] = part if dtype == "uint16" else convert(part, dtype)

    depth = values.shape[1]
    each = max(1, depth * PIECE_BYTES // values.nbytes)
    pieces = [slice(first, first + each) for first in range(0, depth, each)]
    finish(mapped(put, pieces, io_threads(), "writing"))


def _picklable(error: BaseException) -> BaseException:
    """Return the error, or one that says the same if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunFailed(f"{type(error).__name__}: {error}")
    return error
