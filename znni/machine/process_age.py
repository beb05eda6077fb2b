"""The age of a process, for times that count from the moment a user began to wait."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

PROCESSES = Path("/proc")
START_FIELD = 22  # in ticks since the system started; proc(5) counts fields from 1
AFTER_NAME = 3  # the field after the command's name, which may hold spaces and brackets


def process_age(process: int | None = None) -> float:
    """Return the seconds since a process was started, to about a hundredth.

    Without its number, it is this process. Linux notes the start in ticks of a clock that also runs
    while the system sleeps. psutil would add the start of the system, which is in whole seconds.
    """
    try:
        stat = PROCESSES / str(process or "self") / "stat"
        fields = stat.read_text().rpartition(")")[2].split()
        started = int(fields[START_FIELD - AFTER_NAME]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (AttributeError, OSError):  # not on Linux
        age = time.time() - psutil.Process(process).create_time()
    return max(0.0, age)
