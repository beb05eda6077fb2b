"""Calls of operators in a graph, and the readers that PyTorch and ONNX share.

A reader is a function that reads a call of one operator, and adds its steps to those of the graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from znni.core.shapes import Vec3
from znni.importing import checks
from znni.importing.steps import Nonlinearity, Operation
from znni.importing.tracing import Tracer
from znni.network.layers import Activation


@dataclass(frozen=True)
class Value:
    """An array of the graph, by its name among the steps."""

    name: str


@dataclass(frozen=True)
class GraphCall(ABC):
    """A call of an operator.

    Attributes:
        origin: its name and type.
        results: the names of its results.
        tracer: the graph, which gets its steps.
    """

    origin: str
    results: tuple[str, ...]
    tracer: Tracer

    @property
    @abstractmethod
    def first(self) -> object:
        """Its first input."""

    @property
    def read(self) -> str:
        """The name of its first input, which is an array of the graph."""
        return self.named(self.first)

    def named(self, given: object) -> str:
        """Return the name of an array of the graph."""
        if not isinstance(given, Value):
            checks.refuse(self.origin, f"has no array of the network there; {checks.LAYERS}")
        return given.name

    @property
    def maps(self) -> int:
        """The maps of its first input."""
        return self.tracer.values[self.read].maps

    @property
    def size(self) -> Vec3:
        """The samples per axis of its first input."""
        return self.tracer.values[self.read].size

    @property
    def result(self) -> str:
        """The name of its first result."""
        return self.results[0]

    def add(self, operation: Operation) -> None:
        """Add the only step of a call with one input."""
        self.tracer.add(operation, (self.read,), self.result)


def plain(kind: Activation) -> Callable[[GraphCall], None]:
    """Return a function that reads an activation without parameters."""

    def read(call: GraphCall) -> None:
        call.add(Nonlinearity(call.origin, kind))

    return read


def same(call: GraphCall) -> None:
    """Read an operator that changes nothing."""
    call.tracer.same(call.origin, call.read, call.result)


def axes_of_one(call: GraphCall) -> None:
    """Read an operator that adds or takes away axes of globally pooled values.

    Raises:
        InvalidInput: the value has samples, which would not stay in their axes.
    """
    if not call.tracer.values[call.read].is_pooled:
        checks.refuse(
            call.origin,
            "adds or takes away an axis; samples keep their axes (1, f, z, y, x) here, also in an "
            "output with one map; leave it out of the network's forward(), and export the network "
            "again",
        )
    call.tracer.reshaped(call.origin, call.read, (1, call.maps), call.result)


def negation(call: GraphCall) -> None:
    """Read a change of sign."""
    call.tracer.scaled(call.origin, call.read, call.result, scale=-1.0)


def largest_map(call: GraphCall) -> None:
    """Refuse to read the number of the largest map: a run stores labels itself."""
    checks.labels(call.origin)
