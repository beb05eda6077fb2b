"""Messages between the coordinator and the processes that compute blocks.

All of it is pickled. It holds no arrays: blocks are read from the volume and written to the output
where they are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from znni.core.errors import RunFailed
from znni.core.option_types import Bits
from znni.core.plan_options import Choices
from znni.core.processors import HOST
from znni.core.shapes import Box
from znni.engine.tiles import Tile
from znni.inference.request import Request
from znni.plans.plan import Plan


@dataclass(frozen=True)
class Recipe:
    """The recipe of a run, which all its processes share.

    Attributes:
        request: the run. Its names are absolute paths, or URLs.
        identity: what the output is of, as the coordinator sees it.
    """

    request: Request
    identity: Mapping[str, str]


@dataclass(frozen=True)
class Limits:
    """The part of a machine that a process may use.

    Attributes:
        ram: bytes of the process that computes; None: what is available.
        threads: number of worker threads; None: one for every core.
        gpus: number of GPUs; None: as the options of the run say.
        visible: the GPUs that it sees, as ``CUDA_VISIBLE_DEVICES``; None: all.
        cores: the cores that it runs on; None: all.
    """

    ram: int | None = None
    threads: int | None = None
    gpus: int | None = None
    visible: str | None = None
    cores: tuple[int, ...] | None = None

    def within(self, choices: Choices) -> Choices:
        """Return the choices for a plan, within these limits."""
        known = {"ram": self.ram, "threads": self.threads, "gpus": self.gpus or None}
        limits: dict[str, Any] = {name: it for name, it in known.items() if it is not None}
        if self.gpus == 0:
            limits["device"] = HOST
        return replace(choices, **limits)


@dataclass(frozen=True)
class Machinery:
    """The facts about a worker that its results depend on."""

    machine: str
    libraries: Mapping[str, str]

    @property
    def version(self) -> str:
        """The version of znni."""
        return self.libraries["znni"]

    def differences(self, other: Machinery) -> list[str]:
        """Return in words what differs from another worker."""
        machine = [f"{self.machine}, not {other.machine}"] * (self.machine != other.machine)
        mine, theirs = self.libraries, other.libraries
        return machine + [
            f"{name} {mine.get(name, 'missing')}, not {theirs.get(name, 'none')}"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]


@dataclass(frozen=True)
class Describe:
    """Open everything that is read, and answer with a ``Description``."""


@dataclass(frozen=True)
class Description:
    """A process that is about to compute.

    Attributes:
        host: name of its machine.
        machinery: what its results depend on.
        until: when its machine is taken away, in seconds since 1970; None: never.
    """

    host: str
    machinery: Machinery
    until: float | None


@dataclass(frozen=True)
class MakePlan:
    """Search the fastest plan for machines like this one, or check one, and answer it as JSON.

    Attributes:
        given: the plan to check; None to search one.
        workers: how many workers share the run.
    """

    given: Plan | None = None
    workers: int = 1


@dataclass(frozen=True)
class GetReady:
    """Prepare to run a plan, and answer with the predicted seconds of a patch.

    Attributes:
        plan: the plan, as JSON.
        bits: ``same`` to run this plan; ``class`` to run one of the machine's own for the same
            patch, if the plan was made for another kind of machine.
    """

    plan: str
    bits: Bits = "same"


@dataclass(frozen=True)
class Probe:
    """Compute a finished block again, and answer with a ``Probed``; nothing is written."""

    block: Box


@dataclass(frozen=True)
class Probed:
    """The comparison of a block computed again with what the output holds.

    Attributes:
        same: whether all values are the same, to the last bit.
        apart: the largest difference, as a share of the largest value.
        allowed: how far apart two plans' values may be.
    """

    same: bool
    apart: float
    allowed: float


@dataclass(frozen=True)
class Compute:
    """Compute a block and write it to the output; answer with the block's ledger entry."""

    tile: Tile


@dataclass(frozen=True)
class Account:
    """Answer with what was measured so far, as the attributes of a run."""


@dataclass(frozen=True)
class Restart:
    """End the process that computes, whatever it is at. The next call starts another one."""


class EngineGone(RunFailed):
    """The process that computes has ended before it answered. The next call starts another one."""


Call: TypeAlias = Describe | MakePlan | GetReady | Probe | Compute | Account | Restart


@dataclass(frozen=True)
class Answer:
    """The answer to a call.

    Attributes:
        value: what was asked for; None if it failed.
        error: why it failed, else None.
        where: the traceback of the error.
    """

    value: Any = None
    error: BaseException | None = None
    where: str = ""


@dataclass(frozen=True)
class Answered:
    """An answer that came."""

    worker: str
    call: Call
    answer: Answer
