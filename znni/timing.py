"""How long things take: the one way that planner, benchmarks and reports measure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one thing, in seconds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the range between the quartiles, as a share of the median."""
        if len(self.seconds) < 2:
            return 0.0
        lower, _, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (upper - lower) / 2 / self.median


def interleaved(
    functions: Mapping[str, Callable[[], object]], *, repeats: int = 5, budget: float = 60.0
) -> dict[str, Timing]:
    """Time functions in turn, A B C A B C ..., so that a machine's drift hits all alike.

    Each is first called once without counting.

    Args:
        functions: by name.
        repeats: counted calls of each.
        budget: seconds after which no further round starts, once there are two.
    """
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    begin = time.perf_counter()
    for done in range(repeats):
        if done >= 2 and time.perf_counter() - begin > budget:
            break
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}
