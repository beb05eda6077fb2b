"""What it takes Python to hand out work: rounds of none, and layers on images next to none.

The fastest of many runs counts, since what else the processor does falls on some of them; the model
of times has it from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from bench.record import Row
from bench.rounds import Effort, run_rounds, stopwatch
from planner.cost_model import BUILT_IN, CALL_SECONDS
from znni.calibration.measure import Workbench
from znni.calibration.shapes import Call
from znni.core.shapes import Shape5, Vec3
from znni.machine.detect import detect_host
from znni.network.network import Conv
from znni.plans.cost import NOTHING, Cost
from znni.plans.nominal_time import ROUND_SECONDS, nominal_time
from znni.plans.primitive import Primitive
from znni.primitives.catalogue import catalogue
from znni.primitives.cpu.common.workers import workers

EMPTY_ROUND = "a round without work"

# So little to compute that what is measured is Python's.
LAYER = Conv("conv1", 16, 16, Vec3.of(2), "relu")
EXTENT = 4


def handing_out(batch: int, threads: int, only: list[str], effort: Effort) -> list[Row]:
    """A row for an empty round, and for each primitive that does ``LAYER`` on a batch of images.

    Args:
        batch: images.
        threads: workers.
        only: names of primitives; none means all.
        effort: how long to measure.
    """
    shape = Shape5.of(batch, LAYER.in_features, Vec3.of(EXTENT))
    primitives = [
        primitive
        for name, primitive in catalogue(detect_host(threads=threads), "cpu").items()
        if (not only or name in only) and primitive.out_shape(LAYER, shape) is not None
    ]
    call = Call(LAYER, shape)
    bench = Workbench([(primitive, call) for primitive in primitives])
    runs = {primitive.name: bench.ready(primitive, call) for primitive in primitives}
    runs[EMPTY_ROUND] = _empty_round(threads)
    contestants = {name: stopwatch(run) for name, run in runs.items()}
    results = run_rounds(contestants, repeats=effort.repeats, budget=effort.budget)
    priced = dict(_priced(primitives, shape)) | {EMPTY_ROUND: {"handed_rounds": 1}}
    return [
        {
            "name": name,
            "threads": threads,
            "input": str(shape),
            **priced[name],
            "rounds": len(result.timing.seconds),
            "median_ms": 1e3 * result.timing.median,
            **_of_a_task(priced[name], min(result.timing.seconds)),
        }
        for name, result in results.items()
    ]


def _empty_round(threads: int) -> Callable[[], None]:
    pool = workers(threads)
    return lambda: pool.for_each(lambda _worker, _item: None, range(threads))


def _priced(primitives: list[Primitive], shape: Shape5) -> Iterator[tuple[str, Row]]:
    """What is handed out in each primitive's call, and what the built-in model has it take."""
    for primitive in primitives:
        cost = primitive.cost(LAYER, shape)
        yield (
            primitive.name,
            {
                "handed_rounds": cost.handed.rounds,
                "handed_tasks": cost.handed.tasks,
                "model_ms": 1e3 * BUILT_IN.estimate(primitive, LAYER, shape, cost).seconds,
                "computing_ms": 1e3 * _computing(primitive, cost),
            },
        )


def _computing(primitive: Primitive, cost: Cost) -> float:
    """The model's seconds but for those of Python."""
    return nominal_time(primitive, replace(cost, handed=NOTHING))


def _of_a_task(priced: Row, fastest: float) -> Row:
    """The fastest run, and what it leaves for each task, where these are most of what there is."""
    row: Row = {"fastest_ms": 1e3 * fastest}
    rounds, tasks = priced["handed_rounds"], priced.get("handed_tasks", 0)
    if tasks > rounds:
        python = fastest - 1e-3 * priced["computing_ms"]
        row["us_a_task"] = 1e6 * (python - CALL_SECONDS - rounds * ROUND_SECONDS) / tasks
    return row
