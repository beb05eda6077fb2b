"""Notes of how much longer runs read and wrote than predicted, by how values are stored.

The model knows formats and cores. It knows neither the disk or network that a volume lies on, nor
what the system holds of it in memory. So each run notes how many times as long as predicted its
reading and writing took. The next plans are shown with that. The search does not know it: else
outputs of the same command might differ in their last bits. The notes are in the user's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from znni.calibration.latest_runs import about_this_machine, sound, steady, with_latest
from znni.core.options import Costs, Stored
from znni.core.user_cache import Notes
from znni.machine.machine import Machine
from znni.plans.job_seconds import AS_MODELLED, StageSeconds, StorageFactors

# A shorter time of a whole run says nothing about long ones, and does not count.
LEAST_SECONDS = 0.1

# A factor stays while it is within so large a share of the median. So a command prints the same
# again, although runs in between took a little more or less.
TOLD_SHARE = 0.2

# The beginning of the names of factors that plans tell.
TOLD = "told "

# The factors of the latest runs by kind of storage, and the one that plans tell of each.
Factors: TypeAlias = Mapping[str, Sequence[float]]


def storage_factors(
    machine: Machine, stored: Stored, costs: Costs, *, calibrated: bool
) -> StorageFactors:
    """Return the factors that plans tell for a kind of storage, by what runs noted here.

    They seldom change. They are 1 for other machines, with ``built-in`` costs, and without notes.

    Args:
        machine: the machine that is planned for.
        stored: how input and output are stored.
        costs: the source of times.
        calibrated: whether the model's times of reading and writing were measured.
    """
    if machine.absent or costs == "built-in":
        return AS_MODELLED
    known = _read(calibrated=calibrated)
    return StorageFactors(*(known.get(_told(kind), [1.0])[0] for kind in _kinds(stored)))


def note_storage(
    stored: Stored, measured: StageSeconds, predicted: StageSeconds, *, calibrated: bool
) -> None:
    """Note how much longer than predicted a finished run read and wrote.

    Args:
        stored: how input and output are stored.
        measured: the seconds of the run's stages.
        predicted: the same as the plan predicts them, with the factors that plans tell now.
        calibrated: as for ``storage_factors``.
    """
    known = dict(_read(calibrated=calibrated))
    pairs = (measured.reading, predicted.reading), (measured.writing, predicted.writing)
    for kind, (taken, expected) in zip(_kinds(stored), pairs, strict=True):
        if max(taken, expected) < LEAST_SECONDS or min(taken, expected) <= 0:
            continue
        (told,) = known.get(_told(kind), [1.0])
        known[kind] = with_latest(known.get(kind, []), told * taken / expected)
        known[_told(kind)] = [steady(known[kind], told, TOLD_SHARE)]
    NOTES.keep(_about(calibrated=calibrated), known)


def all_told() -> list[Mapping[str, float]]:
    """Return all factors that plans tell on this machine."""
    found = (_read(calibrated=calibrated) for calibrated in (False, True))
    return [{name: it[0] for name, it in known.items() if name.startswith(TOLD)} for known in found]


def _told(kind: str) -> str:
    """Return the name of the factor that plans tell for a kind of storage."""
    return TOLD + kind


def _kinds(stored: Stored) -> tuple[str, str]:
    """Return names for how the input is stored, and how the output is."""
    known = stored.input_chunks
    chunks = f"{known.form} {known.codec}" if known else "plain"
    values = f"labels {stored.label_itemsize}" if stored.label_maps else stored.dtype
    files = "files" if stored.chunk_files else "one file"
    return (
        f"read {chunks}, {stored.input_itemsize} bytes",
        f"write {files}, {stored.compression}, {values}",
    )


def _read(*, calibrated: bool) -> Factors:
    return NOTES.kept(_about(calibrated=calibrated)) or {}


def _parsed(found: dict[str, Any]) -> Factors:
    """Return noted factors after a check.

    Raises:
        ValueError: there are no factors.
    """
    factors = {name: sound(values) for name, values in found.items()}
    if any(0 in values for values in factors.values()):
        raise ValueError("a factor is 0")
    return factors


NOTES = Notes("storage", 1, _parsed)


def _about(*, calibrated: bool) -> str:
    return f"{about_this_machine()}, {'calibrated' if calibrated else 'built-in'}"
