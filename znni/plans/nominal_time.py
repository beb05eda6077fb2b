"""How long a call takes by what its primitive declares and its device's nominal rates."""

from __future__ import annotations

from znni.plans.cost import Cost
from znni.plans.primitive import Primitive

# How much of the shorter of arithmetic and traffic is not hidden behind the longer. A roofline
# would be the longer alone. Measurements of the tiled Fourier convolution say so, whose passes are
# bound now by one and now by the other.
NOT_HIDDEN = 0.5

# Of the interpreter, which one thread has at a time: to give workers something to do and wait until
# all have done it, and to make a call, with the views and copies of NumPy around it. On two cores
# 30 to 40 and 4 to 6 microseconds (bench/results/handing-out-2-cores.json).
ROUND_SECONDS = 3e-5
TASK_SECONDS = 5e-6


def nominal_time(primitive: Primitive, cost: Cost) -> float:
    """Seconds of a call: those declared, or what it takes to compute and to hand it out.

    Arithmetic and traffic overlap in part. While a worker is handed a task the others compute, so
    that its seconds are shared out as theirs are; but no two are handed one at the same time.
    """
    if cost.seconds is not None:
        return cost.seconds
    seconds = nominal_seconds(primitive, cost)
    computing = max(seconds) + NOT_HIDDEN * min(seconds)
    tasks = cost.handed.tasks * TASK_SECONDS
    working = max(tasks, computing + tasks / primitive.device.threads)
    return cost.handed.rounds * ROUND_SECONDS + working


def nominal_seconds(primitive: Primitive, cost: Cost) -> tuple[float, float]:
    """Of arithmetic and of memory traffic, at the device's nominal rates."""
    device = primitive.device
    return cost.flops / (cost.efficiency * device.flops), cost.bytes_moved / device.bandwidth
