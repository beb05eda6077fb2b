"""The cost of a primitive: its operations, its memory and its traffic."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from operator import le


@dataclass(frozen=True)
class Memory:
    """The bytes that a primitive takes on its device.

    Attributes:
        resident: the bytes that ``build`` allocates and keeps between calls, such as transformed
            kernels. The network's weights are not counted: they exist once, for all primitives.
        working: the peak bytes within one call of ``run``, with its input and its output.
        workspace: the peak bytes of a call beside its input and output. Both exist from the
            beginning of the call to its end.
        gpu_resident: the GPU bytes that a primitive of the host keeps between calls, if it computes
            on a GPU.
        gpu_working: the peak GPU bytes of such a primitive within one call.
    """

    resident: int
    working: int
    workspace: int
    gpu_resident: int = 0
    gpu_working: int = 0

    def within(self, promised: Memory) -> bool:
        """Return whether none of these bytes are more than promised."""
        return all(map(le, astuple(self), astuple(promised)))

    @property
    def on_gpu(self) -> int:
        """The bytes that a primitive of the host takes on a GPU."""
        return self.gpu_resident + self.gpu_working

    @staticmethod
    def beside(arrays: int, workspace: int, resident: int = 0) -> Memory:
        """Return the memory of a primitive that takes its workspace beside its input and output.

        Args:
            arrays: the bytes of input and output.
            workspace: the peak bytes of workspace.
            resident: the bytes kept between calls.
        """
        return Memory(resident, arrays + workspace, workspace)


@dataclass(frozen=True)
class HandedOut:
    """The tasks that Python hands out to the host's workers in one call, one at a time.

    Attributes:
        rounds: the number of times that the workers get work and Python waits for them. If the
            workers go through several phases at once, each phase counts.
        tasks: the number of calls that Python makes of compiled code, in any worker. Phases need
            none, because compiled code claims their shares.
    """

    rounds: int = 0
    tasks: int = 0

    def plus(self, more: HandedOut) -> HandedOut:
        """Return the sum of both, one after the other."""
        return HandedOut(self.rounds + more.rounds, self.tasks + more.tasks)

    def times(self, often: int) -> HandedOut:
        """Return the sum of ``often`` such calls."""
        return HandedOut(often * self.rounds, often * self.tasks)


NOTHING = HandedOut()


@dataclass(frozen=True)
class Cost:
    """The cost of computing one layer once on one shape.

    Attributes:
        flops: the floating-point operations. A multiply-add counts as two.
        bytes_moved: the bytes to and from main memory. Each pass over an array counts.
        memory: the bytes held and used.
        efficiency: the share of the device's nominal operations per second that the primitive
            sustains if memory is not the limit. It is a guess until measured.
        handed: the tasks that Python hands out to workers.
        seconds: the nominal time of a call, if it does not follow from the other attributes. This
            is so if other devices take part.
        writes_views: whether the output may be a view with gaps. All primitives of the host do so.
    """

    flops: float
    bytes_moved: float
    memory: Memory
    efficiency: float
    handed: HandedOut = NOTHING
    seconds: float | None = None
    writes_views: bool = False

    def plus(
        self, flops: float, efficiency: float, bytes_moved: float, handed: HandedOut = NOTHING
    ) -> Cost:
        """Return the cost with more work in the same memory.

        Args:
            flops: the operations of the added work.
            efficiency: the share of the nominal rate that the added work sustains.
            bytes_moved: the traffic of the added work.
            handed: the tasks of the added work.
        """
        together = self.flops + flops
        at_nominal_rate = self.flops / self.efficiency + flops / efficiency
        return Cost(  # a search calls this thousands of times, and `replace` takes longer
            together,
            self.bytes_moved + bytes_moved,
            self.memory,
            together / at_nominal_rate,
            self.handed.plus(handed) if handed is not NOTHING else self.handed,
            self.seconds,
            self.writes_views,
        )
