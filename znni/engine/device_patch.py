"""Patches through a plan, on a GPU.

One stream computes patch after patch in one arena. Inputs and outputs have two places each, so that
a patch is brought to the GPU, and the last one's output from it, while another is computed. The
copies are of ordinary memory: the driver moves it in pieces through pinned memory of its own, some
gigabytes per second, in threads that would only wait otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.cuda import cupy, device_errors
from znni.device_arena import DeviceArena, capacity_with_alignment
from znni.engine.checks import check_runnable
from znni.engine.device_recombine import DeviceRecombination
from znni.engine.traversal import Measured, Traversal, not_measured
from znni.options import OutputType
from znni.plans import Plan, Step
from znni.primitive import Catalogue, Run
from znni.shapes import Vec3
from znni.weights import Float32, Weights

# What the driver rounds five allocations up to, and small arrays take.
ROUNDING = 16 * 2**20

DEVICE_BYTES = capacity_with_alignment(0) + ROUNDING


def device_bytes_per_input_voxel() -> int:
    """GPU bytes of the next patch's input; that of the one at work is the layers'."""
    return 4


def device_bytes_per_output_voxel(dtype: OutputType) -> int:
    """GPU bytes of an output computed, and of one on its way to the host."""
    return 2 * np.dtype(dtype).itemsize


class DevicePatchRunner:
    """Runs patch after patch through a plan whose layers are on the first GPU.

    Args:
        plan: what to run.
        catalogue: the primitives that it names.
        weights: of its network.
        measured: told of each call of a step, once its patch is done.
        dtype: of the output.

    Raises:
        RunFailed: the GPU's memory does not suffice, or it fails in another way.
    """

    def __init__(
        self,
        plan: Plan,
        catalogue: Catalogue,
        weights: Weights,
        measured: Measured = not_measured,
        dtype: OutputType = "float32",
    ) -> None:
        check_runnable(plan, catalogue)
        self.plan = plan
        self._measured = measured
        with device_errors(plan.device.name):
            self._compute, self._upload, self._download = (
                cupy().cuda.Stream(non_blocking=True) for _ in range(3)
            )
            with self._compute:
                self._traversal = Traversal(plan, catalogue, weights)
                self._recombine = DeviceRecombination(plan.patch, dtype)
            self._compute.synchronize()
            cupy().get_default_memory_pool().free_all_blocks()  # what only preparing took
            self._arena = DeviceArena(plan.device_memory.working - plan.input_shape.nbytes)
            self._places = [_Place(plan, dtype), _Place(plan, dtype)]

    def __call__(self, x: Float32) -> NDArray[Any]:
        """The dense output (f', Z, Y, X), as it is stored, of one input patch (f, z, y, x)."""
        return self.begin(x)()

    def begin(self, x: Float32) -> Callable[[], NDArray[Any]]:
        """Bring a patch to the GPU and ask for all its work; the GPU may still be at the last one.

        Raises:
            RunFailed: the GPU fails.
        """
        place = self._places.pop(0)
        self._places.append(place)
        with device_errors(self.plan.device.name):
            self._upload.wait_event(place.computed)
            place.x[0].set(x, stream=self._upload)
            self._compute.wait_event(self._upload.record())
            with self._compute, self._arena.in_use():
                timed = self._run(place)
                place.computed.record()
        return lambda: self._finish(place, timed)

    def _run(self, place: _Place) -> list[tuple[Step, Any, Any]]:
        """Ask for the work of a patch.

        Returns:
            Each call of a step, with events before and after it.
        """
        timed = []

        def call(step: Step, run: Run, x: Any) -> Any:
            before, after = cupy().cuda.Event(), cupy().cuda.Event()
            before.record()
            y: Any = run(x)
            after.record()
            timed.append((step, before, after))
            return y

        def put(fragments: Any, at: tuple[Vec3, ...], stride: Vec3) -> None:
            self._recombine(fragments, at, stride, place.dense)

        self._traversal(place.x, call, put)
        return timed

    def _finish(self, place: _Place, timed: list[tuple[Step, Any, Any]]) -> NDArray[Any]:
        with device_errors(self.plan.device.name):
            self._download.wait_event(place.computed)
            dense: NDArray[Any] = place.dense.get(stream=self._download)
            for step, before, after in timed:
                self._measured(step, cupy().cuda.get_elapsed_time(before, after) * 1e-3)
        return dense


class _Place:
    """Where a patch comes in and goes out.

    Attributes:
        x: its input (1, f, z, y, x).
        dense: its output (f', Z, Y, X), as it is stored.
        computed: when the one is read and the other written.
    """

    def __init__(self, plan: Plan, dtype: OutputType) -> None:
        self.x = cupy().empty(plan.input_shape, np.float32)
        self.dense = cupy().empty((plan.network.out_features, *plan.patch), dtype)
        self.computed = cupy().cuda.Event(disable_timing=True)
