"""A job in patches of one size: its time, and the room for its layers on each device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import accumulate
from math import ceil, isfinite

from planner.bounds import LeastSeconds
from planner.candidate import JobTime, MemoryBudget
from planner.gpu_budget import left_for_gpu
from planner.overhead import Load, Overhead
from planner.partition import Cut, CutPoint, Processor, cut
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import DeviceKind, Machine
from znni.network.network import Network
from znni.plans.job_seconds import Stage
from znni.plans.totals import PlanTime

# What layers on the host are computed with, by whether they may use the GPU.
HOSTS: dict[bool, Processor] = {False: "cpu", True: "host using gpu"}

STAGES: dict[DeviceKind, Stage] = {"cpu": "host_layers", "gpu": "gpu_layers"}


class PatchCandidate:
    """A job in patches of one size.

    Args:
        network: what is run.
        machine: its memory is the limit.
        output: voxels of the job.
        patch: output voxels of a patch.
        overhead: what is taken beside the layers.
        bounds: by each means, the least seconds that layers take.
    """

    def __init__(
        self,
        network: Network,
        machine: Machine,
        output: Vec3,
        patch: Vec3,
        overhead: Overhead,
        bounds: Mapping[Processor, LeastSeconds],
    ) -> None:
        self.patch = patch
        self._network = network
        self._machine = machine
        self._overhead = overhead
        self._patches = output.ceil_div(patch).volume
        self._shapes = network.shapes(patch)
        on_gpu = bounds["gpu"].of_layers(self._shapes)
        backwards = accumulate(reversed(on_gpu.values()), initial=0.0)
        self._least_on_host = {
            uses_gpu: list(accumulate(bounds[means].of_layers(self._shapes).values(), initial=0.0))
            for uses_gpu, means in HOSTS.items()
            if means in bounds
        }
        self._least_on_gpu = list(backwards)[::-1]

    def cut(self, place: CutPoint) -> Cut:
        """The layers on each device."""
        on_host, host_uses_gpu = place
        return cut(self._network, self._shapes, on_host, host_uses_gpu=host_uses_gpu)

    def least_loads(self, place: CutPoint) -> dict[DeviceKind, Load]:
        """What layers take at the least: the seconds of their bounds, and no memory."""
        loads: dict[DeviceKind, Load] = {}
        on_host, host_uses_gpu = place
        if on_host > 0:
            loads["cpu"] = Load(self._least_on_host[host_uses_gpu][on_host], 0, 0)
        if on_host < len(self._network.nodes):
            loads["gpu"] = Load(self._least_on_gpu[on_host], 0, 0)
        return loads

    def time(self, place: CutPoint, loads: Mapping[DeviceKind, Load]) -> PlanTime:
        """By what the layers take of each device that they are on."""
        on_host, host_uses_gpu = place
        (passed,) = self._network.alive[on_host]
        brought = self._shapes[passed].nbytes if "gpu" in loads else 0
        return self._overhead.time_of_run(
            self._network, self.patch, loads, brought, host_uses_gpu=host_uses_gpu
        )

    def job_time(
        self, place: CutPoint, loads: Mapping[DeviceKind, Load], device: DeviceKind
    ) -> JobTime:
        """By what the layers take of one device, where those on the other take what they take."""
        return JobTime(
            lambda load: self.time(place, {**loads, device: load}), STAGES[device], self._patches
        )

    def budget(self, where: Cut, device: DeviceKind) -> MemoryBudget:
        """Bytes for the layers on a device; none where the rest does not fit into the host."""
        beside = self._overhead.of_host(self._network, self.patch, where.device, where.handed)
        left = self._machine.host.memory - beside.total
        if device == "cpu" or left < 0:
            return lambda _: left

        # what layers on the host will take of it is not known yet
        locked = self._machine.host.memory if where.host_uses_gpu else 2 * where.handed

        def of_gpu(first_input: Shape5) -> int:
            memory = self._machine.gpus[0].memory
            allowed = left_for_gpu(memory) if where.host_uses_gpu else memory
            beside = self._overhead.of_gpu(self._network, self.patch, first_input, locked)
            return allowed - beside.total

        return of_gpu

    def by_least_time(self, places: Iterable[CutPoint]) -> Iterator[tuple[float, CutPoint]]:
        """Bounds on the time of the job, and the places to pass to the GPU that they are of.

        The least comes first. Left out are places where a device is to compute a layer that none of
        its primitives does, or has no room for what its layers take and hand on alone; that is
        looked at when a place's turn comes, which it does for few.
        """
        rounds = max(1, ceil(self._patches / self._overhead.workers) - 1)
        waiting: list[tuple[float, bool, CutPoint]] = []
        for place in places:
            least = max(load.seconds for load in self.least_loads(place).values())
            if isfinite(least):
                waiting.append((rounds * least, False, place))  # which is less, and quick to tell
        heapify(waiting)
        while waiting:
            bound, is_of_job, place = heappop(waiting)
            if not is_of_job:
                seconds = self.time(place, self.least_loads(place)).total(self._patches)
                heappush(waiting, (seconds, True, place))
            elif self._has_room(place):
                yield bound, place

    def _has_room(self, place: CutPoint) -> bool:
        """Whether each device holds a fragment that it is given, and what it hands on."""
        where = self.cut(place)
        for partition in where.partitions:
            one = partition.given._replace(n=1)
            handed = partition.handed.nbytes if partition.handed else 0
            if one.nbytes + handed > self.budget(where, partition.device)(one):
                return False
        return True
