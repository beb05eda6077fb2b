"""Runs a part of a plan on a GPU: patches and blocks go through its layers.

One stream computes patch after patch in one arena. Input and output have two buffers each. So the
GPU computes one patch while the next input and the last output are copied.

Tensors from the host's layers, outputs, and blocks of a tiled network lie in page-locked memory.
Blocks of a sliding network lie in ordinary memory, because its layers take much longer than the
copy. The driver copies them in pieces, at some gigabytes per second.
"""

from __future__ import annotations

from itertools import cycle
from time import perf_counter
from typing import Any, NamedTuple

from numpy.typing import NDArray

from znni.core.option_types import OutputType
from znni.core.shapes import Shape5
from znni.core.trace import GPU_TRACK, note_span
from znni.engine.backends.cuda.carried import PackedPlaneCopies, PlaneCopies
from znni.engine.backends.cuda.labels import DeviceLabels
from znni.engine.backends.cuda.recombine import DeviceRecombination
from znni.engine.backends.cuda.scaling import DeviceScaling
from znni.engine.backends.cuda.step_runner import CudaStepRunner, load_clearing, spare_bytes
from znni.engine.backends.cuda.transfer import CopiedOnRead, Download, Span, Upload
from znni.engine.backends.registry import PartToRun
from znni.engine.block import Block, ComputeStage
from znni.engine.column import Column
from znni.engine.executor import Executor, Fragments, built_steps, fragments_of
from znni.engine.labels import Labels
from znni.engine.stopwatch import Stopwatch
from znni.machine.cuda import cupy, device_errors
from znni.machine.cuda_kernels import load_kernels
from znni.machine.device_arena import ALIGNMENT
from znni.plans.plan import Plan
from znni.plans.program import Program, program_of
from znni.plans.segments import Step


class Launched(NamedTuple):
    """A patch whose work is queued on the GPU.

    Attributes:
        buffer: takes its output.
        inputs: its input: one tensor, or one of each group of windows.
        steps: the calls of its steps.
    """

    buffer: _OutputBuffer
    inputs: list[CopiedOnRead]
    steps: list[tuple[Step, Span]]


class Finished(NamedTuple):
    """A patch that the GPU has computed.

    Attributes:
        dense: the output (f', Z, Y, X), in the type in which it is stored, or its labels.
        transfer: the seconds of the copies to the GPU and back.
        computing: the seconds that the GPU computed it.
    """

    dense: NDArray[Any]
    transfer: float
    computing: float


class DevicePartRunner:
    """Runs a part of a plan on the first GPU, with everything prepared that can be prepared once.

    Args:
        to_run: the part to run. Its output is dense.
        copied: the shape of the input that is copied to the GPU at a time; None: the part's first
            input.

    Raises:
        RunFailed: the GPU does not have enough memory, or it fails in another way.
    """

    def __init__(self, to_run: PartToRun, copied: Shape5 | None = None) -> None:
        plan, part, dtype = to_run.plan, to_run.part, to_run.dtype
        self._name = plan.gpu.name
        self._head = to_run.head
        self._labels: DeviceLabels | None = None
        self._network = plan.network
        self._measured = to_run.measured
        with device_errors(self._name):
            self._compute = cupy().cuda.Stream(non_blocking=True)
            self._download = Download()
            with self._compute:
                program = program_of(plan.network, part, ALIGNMENT, spare_bytes(plan.network))
                steps = built_steps(program, to_run.catalogue, to_run.weights)
                load_clearing(program)
                copies = copies_for(program)
                self._recombine = DeviceRecombination(plan.patch, dtype)
                itemsize = plan.input_itemsize
                given = plan.network.in_features, itemsize
                scale = DeviceScaling(*given) if plan.takes_stored else None
                load_kernels(room_to_compile(plan))
            self._compute.synchronize()
            cupy().get_default_memory_pool().free_all_blocks()  # only preparation needed these
            with self._compute:
                self._runner = CudaStepRunner(program, plan.network, self._compute, *copies)
            self._executor = Executor(program, steps, runner=self._runner, carrier=self._runner)
            self._upload = Upload(copied or part.first_input, self._compute, itemsize, scale)
            extents = plan.network.blended_extents(plan.patch)
            dense = (plan.network.blended_features, *extents)
            self._buffers = cycle((_OutputBuffer(dense, dtype), _OutputBuffer(dense, dtype)))

    def stages(self, stopwatch: Stopwatch, labels: Labels | None = None) -> list[ComputeStage]:
        """Return two stages, queueing and waiting, so that the GPU always has work queued.

        Args:
            stopwatch: counts how long each stage works.
            labels: how values become labels; None: they are given as they are.
        """
        column = Column(self._network.sweep_axis)

        def launch(block: Block) -> Launched:
            computed = block.tile.computed
            launched = self.launch(fragments_of(block), follows=column.follows(computed))
            column.done(computed)
            return launched

        def finish(block: Block) -> NDArray[Any]:
            dense, transfer, computing = self.finish(block.values, labels)
            stopwatch.add("transfer", transfer)
            stopwatch.add("gpu_layers", computing)
            return dense

        return [launch, finish]

    def launch(self, given: Fragments, *, follows: bool = False) -> Launched:
        """Copy a patch to the GPU and queue all its work. The GPU may still compute the last patch.

        The patch's values may be overwritten afterwards. The patch before the last must be
        finished.

        Args:
            given: the patch.
            follows: whether a sweep goes on from the patch before.

        Raises:
            RunFailed: the GPU fails.
        """
        buffer = next(self._buffers)
        steps: list[tuple[Step, Span]] = []
        with device_errors(self._name):
            with self._upload.of(given) as tensor, self._compute:
                self._queue(given._replace(values=tensor), buffer.dense, steps, follows=follows)
            self._compute.record(buffer.computed)  # recorded last, after all timed work
        return Launched(buffer, [tensor], steps)

    def _queue(
        self, given: Fragments, dense: Any, steps: list[tuple[Step, Span]], *, follows: bool
    ) -> None:
        """Queue all steps of a patch.

        Args:
            given: the patch, whose values are copied to the GPU when they are read.
            dense: the output to write.
            steps: takes each step with its work.
            follows: as for ``launch``.
        """

        def put(made: Fragments) -> None:
            self._recombine(made.values, made.at, made.stride, dense)

        self._runner.spans = steps
        self._executor(given, put, follows=follows)

    def finish(self, launched: Launched, labels: Labels | None) -> Finished:
        """Wait for a patch, and copy its output to the host, or its labels.

        Raises:
            RunFailed: the GPU fails.
        """
        with device_errors(self._name):
            copying, computing = self._wait_for(launched)
            begun = perf_counter()
            dense = self._downloaded(launched.buffer.dense, labels)
            return Finished(dense, copying + perf_counter() - begun, computing)

    def _downloaded(self, dense: Any, labels: Labels | None) -> NDArray[Any]:
        """Return a copy of an output on the host, or of its labels, made on the GPU before."""
        with self._download.stream:
            if labels is not None:
                dense = self._labelled(dense, labels)
            return self._download.of(dense)

    def _labelled(self, dense: Any, labels: Labels) -> Any:
        """Return the labels of an output, on the current stream."""
        if self._labels is None:
            self._labels = DeviceLabels(self._network.blended_features, self._head)
        return self._labels(dense, labels)

    def _wait_for(self, launched: Launched) -> tuple[float, float]:
        """Wait for a patch, and return the seconds of its copies to the GPU and of its layers."""
        buffer, inputs, steps = launched
        buffer.computed.synchronize()
        ended = perf_counter()
        for step, span in reversed(steps):
            seconds = span.seconds
            self._measured(step, seconds)
            name, primitive = step.operation.name, str(step.primitive)
            note_span(name, ended - seconds, ended, primitive, GPU_TRACK)
            ended -= seconds
        each = [tensor.seconds for tensor in inputs]
        copying, computing = sum(it for it, _ in each), sum(it for _, it in each)
        if not steps:  # recorded work
            note_span("gpu_layers", ended - computing, ended, track=GPU_TRACK)
        return copying, computing


def copies_for(program: Program) -> tuple[PlaneCopies | None, PackedPlaneCopies | None]:
    """Return the copies of the planes that a program carries, and of those of packed values."""
    if program.swept is None:
        return None, None
    copy = PlaneCopies(program.swept.axis)
    packed = any(each.carried and program.arrays[each.writes.array].parts for each in program.steps)
    return copy, PackedPlaneCopies(program.swept.axis, copy) if packed else None


class _OutputBuffer:
    """GPU memory for a patch's output.

    Attributes:
        dense: the output (f', Z, Y, X), in the type in which it is stored.
        computed: the event that the output is complete.
    """

    def __init__(self, shape: tuple[int, ...], dtype: OutputType) -> None:
        self.dense = cupy().empty(shape, dtype)
        self.computed = cupy().cuda.Event(block=True)


def room_to_compile(plan: Plan) -> int:
    """Return the bytes of the host that are allowed, but that the plan does not take.

    Blocks are read while layers get ready, and layers on the host may already hold their arrays. So
    memory that the plan takes is not free to compile.
    """
    return plan.machine.host.memory - plan.memory.total
