"""The layers of a plan on the host, which patches go through."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import cycle

import numpy as np

from znni.core.shapes import Vec3
from znni.engine.executor import Executor, Fragments, Measured, Prepared
from znni.engine.stages import Work
from znni.engine.stopwatch import Stopwatch
from znni.engine.transfer import pinned
from znni.machine.arena import SPARE, Arena, output_into
from znni.machine.arrays import ALIGNMENT
from znni.machine.cuda import cupy, device_errors
from znni.machine.device_arena import DeviceArena
from znni.network.weights import Float32, Weights
from znni.plans.device_partition import DevicePart
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue


class HostLayers:
    """The layers of a plan on the host, with everything prepared that can be prepared once.

    The arena holds the arrays of a patch, except two. Its input belongs to the caller. The tensor
    for the GPU is allocated separately. There are two such tensors: one is filled while the GPU
    reads the other.

    If steps compute on a GPU, it copies directly from and to the arena. So the arena's pages are
    locked. These steps share one arena on the GPU.

    Args:
        plan: the plan.
        part: the plan's part on the host.
        catalogue: the primitives that it names.
        weights: the network's weights.
        measured: the function that takes the seconds of each step, as soon as it is done.

    Raises:
        RunFailed: the GPU is used, and the system or the GPU does not give the memory.
    """

    def __init__(
        self,
        plan: Plan,
        part: DevicePart,
        catalogue: Catalogue,
        weights: Weights,
        measured: Measured,
    ) -> None:
        self._part = part
        self._patch = plan.patch
        self._measured = measured
        if part.hands_on:
            with device_errors(plan.gpu.name):
                self._tensors = cycle([pinned(part.output_shape) for _ in range(2)])
        self._executor = Executor(part, catalogue, weights, ALIGNMENT, SPARE)
        self._on_gpu: DeviceArena | None = None
        if not part.uses_gpu:
            self._arena = Arena(self._executor.arena_size, spare=0)
            return
        with device_errors(plan.gpu.name):
            cupy().get_default_memory_pool().free_all_blocks()  # only preparation needed these
            self._arena = Arena(self._executor.arena_size, spare=0, page_locked=True)
            self._on_gpu = DeviceArena(part.gpu_working)

    def stages(self, stopwatch: Stopwatch) -> list[Work]:
        """Return one stage. It gives dense output, or the last step's results for the GPU."""
        run = self.tensor if self._part.hands_on else self.dense

        def work(given: Fragments) -> Float32 | Fragments:
            on_gpu = self._on_gpu.in_use() if self._on_gpu else nullcontext()
            with stopwatch.during("host_layers"), on_gpu:
                return run(given)

        return [work]

    def dense(self, given: Fragments) -> Float32:
        """Return the dense output (f', Z, Y, X) of a patch."""
        dense = np.empty((self._part.output_shape.f, *self._patch), np.float32)

        def put(made: Fragments) -> None:
            place(made.values, made.at, made.stride, dense)

        self._executor(given, self._call, put)
        return dense

    def tensor(self, given: Fragments) -> Fragments:
        """Return all results of the last step for a patch, written into one tensor."""
        whole = next(self._tensors)
        parts: list[Fragments] = []

        def call(prepared: Prepared, x: Float32) -> Float32:
            if not self._part.writes_in_place(prepared.step):
                return self._call(prepared, x)
            first = sum(len(part.at) for part in parts)
            with output_into(whole[first : first + prepared.step.shape_out.n]):
                return self._call(prepared, x)

        self._executor(given, call, parts.append)
        at = tuple(start for part in parts for start in part.at)
        return Fragments(whole, at, parts[0].stride)

    def _call(self, prepared: Prepared, x: Float32) -> Float32:
        step, run, place = prepared
        with self._arena.step(*place):
            begun = time.perf_counter()
            y = run(x)
            self._measured(step, time.perf_counter() - begun)
        return y


def place(fragments: Float32, at: Sequence[Vec3], stride: Vec3, dense: Float32) -> None:
    """Write fragments (n, f, z, y, x) to their positions in the dense output (f, Z, Y, X).

    Voxel i of a fragment goes to ``at + stride * i``. After pools p1, p2, ... with offsets o1, o2,
    ... that is ``o1 + p1 (o2 + p2 (... + i))``: the first pool's offset counts least.
    """
    for fragment, start in zip(fragments, at, strict=True):
        dense[:, start.z :: stride.z, start.y :: stride.y, start.x :: stride.x] = fragment
