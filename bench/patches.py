"""Our own contestant: plans for networks, and their patches on a CPU and on a GPU."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any, Unpack

from bench import session
from bench.accuracy import Corners, corners, patch_input
from bench.ceilings import AnyCeilings
from znni.core.option_types import OutputType
from znni.core.plan_options import Choices, PlanOptions
from znni.core.processors import DeviceKind
from znni.core.shapes import Vec3
from znni.engine.backends.cuda.graphs import PLAIN_RUNS
from znni.engine.block import Block, alone, one_stage
from znni.engine.patch_runner import allocator_for
from znni.engine.stage_chain import passing_items, run_stages
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Allocate
from znni.inference import build_runner, planning
from znni.inference.plan_checks import checked_plan
from znni.machine.cuda import cupy
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Weights, random_weights
from znni.plans.plan import Plan
from znni.plans.plan_file import load_plan
from znni.plans.segments import Step
from znni.plans.stored_values import Stored

# Seconds of a patch that need not be warm: its first time takes one more, or two.
LONG = 30.0

# Voxels per axis of the volume planned for, unless another number is given.
SIZES: dict[DeviceKind, int] = {"cpu": 512, "gpu": 2048}


def volume_for(network: Network, size: int, patch: int | None) -> Vec3:
    """Return the extents of a volume of ``size`` voxels per axis.

    With ``patch``, return those for an output of so many voxels per axis. Then no patch is larger.
    """
    return Vec3.of(size) if patch is None else network.field_of_view + patch - 1


def plan_for(
    network: Network, size: int, patch: int | None, **options: Unpack[planning.SearchOptions]
) -> Plan:
    """Return the best plan for a volume as ``volume_for`` has it."""
    return planning.plan(network, volume_for(network, size, patch), **options)


@dataclass
class Asked:
    """The options of commands that measure patches of plans."""

    net: session.Nets
    device: session.Device = "cpu"
    size: session.VolumeByDevice = None
    ram: session.RamByDevice = None
    gpu_memory: session.GpuMemory = None
    patch: session.Patch = None
    plan: session.PlanFile = None
    costs: session.CostsChoice = "auto"
    accuracy: session.AccuracyClass = "float32"
    dtype: session.Written = None
    threads: session.Threads = None

    @property
    def limit(self) -> int | None:
        """Bytes of the host that a plan may take; None for what there is."""
        return self.ram or (session.RAM if self.device == "cpu" else None)

    @property
    def written(self) -> OutputType:
        """The type of the output."""
        return self.dtype or "float32"

    def ceilings(self) -> list[AnyCeilings]:
        """Refuse options that do nothing here, and measure the ceilings of a GPU.

        Those of a CPU depend on the threads of a plan, and are measured later.
        """
        if self.device == "cpu":
            session.refuse(self.device, gpu_memory=self.gpu_memory, dtype=self.dtype)
            return []
        machine = session.machine_with(self.device, self.threads)
        return [session.ceilings_with(self.device, machine.host.threads)]

    def plans(self) -> Iterator[Plan]:
        """Yield each network's plan: the given one if there is one, or the best."""
        options = PlanOptions(
            device=self.device,
            ram=self.limit,
            gpu_memory=self.gpu_memory,
            threads=self.threads,
            accuracy=self.accuracy,
            costs=self.costs,
        )
        size = self.size or SIZES[self.device]
        for network in map(load_network, self.net):
            if self.plan is None:
                session.progress(f"planning {network.name}")
                yield plan_for(network, size, self.patch, dtype=self.written, **options)
            else:
                chosen, stored = Choices(**options), Stored(self.written)
                yield checked_plan(load_plan(self.plan), network, chosen, stored)


class PlanPatch:
    """A plan with random weights, one patch at a time, for a child process.

    Args:
        plan: its JSON.
    """

    def __init__(self, plan: str) -> None:
        made = Plan.from_json(plan)
        self._network = made.network
        self._runner = build_runner.prepare_alone(made, random_weights(made.network, 0))
        self._x = patch_input(made.network, made.patch)
        self._corners: Corners | None = None

    def seconds(self) -> float:
        """Time one patch."""
        start = time.perf_counter()
        y = self._runner(self._x)
        seconds = time.perf_counter() - start
        self._corners = corners(self._network, y)
        return seconds

    def corners(self) -> Corners | None:
        """Return the output's corners in the last run."""
        return self._corners


# Patches before all are launched from recordings: each of two places of the input has its own.
BEFORE_RECORDINGS = 2 * (PLAIN_RUNS + 1)


class PatchesOnGpu:
    """A plan whose patches follow each other as in a run.

    Args:
        plan: its layers are on the GPU.
        dtype: type of its output, which it was planned for.
        weights: the network's weights; by default random ones.
        read: reads what the plan's first stage takes into an array of a run, as a run reads a
            block; by default noise.

    Attributes:
        output: of the last patch (f', Z, Y, X).
        peak: bytes of the GPU that preparing and running took.
    """

    def __init__(
        self,
        plan: Plan,
        dtype: OutputType,
        weights: Weights | None = None,
        read: Callable[[Allocate], Block] | None = None,
    ) -> None:
        self._plan = plan
        self._layer_seconds: dict[str, list[float]] = defaultdict(list)
        self._first_seconds: dict[str, list[float]] = {}
        self._free = free_gpu_bytes()
        weights = weights or random_weights(plan.network, 0)
        self._runner = build_runner.prepare_alone(plan, weights, self._measured, dtype)
        # A run reads each block into such an array. It may lie in page-locked memory.
        self._given = (read or partial(_noise, plan))(allocator_for(plan))
        self.output: Any = None
        self.peak = 0

    def seconds(self, repeats: int) -> tuple[float, ...]:
        """Return the seconds from one patch's output to the next one's, in the host's memory.

        While one patch is computed, the next is brought to the GPU and the last one back, as in a
        run. The first patches are not counted: one, or all before those launched from recordings.
        """
        warming = BEFORE_RECORDINGS if self._plan.network.is_tiled else 1
        done: list[float] = []

        def note(block: Block) -> None:
            self.output = block.values
            done.append(time.perf_counter())
            if len(done) == 1:
                self._first_seconds, self._layer_seconds = self._layer_seconds, defaultdict(list)

        *first, last = self._runner.stages(Stopwatch())
        if self._plan.network.window:  # a run brings the maps to the host before the next block
            last = one_stage([last, lambda block: block.values.maps()])
        stages = [lambda _: self._given, *map(passing_items, (*first, last)), note]
        run_stages(range(warming + repeats), stages, here=1)
        self.peak = self._free - free_gpu_bytes()
        return tuple(after - before for before, after in pairwise(done[warming - 1 :]))

    def layer_seconds(self) -> dict[str, float]:
        """Return a patch's seconds in each layer, by the GPU's clock.

        They are the means of all patches but the first. Those launched from recordings have none.
        So if a patch of several windows is all that is launched step by step, it counts.
        """
        found = self._layer_seconds or self._first_seconds
        return {
            step.operation.name: runs * mean(found[step.operation.name])
            for segment, runs in self._plan.runs()
            for step in segment.steps
        }

    def _measured(self, step: Step, seconds: float) -> None:
        self._layer_seconds[step.operation.name].append(seconds)


def _noise(plan: Plan, allocate: Allocate) -> Block:
    """Return noise for one patch, in an array of a run."""
    noise = patch_input(plan.network, plan.patch)
    given = allocate(noise.shape)
    given[:] = noise
    return alone(given)


def free_gpu_bytes() -> int:
    """Return the bytes of the current GPU that nobody has taken."""
    return int(cupy().cuda.Device().mem_info[0])


def release_gpu_memory() -> int:
    """Give back what CuPy keeps of the GPU and nothing refers to; return the free bytes then."""
    gc.collect()
    cupy().get_default_memory_pool().free_all_blocks()
    return free_gpu_bytes()
