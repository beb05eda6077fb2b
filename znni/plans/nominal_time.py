"""The nominal time of a call: from its primitive's declared cost and its device's nominal rates."""

from __future__ import annotations

from znni.plans.cost import Cost
from znni.plans.primitive import Primitive

# The share of the shorter of arithmetic and traffic that is not hidden behind the longer. A
# roofline model would count the longer alone. The value comes from measurements of the tiled
# Fourier convolution. Some of its passes are bound by arithmetic, and others by traffic.
NOT_HIDDEN = 0.5

# Seconds of the interpreter, which one thread holds at a time. A round gives work to the workers
# and waits for all of them: 30 to 40 microseconds on two cores. A task is one call with NumPy's
# views and copies around it: 4 to 6 microseconds (bench/results/handing-out-2-cores.json).
# With more threads, the thread of a call first wakes up and waits for the interpreter. A call took
# 23 to 44 microseconds with 4 threads, and 25 to 57 with 16 threads and little work. Lowered
# convolutions with much work made a call every 50 to 105 microseconds.
ROUND_SECONDS = 3e-5
TASK_SECONDS = 5e-6
MOST_WAITING = 10  # threads; more do not make a call dearer


def task_seconds(threads: int) -> float:
    """Return the seconds of the interpreter for one task, with so many threads."""
    return TASK_SECONDS * min(threads, MOST_WAITING)


def nominal_time(primitive: Primitive, cost: Cost) -> float:
    """Return the declared seconds of a call, or the time to compute it and to hand out its tasks.

    Arithmetic and traffic overlap in part. While one worker is handed a task, the others compute.
    So the seconds of handing out are shared among the workers, as the computing is. But no two
    workers are handed a task at the same time.
    """
    if cost.seconds is not None:
        return cost.seconds
    seconds = nominal_seconds(primitive, cost)
    computing = max(seconds) + NOT_HIDDEN * min(seconds)
    tasks = cost.handed.tasks * task_seconds(primitive.device.threads)
    working = max(tasks, computing + tasks / primitive.device.threads)
    return cost.handed.rounds * ROUND_SECONDS + working


def nominal_seconds(primitive: Primitive, cost: Cost) -> tuple[float, float]:
    """Return the seconds of arithmetic and of memory traffic, at the device's nominal rates."""
    device = primitive.device
    return cost.flops / (cost.efficiency * device.flops), cost.bytes_moved / device.bandwidth
