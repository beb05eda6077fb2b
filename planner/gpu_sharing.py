"""Layers on the host and on a GPU that may share its memory: the fastest of each together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from planner.candidate import Candidate, JobTime, MemoryBudget
from planner.device_search import DeviceSearch
from planner.overhead import Load
from planner.partition import Partition
from znni.core.processors import GPU, HOST, DeviceKind

# The time of a job for the loads on the other devices.
TimeBeside: TypeAlias = Callable[[Mapping[DeviceKind, Load]], JobTime]


class Pair(NamedTuple):
    """The layers on the host and those on the GPU."""

    on_host: Candidate
    on_gpu: Candidate


class Side(NamedTuple):
    """The layers on one device.

    Attributes:
        search: the search for their candidates.
        partition: the layers.
        budget: the bytes that they may take.
        job_time: the function from the load on the other device to the time of the job.
    """

    search: DeviceSearch
    partition: Partition
    budget: MemoryBudget
    job_time: TimeBeside

    def fastest(self, other: Mapping[DeviceKind, Load], limit: float) -> Candidate | None:
        """Return the candidate with the shortest job beside a load, if one beats the limit."""
        return self.search.fastest(self.partition, self.budget, self.job_time(other), limit)

    def beating(self, other: Mapping[DeviceKind, Load], limit: float) -> list[Candidate]:
        """Return the candidates that may be part of a job that beats the limit."""
        return self.search.undominated(self.partition, self.budget, self.job_time(other), limit)

    def left_by(self, candidate: Candidate) -> float:
        """Return the bytes that a candidate leaves of its budget."""
        first_input = self.partition.input_shape._replace(n=candidate.segments[0].sub_batch)
        return self.budget(first_input) - candidate.choice.resident - candidate.choice.peak

    def leaving(self, left: float) -> Side:
        """Return the layers that leave some bytes of their budget."""
        return self._replace(budget=lambda first_input: self.budget(first_input) - left)

    def with_gpu(self, left: float) -> Side:
        """Return the layers on the host that take no more than some bytes of the GPU."""
        return self._replace(partition=replace(self.partition, on_gpu=left))


def fastest_pair(host: Side, gpu: Side, least_on_host: Load, limit: float) -> Pair | None:
    """Return the candidates for both devices with the shortest job, if they beat the limit.

    A job's time grows with the load on either device. The only cost of layers on the GPU is their
    time. So the fastest layers on the GPU belong to the fastest plan, whatever the host does. The
    choice on the host then weighs time against the cost of memory.

    Layers on the host that compute on the GPU share its memory with its own layers. If the fastest
    of both do not fit together, all that may beat the fastest known pair are compared.

    Args:
        host: the layers on the host.
        gpu: the layers on the GPU.
        least_on_host: a load that no candidate for the host is below.
        limit: the seconds of the job to beat.
    """
    own = gpu.fastest({HOST: least_on_host}, limit)
    helped = own and host.fastest({GPU: own.load}, limit)
    if own is None or helped is None:
        return None
    if helped.choice.on_gpu <= gpu.left_by(own):
        return Pair(helped, own)
    best = fastest_together(
        _some(host.with_gpu(gpu.left_by(own)).fastest({GPU: own.load}, limit), helped),
        _some(gpu.leaving(helped.choice.on_gpu).fastest({HOST: helped.load}, limit), own),
        gpu.left_by,
        host.job_time,
        limit,
    )
    if best:
        limit = host.job_time({GPU: best.on_gpu.load}).seconds(best.on_host.load)
    on_host = host.beating({GPU: own.load}, limit)
    if not on_host:
        return best
    loads = [it.load for it in on_host]
    least = Load(min(it.seconds for it in loads), 0, min(it.working for it in loads))
    on_gpu = gpu.beating({HOST: least}, limit)
    return fastest_together(on_host, on_gpu, gpu.left_by, host.job_time, limit) or best


def _some(*candidates: Candidate | None) -> list[Candidate]:
    return [it for it in candidates if it]


def fastest_together(
    on_host: Iterable[Candidate],
    on_gpu: Iterable[Candidate],
    left_by: Callable[[Candidate], float],
    job_time: TimeBeside,
    limit: float,
) -> Pair | None:
    """Return the two candidates that fit together and have the shortest job within the limit.

    Args:
        on_host: the candidates for the host, whose layers take some of the GPU's bytes.
        on_gpu: the candidates for the GPU's own layers.
        left_by: the function from one of these to the GPU's bytes that it leaves.
        job_time: the function from the load on the GPU to the time of the job.
        limit: the seconds of the job to beat.
    """
    best: Pair | None = None
    fastest_first = sorted(on_host, key=lambda it: it.choice.seconds)
    for own in sorted(on_gpu, key=lambda it: it.choice.seconds):
        job, left = job_time({GPU: own.load}), left_by(own)
        layers_limit = job.layers_within(limit)
        for helped in fastest_first:
            if not helped.choice.seconds < layers_limit:
                break
            if helped.choice.on_gpu <= left and (seconds := job.seconds(helped.load)) < limit:
                best, limit = Pair(helped, own), seconds
                layers_limit = job.layers_within(limit)
    return best
