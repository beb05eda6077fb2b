"""Seconds of a patch, layer by layer, measured and predicted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated

import typer

from bench import session
from bench.accuracy import patch_input
from bench.ceilings import AnyCeilings
from bench.patches import Asked, PatchesOnGpu
from bench.record import Row
from bench.rooflines import step_rows
from planner.cost_model import BUILT_IN
from znni.calibration.database import CostDatabase
from znni.calibration.measure import Workbench
from znni.calibration.record import record_steps
from znni.calibration.shapes import Call
from znni.cli.options import grouped
from znni.core.option_types import OutputType
from znni.core.processors import DeviceKind
from znni.inference.build_runner import prepare_alone
from znni.machine.timing import Timing, timed
from znni.network.weights import random_weights
from znni.plans.plan import Plan
from znni.plans.segments import Step
from znni.plans.step_primitive import primitive_of
from znni.primitives.catalogue import catalogue

# Patches that are timed unless a number is given.
REPEATS: dict[DeviceKind, int] = {"cpu": 1, "gpu": 3}


@grouped
def profile_command(
    *,
    asked: Asked,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="Patches that are timed. Default: 1, on a GPU 3."),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Add the times to the measured costs.")
    ] = False,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Time each layer alone, too, as a calibration does (CPU)."),
    ] = False,
    out: session.Out = None,
) -> None:
    """Show where a patch spends its time."""
    device = asked.device
    if device == "gpu":
        session.refuse(device, alone=alone)
    ceilings = asked.ceilings()

    def profiled(chosen: Plan) -> list[Row]:
        host_threads, count = chosen.machine.host.threads, repeats or REPEATS[device]
        limits = session.ceilings_of(device, host_threads, ceilings)
        session.progress(f"{chosen.network.name}, by times {chosen.costs}")
        if device == "cpu":
            times = time_on_cpu(chosen, count, alone=alone)
        else:
            times = time_on_gpu(chosen, count, asked.written)
        if record:
            record_steps(times.calls(chosen), chosen.machine, CostDatabase(), device)
        return profile(chosen, limits, times)

    session.report_all("profile", map(profiled, asked.plans()), ceilings, out)


@dataclass(frozen=True)
class PatchTimes:
    """Seconds of warm patches.

    Attributes:
        device: where the layers ran.
        totals: seconds of each patch.
        layers: by layer, seconds of all its calls in each patch; on a GPU their mean.
        alone: by layer, seconds of as many calls alone after each patch, if they were made.
        gpu_peak: bytes of the GPU that were taken.
    """

    device: DeviceKind
    totals: Sequence[float]
    layers: Mapping[str, Sequence[float]]
    alone: Mapping[str, Sequence[float]] = field(default_factory=dict)
    gpu_peak: int = 0

    def calls(self, plan: Plan) -> Iterator[tuple[Step, float]]:
        """Yield each step of a plan, and the seconds that one of its calls took."""
        for step, runs in _steps(plan):
            yield step, median(self.layers[step.operation.name]) / runs


def time_on_cpu(
    plan: Plan,
    repeats: int,
    *,
    alone: bool = False,
) -> PatchTimes:
    """Time warm patches and their layers on the CPU.

    Args:
        plan: what to run, with random weights.
        repeats: patches that are timed.
        alone: after each patch, make the calls of each step alone, too, as a calibration does, and
            as many as the patch has. That takes as much memory again.
    """
    taken: dict[str, float] = defaultdict(float)

    def note(step: Step, seconds: float) -> None:
        taken[step.operation.name] += seconds

    session.progress("preparing")
    runner = prepare_alone(plan, random_weights(plan.network, 0), note)
    x = patch_input(plan.network, plan.patch)
    session.progress("warm-up")
    runner(x)
    bench = _workbench(plan) if alone else {}
    totals: list[float] = []
    layers = defaultdict[str, list[float]](list)
    layers_alone = defaultdict[str, list[float]](list)
    for done in range(repeats):
        session.progress(f"patch {done + 1} of {repeats}")
        taken.clear()
        start = time.perf_counter()
        runner(x)
        totals.append(time.perf_counter() - start)
        for name, seconds in taken.items():
            layers[name].append(seconds)
        for step, runs in _steps(plan):
            if call := bench.get(step.operation.name):
                layers_alone[step.operation.name].append(sum(timed(call, runs).seconds))
    return PatchTimes("cpu", totals, layers, layers_alone)


def time_on_gpu(plan: Plan, repeats: int, dtype: OutputType = "float32") -> PatchTimes:
    """Time patches that follow each other as in a run, and their layers by the GPU's clock.

    Args:
        plan: its layers are on the GPU; run with random weights.
        repeats: patches that are timed after the first.
        dtype: type of their output, which the plan is for.
    """
    patches = PatchesOnGpu(plan, dtype)
    totals = patches.seconds(repeats)
    layers = {name: [seconds] for name, seconds in patches.layer_seconds().items()}
    return PatchTimes("gpu", totals, layers, gpu_peak=patches.peak)


def profile(plan: Plan, ceilings: AnyCeilings, times: PatchTimes) -> list[Row]:
    """Return a row for each step of a plan, summed over its runs in a patch, and for the patch.

    Args:
        plan: what was run.
        ceilings: of the device, for the floor under each step.
        times: of its patches.
    """
    inside = sum(median(seconds) for seconds in times.layers.values())
    # If there are few patches, the time between two may be short, because the first was late.
    total = max(median(times.totals), inside)
    known = catalogue(plan.machine)
    rows: list[Row] = []
    layers = {name: median(seconds) for name, seconds in times.layers.items()}
    found = step_rows(plan, ceilings, layers)
    for row, (step, runs) in zip(found, _steps(plan), strict=True):
        name, primitive = step.operation.name, primitive_of(known, step.primitive)
        built_in = BUILT_IN.estimate(primitive, step.operation, step.shape_in, step.cost).seconds
        rows.append(
            row
            | {
                "share": row["seconds"] / total,
                "predicted_seconds": runs * step.seconds,
                "built_in_seconds": runs * built_in,
                **_alone(times.layers[name], times.alone.get(name, ())),
            }
        )
    floor_seconds, built_in_seconds = (
        sum(row[name] for row in rows) for name in ("floor_seconds", "built_in_seconds")
    )
    whole: Row = {
        "layer": "all",
        "seconds": total,
        "share": 1.0,
        "predicted_seconds": plan.patch_seconds,
        "built_in_seconds": built_in_seconds,
        **_alone(_summed(times.layers), _summed(times.alone)),
        "spread": Timing(tuple(times.totals)).spread,
        "floor_seconds": floor_seconds,
        "achieved": floor_seconds / total,
        "voxels_per_s": plan.patch.volume / total,
    }
    if times.device == "cpu":
        between = {"layer": "between the layers", "primitive": "placing, cropping"}
        rows.append({**between, "seconds": total - inside, "share": 1 - inside / total})
    else:
        whole["peak_gib"] = times.gpu_peak / 2**30
        whole["declared_gib"] = plan.device_memory.total / 2**30
    about = {"network": plan.network.name, "patch": str(plan.patch), **ceilings.about}
    return [{**about, **row} for row in (*rows, whole)]


def _steps(plan: Plan) -> list[tuple[Step, int]]:
    """Return a plan's steps, and how often each runs in a patch."""
    return [(step, runs) for segment, runs in plan.runs() for step in segment.steps]


def _workbench(plan: Plan) -> dict[str, Callable[[], None]]:
    """Return a call of each step on a workbench, by the name of its layer."""
    primitives = catalogue(plan.machine)
    calls = [
        (primitive_of(primitives, step.primitive), Call(step.operation, step.shape_in))
        for step, _ in _steps(plan)
    ]
    workbench = Workbench(calls)
    return {call.operation.name: workbench.built(found, call) for found, call in calls}


def _summed(layers: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the seconds of all layers together, for each patch."""
    return [sum(each) for each in zip(*layers.values(), strict=True)]


def _alone(in_patch: Sequence[float], alone: Sequence[float]) -> Row:
    """Return the seconds of calls alone, and how much they differ from a patch's, as medians."""
    if not alone:
        return {}
    ratios = [other / one for one, other in zip(in_patch, alone, strict=True)]
    return {"alone_seconds": median(alone), "alone_off": median(ratios) - 1}
