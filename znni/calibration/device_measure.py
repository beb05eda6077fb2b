"""Timing one primitive on one shape on a GPU, as in a running patch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from znni.calibration.measure import NOISE, inputs_in, memory_for, some_weights
from znni.calibration.shapes import Call
from znni.core.shapes import Shape5
from znni.machine.cuda import cupy, device_errors
from znni.machine.device_arena import DeviceArena
from znni.machine.packed_arrays import GROUP, PackedArray, packed_array
from znni.machine.timing import Timing, timed_on_device
from znni.network.layers import PackedLayer
from znni.plans.primitive import Primitive


class DeviceWorkbench:
    """A ``Workbench`` in the memory of the first GPU.

    Args:
        calls: all calls that will be measured, at least one; as for ``Workbench``.

    Raises:
        RunFailed: the GPU has too little memory, or fails in another way.
    """

    def __init__(self, calls: Sequence[tuple[Primitive, Call]]) -> None:
        elements, beside = memory_for(calls)
        self._name = calls[0][0].device.name
        few = np.random.default_rng(0).standard_normal(NOISE, np.float32)
        with device_errors(self._name):
            self._noise = cupy().empty((-(-elements // NOISE), NOISE), np.float32)
            self._noise[...] = cupy().asarray(few)
            self._arena = DeviceArena(beside)

    def measure(self, primitive: Primitive, call: Call, repeats: int) -> Timing:
        """Build, warm up, and time a call, alone, by the GPU's clock.

        Raises:
            RunFailed: the GPU fails.
            InvalidInput: the primitive cannot be built.
        """
        operation, shape = call
        with device_errors(self._name):
            run = primitive.build(operation, shape, some_weights(operation))
            cupy().get_default_memory_pool().free_all_blocks()  # memory that only building needed
            x = self._noise.ravel()[: shape.elements].reshape(shape)
            inputs: tuple[Any, ...] = inputs_in(operation, x)
            if isinstance(operation, PackedLayer) and operation.reads:
                inputs = tuple(map(_packed_noise, inputs))

            def run_once() -> None:
                with self._arena.in_use():
                    run(*inputs)

            return timed_on_device(run_once, repeats)


def _packed_noise(x: Any) -> PackedArray:
    """Return the numbers of an array, packed with a scale of 1."""
    made = packed_array(Shape5(*x.shape))
    n, f, *size = x.shape
    grouped = x.reshape(n, f // GROUP, GROUP, *size)
    for index in range(GROUP):
        made.voxels[..., index] = grouped[:, :, index]
    records = np.array((max(x.max().item(), -x.min().item()), 1), np.float32).view(np.uint32)
    made.records[...] = cupy().asarray(records)
    return made
