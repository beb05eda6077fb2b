"""Values of the latest runs on this machine, as notes keep them, and their medians."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from znni import __version__
from znni.machine.detect import usable_cores
from znni.machine.processor import processor_name

# The latest runs whose median counts. A single one may have been disturbed.
MOST_NOTED = 5


def about_this_machine() -> str:
    """Return text that machines like this one share, under this version of znni."""
    return f"{processor_name()}, {usable_cores()} cores, znni {__version__}"


def with_latest(noted: Sequence[float], value: float) -> list[float]:
    """Return the values of the latest runs with that of one more, to three digits."""
    return [*noted, round(value, 3)][-MOST_NOTED:]


def steady(noted: Sequence[float], told: float, share: float, least: float = 0.0) -> float:
    """Return the value that plans tell: the median of what is noted, which they follow seldom.

    Args:
        noted: the values of the latest runs.
        told: the value that plans have told so far. It stays while it is close to the median.
        share: the difference from the median, as a share of it, that is close.
        least: the difference that is close anyway.
    """
    now = median_low(noted)
    return told if abs(now - told) <= max(share * now, least) else now


def sound(values: object) -> list[float]:
    """Return noted values after a check.

    Raises:
        ValueError: the value is no list of plausible numbers.
    """
    if not isinstance(values, list) or not values:
        raise ValueError(f"{values} is nothing that runs have noted")
    found = [float(each) for each in values]
    if not all(0 <= each < 1e6 for each in found):
        raise ValueError(f"{values} is nothing that runs have noted")
    return found
