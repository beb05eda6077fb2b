"""Patches through a plan's layers on a GPU.

One stream computes patch after patch in one arena. What comes in and goes out has two places each,
so that a patch is brought to the GPU, and the last one's output from it, while another is computed.
A tensor that the host hands on comes out of pinned memory. Blocks of a volume, and output, are
smaller by far, and in ordinary memory: the driver moves them in pieces through pinned memory of its
own, some gigabytes per second.
"""

from __future__ import annotations

from itertools import cycle
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from znni.core.options import OutputType
from znni.engine.device_recombine import DeviceRecombination
from znni.engine.executor import Executor, Fragments, Measured, Prepared
from znni.engine.stages import Work
from znni.engine.stopwatch import Stopwatch
from znni.engine.upload import Parts, Span, Upload
from znni.machine.cuda import cupy, device_errors
from znni.machine.device_arena import ALIGNMENT, DeviceArena, capacity_with_alignment
from znni.network.weights import Weights
from znni.plans.device_partition import DevicePart
from znni.plans.plan import Plan
from znni.plans.primitive import Catalogue
from znni.plans.segments import Step

# What the driver rounds allocations up to, and what it keeps for code of kernels and for libraries
# once they are called: all primitives together 30 MiB (`python -m bench exercise --memory`).
DRIVER_BYTES = 48 * 2**20

DEVICE_BYTES = capacity_with_alignment(0) + DRIVER_BYTES


def device_bytes_per_input_value() -> int:
    """GPU bytes of what the first segment takes next; what it has taken is the layers'."""
    return 4


def device_bytes_per_output_voxel(dtype: OutputType) -> int:
    """GPU bytes of an output computed, and of one on its way to the host."""
    return 2 * np.dtype(dtype).itemsize


class Launched(NamedTuple):
    """A patch whose work the GPU was asked to do.

    Attributes:
        place: where its output comes.
        parts: its input.
        steps: each call of a step.
    """

    place: _Place
    parts: Parts
    steps: list[tuple[Step, Span]]


class Finished(NamedTuple):
    """A patch that the GPU has done.

    Attributes:
        dense: its output (f', Z, Y, X), as it is stored.
        transfer: seconds of the copies to the GPU, and back.
        computing: seconds that the GPU was at work on it.
    """

    dense: NDArray[Any]
    transfer: float
    computing: float


class DeviceLayers:
    """Runs a side of a plan on the first GPU, with all that can be prepared once prepared.

    Args:
        plan: whose side it is.
        side: what to run; its output is dense.
        catalogue: the primitives that it names.
        weights: of the network.
        measured: told of each call of a step, once its patch is done.
        dtype: of the output.

    Raises:
        RunFailed: the GPU's memory does not suffice, or it fails in another way.
    """

    def __init__(
        self,
        plan: Plan,
        part: DevicePart,
        catalogue: Catalogue,
        weights: Weights,
        measured: Measured,
        dtype: OutputType,
    ) -> None:
        self._name = plan.gpu.name
        self._measured = measured
        with device_errors(self._name):
            self._compute, self._download = (
                cupy().cuda.Stream(non_blocking=True) for _ in range(2)
            )
            with self._compute:
                self._executor = Executor(part, catalogue, weights, ALIGNMENT)
                self._recombine = DeviceRecombination(plan.patch, dtype)
            self._compute.synchronize()
            cupy().get_default_memory_pool().free_all_blocks()  # what only preparing took
            self._arena = DeviceArena(self._executor.arena_size, spare=0)
            self._upload = Upload(part.first_input, self._compute)
            dense = (plan.network.out_features, *plan.patch)
            self._places = cycle((_Place(dense, dtype), _Place(dense, dtype)))

    def stages(self, stopwatch: Stopwatch) -> list[Work]:
        """Two, asking and waiting, so that the GPU always knows what it is to do next."""

        def finish(launched: Launched) -> NDArray[Any]:
            dense, transfer, computing = self.finish(launched)
            stopwatch.add("transfer", transfer)
            stopwatch.add("gpu_layers", computing)
            return dense

        return [self.launch, finish]

    def launch(self, given: Fragments) -> Launched:
        """Bring a patch to the GPU and ask for all its work; the GPU may still be at the last one.

        Its values may be overwritten afterwards. The patch before the last must be finished.

        Raises:
            RunFailed: the GPU fails.
        """
        place = next(self._places)
        steps: list[tuple[Step, Span]] = []

        def call(prepared: Prepared, x: Any) -> Any:
            step, run, place = prepared
            before = self._compute.record()
            with self._arena.step(step.shape_out, *place):
                y: Any = run(x)
            steps.append((step, Span(before, self._compute.record())))
            return y

        def put(made: Fragments) -> None:
            self._recombine(*made, place.dense)

        with device_errors(self._name):
            with self._upload.of(given.values) as parts, self._compute:
                self._executor(given._replace(values=parts), call, put)
            self._compute.record(place.computed)  # the last: what is timed is over by then
        return Launched(place, parts, steps)

    def finish(self, launched: Launched) -> Finished:
        """Wait for a patch, and bring its output to the host.

        Raises:
            RunFailed: the GPU fails.
        """
        place, parts, steps = launched
        with device_errors(self._name):
            place.computed.synchronize()
            begun = perf_counter()
            dense: NDArray[Any] = place.dense.get(stream=self._download)
            brought = perf_counter() - begun
            for step, span in steps:
                self._measured(step, span.seconds)
            transfer = brought + sum(span.seconds for span in parts.copied)
            return Finished(dense, transfer, sum(span.seconds for span in parts.computed))


class _Place:
    """Where a patch's output comes.

    Attributes:
        dense: the output (f', Z, Y, X), as it is stored.
        computed: when it is there.
    """

    def __init__(self, shape: tuple[int, ...], dtype: OutputType) -> None:
        self.dense = cupy().empty(shape, dtype)
        self.computed = cupy().cuda.Event(block=True)
