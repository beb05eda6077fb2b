"""Reading a file's graph of operators as a graph of steps, for one size of its input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing import checks
from znni.importing.calls import Value
from znni.importing.graph import Details, Operation
from znni.importing.steps import Graph
from znni.importing.tracing import Tracer
from znni.network.node import INPUT

# What looks at whole windows, and what to do about it.
WINDOWED: Mapping[str, str] = {
    "MeanVarianceNormalization": checks.NORMS,
    **dict.fromkeys(("MatMul", "Einsum", "Attention"), checks.ATTENTION),
    **dict.fromkeys(("matmul", "bmm", "einsum"), checks.ATTENTION),
    "scaled_dot_product_attention": checks.ATTENTION,
}


class Reading(ABC, Generic[Details]):
    """A graph that is being read.

    Attributes:
        tracer: the steps so far.
        values: what is known of each value, by its name in the file.
    """

    def __init__(self, start: str, maps: int, size: Vec3, constants: Mapping[str, Any]) -> None:
        self.tracer = Tracer(maps, size)
        self.values: dict[str, Any] = {**constants, start: Value(INPUT)}

    def graph(self, operations: Sequence[Operation[Details]], ends: Sequence[str]) -> Graph:
        """Return the graph of steps.

        Raises:
            InvalidInput: an operation cannot be represented, or an output is no array.
        """
        for operation in operations:
            self.read(operation)
        outputs = [self.values.get(end) for end in ends]
        named = [value.name for value in outputs if isinstance(value, Value)]
        if len(named) != len(ends):
            raise InvalidInput(
                f"has outputs {list(ends)}, which are no arrays of the network; export it again"
            )
        return self.tracer.graph(named)

    @abstractmethod
    def read(self, operation: Operation[Details]) -> None:
        """Add the steps of one operation."""


def check_local(origin: str, operator: str) -> None:
    """Refuse an operator that computes a voxel from all of its input."""
    if remedy := WINDOWED.get(operator):
        checks.cannot_express(origin, f"{checks.WINDOWS}; {remedy}")


def first_maps(operations: Sequence[Operation[Details]], weight: Callable[[Details], Any]) -> int:
    """Return the maps that the first convolution takes.

    Args:
        weight: function that returns the weights of a convolution, and None for all else.

    Raises:
        InvalidInput: there is no convolution.
    """
    for operation in operations:
        kernels = weight(operation.details)
        if kernels is not None and kernels.ndim == 5:
            return int(kernels.shape[1])
    raise InvalidInput("there is no 3D convolution in it; give a network that has one")
