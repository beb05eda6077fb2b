"""The loop over all of it: the fastest plan that the machine can hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from typing import TypeAlias

from planner.bounds import Bounds
from planner.layers import Choice, Options, Slot, fastest_within, least_memory
from planner.sizes import patch_sizes, patch_sizes_near
from planner.split import fusible_convolutions, splits
from znni.errors import DoesNotFit
from znni.machine import Machine
from znni.network import Conv, Network
from znni.plans import Plan, PlanMemory, Segment, held_beside, segment_runs, working_peak
from znni.primitive import Catalogue
from znni.shapes import Shape5, Vec3

Segments: TypeAlias = tuple[Segment, ...]

# Different steps that a search looks at: some seconds' worth. Only outputs of thousands of
# voxels an axis need more; of those the patches that are likely best have been tried by then.
MOST_STEPS = 4000


@dataclass(frozen=True)
class Overhead:
    """Host bytes that a run takes beside its layers.

    Attributes:
        process: the interpreter, its libraries and compiled code, and an array for the whole
            output if the run makes one.
        voxel_in: bytes per input voxel and map of a block read ahead.
        voxel_out: bytes per output voxel and map of blocks computed and on their way out.
    """

    process: int
    voxel_in: int
    voxel_out: int

    def of_run(self, network: Network, patch: Vec3) -> PlanMemory:
        """The memory of a run in patches of that many output voxels, but for its layers'."""
        voxels_in = network.in_features * (patch + network.field_of_view - 1).volume
        voxels_out = network.out_features * patch.volume
        return PlanMemory(
            process=self.process,
            weights=4 * network.parameters,
            resident=0,
            working=0,
            blocks=voxels_in * self.voxel_in + voxels_out * self.voxel_out,
        )


def fastest_plan(
    network: Network, output: Vec3, machine: Machine, catalogue: Catalogue, overhead: Overhead
) -> Plan:
    """The plan with the least predicted time among all that fit.

    Exhaustive over patch sizes fitted to the output, divisions of the network into nested
    segments, and primitives per layer. Patches are tried in the order of a lower bound on
    their time, and none after the bound passes the best plan found. Where an output is so large
    that many sizes differ by little, a spread of them is tried, and then all near the best;
    and the search ends after ``MOST_STEPS``.

    Args:
        network: what to compute.
        output: extents of the output wanted.
        machine: its host's memory is the limit.
        catalogue: the primitives to choose from.
        overhead: what the run takes beside the layers.

    Raises:
        DoesNotFit: even the smallest patch takes more memory than allowed.
    """
    search = _Search(network, output, machine, catalogue, overhead)
    isotropic = all(
        len(set(layer.kernel if isinstance(layer, Conv) else layer.window)) == 1
        for layer in network.layers
    )
    patches = patch_sizes(output, network.total_pooling, isotropic=isotropic)
    best = search.fastest_of(patches, None)
    if best is None:
        raise search.does_not_fit()
    nearby = patch_sizes_near(best.patch, output, network.total_pooling)
    return search.fastest_of(nearby, best) or best


class _Search:
    """What stays the same over the patches tried."""

    def __init__(
        self,
        network: Network,
        output: Vec3,
        machine: Machine,
        catalogue: Catalogue,
        overhead: Overhead,
    ) -> None:
        self.network = replace(network, weights=None)
        self.view = network.field_of_view
        self.output = output
        self.machine = machine
        self.overhead = overhead
        self.options = Options(catalogue.values())
        self.fusible = fusible_convolutions(network, self.options)
        self.bounds = Bounds(network, self.options, self.fusible)

    def lower_bound(self, patch: Vec3) -> float:
        """Seconds of the whole output that no plan with this patch can beat."""
        return sum(self.bounds.of_layers(patch)) * self.output.ceil_div(patch).volume

    def fastest_of(self, patches: Iterable[Vec3], best: Plan | None) -> Plan | None:
        """The fastest plan with any of these patches, or the best so far.

        Once there is one, the search ends after ``MOST_STEPS``; no patch left takes less time
        than the bound of the next.
        """
        most = len(self.options) + MOST_STEPS
        for bound, patch in sorted((self.lower_bound(p), p) for p in patches):
            if best and (bound >= best.seconds or len(self.options) > most):
                break
            best = self.fastest_for(patch, best.seconds if best else inf) or best
        return best

    def fastest_for(self, patch: Vec3, seconds_limit: float) -> Plan | None:
        """The fastest plan with this patch, if one fits and beats the limit."""
        allowed = self.machine.host.memory - self.overhead.of_run(self.network, patch).total
        limit = seconds_limit / self.output.ceil_div(patch).volume
        patch_input = self._patch_input(patch)
        bounds = self.bounds.of_layers(patch)
        best: tuple[Segments, Choice] | None = None
        for segments in splits(self.network, patch_input.size, allowed, self.fusible):
            slots = self._slots(segments, patch_input, bounds, limit)
            choice = fastest_within(slots, allowed, limit) if slots else None
            if choice:
                best, limit = (segments, choice), choice.seconds
        return best and self._plan(patch, *best)

    def does_not_fit(self) -> DoesNotFit:
        """The error that says how much the smallest patch would take, and where."""
        patch = self.network.total_pooling
        patch_input = self._patch_input(patch)
        bounds = self.bounds.of_layers(patch)
        candidates = [
            (segments, least_memory(slots))
            for segments in splits(self.network, patch_input.size, fusible=self.fusible)
            if (slots := self._slots(segments, patch_input, bounds, inf))
        ]
        plan = self._plan(patch, *min(candidates, key=lambda c: c[1].resident + c[1].peak))
        _, step = working_peak(plan.segments, patch_input)
        host = self.machine.host
        return DoesNotFit(
            needed=plan.memory.total,
            allowed=host.memory,
            device=host.kind,
            layer=step.operation.name,
            patch=patch,
        )

    def _slots(
        self, segments: Segments, patch_input: Shape5, bounds: list[float], limit: float
    ) -> list[Slot]:
        """Each step's options, runs and company.

        Empty where a step has no primitive, or as soon as the fastest primitives of the steps
        so far and the bounds of the rest together reach the limit.
        """
        runs = [n for segment, n in segment_runs(segments) for _ in segment.steps]
        seconds = sum(bounds)
        rest = iter(bounds)
        slots = []
        for (step, held), n in zip(held_beside(segments, patch_input), runs, strict=True):
            options = self.options(step)
            if not options:
                return []
            seconds += n * options[0].seconds - sum(islice(rest, len(step.layers)))
            if seconds >= limit:
                return []
            slots.append(Slot(options, n, held))
        return slots

    def _patch_input(self, patch: Vec3) -> Shape5:
        size = patch + self.view - 1
        return Shape5.of(1, self.network.in_features, size)

    def _plan(self, patch: Vec3, segments: Segments, choice: Choice) -> Plan:
        chosen = iter(choice.steps)
        segments = tuple(
            replace(segment, steps=tuple(islice(chosen, len(segment.steps))))
            for segment in segments
        )
        working, _ = working_peak(segments, self._patch_input(patch))
        beside = self.overhead.of_run(self.network, patch)
        memory = replace(beside, resident=choice.resident, working=working)
        return Plan(self.network, self.machine, self.output, patch, segments, memory)
