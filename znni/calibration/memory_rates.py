"""Measuring the first touch of memory: that of a process, and that of a virtual machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import psutil
from numpy.typing import NDArray

from znni.machine.arena import map_pages
from znni.machine.cold_pages import gives_pages_back, note_warm, warm_bytes
from znni.primitives.cpu.common.workers import workers

REPEATS = 5
TOUCHED_BYTES = 2**27

# Memory beyond what is warm that is touched to measure it, and how much at a time. Only the slower
# half counts: some more may be warm, which programs freed just before. Hosts that take free pages
# back do so within some seconds.
COLD_BYTES = 2**31
COLD_STEP = 2**27
REST_SECONDS = 5.0


def cold_seconds() -> float | None:
    """Return the extra seconds per byte of memory that this virtual machine never touched.

    All memory that is known to be warm is taken first. The result is None if that is more than half
    of the memory, or if the machine is not virtual.
    """
    warm = warm_bytes()
    if warm + COLD_BYTES > psutil.virtual_memory().available / 2:
        return None
    if gives_pages_back():
        time.sleep(REST_SECONDS)
    held: list[NDArray[np.uint8]] = []
    times: list[float] = []
    while len(held) * COLD_STEP < warm + COLD_BYTES:
        pages = np.frombuffer(map_pages(COLD_STEP), np.uint8)
        held.append(pages)
        times.append(_extra_of_first(partial(pages.fill, 1)))
    note_warm(len(held) * COLD_STEP)
    beyond = sorted(times[-(COLD_BYTES // COLD_STEP) :])
    return median(beyond[len(beyond) // 2 :]) / COLD_STEP


def _extra_of_first(fill: Callable[[], object]) -> float:
    """Fill memory twice; return the seconds by which the first time was longer."""
    start = time.perf_counter()
    fill()
    between = time.perf_counter()
    fill()
    first, again = between - start, time.perf_counter() - between
    return max(first - again, first / 100)  # a disturbed second time says nothing


def touched_seconds(threads: int) -> float:
    """Return the seconds per byte to touch memory first, by all threads together."""
    pool = workers(threads)

    def once() -> float:
        pages = np.frombuffer(map_pages(TOUCHED_BYTES), np.uint8)

        def fill() -> None:
            pool.for_each(lambda _, part: pages[part].fill(1), pool.shares(TOUCHED_BYTES))

        return _extra_of_first(fill)

    return median(once() for _ in range(REPEATS)) / TOUCHED_BYTES
