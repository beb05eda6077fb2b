"""A layer within limits of workspace: in pieces, and undivided."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import get_args

from bench.layers import Layer, convolution_of
from bench.noise import normal
from bench.record import Row
from bench.rounds import Effort, run_rounds, stopwatch
from planner.bare_steps import bare_step
from planner.cost_model import CostModel
from planner.step_options import StepOptions
from znni.core.options import ACCURACIES, Division
from znni.core.shapes import Shape5
from znni.machine.arena import Arena
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.network.weights import random_weights
from znni.plans.micro_batches import named
from znni.plans.primitive import Catalogue
from znni.plans.segments import Step
from znni.primitives.catalogue import catalogue

DIVISIONS: tuple[Division, ...] = get_args(Division)


def compare_divisions(
    machine: Machine,
    layer: Layer,
    shape: Shape5,
    limits: Sequence[int],
    only: Sequence[str],
    model: CostModel,
    effort: Effort,
) -> list[Row]:
    """A row for each limit and each way to cut the batch: the planner's choice, measured.

    ``gain`` is how often faster than undivided within the same limit. Where nothing stays within
    the limit the row says so.

    Args:
        machine: whose primitives are taken.
        layer: what is computed.
        shape: of its input.
        limits: bytes of workspace.
        only: names of the primitives to choose from; none for all of float32's class.
        model: predicts their times.
        effort: of the measurement.
    """
    primitives = {
        name: primitive
        for name, primitive in catalogue(machine).items()
        if (name in only if only else primitive.accuracy <= ACCURACIES["float32"])
    }
    options = {
        division: StepOptions(primitives.values(), model, division) for division in DIVISIONS
    }
    found = {
        (limit, division): _fastest(primitives, layer, shape, limit, options[division])
        for limit in limits
        for division in DIVISIONS
    }
    seconds = _measured(primitives, shape, [step for step in found.values() if step], effort)
    conv = convolution_of(layer)
    rows = []
    for (limit, division), step in found.items():
        row: Row = {
            "kernel": str(conv.kernel),
            "maps": f"{conv.in_features}->{conv.out_features}",
            "input": str(shape),
            "limit_mib": limit / 2**20,
            "division": division,
            "threads": machine.host.threads,
        }
        undivided = found[limit, "none"]
        if step is None:
            row["skipped"] = "nothing stays within the limit"
        else:
            row |= {
                "chosen": step.primitive,
                "workspace_mib": step.cost.memory.workspace / 2**20,
                "resident_mib": step.cost.memory.resident / 2**20,
                "model_seconds": step.seconds,
                **seconds[step.primitive],
            }
            if undivided:
                row["gain"] = seconds[undivided.primitive]["seconds"] / row["seconds"]
        rows.append(row)
    return rows


def _fastest(
    primitives: Catalogue,
    layer: Layer,
    shape: Shape5,
    limit: int,
    options: StepOptions,
) -> Step | None:
    """The planner's fastest step within a limit of workspace."""
    outs = (primitive.out_shape(layer, shape) for primitive in primitives.values())
    out = next((out for out in outs if out), None)
    if out is None:
        return None
    steps = options(bare_step(layer, shape, out))
    allowed = shape.nbytes + out.nbytes + limit
    return next((step for step in steps if step.cost.memory.working <= allowed), None)


def _measured(
    primitives: Catalogue, shape: Shape5, steps: Sequence[Step], effort: Effort
) -> dict[str, Row]:
    """What every step that is chosen takes, by its primitive's name."""
    x = normal(shape)
    runs = {}
    for step in steps:
        if step.primitive not in runs and step.conv:
            weights = random_weights(Network.chain("layer", shape.f, (step.conv,)), 0)[
                step.conv.name
            ]
            primitive = named(primitives, step.primitive)
            runs[step.primitive] = primitive.build(step.operation, shape, weights)
    capacity = max((step.cost.memory.working for step in steps), default=0)
    with Arena(capacity).in_use():
        contestants = {name: stopwatch(partial(run, x)) for name, run in runs.items()}
        results = run_rounds(contestants, repeats=effort.repeats, budget=effort.budget)
    return {name: result.record() for name, result in results.items()}
