"""A plan as the text that a dry run prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from znni.job_seconds import in_words
from znni.text_table import aligned
from znni.units import counted, duration, in_units

if TYPE_CHECKING:
    from znni.plan_memory import PlanMemory
    from znni.plans import Plan
    from znni.segments import Step

HEADER = (
    *("layer", "primitive", "input", "output"),
    *("runs", "working", "resident", "Gflop", "s", "+-"),
)


def plan_table(plan: Plan) -> str:
    """The plan's layers as a table, and its totals.

    ``runs``, ``Gflop`` and ``s`` are per patch; ``working`` and ``resident`` are of one call;
    ``+-`` is the error to be expected of the seconds.
    """
    rows: list[tuple[str, ...]] = [HEADER]
    breaks = []
    for segment, runs in plan.runs():
        breaks.append(len(rows))
        rows.extend(_row(step, runs) for step in segment.steps)
    lines = aligned(rows, left=4)
    rule = "-" * len(lines[0])
    for index in reversed(breaks):
        lines.insert(index, rule)
    return "\n".join([*lines, rule, *totals(plan)])


def _row(step: Step, runs: int) -> tuple[str, ...]:
    return (
        step.operation.name,
        step.primitive,
        str(step.shape_in),
        str(step.shape_out),
        f"{runs}",
        in_units(step.cost.memory.working),
        in_units(step.cost.memory.resident),
        f"{runs * step.cost.flops / 1e9:.1f}",
        f"{runs * step.seconds:.3f}",
        f"{step.error:.0%}",
    )


def totals(plan: Plan) -> list[str]:
    """The plan's figures for the whole job, a line each."""
    memory = plan.memory
    return [
        f"network       {plan.network}",
        f"machine       {plan.machine.host.name}, "
        f"{counted(plan.machine.host.threads, 'thread')}, "
        f"{in_units(plan.machine.host.memory)} allowed",
        *_gpus(plan),
        f"patch         {plan.patch} output voxels from {plan.input_patch}; "
        f"{plan.patches:,} to cover {plan.output}",
        f"peak memory   {in_units(memory.total)}: {_purposes(memory)}",
        *_gpu_memory(plan),
        f"throughput    {plan.voxels_per_second:,.0f} voxels/s +- {plan.error:.0%} predicted, "
        f"{plan.wasted_work:.0%} of the work on borders and repetition",
        f"time          {duration(plan.seconds)} +- {plan.error:.0%} predicted ({plan.costs})",
        f"              {_parts(plan)}",
    ]


def _parts(plan: Plan) -> str:
    """Where the time goes."""
    once, patch = plan.time.once, plan.time.patch
    stages = ", ".join(
        f"{in_words(stage)} {seconds:.3f} s"
        for stage, seconds in patch.by_stage().items()
        if seconds
    )
    slowest = in_words(plan.time.pace.bottleneck)
    return f"{once:.1f} s to start; of a patch {stages}: {slowest} sets the pace"


def _purposes(memory: PlanMemory) -> str:
    return (
        f"process {in_units(memory.process)}, weights {in_units(memory.weights)}, resident "
        f"{in_units(memory.resident)}, working {in_units(memory.working)}, blocks "
        f"{in_units(memory.blocks)}"
    )


def _gpu_memory(plan: Plan) -> Iterator[str]:
    """A line on the memory of the GPU, if layers run there."""
    if plan.gpu_memory:
        total = in_units(plan.gpu_memory.total)
        yield f"              {total} of the GPU: {_purposes(plan.gpu_memory)}"


def _gpus(plan: Plan) -> Iterator[str]:
    """A line on where the layers run, if that is not the host alone, and one on idle GPUs."""
    idle = Counter(gpu.name for gpu in plan.machine.gpus)
    if plan.gpu_memory:
        gpu, used = plan.gpu, plan.workers
        idle.subtract(each.name for each in plan.machine.gpus[:used])
        each = f"each of {used} x {gpu.name}" if used > 1 else gpu.name
        yield f"              {_layers(plan)} on {each}, {in_units(gpu.memory)} allowed"
    others = ", ".join(f"{count} x {name}" for name, count in idle.items() if count)
    if others:
        yield f"              beside {others}, not used"


def _layers(plan: Plan) -> str:
    if plan.device == "gpu":
        return "layers"
    on_host = plan.layers_on_host
    return f"the first {counted(on_host, 'layer')} on the host, the others"
