"""Plans as text: the table of a dry run, a ranking of plans, and an explanation of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from znni.core.text import GAP, aligned, counted, duration, in_units
from znni.machine.machine import NOMINAL_STORAGE
from znni.plans.job_seconds import in_words

if TYPE_CHECKING:
    from znni.plans.band import Band
    from znni.plans.plan import Plan
    from znni.plans.segments import Alternative, Step
    from znni.plans.totals import PlanMemory

TABLE_HEADER = (
    *("layer", "primitive", "input", "output"),
    *("runs", "working", "resident", "Gflop", "s", "+-"),
)


class PlanText(NamedTuple):
    """A plan as text, but for three figures: they depend on seconds that runs note.

    Attributes:
        pieces: the text before, between and after these figures.
        voxels: the output voxels of the job.
        seconds: the predicted seconds of the job without those that runs note.
        once: those of them that are not of its patches.
        band: the band of the job's seconds; None if the text has their error.
    """

    pieces: tuple[str, ...]
    voxels: int
    seconds: float
    once: float
    band: Band | None = None

    def around(self, noted: float, slowdown: float | None = None) -> str:
        """Return the text with all figures.

        Args:
            noted: the seconds around the run that runs note, as ``SecondsAround.noted``.
            slowdown: how many times as long the job takes beside the programs that run now; None:
                as the plan has it.
        """
        seconds = noted + self.seconds
        rate, once = f"{self.voxels / seconds:,.0f}", f"{noted + self.once:.1f}"
        time, band = duration(seconds), self.band
        if band:
            band = band if slowdown is None else band._replace(slowdown=slowdown)
            time += f", {band.around(seconds)},"
        first, *others = self.pieces
        figures = zip((rate, time, once), others, strict=True)
        return first + "".join(figure + piece for figure, piece in figures)


def plan_table(plan: Plan) -> str:
    """Return a table of the plan's layers, and its totals, as ``text_of`` has them."""
    return text_of(plan).around(plan.time.around.noted)


def text_of(plan: Plan, notes: Sequence[str] = ()) -> PlanText:
    """Return a table of the plan's layers, and its totals.

    Args:
        plan: the plan.
        notes: the last lines.

    ``runs``, ``Gflop`` and ``s`` are per patch. ``working`` and ``resident`` are per call. ``+-``
    is the expected error of the seconds.
    """
    rows: list[tuple[str, ...]] = [TABLE_HEADER]
    breaks = []
    for segment, runs in plan.runs():
        breaks.append(len(rows))
        rows.extend(_table_row(step, runs) for step in segment.steps)
    lines = aligned(rows, left=4)
    rule = "-" * len(lines[0])
    for index in reversed(breaks):
        lines.insert(index, rule)
    totals = [*lines, rule, *_totals(plan), "throughput    "]
    noted = plan.time.around.noted
    error = "" if plan.band else f" +- {plan.error:.0%}"
    return PlanText(
        pieces=(
            "\n".join(totals),
            f" voxels/s{error} predicted, {plan.wasted_work:.0%} of the work on "
            f"borders and repetition\ntime          ",
            f"{error} predicted ({plan.costs})\n              ",
            "\n".join([_parts(plan), *_assumed_rate(plan), *notes]),
        ),
        voxels=plan.output.volume,
        seconds=plan.seconds - noted,
        once=plan.time.once - noted,
        band=plan.band,
    )


def _table_row(step: Step, runs: int) -> tuple[str, ...]:
    return (
        step.operation.name,
        str(step.primitive),
        str(step.shape_in),
        str(step.shape_out),
        f"{runs}",
        in_units(step.cost.memory.working),
        in_units(step.cost.memory.resident),
        f"{runs * step.cost.flops / 1e9:.1f}",
        f"{runs * step.seconds:.3f}",
        f"{step.error:.0%}",
    )


def _totals(plan: Plan) -> list[str]:
    """Return the job's figures that do not depend on the seconds before its run, a line each."""
    memory = plan.memory
    return [
        f"network       {plan.network}",
        f"machine       {plan.machine.host.name}, "
        f"{counted(plan.machine.host.threads, 'thread')}, "
        f"{in_units(plan.machine.host.memory)} allowed",
        *_gpus(plan),
        f"patch         {plan.patch} output voxels from {_source(plan)}; "
        f"{plan.patches:,} to cover {plan.output}",
        f"peak memory   {in_units(memory.total)}: {_purposes(memory)}",
        *_gpu_memory(plan),
    ]


def _source(plan: Plan) -> str:
    """Return what a patch is computed from."""
    if window := plan.network.window:
        at_once = f", {window.together} at once" * (window.together > 1)
        return f"{counted(round(plan.windows), 'window')} of {window.size}{at_once}"
    along = plan.network.swept_along
    return str(plan.input_patch) + (f" at the start of each sweep along {along}" if along else "")


def _parts(plan: Plan) -> str:
    """Return how the time divides into stages, without the seconds to start and end."""
    patch = plan.time.patch
    stages = ", ".join(
        f"{in_words(stage)} {seconds:.3f} s"
        for stage, seconds in patch.by_stage().items()
        if seconds
    )
    slowest = in_words(plan.time.pace.bottleneck)
    sets = "set" if slowest.endswith("layers") else "sets"
    at_once = f"; {plan.workers} patches at a time, which one process reads and writes"
    return (
        f" s to start and end; of a patch {stages}{at_once * (plan.workers > 1)}: "
        f"{slowest} {sets} the pace"
    )


def _assumed_rate(plan: Plan) -> Iterator[str]:
    """Yield a line if storage sets the pace, at the rate of files that do not describe it."""
    machine, slowest = plan.machine, plan.time.pace.bottleneck
    rates = {"reading": machine.storage.read, "writing": machine.storage.write}
    if machine.absent and rates.get(slowest) == NOMINAL_STORAGE:
        rate = f"{NOMINAL_STORAGE / 1e9:g} GB/s"
        yield f"              {slowest} at {rate}, assumed unless the machine file gives storage:"


def _purposes(memory: PlanMemory) -> str:
    return (
        f"process {in_units(memory.process)}, weights {in_units(memory.weights)}, resident "
        f"{in_units(memory.resident)}, working {in_units(memory.working)}, blocks "
        f"{in_units(memory.blocks)}"
    )


def _gpu_memory(plan: Plan) -> Iterator[str]:
    """Yield a line on the memory of the GPU, if the plan uses one."""
    if plan.gpu_memory:
        total = in_units(plan.gpu_memory.total)
        yield f"              {total} of the GPU: {_purposes(plan.gpu_memory)}"


def _gpus(plan: Plan) -> Iterator[str]:
    """Yield a line on the GPU, if the plan uses one, and a line on idle GPUs."""
    idle = Counter(gpu.name for gpu in plan.machine.gpus)
    if plan.gpu_memory:
        gpu, used = plan.gpu, plan.workers
        idle.subtract(each.name for each in plan.machine.gpus[:used])
        each = f"each of {used} x {gpu.name}" if used > 1 else gpu.name
        yield f"              {_layers(plan)} {each}, {in_units(gpu.memory)} allowed"
    others = ", ".join(f"{count} x {name}" for name, count in idle.items() if count)
    if others:
        yield f"              beside {others}, not used"


def _layers(plan: Plan) -> str:
    """Return which layers run where, as far as the GPU, whose name follows."""
    if not plan.layers_on_host:
        return "layers on"
    helped = sum(len(step.layers) for step in plan.steps if step.uses_gpu)
    if not plan.on_gpu:
        return f"all layers on the host, {helped} of them with the help of"
    on_host = f"the first {counted(plan.layers_on_host, 'layer')} on the host"
    also = f" ({helped} of them with the help of the GPU)" if helped else ""
    return f"{on_host}{also}, the others on"


RANKING_HEADER = ("rank", "patch", "patches", "voxels/s", "+-", "of best", "memory", "wasted")

# The number of differences from the best plan that a ranking tells.
MOST_DIFFERENCES = 3


def ranking(plans: Sequence[Plan]) -> str:
    """Return a table with a line for each plan, and its differences from the first.

    Args:
        plans: plans for one network and output, fastest first.
    """
    best = plans[0]
    rows = [
        RANKING_HEADER,
        *(_ranking_row(rank, plan, best) for rank, plan in enumerate(plans, start=1)),
    ]
    remarks = ["how", "as above", *(_difference(plan, best) for plan in plans[1:])]
    lines = zip(aligned(rows, left=2), remarks, strict=True)
    return "\n".join(f"{figures}{GAP}{remark}" for figures, remark in lines)


def _ranking_row(rank: int, plan: Plan, best: Plan) -> tuple[str, ...]:
    return (
        f"{rank}",
        str(plan.patch),
        f"{plan.patches:,}",
        f"{plan.voxels_per_second:,.0f}",
        f"{plan.error:.0%}",
        f"{best.seconds / plan.seconds:.1%}",
        in_units(plan.device_memory.total),
        f"{plan.wasted_work:.0%}",
    )


def _difference(plan: Plan, best: Plan) -> str:
    """Return the first differences of a plan from the best, with equal ones grouped."""
    best_computed = _how_computed(best)
    layers: dict[str, list[str]] = {}
    for layer, computed in _how_computed(plan).items():
        if best_computed.get(layer) != computed:
            layers.setdefault(computed, []).append(layer)
    changes = [f"{computed} in {', '.join(names)}" for computed, names in layers.items()]
    more = len(changes) - MOST_DIFFERENCES
    return (
        "; ".join(changes[:MOST_DIFFERENCES]) + f"; {more} more" * (more > 0)
        or "the same in other patches"
    )


def _how_computed(plan: Plan) -> dict[str, str]:
    """Return each operation's primitive; if a segment starts there, also its sub-batch."""
    computed = {}
    for segment in plan.segments:
        for step in segment.steps:
            starts = step is segment.steps[0] and segment is not plan.segments[0]
            some = f", {segment.sub_batch} at a time," * starts
            computed[step.operation.name] = f"{step.primitive}{some}"
    return computed


# The number of alternatives shown for a step.
MOST_ALTERNATIVES = 4


def explanation(steps: Iterable[tuple[Step, int, Sequence[Alternative]]]) -> str:
    """Return a table of each step and its fastest alternatives, with their times and memory.

    Args:
        steps: each step with its number of runs for a patch, and its alternatives, fastest first.
    """
    rows: list[tuple[str, ...]] = []
    for step, runs, others in steps:
        rows.append(
            (step.operation.name, str(step.primitive), f"{runs * step.seconds:.3f} s", "chosen")
        )
        rows.extend(_explanation_row(step, runs, other) for other in others[:MOST_ALTERNATIVES])
    figures = aligned([row[:3] for row in rows], left=2)
    return "\n".join(f"{line}  {row[3]}" for line, row in zip(figures, rows, strict=True))


def about_split(plan: Plan, split: Plan) -> str:
    """Return a line that says why a plan is not split between the host and a GPU.

    Args:
        plan: the plan.
        split: the best of those that are split.
    """
    patch = split.time.patch
    slowest = patch.bottleneck
    layers = counted(split.layers_on_host, "layer")
    return (
        f"split         the best of those tried has its first {layers} on the host and takes "
        f"{duration(split.seconds)}, not {duration(plan.seconds)}: "
        f"{in_words(slowest)} take {patch.by_stage()[slowest] / patch.together:.0%} of a patch's "
        f"time"
    )


def _explanation_row(step: Step, runs: int, other: Alternative) -> tuple[str, ...]:
    seconds = runs * other.step.seconds
    times = f"{other.step.seconds / step.seconds:.2f}x the time"
    if other.memory > other.allowed:
        times += f", and {in_units(other.memory)} of {in_units(other.allowed)}"
    elif other.step.seconds < step.seconds:
        more = other.step.cost.memory.resident - step.cost.memory.resident
        times += f", but {in_units(more)} more to prepare once" * (more > 0)
    return "", str(other.step.primitive), f"{seconds:.3f} s", times
