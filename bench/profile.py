"""Where a plan's patch spends its time: each layer measured, beside what was predicted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

from bench.ceilings import Ceilings
from bench.noise import patch_input
from bench.record import Row
from znni.calibration.measure import Workbench
from znni.calibration.shapes import Call
from znni.core.shapes import Shape5
from znni.engine.patch import PatchRunner
from znni.machine.timing import Timing
from znni.machine.timing import timed as timed_calls
from znni.network.network import Operation
from znni.network.weights import ConvWeights, Float32, random_weights
from znni.plans.micro_batches import named
from znni.plans.plan import Plan
from znni.plans.primitive import Primitive, Run
from znni.plans.segments import Step
from znni.primitives.catalogue import catalogue


@dataclass
class _Clock:
    """Seconds and calls of one layer within one patch."""

    seconds: float = 0.0
    calls: int = 0


class _Timed:
    """A primitive whose runs report their time under the name of their layer."""

    def __init__(self, primitive: Primitive, clocks: dict[str, _Clock]) -> None:
        self._primitive, self._clocks = primitive, clocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._primitive, name)

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        run = self._primitive.build(layer, shape, weights)

        def timed(x: Float32) -> Float32:
            start = time.perf_counter()
            y = run(x)
            clock = self._clocks[layer.name]
            clock.seconds += time.perf_counter() - start
            clock.calls += 1
            return y

        return timed


def profile(
    plan: Plan,
    ceilings: Ceilings,
    repeats: int,
    progress: Callable[[str], None] = lambda _: None,
    measured: Callable[[Step, float], None] = lambda _step, _seconds: None,
    *,
    alone: bool = False,
) -> list[Row]:
    """A row for each step of a plan, summed over its runs in one warm patch, and for the rest.

    Args:
        plan: what to run, with random weights.
        ceilings: of the machine with the plan's threads, for the floor under each step.
        repeats: patches that are timed; the medians are reported.
        progress: told what is being done.
        measured: told each step, and the seconds that one of its calls took.
        alone: after each patch make the calls of each step alone, too, as a calibration does, as
            many as the patch has: ``alone_seconds``. That takes as much memory again.
    """
    clocks: dict[str, _Clock] = defaultdict(_Clock)
    timed = {
        name: cast(Primitive, _Timed(primitive, clocks))
        for name, primitive in catalogue(plan.machine).items()
    }
    progress("preparing")
    runner = PatchRunner(plan, timed, random_weights(plan.network, 0))
    x = patch_input(plan.network, plan.patch)
    progress("warm-up")
    runner(x)
    steps = [(step, runs) for segment, runs in plan.runs() for step in segment.steps]
    bench = _alone(plan, [step for step, _ in steps]) if alone else {}
    totals, seconds = [], defaultdict[str, list[float]](list)
    seconds_alone = defaultdict[str, list[float]](list)
    for done in range(repeats):
        progress(f"patch {done + 1} of {repeats}")
        clocks.clear()
        start = time.perf_counter()
        runner(x)
        totals.append(time.perf_counter() - start)
        for name, clock in clocks.items():
            seconds[name].append(clock.seconds)
        for step, runs in steps:
            if call := bench.get(step.operation.name):
                each = timed_calls(call, runs).seconds
                seconds_alone[step.operation.name].append(sum(each))
    total = median(totals)
    rows: list[Row] = []
    for step, runs in steps:
        taken = median(seconds[step.operation.name])
        calls = clocks[step.operation.name].calls
        measured(step, taken / calls)
        floor = ceilings.floor(runs * step.cost.flops, runs * step.cost.bytes_moved)
        rows.append(
            {
                "layer": step.operation.name,
                "primitive": step.primitive,
                "input": str(step.shape_in),
                "runs": calls,
                "seconds": taken,
                "share": taken / total,
                "predicted_seconds": runs * step.seconds,
                **_of_alone(seconds[step.operation.name], seconds_alone[step.operation.name]),
                "gflops": runs * step.cost.flops / taken / 1e9,
                "floor_seconds": floor.seconds,
                "bound": floor.bound,
                "achieved": floor.share(taken),
            }
        )
    inside = sum(row["seconds"] for row in rows)
    rows.append(
        {
            "layer": "between the layers",
            "primitive": "placing, cropping",
            "seconds": total - inside,
            "share": 1 - inside / total,
        }
    )
    floor_seconds = sum(row.get("floor_seconds", 0.0) for row in rows)
    rows.append(
        {
            "layer": "all",
            "seconds": total,
            "share": 1.0,
            "predicted_seconds": plan.patch_seconds,
            **_of_alone(
                [sum(each) for each in zip(*seconds.values(), strict=True)],
                [sum(each) for each in zip(*seconds_alone.values(), strict=True)],
            ),
            "spread": Timing(tuple(totals)).spread,
            "floor_seconds": floor_seconds,
            "achieved": floor_seconds / total,
            "voxels_per_s": plan.patch.volume / total,
        }
    )
    threads = plan.machine.host.threads
    about = {"network": plan.network.name, "patch": str(plan.patch), "threads": threads}
    return [{**about, **row} for row in rows]


def _alone(plan: Plan, steps: Sequence[Step]) -> dict[str, Callable[[], None]]:
    """A call of each step on a workbench, by the name of its layer."""
    primitives = catalogue(plan.machine)
    calls = [
        (named(primitives, step.primitive), Call(step.operation, step.shape_in)) for step in steps
    ]
    workbench = Workbench(calls)
    return {call.operation.name: workbench.ready(found, call) for found, call in calls}


def _of_alone(in_patch: Sequence[float], alone: Sequence[float]) -> Row:
    """Seconds of calls alone, and by how much they differ from those in a patch, as medians."""
    if not alone:
        return {}
    ratios = [other / one for one, other in zip(in_patch, alone, strict=True)]
    return {"alone_seconds": median(alone), "alone_off": median(ratios) - 1}
