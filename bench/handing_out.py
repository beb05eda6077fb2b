"""Time that Python takes to hand out work: empty rounds, and layers on very small images.

The fastest of many runs counts, because other work of the processor falls on some of them. The
model of times takes its constants from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product, starmap

from bench import session
from bench.record import Row
from bench.rounds import Effort, run_rounds, stopwatch
from planner.cost_model import BUILT_IN, CALL_SECONDS
from znni.calibration.measure import Workbench
from znni.calibration.shapes import Call
from znni.core.shapes import Shape5, Vec3
from znni.machine.detect import detect_host
from znni.network.layers import Conv
from znni.plans.cost import NOTHING, Cost
from znni.plans.nominal_time import ROUND_SECONDS, nominal_time
from znni.plans.primitive import Primitive
from znni.primitives.catalogue import catalogue
from znni.primitives.cpu.common.workers import workers

EMPTY_ROUND = "a round without work"

# There is so little to compute that Python takes most of the time.
LAYER = Conv("conv1", 16, 16, Vec3.of(2), "relu")
EXTENT = 4


def handing_out_command(
    batch: session.Batches = [4, 16],  # noqa: B006
    threads: session.ThreadCounts = [1, 2],  # noqa: B006
    only: session.Only = None,
    repeats: session.Repeats = 200,
    budget: session.Budget = 5.0,
    out: session.Out = None,
) -> None:
    """Time how Python hands out work.

    Images are so small that this takes most of the time.
    """
    session.check_primitives(only or [], detect_host())
    effort = Effort(repeats, budget)

    def measured(count: int, images: int) -> list[Row]:
        session.progress(f"{images} images, {count} threads")
        return handing_out(images, count, only or [], effort)

    session.report_all("handing-out", starmap(measured, product(threads, batch)), [], out)


def handing_out(batch: int, threads: int, only: list[str], effort: Effort) -> list[Row]:
    """Return a row for an empty round, and for each primitive that does ``LAYER`` on a batch.

    Args:
        batch: number of images.
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
    runs = {primitive.name: bench.built(primitive, call) for primitive in primitives}
    runs[EMPTY_ROUND] = _empty_round(threads)
    contestants = {name: stopwatch(run) for name, run in runs.items()}
    results = run_rounds(contestants, effort)
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
    """Yield what each primitive's call hands out, and what the built-in model predicts for it."""
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
    """Return the model's seconds without those of Python."""
    return nominal_time(primitive, replace(cost, handed=NOTHING))


def _of_a_task(priced: Row, fastest: float) -> Row:
    """Return the fastest run, and what it leaves for each task if tasks outnumber rounds."""
    row: Row = {"fastest_ms": 1e3 * fastest}
    rounds, tasks = priced["handed_rounds"], priced.get("handed_tasks", 0)
    if tasks > rounds:
        python = fastest - 1e-3 * priced["computing_ms"]
        row["us_a_task"] = 1e6 * (python - CALL_SECONDS - rounds * ROUND_SECONDS) / tasks
    return row
