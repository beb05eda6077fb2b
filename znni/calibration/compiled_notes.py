"""Notes of the steps whose kernels this machine has compiled. They predict first runs.

The first run of a network compiles kernels for seconds, and later ones load them. So each run notes
its steps in the user's cache.
"""

from __future__ import annotations

from collections.abc import Iterator

from znni.calibration.plan_measurement import pieces_of
from znni.core.text import duration
from znni.core.user_cache import state_of_source
from znni.core.value_cache import ValueCache
from znni.core.version import PACKAGE
from znni.network.layers import unnamed
from znni.plans.plan import Plan
from znni.primitives.cpu.common.machine_code import environment

# Seconds to compile the kernels of a step. Six networks took 0.8 to 1.7 s on two cores of a Xeon
# that other programs kept busy, and another U-Net 0.8 s on idle ones.
STEP_SECONDS = 0.8

# Less time is not worth a word.
LEAST_SECONDS = 2.0

# Texts of steps.
NOTES = ValueCache[list[str]]("compiled", 1, list)


def note_compiled(plan: Plan) -> None:
    """Note that the kernels of a plan's steps on the host are compiled."""
    known = _known()
    if new := set(_steps_on_host(plan)) - known:
        NOTES.store(_about(), sorted(known | new))


def about_compiling(plan: Plan) -> str:
    """Return how long the first run of a plan compiles kernels; empty if that is not long."""
    seconds = STEP_SECONDS * len(set(_steps_on_host(plan)) - _known())
    if plan.machine.absent or seconds < LEAST_SECONDS:
        return ""
    return f"about {duration(seconds)} more to compile kernels, once on this machine"


def _steps_on_host(plan: Plan) -> Iterator[str]:
    """Yield texts that are equal for steps that need the same kernels."""
    for step in plan.on_host.steps if plan.on_host else ():
        for name, _ in pieces_of(step):
            yield f"{name} {unnamed(step.operation)!r}"


def _known() -> set[str]:
    return set(NOTES.load(_about()) or ())


def _about() -> object:
    """Return what kernels depend on, apart from the steps."""
    return environment(), state_of_source(PACKAGE)
