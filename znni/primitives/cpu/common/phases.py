"""Passes over data one after another, by all workers, without the interpreter in between.

A phase is many shares of work, each of which a worker claims and does. The next phase begins when
all shares of the one before are done, whoever did them: only what was claimed is waited for, so
that a worker that comes late, or never, finds less to do and holds nobody up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from znni.machine.arrays import ALIGNMENT
from znni.primitives.cpu.common.machine_code import Kernel, yield_address
from znni.primitives.cpu.common.simd import Argument, Emitter, Value
from znni.primitives.cpu.common.workers import Workers

FLOATS, INDICES, INDEX = Argument.FLOATS, Argument.INDICES, Argument.INDEX

# Of a phase's row in the table: kernel, arguments, shares, and the addresses of its counters.
COLUMNS = 5

COUNTER_STRIDE = ALIGNMENT // np.dtype(np.int64).itemsize


@dataclass(frozen=True)
class Phase:
    """A pass: what is to be done, in shares.

    Attributes:
        kernel: does one share.
        arguments: that all its shares have in common.
        shares: how many there are.
    """

    kernel: Kernel
    arguments: NDArray[np.int64]
    shares: int


@dataclass(frozen=True)
class PhaseKernel:
    """A compiled function that does one share of a phase.

    Attributes:
        kernel: takes the address of its arguments, the number of the share, and scratch.
        arguments: their names, in order.
    """

    kernel: Kernel
    arguments: tuple[str, ...]

    def phase(self, shares: int, **arguments: int) -> Phase:
        """The phase of shares 0 ... shares - 1.

        Args:
            shares: how many, of which each is done once.
            arguments: numbers, or addresses of what outlives the phase.

        Raises:
            TypeError: other arguments are given than the kernel takes.
        """
        if arguments.keys() != set(self.arguments):
            expected, given = ", ".join(self.arguments), ", ".join(arguments)
            raise TypeError(f"arguments of the phase are {expected}; not {given}")
        values = [arguments[name] for name in self.arguments]
        return Phase(self.kernel, np.array(values, np.int64), shares)


class PhaseEmitter(Emitter):
    """Emits the kernel of a phase.

    Besides the arguments named it has ``share``, the number of the one to be done, and
    ``scratch``, floats that belong to the worker.
    """

    def __init__(self, name: str, **arguments: Argument) -> None:
        super().__init__(name, arguments=INDICES, share=INDEX, scratch=FLOATS)
        numbers = super().__getitem__("arguments")
        self._named = {
            argument: self.given(self.index_at(numbers, self.index(position)), kind)
            for position, (argument, kind) in enumerate(arguments.items())
        }

    def __getitem__(self, name: str) -> Value:
        """The argument of that name."""
        return self._named[name] if name in self._named else super().__getitem__(name)

    def compile_phase(self) -> PhaseKernel:
        """Close the function and make it callable."""
        return PhaseKernel(self.compile(), tuple(self._named))


def run_phases(phases: Sequence[Phase], scratch: Sequence[int], workers: Workers) -> None:
    """Do all shares of a phase, then all of the next: in one hand-out, which nothing interrupts.

    Args:
        phases: in order. Each may read what those before it wrote, streamed or not.
        scratch: of each worker, the address.
        workers: who do it.
    """
    # Of each phase, the shares that are claimed and those that are done: counted in cache lines
    # of their own, because workers write the one while others wait for the other.
    counters = np.zeros((len(phases), 2, COUNTER_STRIDE), np.int64)
    rows = [
        (
            phase.kernel.address,
            phase.arguments.ctypes.data,
            phase.shares,
            claimed.ctypes.data,
            done.ctypes.data,
        )
        for phase, (claimed, done) in zip(phases, counters, strict=True)
    ]
    table = np.array(rows, np.int64)
    run, first, pause = _runner(), table.ctypes.data, yield_address()

    def take_shares(worker: int, _: int) -> None:
        run(first, len(rows), scratch[worker], pause)

    workers.for_each(take_shares, range(workers.threads))


@cache
def _runner() -> Kernel:
    """What each worker does, whenever it comes."""
    emit = Emitter("run_phases", table=INDICES, phases=INDEX, scratch=FLOATS, pause=INDEX)
    last = emit.minus(emit["phases"], 1)
    with emit.loop(emit["phases"]) as phase:
        row = emit.times(phase, COLUMNS)
        kernel, arguments, shares, *counters = (
            emit.index_at(emit["table"], emit.plus(row, i)) for i in range(COLUMNS)
        )
        claimed, done = (emit.given(counter, INDICES) for counter in counters)
        own = emit.variable(emit.index(0))
        with emit.claims(claimed, shares) as share:
            emit.call(kernel, [arguments, share, emit["scratch"]])
            own.set(emit.plus(own.get(), 1))
        emit.announce(done, own.get())
        with emit.when(phase, "<", last):  # for the last, the caller waits
            emit.wait_for(done, shares, emit["pause"])
    return emit.compile()
