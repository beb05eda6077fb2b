"""The load that other programs put on the cores now."""

from __future__ import annotations

import os
from pathlib import Path

# Linux's averages of threads that run or wait for a core, and the number of such threads now.
LOADS = Path("/proc/loadavg")


def slowdown() -> float:
    """Return how many times as long a run on all cores takes beside the programs that run now.

    The system shares the cores evenly among all threads that compute. A program that has just ended
    still counts in the average of a minute, but not among the threads of now. A program that has
    just begun counts there, but little in the average. So the smaller number counts. The result is
    1 on systems without these figures.
    """
    try:
        average, _, _, running, *_ = LOADS.read_text().split()
        others = min(float(average), int(running.partition("/")[0]) - 1)
    except (OSError, ValueError):
        return 1.0
    return 1.0 + max(0.0, others) / (os.cpu_count() or 1)
