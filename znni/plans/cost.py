"""What a primitive asks of a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Memory:
    """Bytes that a primitive takes on its device.

    Attributes:
        resident: what ``build`` allocates and keeps between calls, such as transformed kernels.
            The network's weights themselves are not counted: they exist once, for all.
        working: the peak within one call of ``run``, its input and its output counted.
        workspace: the peak of what a call takes beside an input and an output that are both there
            from its beginning to its end.
        gpu_resident: of a primitive of the host that computes on a GPU, what it keeps there.
        gpu_working: of such a one, the peak there within one call.
    """

    resident: int
    working: int
    workspace: int
    gpu_resident: int = 0
    gpu_working: int = 0

    @staticmethod
    def beside(arrays: int, workspace: int, resident: int = 0) -> Memory:
        """Of a primitive that has its workspace while input and output are both there.

        Args:
            arrays: bytes of the two.
            workspace: bytes at its peak.
            resident: bytes kept between calls.
        """
        return Memory(resident, arrays + workspace, workspace)


@dataclass(frozen=True)
class HandedOut:
    """What Python hands out to the host's workers in a call: one thing at a time, for all of them.

    Attributes:
        rounds: times that workers are given something to do, and waited for; each of several
            phases that they go through at once counts.
        tasks: calls that Python makes of what computes, whichever worker makes them.
    """

    rounds: int = 0
    tasks: int = 0

    def plus(self, more: HandedOut) -> HandedOut:
        """Both, one after the other."""
        return HandedOut(self.rounds + more.rounds, self.tasks + more.tasks)

    def times(self, often: int) -> HandedOut:
        """The same so many times."""
        return HandedOut(often * self.rounds, often * self.tasks)


NOTHING = HandedOut()


@dataclass(frozen=True)
class Cost:
    """The price of running one layer once on one shape.

    Attributes:
        flops: floating-point operations, a multiply-add counted as two.
        bytes_moved: bytes to and from main memory, each pass over an array counted.
        memory: bytes held and used.
        efficiency: share of the device's nominal operations per second that these sustain where
            memory is not the limit: a guess, until measured.
        handed: what Python hands out to workers.
        seconds: nominal time of a call, where that does not follow from the rest since other
            devices work at it, too.
    """

    flops: float
    bytes_moved: float
    memory: Memory
    efficiency: float
    handed: HandedOut = NOTHING
    seconds: float | None = None

    def plus(
        self, flops: float, efficiency: float, bytes_moved: float, handed: HandedOut = NOTHING
    ) -> Cost:
        """The price with more work in the same memory.

        Args:
            flops: of that work.
            efficiency: the share of the nominal rate that they sustain.
            bytes_moved: of that work.
            handed: what Python hands out of it.
        """
        together = self.flops + flops
        at_nominal_rate = self.flops / self.efficiency + flops / efficiency
        return replace(
            self,
            flops=together,
            bytes_moved=self.bytes_moved + bytes_moved,
            efficiency=together / at_nominal_rate,
            handed=self.handed.plus(handed),
        )
