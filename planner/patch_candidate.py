"""A job in patches of one size: its time, and the memory budget of its layers on each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from planner.bounds import LeastSeconds
from planner.candidate import JobTime, MemoryBudget
from planner.memory_bounds import most_for_arrays, slowed_poolings
from planner.overhead import Load, Overhead
from planner.partition import (
    HOST_USING_GPU,
    Cut,
    CutPoint,
    Processor,
    cut_network,
    device_of,
    sums_at_cuts,
)
from planner.sweep_bound import least_runs
from znni.core.processors import GPU, HOST, DeviceKind, has_own_memory
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Machine
from znni.network.geometry import shapes
from znni.network.network import Network
from znni.plans.block_storage import storage_for
from znni.plans.job_seconds import ReportStage
from znni.plans.stage import Counts
from znni.plans.swept import swept_for
from znni.plans.totals import PlanTime

# The processor of layers on the host; the key tells whether they may use the GPU.
HOST_PROCESSORS: dict[bool, Processor] = {False: HOST, True: HOST_USING_GPU}

LAYERS_STAGES: dict[DeviceKind, ReportStage] = {HOST: "host_layers", GPU: "gpu_layers"}


class PatchCandidate:
    """A job in patches of one size.

    Args:
        network: the network to run.
        machine: the machine, whose memory is the limit.
        output: the output voxels of the job.
        patch: the output voxels of a patch.
        overhead: the memory and time of the run beside the layers.
        bounds: the function that returns lower bounds on the time of layers on a processor.
    """

    def __init__(
        self,
        network: Network,
        machine: Machine,
        output: Vec3,
        patch: Vec3,
        overhead: Overhead,
        bounds: Callable[[Processor], LeastSeconds],
    ) -> None:
        self.patch = patch
        self._output = output
        self._network = network
        self._machine = machine
        self._overhead = overhead
        self._shapes = shapes(network, patch)
        self._storage = storage_for(network, patch)
        self._swept = swept_for(network, patch, output, overhead.workers)
        self._runs = least_runs(network, patch, output)
        self._counts = overhead.counts(network, patch)
        self._bounds = bounds
        self._least: dict[Processor, dict[str, float]] = {}
        self._sums: dict[Processor, list[float]] = {}

    @property
    def _patches(self) -> int:
        """The number of patches of the job."""
        return self._output.ceil_div(self.patch).volume

    def in_patches_of(self, patch: Vec3) -> PatchCandidate:
        """Return the job in patches of another size, for a network that is computed in windows.

        Its layers are the same, and so are their bounds.
        """
        other = copy(self)
        other.patch = patch
        other._counts = self._overhead.counts(self._network, patch)
        return other

    def _least_of(self, processor: Processor) -> dict[str, float]:
        """Return lower bounds on the seconds of each layer on a processor, by name."""
        if processor not in self._least:
            voxels = {
                name: np.array([float(shape.n * shape.size.volume)])
                for name, shape in self._shapes.items()
            }
            device, storage, nodes = device_of(processor), self._storage, self._network.nodes
            if storage:
                names = {it.name for it in storage.steps_of(nodes)}
                slowed = {name: np.array([name in names]) for name in voxels}
            else:
                counts = Counts(*(np.array([float(count)]) for count in self._counts))
                most = most_for_arrays(self._machine, self._overhead, device, self._network, counts)
                slowed = slowed_poolings(self._network, device, voxels, most)
            computed = {name: self._runs[name] * it for name, it in voxels.items()}
            least = self._bounds(processor).of_layers(computed, slowed)
            self._least[processor] = {name: float(seconds[0]) for name, seconds in least.items()}
        return self._least[processor]

    def _least_at_cuts(self, processor: Processor) -> list[float]:
        """Return the least seconds of a processor's layers for each cut point."""
        if processor not in self._sums:
            least = list(self._least_of(processor).values())
            self._sums[processor] = sums_at_cuts(processor, least, 0.0)
        return self._sums[processor]

    def cut(self, cut_point: CutPoint) -> Cut:
        """Return the network cut into the layers on each device."""
        layers_on_host, host_uses_gpu = cut_point
        cut = cut_network(
            self._network,
            self._shapes,
            layers_on_host,
            host_uses_gpu=host_uses_gpu,
            storage=self._storage,
            swept=self._swept,
        )
        on_gpu = inf
        if host_uses_gpu:
            room = self.budget(cut, GPU)(cut.partitions[-1].input_shape._replace(n=1))
            on_gpu = max(room, 0.0)
        return Cut(
            tuple(
                replace(
                    it,
                    on_gpu=on_gpu,
                    shapes=self._shapes,
                    least=self._least_of(it.processor),
                    least_kept=int(self._counts.kept),
                    least_runs=self._runs,
                )
                for it in cut.partitions
            )
        )

    def least_loads(self, cut_point: CutPoint) -> dict[DeviceKind, Load]:
        """Return the least load on each device: the bounds on seconds, and no memory."""
        loads: dict[DeviceKind, Load] = {}
        layers_on_host, host_uses_gpu = cut_point
        if layers_on_host > 0:
            least = self._least_at_cuts(HOST_PROCESSORS[host_uses_gpu])
            loads[HOST] = Load(least[layers_on_host], 0, 0)
        if layers_on_host < len(self._network.nodes):
            loads[GPU] = Load(self._least_at_cuts(GPU)[layers_on_host], 0, 0)
        return loads

    def time(self, cut_point: CutPoint, loads: Mapping[DeviceKind, Load]) -> PlanTime:
        """Return the time of the run for the loads on each device."""
        layers_on_host, host_uses_gpu = cut_point
        (passed,) = self._network.alive[layers_on_host]
        run = self._overhead.setting(self._network, loads, host_uses_gpu=host_uses_gpu)
        tensor = self._shapes[passed]
        if self._swept:
            tensor = self._swept.brought(tensor)
        brought = tensor.nbytes if run.on_gpu else 0
        each = self._counts._replace(brought=brought, handed=brought if run.on_host else 0)
        return self._overhead.time_of_run(run, each, loads)

    def seconds(self, cut_point: CutPoint, loads: Mapping[DeviceKind, Load]) -> float:
        """Return the seconds of the job for the loads on each device, infinite if a load is."""
        if not all(isfinite(load.seconds) for load in loads.values()):
            return inf
        return self.time(cut_point, loads).total(self._patches)

    def least_seconds(self, cut_point: CutPoint) -> float:
        """Return a lower bound on the seconds of the job, infinite if a layer has no primitive."""
        return self.seconds(cut_point, self.least_loads(cut_point))

    def job_time(
        self, cut_point: CutPoint, device: DeviceKind, loads: Mapping[DeviceKind, Load]
    ) -> JobTime:
        """Return the time of the job as a function of one device's load.

        The loads on the other device are fixed.
        """
        window = self._network.window
        return JobTime(
            lambda load: self.time(cut_point, {**loads, device: load}),
            LAYERS_STAGES[device],
            self._patches,
            window.a_block(self.patch) if window else 1.0,
        )

    def budget(self, cut: Cut, device: DeviceKind) -> MemoryBudget:
        """Return the bytes for the layers on a device.

        Layers on the host that compute on the GPU share its bytes with the GPU's own layers. The
        bytes are negative if the rest of the run does not fit on the host.
        """
        devices = {partition.device for partition in cut.partitions}
        run = self._overhead.setting(self._network, devices, host_uses_gpu=cut.host_uses_gpu)
        each = self._counts._replace(handed=cut.handed)
        left = self._machine.host.memory - self._overhead.of_host(run, each).total
        if not has_own_memory(device) or left < 0:
            return lambda _: left

        def of_gpu(first_input: Shape5) -> int:
            given = each._replace(first_input=first_input.elements)
            return self._machine.gpus[0].memory - self._overhead.of_gpu(run, given).total

        return of_gpu

    def fits_one_fragment(self, cut_point: CutPoint) -> bool:
        """Return whether each device holds one input fragment and the tensor that it hands on."""
        cut = self.cut(cut_point)
        for partition in cut.partitions:
            one = partition.input_shape._replace(n=1)
            handed = partition.handed.nbytes if partition.handed else 0
            if one.nbytes + handed > self.budget(cut, partition.device)(one):
                return False
        return True
