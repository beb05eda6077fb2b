"""Messages between the window and the process of a run: a task, and the events that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True)
class StoredArray:
    """An array that is in a temporary file, or that is packed for another process.

    Attributes:
        file: a NumPy file; None: the array is packed.
        packed: the pickled array, one that reads its values when it is sliced.
    """

    file: Path | None = None
    packed: bytes = b""


# The files of a whole case, the name of a volume, or an array.
Source: TypeAlias = tuple[str, ...] | str | StoredArray


@dataclass(frozen=True)
class Task:
    """A run of a network.

    Attributes:
        source: the input.
        network: the name or the path of the network.
        out: the output to make.
        options: keyword arguments of ``znni.infer``, or of ``znni.infer_case``.
        runs: whether to run; else only a prediction is made.
    """

    source: Source
    network: str
    out: str
    options: Mapping[str, Any] = field(default_factory=dict)
    runs: bool = False


@dataclass(frozen=True)
class Planned:
    """A prediction of the run.

    Attributes:
        summary: time, memory and patch, a line each.
        details: the plan, as ``znni plan`` prints it.
        finished: the share of the output that an earlier run has finished.
        obstacles: the errors that would stop the run.
        compiles: whether kernels have to be compiled first.
    """

    summary: str
    details: str
    finished: float = 0.0
    obstacles: tuple[str, ...] = ()
    compiles: bool = False


@dataclass(frozen=True)
class Began:
    """The beginning of the first block: all kernels are compiled."""


@dataclass(frozen=True)
class Progressed:
    """The progress of a step.

    Attributes:
        done: the number of voxels that are done.
        total: the number of all voxels of the step.
        step: the name of the step; empty: the output is computed.
    """

    done: int
    total: int
    step: str = ""


@dataclass(frozen=True)
class Warned:
    """A warning of the run."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The end of a run whose output is complete."""

    report: str


@dataclass(frozen=True)
class Cancelled:
    """The end of a run that was asked to stop. Its finished blocks are kept."""


@dataclass(frozen=True)
class Failed:
    """The end of a run by an error."""

    text: str


Event: TypeAlias = Planned | Began | Progressed | Warned | Finished | Cancelled | Failed
