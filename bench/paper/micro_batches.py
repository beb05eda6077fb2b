"""Batches of a layer in pieces, within limits of workspace, or of all that a layer holds.

On the CPU, the planner chooses among znni's primitives. On a GPU, the engines are cuDNN's own, as
in µ-cuDNN.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Annotated, get_args

import typer

from bench import session
from bench.accuracy import normal
from bench.layers import Layer, about_layer, convolution_of, layers_of, weights_of
from bench.paper.engines import NETWORKS, Call, Case, Curves, rows_within
from bench.record import Row
from bench.rounds import Effort, run_rounds, stopwatch
from planner.bare_steps import bare_step
from planner.cost_model import CostModel
from planner.step_options import StepOptions
from znni.calibration.choice import cost_model
from znni.core.errors import InvalidInput
from znni.core.option_types import ACCURACIES, Division
from znni.core.plan_options import memory_size
from znni.core.shapes import Shape5
from znni.machine.arena import Arena
from znni.machine.machine import Machine
from znni.plans.primitive import Catalogue
from znni.plans.segments import Step
from znni.plans.step_primitive import primitive_of
from znni.primitives.catalogue import catalogue

DIVISIONS: tuple[Division, ...] = get_args(Division)

# Multiples of it are sizes of pieces on a GPU, beside powers of two.
STEP = 32


def micro_batches_command(
    workspace: Annotated[
        list[int],
        typer.Option(parser=memory_size, metavar="SIZE", help="Limit; repeatable."),
    ],
    kernel: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Kernel extent of a layer alone; repeatable."),
    ] = None,
    batch: session.Batches = [64],  # noqa: B006
    size: session.Sizes = [32],  # noqa: B006
    features: session.Features = 80,
    out_features: session.OutFeatures = 80,
    device: session.Device = "cpu",
    net: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(NETWORKS)}; repeatable. On a GPU. Default: all, if no --kernel."
        ),
    ] = None,
    curves: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Times and workspaces of engines: what this file has is not measured again, and "
            "new ones are added. On a GPU.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Pieces have powers of two or multiples of this. On a GPU. Default: 32; 1 is all.",
        ),
    ] = None,
    proposals: Annotated[
        int | None,
        typer.Option(min=1, help="Engines that are tried for a call. On a GPU. Default: all."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="No engine is tried after so many seconds. With 0, --curves has all, and no GPU "
            "is needed. On a GPU. Default: 3600.",
        ),
    ] = None,
    resident: Annotated[
        bool,
        typer.Option("--resident", help="Count what primitives keep between calls. On a CPU."),
    ] = False,
    only: session.Only = None,
    costs: session.CostsChoice = "auto",
    threads: session.Threads = None,
    repeats: session.Repeats = 5,
    budget: session.Budget = 60.0,
    out: session.Out = None,
) -> None:
    """Cut a layer's batch to stay within a workspace.

    On a GPU, networks of the paper, too, by cuDNN's engines. Each layer has its own workspace, or
    all layers share out the sum.
    """
    layers = layers_of(kernel or [], batch, size, [(features, out_features)])
    if device == "gpu":
        session.refuse(device, resident=resident, only=only, threads=threads)
        session.check_known("network", net or (), NETWORKS)
        wanted = net or ([] if kernel else [*NETWORKS])
        cases = [*(NETWORKS[name] for name in wanted), *starmap(case_of, layers)]
        measured = Curves(curves)
        within = 3600.0 if seconds is None else seconds
        found = rows_within(
            cases, workspace, measured, step or STEP, proposals or sys.maxsize, within
        )
        session.report_all("evaluations", found, measured.ceilings, out)
        return
    session.refuse(device, net=net, curves=curves, step=step, proposals=proposals, seconds=seconds)
    if not kernel:
        raise InvalidInput("--kernel is needed with --device cpu; give the extent of a kernel")
    machine = session.machine_with("cpu", threads)
    session.check_primitives(only or [], machine)
    model = cost_model(catalogue(machine), costs)
    typer.echo(f"predicted times: {model.source}")
    ceilings = session.ceilings_with("cpu", machine.host.threads)
    effort = Effort(repeats, budget)

    def compared(operation: Layer, shape: Shape5) -> list[Row]:
        session.progress(f"{operation.name} {convolution_of(operation).kernel} on {shape}")
        return compare_divisions(
            machine, operation, shape, workspace, only or [], model, effort, resident=resident
        )

    session.report_all("micro-batches", starmap(compared, layers), [ceilings], out)


def case_of(layer: Layer, shape: Shape5) -> Case:
    """Return a layer alone as a case for cuDNN's engines."""
    conv = convolution_of(layer)
    call = Call(conv, shape.size)
    maps = f"{conv.in_features} to {conv.out_features} maps"
    return Case(f"kernel {conv.kernel}, {maps}, input {shape.size}", shape.n, {call: 1})


def compare_divisions(
    machine: Machine,
    layer: Layer,
    shape: Shape5,
    limits: Sequence[int],
    only: Sequence[str],
    model: CostModel,
    effort: Effort,
    *,
    resident: bool = False,
) -> list[Row]:
    """Return a row for each limit and way to cut the batch: the planner's choice, measured.

    ``gain`` is the speed-up over the undivided batch within the same limit. If nothing stays within
    the limit, the row says so.

    Args:
        machine: its primitives are taken.
        layer: what is computed.
        shape: of its input.
        limits: bytes of workspace, beside input and output.
        only: names of the primitives to choose from; none for all of float32's class.
        model: predicts their times.
        effort: how long to measure.
        resident: whether the limits also count what primitives keep between calls.
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
        (limit, division): _fastest(primitives, layer, shape, limit, resident, options[division])
        for limit in limits
        for division in DIVISIONS
    }
    seconds = _measured(primitives, shape, [step for step in found.values() if step], effort)
    rows = []
    for (limit, division), step in found.items():
        row: Row = {
            **about_layer(layer, shape),
            "limit_on": "workspace and resident" if resident else "workspace",
            "limit_mib": limit / 2**20,
            "division": division,
            "threads": machine.host.threads,
        }
        undivided = found[limit, "none"]
        if step is None:
            row["skipped"] = "nothing stays within the limit"
        else:
            row |= {
                "chosen": str(step.primitive),
                "workspace_mib": step.cost.memory.workspace / 2**20,
                "resident_mib": step.cost.memory.resident / 2**20,
                "model_seconds": step.seconds,
                **seconds[str(step.primitive)],
            }
            if undivided:
                row["gain"] = seconds[str(undivided.primitive)]["seconds"] / row["seconds"]
        rows.append(row)
    return rows


def _fastest(
    primitives: Catalogue,
    layer: Layer,
    shape: Shape5,
    limit: int,
    resident: bool,
    options: StepOptions,
) -> Step | None:
    """Return the planner's fastest step within a limit."""
    outs = (primitive.out_shape(layer, shape) for primitive in primitives.values())
    out = next((out for out in outs if out), None)
    if out is None:
        return None
    allowed = shape.nbytes + out.nbytes + limit
    for step in options(bare_step(layer, shape, out)):
        memory = step.cost.memory
        if memory.working + (memory.resident if resident else 0) <= allowed:
            return step
    return None


def _measured(
    primitives: Catalogue, shape: Shape5, steps: Sequence[Step], effort: Effort
) -> dict[str, Row]:
    """Time every step that is chosen; return rows by its primitive's name."""
    x = normal(shape)
    runs = {}
    for step in steps:
        name = str(step.primitive)
        if name not in runs and step.conv:
            primitive = primitive_of(primitives, step.primitive)
            runs[name] = primitive.build(step.operation, shape, weights_of(step.conv))
    capacity = max((step.cost.memory.working for step in steps), default=0)
    with Arena(capacity).in_use():
        contestants = {name: stopwatch(partial(run, x)) for name, run in runs.items()}
        results = run_rounds(contestants, effort)
    return {name: result.record() for name, result in results.items()}
