"""Notes of how long the fixed phases of runs took on this machine.

The start of a process, its planning and its end depend on the machine, its disk and its libraries,
and no model knows these. So each run of the command line notes its own phases when it has ended.
The next plans predict with them. They are in the user's cache, a few hundred bytes for a kind of
machine. Only the exit is not noted: no process sees its own end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from statistics import median_low
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from znni.core.processors import GPU, HOST, DeviceKind
from znni.core.value_cache import ValueCache
from znni.core.version import __version__
from znni.machine.detect import usable_cores
from znni.machine.machine import Machine
from znni.machine.processor import processor_name
from znni.plans.job_seconds import SecondsAround

if TYPE_CHECKING:
    from znni.plans.plan import Plan

# The latest runs whose median counts. A single one may have been disturbed.
MOST_NOTED = 5

# Starts of a GPU count in steps of so many seconds, because plans depend on them.
STEADY_SECONDS = 0.5

# The seconds around a run that plans show, by their names in the notes. They change only if the
# median differs by more than a share of it, or by more than some seconds. So a command prints the
# same again, although runs in between took a little more or less.
SHOWN = {"start": "told start", "planning": "told planning", "finishing": "told finishing"}
NOTABLE_SHARE = 0.1
NOTABLE_SECONDS = 0.03

Kind: TypeAlias = Literal[DeviceKind, "gpus"]
SEVERAL: Final = "gpus"

# Time beside building and running, until runs have noted their own. The demo took so much on two
# cores of an EPYC, with warm caches and a kept plan: most of its planning imports the primitives.
AROUND = SecondsAround(start=0.4, planning=0.07, opening=0.03, finishing=0.02, exit=0.01)

# The same where layers run on GPUs: processes end, and memory is given back. Runs on one to four
# GPUs took 0.3 to 1.1 s to finish. After one on a single GPU, its process took 0.13 s to end.
FINISHING: Mapping[Kind, float] = {HOST: AROUND.finishing, GPU: 0.3, SEVERAL: 0.8}
EXIT: Mapping[Kind, float] = {HOST: AROUND.exit, GPU: 0.13, SEVERAL: AROUND.exit}

# The noted seconds, by kind and phase.
Phases: TypeAlias = dict[str, dict[str, list[float]]]

NOTES = ValueCache[Phases]("phases", 1, dict)


class FixedSeconds(NamedTuple):
    """The seconds of phases that do not depend on the volume; None if they are not known.

    Attributes:
        start: the seconds from the start of the process until the run is asked for.
        planning: the seconds to take a kept plan.
        searching: the seconds that a search for a new plan takes beside that.
        cuda: the seconds to start a GPU and to load its kernels.
        finishing: the seconds to complete an output that needs no pass over all of its blocks.
    """

    start: float | None = None
    planning: float | None = None
    searching: float | None = None
    cuda: float | None = None
    finishing: float | None = None


def kind_of(plan: Plan) -> Kind:
    """Return the kind of a plan's runs: their phases differ by the processors that compute."""
    if plan.gpu_memory is None:
        return HOST
    return GPU if plan.workers == 1 else SEVERAL


def noted_medians(kind: Kind) -> FixedSeconds:
    """Return the medians of what the latest runs noted on this machine."""
    return _medians(_read().get(kind, {}))


def _medians(known: Mapping[str, Sequence[float]]) -> FixedSeconds:
    names = FixedSeconds._fields
    return FixedSeconds(**{name: median_low(known[name]) for name in names if name in known})


def noted_around(kind: Kind) -> FixedSeconds:
    """Return the seconds that plans show: to start, to take a kept plan and to finish.

    They seldom change.
    """
    known = _read().get(kind, {})
    shown = {name: known[place][0] for name, place in SHOWN.items() if place in known}
    medians = _medians({name: known[name] for name in SHOWN if name in known})
    return medians._replace(**shown)


def with_noted(around: SecondsAround, kind: Kind) -> SecondsAround:
    """Return the seconds around a run, replaced by those that plans show here if runs noted any.

    Args:
        around: the seconds of a run of any kind, those of ``AROUND`` among them. To finish may take
            more, for a pass over all blocks.
        kind: the kind of the run.
    """
    known = noted_around(kind)
    to_finish = FINISHING[kind] if known.finishing is None else known.finishing
    return replace(
        around,
        start=around.start if known.start is None else known.start,
        planning=around.planning if known.planning is None else known.planning,
        finishing=around.finishing + (to_finish - AROUND.finishing),
        exit=around.exit + (EXIT[kind] - AROUND.exit),
    )


def noted_cuda(machine: Machine) -> float | None:
    """Return the seconds to start a machine's GPUs, as runs noted them here, in steady steps."""
    seconds = noted_medians(SEVERAL if machine.used_gpus > 1 else GPU).cuda
    return None if seconds is None else STEADY_SECONDS * round(seconds / STEADY_SECONDS)


def note(kind: Kind, taken: FixedSeconds) -> None:
    """Note what a run took, as far as it is known."""
    all_noted = dict(_read())
    mine = dict(all_noted.get(kind, {}))
    for name, seconds in taken._asdict().items():
        if seconds is not None:
            mine[name] = [*mine.get(name, []), round(seconds, 3)][-MOST_NOTED:]
    for name, shown in SHOWN.items():
        if name in mine:
            now, before = median_low(mine[name]), mine.get(shown, [inf])[0]
            alike = abs(now - before) <= max(NOTABLE_SHARE * now, NOTABLE_SECONDS)
            mine[shown] = [before if alike else now]
    NOTES.store(_about(), all_noted | {kind: mine})


def _read() -> Phases:
    """Return all that is noted of this machine, by kind and phase."""
    return NOTES.load(_about()) or {}


@cache
def _about() -> str:
    """Return text that machines like this one share, under this version of znni.

    It is made once, because a dozen files of the system tell it.
    """
    return f"{processor_name()}, {usable_cores()} cores, znni {__version__}"
