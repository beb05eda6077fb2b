"""Runs a part of a plan on the host: patches, blocks and windows go through its layers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import cycle

import numpy as np

from znni.core.shapes import Box
from znni.engine.after_blending import Blended, onto
from znni.engine.backends.host.recombine import recombine
from znni.engine.backends.host.step_runner import HostStepRunner
from znni.engine.backends.registry import PartToRun, backend_of
from znni.engine.block import Block, ComputeStage
from znni.engine.column import Column
from znni.engine.executor import Executor, Fragments, built_steps, fragments_of
from znni.engine.labels import Labels
from znni.engine.stopwatch import Stopwatch
from znni.engine.windows import BlendedWindows, BoxSums, WindowInputs
from znni.machine.arena import SPARE
from znni.machine.arrays import ALIGNMENT
from znni.machine.cuda import cupy, device_errors
from znni.machine.device_arena import DeviceArena
from znni.network.weights import Float32
from znni.network.window import Copy
from znni.plans.program import program_of


class HostPartRunner:
    """Runs a part of a plan on the host, with everything prepared that can be prepared once.

    The arena holds the arrays of a patch, except three. The input belongs to the caller. Two
    tensors for the GPU are allocated separately: one is filled while the GPU reads the other.

    If steps compute on a GPU, it copies directly from and to the arena. So the arena's pages are
    locked. These steps share one arena on the GPU.

    Raises:
        RunFailed: the GPU is used, and the system or the GPU does not give the memory.
    """

    def __init__(self, to_run: PartToRun) -> None:
        plan, part, measured = to_run.plan, to_run.part, to_run.measured
        self._plan, self._part, self._head = plan, part, to_run.head
        self._threads = plan.machine.host.threads
        if part.hands_on:
            tensor = backend_of(plan.gpu).tensor
            self._tensors = cycle([tensor(part.output_shape, plan.gpu.name) for _ in range(2)])
        program = program_of(plan.network, part, ALIGNMENT, SPARE)
        self._maps = program.output.maps
        steps = built_steps(program, to_run.catalogue, to_run.weights)
        self._on_gpu: DeviceArena | None = None
        if not part.uses_gpu:
            runner = HostStepRunner(program, measured, self._threads)
        else:
            with device_errors(plan.gpu.name):
                cupy().get_default_memory_pool().free_all_blocks()  # only preparation needed these
                runner = HostStepRunner(program, measured, self._threads, page_locked=True)
                self._on_gpu = DeviceArena(part.gpu_working)
        self._executor = Executor(program, steps, runner=runner, carrier=runner)

    def stages(self, stopwatch: Stopwatch, _labels: Labels | None = None) -> list[ComputeStage]:
        """Return one stage: it gives dense output, the tensor for the GPU, or blended windows."""
        if self._plan.network.window:
            return [self._windows(stopwatch)]
        column = Column(self._plan.network.sweep_axis)

        def layers(block: Block) -> Float32 | Fragments:
            on_gpu = self._on_gpu.in_use() if self._on_gpu else nullcontext()
            with stopwatch.during("host_layers"), on_gpu:
                fragments = fragments_of(block)
                if self._part.hands_on:
                    return self.tensor(fragments)
                output = self.dense(fragments, follows=column.follows(block.tile.computed))
                column.done(block.tile.computed)
                return output

        return [layers]

    def dense(self, fragments: Fragments, *, follows: bool = False) -> Float32:
        """Return the dense output (f', Z, Y, X) of a patch.

        Args:
            fragments: what the network sees.
            follows: whether a sweep goes on from the patch before.
        """
        dense = np.empty((self._maps, *self._plan.patch), np.float32)

        def put(results: Fragments) -> None:
            recombine(results.values, results.at, results.stride, dense)

        self._executor(fragments, put, follows=follows)
        return dense

    def tensor(self, fragments: Fragments) -> Fragments:
        """Return all results of the last step for a patch, written into one tensor."""
        whole = next(self._tensors)
        parts: list[Fragments] = []

        def target(items: int) -> Float32:
            first = sum(len(part.at) for part in parts)
            return whole[first : first + items]

        self._executor(fragments, parts.append, target)
        at = tuple(start for part in parts for start in part.at)
        return Fragments(whole, at, parts[0].stride)

    def _outputs(self, fragments: Fragments) -> Float32:
        """Return the outputs (n, f', z, y, x) of windows, which the next call overwrites."""
        results: list[Fragments] = []
        self._executor(fragments, results.append)
        (outputs,) = results
        values: Float32 = outputs.values
        return values

    def _windows(self, stopwatch: Stopwatch) -> ComputeStage:
        """Return the stage that computes the windows of a block, and blends them."""
        from znni.engine.backends.host.window_sums import WindowSums  # it imports kernels

        network, threads = self._plan.network, self._threads
        window = network.window
        assert window is not None
        importance = window.importance()

        def begin(box: Box) -> BoxSums:
            sums = np.empty((network.blended_features, *box.size), np.float32)
            return WindowSums(window, box, sums, importance, threads)

        blended = BlendedWindows(network, self._plan.patch)
        inputs = WindowInputs(network, self._plan.patch)

        def compute(block: Block, group: Sequence[Copy]) -> Float32:
            return self._outputs(inputs(block, group))

        def windows(block: Block) -> Blended:
            with stopwatch.during("host_layers"):
                mean = blended(block, compute, begin)
                wanted = block.with_output(window)
                return Blended(mean, self._head, wanted, threads, onto(window, block))

        return windows
