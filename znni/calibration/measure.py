"""Timing one primitive on one shape, as in a running patch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from znni.calibration.shapes import Call
from znni.core.shapes import Vec3
from znni.machine.arena import Arena, output_into
from znni.machine.cuda import cupy
from znni.machine.packed_arrays import PackedArray
from znni.machine.timing import Timing, timed
from znni.network.layers import (
    Add,
    Concat,
    Fused,
    Maximum,
    Multiply,
    Operation,
    Weighted,
    layers_of,
    on_float32,
)
from znni.network.weights import ConvWeights, Float32, Weights, random_layer_weights
from znni.plans.primitive import Primitive

NOISE = 2**16  # different numbers in an input; times do not depend on them


class Workbench:
    """Memory that all measurements share; its pages are touched only once.

    Args:
        calls: all calls that will be measured, with primitives that support them. The caller must
            check that memory suffices: for the largest input, the most memory that a call takes
            besides its input, and what calls keep.
    """

    def __init__(self, calls: Sequence[tuple[Primitive, Call]]) -> None:
        elements, beside = memory_for(calls)
        few = np.random.default_rng(0).standard_normal(NOISE, np.float32)
        self._noise = np.resize(few, elements)
        self._arena = Arena(beside)

    def measure(self, primitive: Primitive, call: Call, repeats: int) -> Timing:
        """Build, warm up, and time a call, alone.

        Args:
            primitive: primitive that supports such calls.
            call: one of the calls given to the workbench.
            repeats: number of timed calls.
        """
        return timed(self.built(primitive, call), repeats)

    def built(self, primitive: Primitive, call: Call) -> Callable[[], None]:
        """Build a call, and return a function that runs it alone, any number of times."""
        operation, shape = call
        run = primitive.build(operation, shape, some_weights(operation))
        inputs = inputs_in(operation, self._noise[: shape.elements].reshape(shape))
        output = output_in_run(operation, inputs)

        def run_once() -> None:
            with self._arena.in_use(), output_into(output):
                run(*inputs)

        return run_once


def output_in_run(operation: Operation, inputs: Sequence[Any]) -> Any:
    """Return the array in which a run has a call's output; None if it is one of the arena.

    A step that adds in place has its output in the memory of the last value that it takes.

    Args:
        inputs: the arrays that it takes, on the host or a GPU, perhaps packed.
    """
    fused = on_float32(operation)
    if not isinstance(fused, Fused) or not fused.adds_in_place:
        return None
    *_, other = inputs
    if isinstance(other, PackedArray):  # the sum has records of its own
        other = other._replace(records=cupy().zeros(other.records.shape, other.records.dtype))
    return other


def memory_for(calls: Sequence[tuple[Primitive, Call]]) -> tuple[int, int]:
    """Return the memory that calls need if they are made one at a time.

    Returns:
        Elements of the largest input, and the most bytes that a call takes besides its input.
    """
    inputs = (call.shape.elements for _, call in calls)
    beside = (primitive.cost(*call).memory.working - call.given_bytes for primitive, call in calls)
    return max(inputs, default=0), max(beside, default=0)


def some_weights(operation: Operation) -> ConvWeights | None:
    """Return random weights for a layer that has any; None for another."""
    weighted = [it for it in layers_of(operation) if isinstance(it, Weighted)]
    generator = np.random.default_rng(0)
    layers = {it.name: random_layer_weights(it, generator) for it in weighted}
    return Weights(layers, "random").of_operation([it.name for it in weighted])


def inputs_in(operation: Operation, x: Float32) -> tuple[Float32, ...]:
    """Return the arrays that a call takes, whose maps lie one after the other in an array.

    A step that adds in place adds to zeros.
    """
    operation = on_float32(operation)
    match operation:
        case _ if isinstance(operation, Fused):
            if not operation.adds_in_place:
                return (x,)
            maps, size = x.shape[1], Vec3(*x.shape[2:])
            for layer in operation.layers[:-1]:
                maps, size = layer.maps_from(maps), layer.local_size(size)
            return x, np.zeros_like(x, shape=(len(x), maps, *size))
        case Multiply(is_gate=True):
            first = x.shape[1] - 1
        case Concat() | Add() | Multiply() | Maximum():
            first = x.shape[1] // 2
        case _:
            return (x,)
    second = x[:, first:]
    if isinstance(operation, Multiply) and operation.spreads:
        second = second[:, :, :1, :1, :1]
    return x[:, :first], second
