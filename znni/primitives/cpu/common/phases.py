"""Consecutive passes over data by all workers, without the Python interpreter between them.

A phase consists of many shares, which workers claim and compute. The next phase begins when all
shares of the previous one are done. Only claimed shares are waited for. So a worker that starts
late, or never, does less work and delays nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.machine.arrays import ALIGNMENT
from znni.primitives.cpu.common.machine_code import Kernel, yield_address
from znni.primitives.cpu.common.simd import Argument, Emitter, Value
from znni.primitives.cpu.common.workers import Workers

FLOATS, INDICES, INDEX = Argument.FLOATS, Argument.INDICES, Argument.INDEX

# Columns of a phase's row in the table: kernel, arguments, shares, addresses of two counters.
COLUMNS = 5

COUNTER_STRIDE = ALIGNMENT // np.dtype(np.int64).itemsize


@dataclass(frozen=True)
class Phase:
    """A pass over data, divided into shares.

    Attributes:
        kernel: function that does one share.
        arguments: arguments common to all shares.
        shares: number of shares.
    """

    kernel: Kernel
    arguments: NDArray[np.int64]
    shares: int


class PhaseSeries(NamedTuple):
    """Repetitions of a phase, each with its own values of some arguments.

    Attributes:
        kernel: function that does one share.
        arguments: the arguments of each time (time, argument).
        shares: number of shares of each time.
    """

    kernel: Kernel
    arguments: NDArray[np.int64]
    shares: int

    @property
    def addresses(self) -> NDArray[np.int64]:
        """The addresses of the arguments of each time."""
        first, step = self.arguments.ctypes.data, self.arguments.strides[0]
        return first + step * np.arange(len(self.arguments))

    def phases(self) -> Iterator[Phase]:
        """Yield the phase of each time."""
        return (Phase(self.kernel, row, self.shares) for row in self.arguments)


@dataclass(frozen=True)
class PhaseKernel:
    """A compiled function that does one share of a phase.

    Attributes:
        kernel: function of the arguments' address, the share's number, and scratch.
        arguments: names of the phase's arguments, in order.
    """

    kernel: Kernel
    arguments: tuple[str, ...]

    def phase(self, shares: int, **arguments: int) -> Phase:
        """Return the phase of shares 0 ... shares - 1.

        Args:
            shares: number of shares; each is done once.
            arguments: numbers, or addresses of data that outlives the phase.

        Raises:
            TypeError: the arguments are not those that the kernel takes.
        """
        if arguments.keys() != set(self.arguments):
            expected, given = ", ".join(self.arguments), ", ".join(arguments)
            raise TypeError(f"arguments of the phase are {expected}; not {given}")
        values = [arguments[name] for name in self.arguments]
        return Phase(self.kernel, np.array(values, np.int64), shares)

    def series(self, phase: Phase, **arguments: NDArray[np.int64]) -> PhaseSeries:
        """Return repetitions of a phase of this kernel.

        Args:
            phase: the phase, whose other arguments stay.
            arguments: the values of each argument that changes, one for each time.
        """
        times = len(next(iter(arguments.values())))
        table = np.tile(phase.arguments, (times, 1))
        for name, values in arguments.items():
            table[:, self.arguments.index(name)] = values
        return PhaseSeries(phase.kernel, table, phase.shares)


class PhaseEmitter(Emitter):
    """An emitter of a phase's kernel.

    Besides the named arguments, the kernel has ``share``, the number of the share to be done, and
    ``scratch``, floats that belong to the worker.
    """

    def __init__(self, name: str, **arguments: Argument) -> None:
        super().__init__(name, arguments=INDICES, share=INDEX, scratch=FLOATS)
        numbers = super().__getitem__("arguments")
        self._named = {
            argument: self.as_argument(self.index_at(numbers, self.index(position)), kind)
            for position, (argument, kind) in enumerate(arguments.items())
        }

    def __getitem__(self, name: str) -> Value:
        """Return the argument of that name."""
        return self._named[name] if name in self._named else super().__getitem__(name)

    def compile_phase(self) -> PhaseKernel:
        """Close the function and make it callable."""
        return PhaseKernel(self.compile(), tuple(self._named))


def run_phases(phases: Sequence[Phase], scratch: Sequence[int], workers: Workers) -> None:
    """Do all shares of each phase in order, as a single task list that nothing interrupts.

    Args:
        phases: phases in order. Each may read what earlier ones wrote, even by streaming stores.
        scratch: address of each worker's scratch.
        workers: threads that do the work.
    """
    # Counts of each phase's claimed and completed shares. They lie on separate cache lines, because
    # some workers write one counter while others wait for the other.
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
    first, pause = table.ctypes.data, yield_address()
    arguments = [(first, len(rows), scratch[worker], pause) for worker in range(workers.threads)]
    workers.run(_runner(), arguments, max((phase.shares for phase in phases), default=1))


@cache
def _runner() -> Kernel:
    """Return the kernel that every worker runs, at whatever time it starts."""
    emit = Emitter("run_phases", table=INDICES, phases=INDEX, scratch=FLOATS, pause=INDEX)
    last = emit.minus(emit["phases"], 1)
    with emit.loop(emit["phases"]) as phase:
        row = emit.times(phase, COLUMNS)
        kernel, arguments, shares, *counters = (
            emit.index_at(emit["table"], emit.plus(row, i)) for i in range(COLUMNS)
        )
        claimed, done = (emit.as_argument(counter, INDICES) for counter in counters)
        own = emit.variable(emit.index(0))
        with emit.claims(claimed, shares) as share:
            emit.call(kernel, [arguments, share, emit["scratch"]])
            own.set(emit.plus(own.get(), 1))
        emit.announce(done, own.get())
        with emit.when(phase, "<", last):  # the caller waits for the last phase
            emit.wait_for(done, shares, emit["pause"])
    return emit.compile()
