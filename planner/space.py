"""All the plans that there are for an output: what they are made of, and restrictions of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from planner.bounds import BoundsUsingGpu, computing_pieces
from planner.cost_model import BUILT_IN, CostModel
from planner.device_search import Chooser, DeviceSearch
from planner.gpu_budget import GpuRoom, room_for_host
from planner.overhead import Overhead
from planner.partition import CutPoint, Processor, cut_points, cut_points_using_gpu
from planner.patch_candidate import PatchCandidate
from planner.patch_sizes import patch_sizes
from znni.core.options import DeviceChoice, Division
from znni.core.shapes import Vec3
from znni.machine.machine import Device, DeviceKind, Machine
from znni.network.network import Conv, Network
from znni.plans.primitive import Catalogue, UsesGpu, on_device, without_gpu


@dataclass(eq=False)
class Space:
    """The plans for an output; what the layers take is worked out once, however often it is asked.

    Attributes:
        network: what to compute.
        output: extents of the output wanted.
        machine: its memory is the limit.
        catalogue: the primitives to choose from.
        overhead: what the run takes beside the layers, in memory and in time.
        model: predicts the times of the primitives.
        division: the sizes of the pieces that a layer's batch may be computed in.
        device: where layers may run: on the ``cpu``, on the ``gpu``, some on each (``cpu+gpu``), or
            wherever that is fastest.
    """

    network: Network
    output: Vec3
    machine: Machine
    catalogue: Catalogue
    overhead: Overhead
    model: CostModel = BUILT_IN
    division: Division = "power-of-two"
    device: DeviceChoice = "auto"

    def __post_init__(self) -> None:
        self.network = replace(self.network, weights=None)
        self._wanted: frozenset[CutPoint] | None = None
        alone = without_gpu(self.catalogue), on_device(self.catalogue, "gpu")
        on_host, on_gpu = (
            DeviceSearch(self.network, some.values(), self.model, self.division) for some in alone
        )
        self._searches: dict[Processor, DeviceSearch] = {"cpu": on_host, "gpu": on_gpu}
        if any(isinstance(primitive, UsesGpu) for primitive in self.catalogue.values()):
            self._searches["host using gpu"] = self._using_gpu()

    def _using_gpu(self) -> DeviceSearch:
        """The ways of layers on the host that may compute on the GPU."""
        gpu, on_host = self.machine.gpus[0], on_device(self.catalogue, "cpu").values()
        search = DeviceSearch(self.network, on_host, self.model, self.division, self._gpu_room(gpu))
        search.bounds = BoundsUsingGpu(
            self.network,
            lambda: self._searches["cpu"].bounds,
            lambda: self._pieces.bounds,
            gpu.link,
        )
        return search

    @cached_property
    def _pieces(self) -> DeviceSearch:
        """Layers on the GPU by what computes pieces there for the host, and as these are timed."""
        bases = computing_pieces(self.network, on_device(self.catalogue, "cpu").values())
        return DeviceSearch(self.network, bases, BUILT_IN, "none")

    def _gpu_room(self, gpu: Device) -> GpuRoom:
        return room_for_host(gpu.memory, len(self.network.convolutions))

    @property
    def places(self) -> list[CutPoint]:
        """Where plans may pass from the host to the GPU, which the host's layers may use or not."""
        places = [CutPoint(n) for n in cut_points(self.network, self.device)]
        if "host using gpu" in self._searches:
            using = cut_points_using_gpu(self.network, self.device)
            places += [CutPoint(n, host_uses_gpu=True) for n in using]
        return [place for place in places if self._wanted is None or place in self._wanted]

    def on(self, device: DeviceChoice) -> Self:
        """The search with layers there, with what this one knows of them."""
        other = copy(self)
        other.device = device
        return other

    def through(self, places: Iterable[CutPoint]) -> Self:
        """The search among plans that pass from the host to the GPU at one of these places."""
        other = copy(self)
        other._wanted = frozenset(places)
        return other

    def within(self, memory: int, device: DeviceKind = "cpu") -> Self:
        """The search under another limit, with what this one knows of the layers.

        Args:
            memory: bytes of a device.
            device: the host, or the GPU.
        """
        other = copy(self)
        if device == "cpu":
            host = replace(self.machine.host, memory=memory)
            other.machine = replace(self.machine, host=host)
        else:
            gpu = replace(self.machine.gpus[0], memory=memory)
            other.machine = replace(self.machine, gpus=(gpu, *self.machine.gpus[1:]))
            if "host using gpu" in self._searches:
                within = self._searches["host using gpu"].within(self._gpu_room(gpu))
                other._searches = {**self._searches, "host using gpu": within}
        return other

    def among(self, primitives: Collection[str]) -> Self:
        """The search among some of the primitives, by their names."""
        some = {name: found for name, found in self.catalogue.items() if name in primitives}
        other = self._with_sides(lambda part: part.among(some.values()))
        other.catalogue = some
        return other

    def choosing(self, choose: Chooser) -> Self:
        """The search with another way to give the memory to the steps, with what this one knows."""
        return self._with_sides(lambda part: part.choosing(choose))

    def undivided(self) -> Self:
        """The search among plans that compute each layer's batch whole; the quicker one."""
        return self.dividing("none")

    def dividing(self, division: Division) -> Self:
        """The search among plans with batches in pieces of these sizes."""
        other = self._with_sides(lambda part: part.dividing(division))
        other.division = division
        return other

    def _with_sides(self, change: Callable[[DeviceSearch], DeviceSearch]) -> Self:
        other = copy(self)
        other._searches = {kind: change(part) for kind, part in self._searches.items()}
        return other

    @property
    def calls(self) -> int:
        """How many different calls were priced so far."""
        return sum(map(len, self._searches.values()))

    def patches(self) -> Iterator[Vec3]:
        """The patches that are tried first: of those that differ by little a spread."""
        isotropic = all(
            len(set(layer.kernel if isinstance(layer, Conv) else layer.window)) == 1
            for layer in self.network.layers
        )
        return patch_sizes(self.output, self.network.total_pooling, isotropic=isotropic)

    def job(self, patch: Vec3) -> PatchCandidate:
        """The job in patches of that many output voxels."""
        bounds = {means: part.bounds for means, part in self._searches.items()}
        return PatchCandidate(self.network, self.machine, self.output, patch, self.overhead, bounds)
