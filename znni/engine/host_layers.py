"""Patches through a plan's layers on the host."""

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
from znni.engine.upload import pinned
from znni.machine.arena import Arena, output_into
from znni.machine.arrays import ALIGNMENT
from znni.machine.cuda import cupy, device_errors
from znni.machine.device_arena import DeviceArena
from znni.network.weights import Float32, Weights
from znni.plans.device_partition import DevicePart
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue


class HostLayers:
    """Runs a side of a plan on the host, with all that can be prepared once prepared.

    Its arena holds what a patch takes beside its input, which is the caller's, and the tensor that
    is handed on. There are two of these: one is filled while the GPU takes the other. Where steps
    compute on a GPU, it copies from and to the arena itself, whose pages are locked for that, and
    they share an arena there.

    Args:
        plan: whose side it is.
        side: what to run.
        catalogue: the primitives that it names.
        weights: of the network.
        measured: told of each call of a step, once it is done.

    Raises:
        RunFailed: a tensor is to be handed on to a GPU, or steps compute there, and the system or
            the GPU does not give the memory.
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
        self._executor = Executor(part, catalogue, weights, ALIGNMENT)
        self._on_gpu: DeviceArena | None = None
        if not part.uses_gpu:
            self._arena = Arena(self._executor.arena_size)
            return
        with device_errors(plan.gpu.name):
            cupy().get_default_memory_pool().free_all_blocks()  # what only preparing took
            self._arena = Arena(self._executor.arena_size, page_locked=True)
            self._on_gpu = DeviceArena(part.gpu_working)

    def stages(self, stopwatch: Stopwatch) -> list[Work]:
        """One, which gives dense output, or all that the last step makes, for the next side."""
        run = self.tensor if self._part.hands_on else self.dense

        def work(given: Fragments) -> Float32 | Fragments:
            on_gpu = self._on_gpu.in_use() if self._on_gpu else nullcontext()
            with stopwatch.during("host_layers"), on_gpu:
                return run(given)

        return [work]

    def dense(self, given: Fragments) -> Float32:
        """The dense output (f', Z, Y, X) of a patch."""
        dense = np.empty((self._part.output_shape.f, *self._patch), np.float32)
        self._executor(given, self._call, lambda made: place(*made, dense))
        return dense

    def tensor(self, given: Fragments) -> Fragments:
        """All that the last step makes of a patch, each part written into its place."""
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
        with self._arena.step(step.shape_out, *place):
            begun = time.perf_counter()
            y = run(x)
            self._measured(step, time.perf_counter() - begun)
        return y


def place(fragments: Float32, at: Sequence[Vec3], stride: Vec3, dense: Float32) -> None:
    """Write fragments (n, f, z, y, x) to their positions in the dense output (f, Z, Y, X).

    Voxel i of a fragment goes to ``at + stride * i``. After pools p1, p2, ... with offsets o1,
    o2, ... that is ``o1 + p1 (o2 + p2 (... + i))``: the first pool's offset counts least.
    """
    for fragment, start in zip(fragments, at, strict=True):
        dense[:, start.z :: stride.z, start.y :: stride.y, start.x :: stride.x] = fragment
