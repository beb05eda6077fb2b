"""The choices that a search has for one output: devices, cut points, primitives, and patches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from planner.bounds import BoundsUsingGpu, LeastSeconds, computing_pieces
from planner.cost_model import BUILT_IN, BuiltInModel, CostModel
from planner.device_search import WINDOWS_AT_ONCE, Chooser, DeviceSearch
from planner.overhead import Overhead
from planner.partition import HOST_USING_GPU, CutPoint, Processor, cut_points, cut_points_using_gpu
from planner.patch_candidate import PatchCandidate
from planner.patch_sizes import patch_sizes
from planner.splitting import split_where_faster
from znni.core.errors import InvalidInput, option
from znni.core.option_types import Division
from znni.core.processors import (
    FASTEST,
    GPU,
    HOST,
    DeviceChoice,
    DeviceKind,
    has_own_memory,
    may_use_gpu,
)
from znni.core.shapes import AXES, ZERO, Axis, Box, Vec3, extent
from znni.machine.machine import Machine
from znni.network.frames import can_be_swept
from znni.network.network import Network
from znni.plans.primitive import Catalogue, UsesGpu, on_device, without_gpu
from znni.plans.rewrites import split_convolution

# A box whose reads differ along the axes if a layer does not treat them alike.
VOXEL = Box(ZERO, Vec3.of(1))
SAMPLE = Box(ZERO, Vec3.of(60))


@dataclass(eq=False)
class Space:
    """The space of plans for an output. It works out the price of each call once.

    Attributes:
        output: the extents of the output.
        machine: the machine, whose memory is the limit.
        catalogue: the primitives to choose from.
        overhead: the memory and time that a run takes beside its layers.
        model: the model that predicts the times of the primitives.
        division: the sizes of the pieces that a layer's batch may be computed in.
        device: the device for the layers. It is ``cpu``, ``gpu``, some layers on each
            (``cpu+gpu``), or whatever is fastest.
        sweeps: whether plans may sweep the volume, whose blocks then go on from each other.
        allowed_cut_points: the only cut points to try; None for all.
        windows_at_once: the numbers of windows that a GPU may compute at once.
        axes: the axes that all plans sweep along one of; nothing if plans need not sweep.
    """

    given: Network
    output: Vec3
    machine: Machine
    catalogue: Catalogue
    overhead: Overhead
    model: CostModel = BUILT_IN
    division: Division = "power-of-two"
    device: DeviceChoice = FASTEST
    sweeps: bool = False
    allowed_cut_points: frozenset[CutPoint] | None = field(default=None, init=False)
    windows_at_once: tuple[int, ...] = field(default=WINDOWS_AT_ONCE, init=False)
    axes: tuple[Axis, ...] = field(default=(), init=False)

    @cached_property
    def network(self) -> Network:
        """The network to compute: the given one, some of whose convolutions may be split."""
        if not (self.given.is_tiled and self.machine.gpus) or not may_use_gpu(self.device):
            return self.given
        on_gpu = on_device(self.catalogue, GPU).values()
        return split_where_faster(self.given, on_gpu, self.model)

    @cached_property
    def _searches(self) -> dict[Processor, DeviceSearch]:
        """The searches on each processor, made when they are needed: a kept plan needs none."""
        alone = without_gpu(self.catalogue), on_device(self.catalogue, GPU)
        on_host, on_gpu = (
            DeviceSearch(self.network, some.values(), self.model, self.division) for some in alone
        )
        searches: dict[Processor, DeviceSearch] = {HOST: on_host, GPU: on_gpu}
        if any(isinstance(primitive, UsesGpu) for primitive in self.catalogue.values()):
            searches[HOST_USING_GPU] = self._search_host_using_gpu()
        return searches

    def _search_host_using_gpu(self) -> DeviceSearch:
        """Return the search for layers on the host that may compute on the GPU."""
        gpu, on_host = self.machine.gpus[0], on_device(self.catalogue, HOST).values()
        search = DeviceSearch(self.network, on_host, self.model, self.division)
        search.bounds = BoundsUsingGpu(
            self.network,
            lambda: self._searches[HOST].bounds,
            lambda: self._bounds_of_gpu_pieces,
            gpu.link,
        )
        return search

    @cached_property
    def _bounds_of_gpu_pieces(self) -> LeastSeconds:
        """The bounds for the GPU primitives that compute pieces for the host.

        Their times come from the built-in model, as the times of the host's primitives do.
        """
        bases = computing_pieces(self.network, on_device(self.catalogue, HOST).values())
        known = on_device(self.catalogue, GPU).values()
        if isinstance(self.model, BuiltInModel) and all(base in known for base in bases):
            return self._searches[GPU].bounds_among(bases)
        return DeviceSearch(self.network, bases, BUILT_IN, "none").bounds

    @property
    def thetas(self) -> list[int]:
        """The numbers of first layers that a plan may have on the host."""
        using = cut_points_using_gpu(self.network, self.device) if self.machine.gpus else []
        return sorted({*cut_points(self.network, self._device), *using})

    @property
    def _device(self) -> DeviceChoice:
        """The device for the layers: the host if any will do and there is no other."""
        return HOST if self.device == FASTEST and not self.machine.gpus else self.device

    @property
    def cut_points(self) -> list[CutPoint]:
        """The cut points to try, with and without layers on the host that use the GPU."""
        points = [CutPoint(n) for n in cut_points(self.network, self._device)]
        if HOST_USING_GPU in self._searches:
            using = cut_points_using_gpu(self.network, self.device)
            points += [CutPoint(n, host_uses_gpu=True) for n in using]
        return [
            it for it in points if self.allowed_cut_points is None or it in self.allowed_cut_points
        ]

    def predicted_by(self, model: CostModel) -> Self:
        """Return the search by another model of times, without any results yet."""
        other = replace(self, model=model)
        other.allowed_cut_points = self.allowed_cut_points
        other.windows_at_once = self.windows_at_once
        return other

    def on(self, device: DeviceChoice) -> Self:
        """Return the search with layers on that device.

        It shares the known prices, unless convolutions are split that stay whole on the host.
        """
        other = self._copied()
        other.device = device
        if not may_use_gpu(device) and self.network.split:
            other.network = split_convolution.original(self.network)
            del other._searches
        return other

    @property
    def by_device(self) -> list[Self]:
        """The searches for each device if they have other networks; else itself."""
        if self.device != FASTEST or not self.network.split:
            return [self]
        return [some for some in (self.on(GPU), self.on(HOST)) if some.cut_points]

    @property
    def by_network(self) -> list[Self]:
        """The searches for each axis of sweeps, and for each device if they have other networks."""
        return [each for some in self.by_device for each in some.by_axis]

    def through(self, cut_points: Iterable[CutPoint]) -> Self:
        """Return the search among plans with one of these cut points."""
        other = self._copied()
        other.allowed_cut_points = frozenset(cut_points)
        return other

    def with_theta(self, theta: int) -> Self:
        """Return the search among plans with so many first layers on the host.

        Raises:
            InvalidInput: no plan has so many.
        """
        if theta not in self.thetas:
            thetas = ", ".join(map(str, self.thetas))
            there = "" if self.machine.gpus else " and no GPU"
            raise InvalidInput(
                f"{option('theta', theta)}: with {option('device', self.device)}{there}, network "
                f"{self.given.name} may have {thetas} layers on the host"
            )
        other = copy(self)  # without the searches, which a kept plan does not need
        other.allowed_cut_points = frozenset({CutPoint(theta), CutPoint(theta, True)})
        return other

    def computing(self, together: int) -> Self:
        """Return the search among plans that compute so many windows at once.

        It shares the known prices.
        """
        other = self._copied()
        other.network = self.network.computing(together)
        other.windows_at_once = (together,)
        return other

    def sweeping(self, *axes: Axis) -> Self:
        """Return the search among plans that sweep the volume. It shares known prices.

        Args:
            axes: the axes that they may sweep along. Default: all along which layers have context.
                Of axes that differ by their names alone, it is the first. The longest come first.

        Raises:
            InvalidInput: the network sweeps no volume.
        """
        if not can_be_swept(self.given):
            raise InvalidInput(
                f"network {self.given.name} sweeps no volume: a layer depends on a whole window, "
                f"or on planes far ahead; plan without sweeping()"
            )
        other = self._copied()
        other.axes = axes or self._axes_apart or ("z",)
        other.network = self.network.sweeping(other.axes[0])
        return other

    @property
    def among_sweeps(self) -> Self | None:
        """The search among sweeps; None if no plan may be one.

        Sweeps need layers with context.
        """
        if not self.sweeps or self.network.is_swept:
            return None
        if not can_be_swept(self.given) or not self._axes_apart:
            return None
        found = self.sweeping()
        return found if found.cut_points else None

    @property
    def least_kept(self) -> float:
        """The least bytes that any sweep keeps from block to block."""
        return self.overhead.counts(self.network, self.network.granularity).kept

    @property
    def by_axis(self) -> list[Self]:
        """The searches along each axis of sweeps, if there are several; else itself."""
        return [self.sweeping(axis) for axis in self.axes] if len(self.axes) > 1 else [self]

    @property
    def _axes_apart(self) -> tuple[Axis, ...]:
        """The axes that are worth a search for sweeps, as ``sweeping`` describes them."""
        apart: dict[object, Axis] = {}
        for axis in AXES:
            if any(extent(it.reads(VOXEL).size, axis) > 1 for it in self.network.layers):
                apart.setdefault(extent(self.output, axis) if self._is_isotropic else axis, axis)
        return tuple(sorted(apart.values(), key=lambda axis: -extent(self.output, axis)))

    @property
    def _is_isotropic(self) -> bool:
        """True if the network treats all axes alike."""
        extents = [self.network.granularity]
        extents += [layer.reads(SAMPLE).size for layer in self.network.layers]
        return all(len(set(axes)) == 1 for axes in extents)

    def within(self, memory: int, device: DeviceKind = HOST) -> Self:
        """Return the search under another memory limit. It shares the known prices.

        Args:
            memory: the bytes of the device.
            device: the host or the GPU.
        """
        other = self._copied()
        if not has_own_memory(device):
            host = replace(self.machine.host, memory=memory)
            other.machine = replace(self.machine, host=host)
        else:
            gpu = replace(self.machine.gpus[0], memory=memory)
            other.machine = replace(self.machine, gpus=(gpu, *self.machine.gpus[1:]))
        return other

    def among(self, primitives: Collection[str]) -> Self:
        """Return the search among some of the primitives, given by name."""
        some = {name: primitive for name, primitive in self.catalogue.items() if name in primitives}
        other = self._with_searches(lambda search: search.among(some.values()))
        other.catalogue = some
        return other

    def choosing(self, choose: Chooser) -> Self:
        """Return the search with another function that chooses steps. It shares what is known."""
        return self._with_searches(lambda search: search.choosing(choose))

    def undivided(self) -> Self:
        """Return the search among plans that compute each layer's batch whole, which is quicker."""
        return self.dividing("none")

    def dividing(self, division: Division) -> Self:
        """Return the search among plans with batches in pieces of these sizes."""
        other = self._with_searches(lambda search: search.dividing(division))
        other.division = division
        return other

    def _copied(self) -> Self:
        """Return a copy that shares the searches, which are made now."""
        _ = self._searches
        return copy(self)

    def _with_searches(self, change: Callable[[DeviceSearch], DeviceSearch]) -> Self:
        other = copy(self)
        other._searches = {
            processor: change(search) for processor, search in self._searches.items()
        }
        return other

    def bounds_on(self, processor: Processor) -> LeastSeconds:
        """Return the lower bounds on the time of layers on a processor."""
        return self._searches[processor].bounds

    def value_bytes_on(self, processor: Processor) -> int:
        """Return the least bytes of a value between layers on a processor."""
        return self._searches[processor].value_bytes

    @property
    def calls(self) -> int:
        """The number of prices worked out so far: one for each primitive and different call."""
        return sum(map(len, self.__dict__.get("_searches", {}).values()))

    def patches(self) -> Iterator[Vec3]:
        """Yield the patches to try first: a spread, if many sizes differ by little."""
        network = self.network
        # Windows of neighbours along x are computed once, so x is like no other axis.
        isotropic = not (network.window or network.is_swept) and self._is_isotropic
        return patch_sizes(self.output, network.granularity, isotropic=isotropic)

    def patch_candidate(self, patch: Vec3) -> PatchCandidate:
        """Return the job in patches of that many output voxels."""
        return PatchCandidate(
            self.network, self.machine, self.output, patch, self.overhead, self.bounds_on
        )
