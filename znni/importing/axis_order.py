"""Networks whose axes are in another order than z, y, x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing.steps import Found, GraphStep, Original
from znni.network.layers import Padding
from znni.network.weights import Float32

AXES = "zyx"  # the order of znni's axes


def order_of(axes: str) -> tuple[int, int, int]:
    """Return the axes of a network that are z, y and x.

    Args:
        axes: the names of the network's axes in their order, such as ``xyz``.

    Raises:
        InvalidInput: they are not z, y and x, each once.
    """
    if sorted(axes) != sorted(AXES):
        raise InvalidInput(f"axes is {axes!r}; name x, y and z in the network's order, as xyz")
    z, y, x = map(axes.index, AXES)
    return z, y, x


def in_order(values: Sequence[int], order: Sequence[int]) -> Vec3:
    """Return the values of three axes in another order."""
    return Vec3(*(int(values[axis]) for axis in order))


def reordered(found: Found, order: Sequence[int]) -> Found:
    """Return the contents of a source for input whose axes are z, y, x."""
    graph, original = found.graph, found.original
    steps = (GraphStep(_value(s.operation, order), s.reads, s.value) for s in graph.steps)
    graph = replace(graph, steps=tuple(steps), margin=_value(graph.margin, order))
    if isinstance(original, Original):
        original = _original(original, order)
    return replace(found, graph=graph, original=original)


def _original(original: Original, order: Sequence[int]) -> Original:
    """Return an original network that takes and gives arrays whose axes are z, y, x."""
    there = [0, *(1 + order.index(axis) for axis in range(3))]
    back = [0, *(1 + axis for axis in order)]

    def run(x: Float32) -> Float32:
        made = original.run(np.ascontiguousarray(x.transpose(there)))
        return np.ascontiguousarray(made.transpose(back))

    def margin(size: Vec3) -> Padding:
        there_size = in_order(size, [axis - 1 for axis in there[1:]])
        return Padding(*(in_order(side, order) for side in original.margin(there_size)))

    size = original.size and in_order(original.size, order)
    return replace(original, run=run, size=size, margin=margin)


def _value(value: Any, order: Sequence[int]) -> Any:
    """Return a value, or an operation with all its values, in another order of the axes."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {one.name: getattr(value, one.name) for one in fields(value)}
        return replace(value, **{name: _value(each, order) for name, each in named.items()})
    if isinstance(value, Padding):
        return Padding(*(in_order(side, order) for side in value))
    if isinstance(value, Vec3):
        return in_order(value, order)
    if isinstance(value, np.ndarray) and value.ndim == 5:  # kernels
        return np.ascontiguousarray(value.transpose(0, 1, *(2 + axis for axis in order)))
    return value
