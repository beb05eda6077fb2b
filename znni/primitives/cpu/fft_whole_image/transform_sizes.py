"""Sizes of transforms of whole images: how much larger than the image is fastest."""

from __future__ import annotations

from functools import cache
from math import inf, isfinite

# Time of each number of a line for each prime factor of the line's size. On a Xeon, FFTW took such
# times within 17 %, for sizes from 40 to 220.
FACTOR_TIMES = {1: 0.0, 2: 1.0, 3: 3.5, 5: 5.0, 7: 7.0, 11: 10.0, 13: 10.0}
# Time of the other work on each number: transforms along the other axes, and products. With this
# value, no layer of 1 to 80 maps was slower with the larger size, by the times of its transforms.
OTHER_TIME = 40.0


@cache
def fast_size(extent: int) -> int:
    """Return the fastest size that is ``extent`` or a little larger.

    Sizes are 2^a 3^b 5^c 7^d, times at most one of 11 and 13. The result is the smallest of them
    from ``extent`` on, or one that exceeds the extent by a sixteenth at most.
    """
    size = extent
    while not isfinite(_time(size)):
        size += 1
    return min(range(size, max(size, extent + extent // 16) + 1), key=_time)


def _time(size: int) -> float:
    """Return the time for all numbers of an axis of this size; infinite for a slow size."""
    left, time = size, OTHER_TIME
    for factor in (2, 3, 5, 7):
        while left % factor == 0:
            left //= factor
            time += FACTOR_TIMES[factor]
    return size * (time + FACTOR_TIMES.get(left, inf))
