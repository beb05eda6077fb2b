"""The loop over all of it: the fastest plan that the machine can hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import replace
from math import inf

from planner.best import Best
from planner.bounds import BoundsUsingGpu
from planner.costs import BUILT_IN, CostModel
from planner.gpu_room import GpuRoom, room_for_host
from planner.job import Job
from planner.limits import does_not_fit, memory_of_run, time_of_run
from planner.overhead import Overhead
from planner.side_search import Chooser, SideSearch, Way
from planner.sizes import patch_sizes, patch_sizes_near
from planner.strategy import Cut, Means, Place, places_to_cut, places_to_use_gpu
from znni.errors import InvalidInput, option
from znni.machine import Device, DeviceKind, Machine
from znni.network import Conv, Network
from znni.options import DeviceChoice, Division
from znni.plans import Plan
from znni.primitive import Catalogue, UsesGpu, on_device, without_gpu
from znni.shapes import Shape5, Vec3
from znni.sides import sides_of

# Different calls that a search prices: some seconds' worth. Only outputs of thousands of voxels an
# axis need more; of those the patches that are likely best have been tried by then.
MOST_CALLS = 6000


def fastest_plan(
    network: Network,
    output: Vec3,
    machine: Machine,
    catalogue: Catalogue,
    overhead: Overhead,
    model: CostModel = BUILT_IN,
    division: Division = "power-of-two",
    device: DeviceChoice = "auto",
) -> Plan:
    """The plan with the least predicted time among all that fit.

    Takes what ``Search`` takes, and raises what its ``fastest`` does.
    """
    search = Search(network, output, machine, catalogue, overhead, model, division, device)
    return search.fastest()[0]


class Search:
    """The plans for an output; what the layers take is worked out once, however often it is asked.

    Args:
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

    def __init__(
        self,
        network: Network,
        output: Vec3,
        machine: Machine,
        catalogue: Catalogue,
        overhead: Overhead,
        model: CostModel = BUILT_IN,
        division: Division = "power-of-two",
        device: DeviceChoice = "auto",
    ) -> None:
        self.network = replace(network, weights=None)
        self.output = output
        self.machine = machine
        self.catalogue = catalogue
        self.model = model
        self._overhead = overhead
        self._device: DeviceChoice = device
        self._wanted: frozenset[Place] | None = None
        alone = without_gpu(catalogue), on_device(catalogue, "gpu")
        on_host, on_gpu = (
            SideSearch(self.network, some.values(), model, division) for some in alone
        )
        self._sides: dict[Means, SideSearch] = {"cpu": on_host, "gpu": on_gpu}
        if any(isinstance(primitive, UsesGpu) for primitive in catalogue.values()):
            self._sides["host using gpu"] = self._using_gpu(division)

    def _using_gpu(self, division: Division) -> SideSearch:
        """The ways of layers on the host that may compute on the GPU."""
        gpu, on_host = self.machine.gpus[0], on_device(self.catalogue, "cpu").values()
        search = SideSearch(self.network, on_host, self.model, division, self._gpu_room(gpu))
        search.bounds = BoundsUsingGpu(self.network, lambda: self._sides["cpu"].bounds, gpu.link)
        return search

    def _gpu_room(self, gpu: Device) -> GpuRoom:
        return room_for_host(gpu.memory, len(self.network.convolutions))

    @property
    def places(self) -> list[Place]:
        """Where plans may pass from the host to the GPU, which the host's layers may use or not."""
        places = [Place(n) for n in places_to_cut(self.network, self._device)]
        if "host using gpu" in self._sides:
            using = places_to_use_gpu(self.network, self._device)
            places += [Place(n, host_uses_gpu=True) for n in using]
        return [place for place in places if self._wanted is None or place in self._wanted]

    def on(self, device: DeviceChoice) -> Search:
        """The search with layers there, with what this one knows of them."""
        other = copy(self)
        other._device = device
        return other

    def through(self, places: Iterable[Place]) -> Search:
        """The search among plans that pass from the host to the GPU at one of these places."""
        other = copy(self)
        other._wanted = frozenset(places)
        return other

    def within(self, memory: int, device: DeviceKind = "cpu") -> Search:
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
            if "host using gpu" in self._sides:
                within = self._sides["host using gpu"].within(self._gpu_room(gpu))
                other._sides = {**self._sides, "host using gpu": within}
        return other

    def among(self, primitives: Collection[str]) -> Search:
        """The search among some of the primitives, by their names."""
        some = {name: found for name, found in self.catalogue.items() if name in primitives}
        other = self._with_sides(lambda side: side.among(some.values()))
        other.catalogue = some
        return other

    def choosing(self, choose: Chooser) -> Search:
        """The search with another way to give the memory to the steps, with what this one knows."""
        return self._with_sides(lambda side: side.choosing(choose))

    def undivided(self) -> Search:
        """The search among plans that compute each layer's batch whole; the quicker one."""
        return self._with_sides(SideSearch.undivided)

    def _with_sides(self, change: Callable[[SideSearch], SideSearch]) -> Search:
        other = copy(self)
        other._sides = {kind: change(side) for kind, side in self._sides.items()}
        return other

    @property
    def calls(self) -> int:
        """How many different calls were priced so far."""
        return sum(map(len, self._sides.values()))

    def patches(self) -> Iterator[Vec3]:
        """The patches that are tried first: of those that differ by little a spread."""
        isotropic = all(
            len(set(layer.kernel if isinstance(layer, Conv) else layer.window)) == 1
            for layer in self.network.layers
        )
        return patch_sizes(self.output, self.network.total_pooling, isotropic=isotropic)

    def fastest(self, count: int = 1) -> list[Plan]:
        """The plans with the least predicted time among all that fit, one for each patch size.

        Exhaustive over patch sizes fitted to the output, where layers pass from the host to the
        GPU, divisions of each side into nested segments, and per layer primitives and the pieces
        that its batch is cut into. Patches are tried in the order of a lower bound on their time,
        and none after the bound passes the last of the best plans found. Where an output is so
        large that many sizes differ by little, a spread of them is tried, and then all near the
        best; and the search ends after ``MOST_CALLS``.

        Args:
            count: of plans, if there are so many.

        Returns:
            the fastest one first.

        Raises:
            DoesNotFit: even the smallest patch takes more memory than allowed.
            InvalidInput: the count is not positive.
        """
        if count < 1:
            raise InvalidInput(f"{count} plans are none; ask for 1 or more")
        best, tried = Best(count), set[Vec3]()
        self._try_all(self.patches(), tried, best)
        if not best.plans:
            raise does_not_fit(self.smallest())
        pooling = self.network.total_pooling
        self._try_all(patch_sizes_near(best.plans[0].patch, self.output, pooling), tried, best)
        return best.plans

    def fastest_of(self, patches: Iterable[Vec3]) -> Plan | None:
        """The fastest plan with one of these patches, if one fits."""
        best = Best(1)
        self._try_all(patches, set(), best)
        return best.plans[0] if best.plans else None

    def fastest_for(self, patch: Vec3, seconds_limit: float = inf) -> Plan | None:
        """The fastest plan with this patch, if one fits and beats the limit.

        Args:
            patch: output voxels.
            seconds_limit: of the whole job.
        """
        best, limit = None, seconds_limit
        job = self._job(patch)
        for bound, place in job.by_least_time(self.places):
            if bound >= limit:
                break
            if plan := self._fastest_with(job, place, limit):
                best, limit = plan, plan.seconds
        return best

    def lower_bound(self, patch: Vec3) -> float:
        """Seconds of the whole job that no plan with this patch can beat."""
        return min((bound for bound, _ in self._job(patch).by_least_time(self.places)), default=inf)

    def smallest(self) -> Plan:
        """The plan that takes the least memory, whatever the time and the limits.

        Of plans that take more of one device and less of another, the one that lacks the least of
        either.

        Raises:
            InvalidInput: the primitives cannot compute the smallest patch.
        """
        patch = self.network.total_pooling
        job = self._job(patch)
        candidates = [
            self._plan(job, ways)
            for where in map(job.cut, self.places)
            if len(ways := list(self._smallest_ways(job, where))) == len(where.stretches)
        ]
        if not candidates:
            what = f"network {self.network.name} in patches of {patch}"
            raise InvalidInput(
                f"no primitives compute {what} there; give {option('device', 'cpu')}"
            )
        return min(candidates, key=_lacking)

    def _try_all(self, patches: Iterable[Vec3], tried: set[Vec3], best: Best) -> None:
        """Add the fastest plans with these patches, but for those tried before, to the best.

        Once there is one, the search ends after ``MOST_CALLS``; no patch left takes less time
        than the bound of the next.
        """
        most = self.calls + MOST_CALLS
        for bound, patch in sorted((self.lower_bound(p), p) for p in set(patches) - tried):
            if bound >= best.limit or (best.plans and self.calls > most):
                break
            tried.add(patch)
            if plan := self.fastest_for(patch, best.limit):
                best.add(plan)

    def _job(self, patch: Vec3) -> Job:
        bounds = {kind: side.bounds.of_layers(patch) for kind, side in self._sides.items()}
        return Job(self.network, self.machine, self.output, patch, self._overhead, bounds)

    def _fastest_with(self, job: Job, place: Place, limit: float) -> Plan | None:
        """The fastest plan that passes from the host to the GPU there, within the limit.

        Each device has a memory of its own, and a job's time grows with that of either one's
        layers, which on the GPU is all that they cost. So the fastest layers on the GPU are those
        of the fastest plan, whatever the host does; and among the host's, what their memory costs
        beside their time is weighed with these.
        """
        where, loads, ways = job.cut(place), job.least_loads(place), list[Way]()
        for stretch in reversed(where.stretches):
            device = stretch.device
            price = job.price(place, loads, device)
            bounds, room = job.bounds_of(stretch), job.room(where, device)
            way = self._sides[stretch.means].fastest(stretch, bounds, room, price, limit)
            if way is None:
                return None
            loads[device] = way.load
            ways.insert(0, way)
        return self._plan(job, ways)

    def _smallest_ways(self, job: Job, where: Cut) -> Iterator[Way]:
        """The way of each side that leaves the most of its room, if there is any way."""
        for stretch in where.stretches:
            device = stretch.device
            if way := self._sides[stretch.means].smallest(stretch, job.room(where, device)):
                yield way

    def _plan(self, job: Job, ways: Iterable[Way]) -> Plan:
        segments = tuple(segment for way in ways for segment in way.decided)
        size = job.patch + self.network.field_of_view - 1
        sides = sides_of(segments, Shape5.of(1, self.network.in_features, size))
        memory, gpu_memory = memory_of_run(self.network, job.patch, sides, self._overhead)
        return Plan(
            self.network,
            self.machine,
            self.output,
            job.patch,
            segments,
            memory,
            time_of_run(self.network, job.patch, sides, self._overhead),
            self.model.source,
            gpu_memory,
        )


def _lacking(plan: Plan) -> int:
    """The most bytes that a plan takes of a device beyond those allowed; negative if all fits."""
    return max(memory.total - device.memory for memory, device in plan.limits.values())
