"""Limits of the measurements of a calibration: how often and how long calls are timed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from znni.core.processors import DeviceKind, has_own_memory


@dataclass(frozen=True)
class Effort:
    """Limits of a set of measurements.

    Attributes:
        calls: largest number of calls per primitive.
        shortest: least predicted seconds of a call. Much shorter ones measure calling and caches,
            and say little about long ones.
        longest: largest predicted seconds of a call.
        resident: largest number of bytes that a call keeps; transformed kernels take time to make.
        repeats: number of timed calls, whose median counts.
        budget: seconds after which measuring stops, once each primitive has one measurement.
        extents: least and largest mean extent of the output of one image.
    """

    calls: int
    shortest: float
    longest: float
    resident: int
    repeats: int
    budget: float
    extents: tuple[int, int] = (8, 200)


QUICK = Effort(6, shortest=0.03, longest=0.08, resident=2**29, repeats=2, budget=40.0)
FULL = Effort(12, shortest=0.02, longest=0.5, resident=2**30, repeats=3, budget=1200.0)

# A GPU's calls take milliseconds, and building one takes a second: a few calls are repeated often.
# Their images are larger, because few voxels do not keep a GPU busy.
GPU_QUICK = Effort(
    4, shortest=2e-3, longest=0.02, resident=2**30, repeats=5, budget=40.0, extents=(48, 400)
)
GPU_FULL = replace(GPU_QUICK, calls=12, longest=0.06, budget=300.0)


def effort_for(device: DeviceKind, *, quick: bool) -> Effort:
    """Return the limits for a device; ``quick`` ones take at most a minute."""
    if has_own_memory(device):
        return GPU_QUICK if quick else GPU_FULL
    return QUICK if quick else FULL
