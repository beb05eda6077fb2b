"""Timing one primitive on one shape on a GPU, as in a running patch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from znni.calibration.measure import NOISE, inputs_in, memory_for, output_in_run, some_weights
from znni.calibration.shapes import Call
from znni.machine.arena import output_into
from znni.machine.cuda import cupy, device_errors
from znni.machine.device_arena import DeviceArena
from znni.machine.packed_arrays import packed_copy
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
                inputs = tuple(packed_copy(it, operation.parts) for it in inputs)
            output = output_in_run(operation, inputs)

            def run_once() -> None:
                with self._arena.in_use(), output_into(output):
                    run(*inputs)

            return timed_on_device(run_once, repeats)
