"""Primitives of any device, run on arrays of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from znni.core.shapes import Shape5
from znni.machine.cuda import OWN_INSTRUCTIONS, cupy, stands_in
from znni.machine.device_arena import DeviceArena
from znni.machine.machine import Device
from znni.network.layers import Operation
from znni.network.weights import ConvWeights, Float32
from znni.plans.primitive import Primitive, Run


def built(
    primitive: Primitive, layer: Operation, shape: Shape5, weights: ConvWeights | None
) -> Run:
    """Return a primitive ready to run on host arrays, whatever its device is.

    On a GPU it runs in an arena full of NaN, and must leave its inputs unchanged. Kernels of later
    GPUs are skipped if the GPU stands for an older one.
    """
    skip_if_too_new(primitive.device)
    run = primitive.build(layer, shape, weights)
    if primitive.device.kind == "cpu":
        return run
    memory = primitive.cost(layer, shape).memory

    def on_gpu(*inputs: Float32) -> Float32:
        arena = DeviceArena(memory.working - shape.nbytes)
        with arena.in_use():
            poison(arena)
            there = [to_gpu(x) for x in inputs]
            y = run(*there)
            assert y.flags.c_contiguous
            assert y.dtype == np.float32
            for after, x in zip(there, inputs, strict=True):
                np.testing.assert_array_equal(after.get(), x)
            return np.asarray(y.get())

    return on_gpu


def skip_if_too_new(device: Device) -> None:
    """Skip kernels of later GPUs if the GPU stands for an older one."""
    if stands_in() and device.capability >= OWN_INSTRUCTIONS:
        pytest.skip("the GPU stands for an older one, which has no such instructions")


def poison(arena: DeviceArena) -> None:
    """Fill the memory of an arena with NaN."""
    whole = cupy().ndarray((arena.capacity // 4,), np.float32, memptr=arena.take(arena.capacity))
    whole.fill(np.nan)


def to_gpu(x: Float32) -> Any:
    """Return a copy on the GPU, with the same strides."""
    owner = x
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert owner.flags.c_contiguous
    there = cupy().asarray(owner)
    offset = x.ctypes.data - owner.ctypes.data
    return cupy().ndarray(x.shape, x.dtype, there.data + offset, x.strides)
