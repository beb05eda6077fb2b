"""Forecasts: how long a run on a cluster takes, what it costs and what sets the pace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from planner.job_places import voxels_read
from znni.cluster.blocks import best_block, box_of, patches_in_blocks
from znni.cluster.cluster_file import (
    DASK_BYTES,
    WALLTIME_MARGIN,
    Cluster,
    Group,
    StorageLimits,
    load_cluster,
    per_worker,
)
from znni.cluster.cluster_plan import BLOCKS_A_WORKER, steady_plan
from znni.cluster.forecast_text import forecast_text
from znni.cluster.schedule import Schedule
from znni.core.errors import InvalidInput
from znni.core.memory_errors import DoesNotFit
from znni.core.plan_options import ANYTHING, Choices
from znni.core.processors import HOST
from znni.core.run_options import RegionOptions, ValueOptions
from znni.core.shapes import Vec3
from znni.core.text import duration
from znni.core.volume import NewOutput
from znni.engine.labels import labels_for
from znni.engine.tiles import Job, for_job, make_job
from znni.inference.gpu_choice import choose_gpus
from znni.inference.planning import places_of
from znni.inference.request import Requirements, input_type, stored_as
from znni.machine.machine import Machine, limited
from znni.machine.machine_choice import machine_for
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.plans.plan import Plan
from znni.volumes.formats.zarr.files import chunk_and_shard

BLOCK_SECONDS = 180.0  # of a block on the slowest machine
MOST_BLOCK_SECONDS = 600.0
MOST_WASTE = 1.05  # voxels computed for a block, as a multiple of its own
HOUR = 3600.0


@dataclass(frozen=True)
class GroupForecast:
    """The part of a group of equal workers in a run.

    Attributes:
        plan: plan for a block, on one of its workers.
        patches: mean number of the plan's patches in a block.
        pauses: time that a worker takes for a block with all restarts, as a multiple of the time
            without; infinite if its walltime is too short for a block.
    """

    group: Group
    plan: Plan
    patches: float
    pauses: float = 1.0

    @property
    def seconds(self) -> float:
        """Seconds a block of a worker that is never restarted."""
        return self.patches * self.plan.time.between

    @property
    def rate(self) -> float:
        """Blocks per second of all workers."""
        return self.group.count / (self.pauses * self.seconds)

    def within_walltime(self, total: float) -> GroupForecast:
        """Return the forecast for a run of so many seconds, if each job is followed by another."""
        walltime = self.group.walltime or inf
        if walltime >= total:
            return self
        blocks = (walltime - WALLTIME_MARGIN - self.plan.time.once) // self.seconds
        return replace(self, pauses=walltime / (blocks * self.seconds) if blocks >= 1 else inf)


@dataclass(frozen=True)
class Forecast:
    """A run on a cluster, before it is run.

    Attributes:
        groups: the parts of the groups.
        output: extents of the output.
        block: extents of the blocks that workers are given.
        chunk: extents of the output's chunks, if it is not sharded.
        shard: extents of its shards, if it is sharded.
        bytes_read: bytes of input that are read, with the borders of patches.
        bytes_written: bytes of output before compression.
        maps: maps of the output.
        computing: seconds of the schedule: all workers compute until no block is left.
    """

    groups: tuple[GroupForecast, ...]
    output: Vec3
    block: Vec3
    chunk: Vec3
    shard: Vec3
    bytes_read: float
    bytes_written: int
    limits: StorageLimits
    maps: int
    computing: float

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.output.ceil_div(self.block).volume

    @property
    def rate(self) -> float:
        """Blocks per second of all workers."""
        return sum(part.rate for part in self.groups)

    @property
    def start(self) -> float:
        """Seconds until all workers compute, once they are there."""
        return max(part.plan.time.once for part in self.groups)

    @property
    def tail(self) -> float:
        """Seconds at the end in which some workers have no block any more."""
        return self.computing - self.blocks / self.rate

    @property
    def resources(self) -> dict[str, float]:
        """Seconds that each resource is needed for; the longest sets the pace."""
        limits = self.limits
        return {
            "computing": self.blocks / self.rate,
            "reading": self.bytes_read / (limits.read or inf),
            "writing": self.bytes_written / (limits.write or inf),
            "PUTs": self.files(sharded=True) / (limits.puts or inf),
        }

    @property
    def binding(self) -> str:
        """The resource that sets the pace."""
        return max(self.resources, key=lambda name: self.resources[name])

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return self.start + self.resources[self.binding] + self.tail

    @property
    def error(self) -> float:
        """The expected error of the computing time, as a share of it."""
        return sum(part.rate / self.rate * part.plan.error for part in self.groups)

    @property
    def cost(self) -> float | None:
        """Price of all workers for the whole run; None if a group has no price."""
        if any(part.group.price_per_hour is None for part in self.groups):
            return None
        return sum(map(self.cost_of, self.groups))

    def cost_of(self, part: GroupForecast) -> float:
        """Return the price of a group's workers for the whole run, 0 if it is not known."""
        return part.group.count * (part.group.price_per_hour or 0.0) * self.seconds / HOUR

    def share(self, part: GroupForecast) -> float:
        """Return the number of blocks that a group computes."""
        return self.blocks * part.rate / self.rate

    def files(self, *, sharded: bool) -> int:
        """Return the number of the output's files or objects."""
        each = self.shard if sharded else self.chunk
        return self.maps * self.output.ceil_div(each).volume

    def __str__(self) -> str:
        return forecast_text(self)


def forecast(
    network: Network | str | Path,
    volume_shape: Sequence[int],
    cluster: Cluster | str | Path,
    region: RegionOptions = RegionOptions(),
    values: ValueOptions = ValueOptions(),
    choices: Choices = ANYTHING,
    input_dtype: DTypeLike = "float32",
) -> Forecast:
    """Predict how long a run on a cluster takes, and what it costs. Nothing is started.

    Args:
        network: a network, or its YAML file.
        volume_shape: extents (z, y, x) of the input, in voxels.
        cluster: the cluster, or its YAML file.
        region: voxels of the volume that need output.
        values: the values that are stored.
        choices: limits and choices for the plans. Each group of the cluster gives its own GPUs. Its
            memory and threads count before these limits.
        input_dtype: type of the stored input values.

    Raises:
        InvalidInput: something cannot be used, the cluster has no groups, or all walltimes are too
            short.
        DoesNotFit: no plan stays within the memory of a worker.
    """
    network = network if isinstance(network, Network) else load_network(network)
    machines = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    if not machines.groups:
        raise InvalidInput(
            "the cluster has no groups, so nothing is known of its machines; add groups: with "
            "name, count and machine"
        )
    job = make_job(network, Vec3(*volume_shape), region.border, None, region.roi)
    labels = labels_for(network, values.labels, values.threshold)
    stored = stored_as(network, labels, values.dtype, input_type(input_dtype))
    maps = labels.features(network.out_features) if labels else network.out_features
    wanted = NewOutput(maps, job.output, labels.dtype if labels else values.dtype)
    network = for_job(network, job)
    workers = [_worker(group, machines, choices) for group in machines.groups]

    def plans_for(block: Vec3) -> list[Plan]:
        try:
            return [
                steady_plan(Requirements(network, job, choices, stored), block, machine)
                for machine, choices in workers
            ]
        except DoesNotFit as short:
            raise per_worker(short) from None

    def in_blocks_of(box: Vec3, plans: list[Plan]) -> Forecast:
        block, fitting = _block_and_plans(job.output, box, plans, machines, plans_for)
        parts = tuple(
            GroupForecast(group, plan, patches_in_blocks(job.output, block, plan.patch))
            for group, plan in zip(machines.groups, fitting, strict=True)
        )
        return _whole_run(parts, job, block, machines.storage, wanted, stored.input_itemsize)

    box = box_of(job.output.volume / (BLOCKS_A_WORKER * machines.workers), job.output)
    plans = plans_for(box)
    found = in_blocks_of(box, plans)
    slowest = min(map(_speed, plans))
    if found.block.volume > MOST_BLOCK_SECONDS * slowest:  # smaller ones may end sooner, or not
        box = box_of(BLOCK_SECONDS * slowest, job.output)
        found = min(found, in_blocks_of(box, plans_for(box)), key=lambda run: run.seconds)
    return found


PlansFor: TypeAlias = Callable[[Vec3], list[Plan]]


def _worker(group: Group, cluster: Cluster, wanted: Choices) -> tuple[Machine, Choices]:
    """Return the part of a machine that znni may use in a worker, and the choices for its plan.

    What the group does not say is a limit of the user for each worker. Local workers share it, or
    the machine. Dask takes a part of a worker's memory, unless the limit is for znni alone.
    """
    device = wanted.device if group.gpus else HOST
    choices = replace(
        wanted,
        device=device,
        gpus=group.gpus or 1,
        gpu_memory=wanted.gpu_memory if group.gpus else None,
    )
    limit, threads = None if group.ram else wanted.ram, None if group.cores else wanted.threads
    whole = machine_for(group.machine, limit, threads, choices.gpu_memory, device)
    if group.gpus and not whole.gpus:
        raise InvalidInput(
            f"group {group.name} has gpus: {group.gpus}, and there is no GPU on its machine; give "
            f"machine: a file of one that has them, or leave gpus: out"
        )
    is_local = cluster.kind == "local"
    sharing = cluster.workers if is_local else 1
    by_dask = 0 if limit is not None and not is_local else DASK_BYTES
    ram = group.znni_ram or whole.host.memory // sharing - by_dask
    threads = group.cores or max(1, whole.host.threads // sharing)
    return choose_gpus(limited(whole, ram, threads), choices), choices


def _block_and_plans(
    output: Vec3, box: Vec3, plans: list[Plan], cluster: Cluster, plans_for: PlansFor
) -> tuple[Vec3, list[Plan]]:
    """Return the extents of a block, and each group's plan for it.

    A block has whole patches of the group that computes most. It is not much larger than a box.
    """
    pairs = zip(plans, cluster.groups, strict=True)
    leader, _ = max(pairs, key=lambda pair: _speed(pair[0]) * pair[1].count)
    slowest = min(map(_speed, plans))
    block = best_block(leader.patch, output, min(box.volume, BLOCK_SECONDS * slowest))
    waste = (
        patches_in_blocks(block, block, plan.patch) * plan.patch.volume / block.volume
        for plan in plans
    )
    if max(waste) > MOST_WASTE:  # patches of some group don't fit into the block
        both = zip(plans, plans_for(block), strict=True)
        plans = [min(pair, key=lambda plan: _seconds(plan, block)) for pair in both]
    return block, plans


def _speed(plan: Plan) -> float:
    """Return the voxels per second of a worker that computes patch after patch."""
    return plan.patch.volume / plan.time.between


def _seconds(plan: Plan, block: Vec3) -> float:
    return patches_in_blocks(block, block, plan.patch) * plan.time.between


def _whole_run(
    parts: tuple[GroupForecast, ...],
    job: Job,
    block: Vec3,
    limits: StorageLimits,
    wanted: NewOutput,
    itemsize: int,
) -> Forecast:
    """Return the forecast of all groups together."""
    output = job.output
    blocks = output.ceil_div(block).volume
    alone = _scheduled(parts, blocks)
    parts = tuple(part.within_walltime(alone) for part in parts)
    if not any(part.rate for part in parts):
        part = min(parts, key=lambda part: part.seconds)
        walltime = duration(part.group.walltime or 0)
        raise InvalidInput(
            f"group {part.group.name!r} has a walltime of {walltime}: one "
            f"block takes {duration(part.seconds)} after {duration(part.plan.time.once)} to start; "
            f"give it more"
        )
    leader = max(parts, key=lambda part: part.rate)
    network = leader.plan.network
    places = places_of(network, job)
    sharded = replace(wanted, sharded=True)
    _, chunk = chunk_and_shard(leader.plan.patch, wanted, shared=True)
    _, shard = chunk_and_shard(leader.plan.patch, sharded, shared=True)
    rate = sum(part.rate for part in parts)
    read = sum(
        blocks * part.rate / rate * part.patches * voxels_read(network, part.plan.patch, places)
        for part in parts
    )
    return Forecast(
        parts,
        output,
        block,
        chunk,
        shard,
        bytes_read=read * network.in_features * itemsize,
        bytes_written=wanted.features * output.volume * np.dtype(wanted.dtype).itemsize,
        limits=limits,
        maps=wanted.features,
        computing=_scheduled(parts, blocks),
    )


def _scheduled(parts: Iterable[GroupForecast], blocks: int) -> float:
    """Return the seconds until all blocks are done, as the schedule hands them out."""
    schedule = Schedule(np.zeros(blocks, bool))
    for part in parts:
        if part.rate:
            for index in range(part.group.count):
                name = f"{part.group.name} {index}"
                schedule.join(name, seconds=part.pauses * part.seconds)
    return schedule.time_left(0.0)
