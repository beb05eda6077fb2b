"""A plan as the text that a dry run prints."""

from __future__ import annotations

from znni.plans import Plan, Step

HEADER = ("layer", "primitive", "input", "output", "runs", "working", "resident", "Gflop", "s")


def plan_table(plan: Plan) -> str:
    """The plan's layers as a table, and its totals.

    ``runs``, ``Gflop`` and ``s`` are per patch; ``working`` and ``resident`` are of one call.
    """
    rows: list[tuple[str, ...]] = [HEADER]
    breaks = []
    for segment, runs in plan.runs():
        breaks.append(len(rows))
        rows.extend(_row(step, runs) for step in segment.steps)
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = []
    for index, row in enumerate(rows):
        if index in breaks:
            lines.append(rule)
        cells = (
            cell.ljust(width) if column < 4 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join([*lines, rule, *totals(plan)])


def _row(step: Step, runs: int) -> tuple[str, ...]:
    return (
        step.layer.name,
        step.primitive,
        str(step.shape_in),
        str(step.shape_out),
        f"{runs}",
        size(step.cost.memory.working),
        size(step.cost.memory.resident),
        f"{runs * step.cost.flops / 1e9:.1f}",
        f"{runs * step.seconds:.3f}",
    )


def totals(plan: Plan) -> list[str]:
    """The plan's figures for the whole job, a line each."""
    memory = plan.memory
    return [
        f"network       {plan.network}",
        f"machine       {plan.machine.host.name}, {plan.machine.host.threads} threads, "
        f"{size(plan.machine.host.memory)} allowed",
        f"patch         {plan.patch} output voxels from {plan.input_patch}; "
        f"{plan.patches} cover {plan.output}",
        f"peak memory   {size(memory.total)}: process {size(memory.process)}, weights "
        f"{size(memory.weights)}, resident {size(memory.resident)}, working "
        f"{size(memory.working)}, blocks {size(memory.blocks)}",
        f"throughput    {plan.voxels_per_second:,.0f} voxels/s predicted, "
        f"{plan.wasted_work:.0%} of the work on borders",
        f"time          {duration(plan.seconds)} predicted "
        "(a model of flops and bytes, not yet measured on this machine)",
    ]


def size(nbytes: float) -> str:
    """Bytes in the unit that reads best."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
