"""Forecasts as text: a table of the groups, and the totals of the run."""

from __future__ import annotations

from collections.abc import Iterator
from math import isinf
from typing import TYPE_CHECKING

from znni.core.text import aligned, counted, duration, in_units

if TYPE_CHECKING:
    from znni.cluster.forecast import Forecast, GroupForecast

HEADER = (
    *("group", "machine", "patch"),
    *("workers", "threads", "GPUs", "memory", "s/block", "+-", "blocks", "voxels/s", "cost"),
)


def forecast_text(forecast: Forecast) -> str:
    """Return a table of the groups, and the totals of the run.

    ``threads``, ``GPUs``, ``memory`` and ``s/block`` are those of one worker. ``blocks``,
    ``voxels/s`` and ``cost`` are those of the whole group.
    """
    lines = aligned([HEADER, *(_row(forecast, part) for part in forecast.groups)], left=3)
    return "\n".join([*lines, "-" * len(lines[0]), *_totals(forecast), *_walltimes(forecast)])


def _row(forecast: Forecast, part: GroupForecast) -> tuple[str, ...]:
    plan, group = part.plan, part.group
    return (
        group.name,
        plan.last_device.name,
        str(plan.patch),
        f"{group.count:,}",
        f"{plan.machine.host.threads}",
        f"{plan.workers if plan.gpu_memory else 0}",
        in_units(plan.memory.total),
        f"{part.seconds:.1f}",
        f"{plan.error:.0%}",
        f"{forecast.share(part):,.0f}",
        f"{_speed(forecast, part.rate):,.0f}",
        "-" if group.price_per_hour is None else f"{forecast.cost_of(part):,.2f}",
    )


def _speed(forecast: Forecast, rate: float) -> float:
    """Return voxels per second for a rate of blocks."""
    return rate * forecast.output.volume / forecast.blocks


def _totals(forecast: Forecast) -> Iterator[str]:
    seconds, limits = forecast.seconds, forecast.limits
    workers = sum(part.group.count for part in forecast.groups)
    files, chunks = forecast.files(sharded=True), forecast.files(sharded=False)
    rates = [
        f"{in_units(nbytes / seconds)}/s" + (f" of {in_units(limit)}/s" if limit else "")
        for nbytes, limit in (
            (forecast.bytes_read, limits.read),
            (forecast.bytes_written, limits.write),
        )
    ]
    puts = f"{files / seconds:,.1f}/s" + (f" of {limits.puts:,.0f}/s" if limits.puts else "")
    yield f"network       {forecast.groups[0].plan.network}"
    yield (
        f"blocks        {forecast.blocks:,} of {forecast.block} output voxels to cover "
        f"{forecast.output}; {forecast.blocks / workers:,.1f} a worker"
    )
    yield f"throughput    {_speed(forecast, forecast.rate):,.0f} voxels/s computed"
    yield f"reading       {in_units(forecast.bytes_read)}, borders included, {rates[0]}"
    yield f"writing       {in_units(forecast.bytes_written)} before compression, {rates[1]}"
    yield f"PUTs          {files:,} shards of {forecast.shard}, {puts};"
    yield f"              {chunks:,} chunks of {forecast.chunk} if not sharded"
    yield (
        f"time          {duration(seconds)} +- {forecast.error:.0%} predicted "
        f"({forecast.groups[0].plan.costs})"
    )
    longest = forecast.resources[forecast.binding]
    yield (
        f"              {duration(forecast.start)} to start, {duration(longest)} for the blocks, "
        f"{duration(forecast.tail)} until the last worker ends: {forecast.binding} sets the pace"
    )
    if forecast.cost is not None:
        yield f"cost          {forecast.cost:,.2f} for {counted(workers, 'worker')}"


def _walltimes(forecast: Forecast) -> Iterator[str]:
    """Yield a remark on each group whose jobs end before the run does."""
    for part in forecast.groups:
        walltime = duration(part.group.walltime or 0)
        if isinf(part.pauses):
            yield (
                f"warning       group {part.group.name} computes nothing: a block takes "
                f"{duration(part.seconds)}, and its walltime is {walltime}; give it more"
            )
        elif part.pauses > 1:
            yield (
                f"walltime      jobs of group {part.group.name} end after {walltime}; another one "
                f"is taken to follow at once"
            )
