"""Nodes of ONNX graphs, whose inputs are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from znni.importing import checks
from znni.importing.calls import Call, read_by
from znni.importing.operators import OPERATORS
from znni.importing.tracing import Tracer


@dataclass(frozen=True)
class NodeCall:
    """A node of a graph.

    Attributes:
        origin: its name and type.
        results: the names of its results.
        tracer: the graph, which gets its steps.
        opset: the version of the operators.
        attributes: its attributes by name.
        inputs: its inputs: ``Value``, constant arrays, or None for those that are left out.
    """

    origin: str
    results: tuple[str, ...]
    tracer: Tracer
    opset: int
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...]

    def attribute(self, name: str, default: object = None) -> Any:
        """Return an attribute; text as str."""
        value = self.attributes.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def input(self, index: int) -> Any:
        """Return an input; None if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def constant(self, index: int) -> NDArray[np.generic] | None:
        """Return an input that has to be constant; None if it is left out."""
        given = self.input(index)
        if given is not None and not isinstance(given, np.ndarray):
            self.refuse(f"computes its input {index + 1}; give it as a constant")
        return given

    def integers(self, index: int, attribute: str) -> list[int] | None:
        """Return integers that are a constant input, or an attribute in older versions."""
        given = self.constant(index)
        if given is None:
            stated = self.attribute(attribute)
            return None if stated is None else [int(number) for number in stated]
        if given.dtype.kind not in "iu" or given.ndim != 1:
            self.refuse(f"has {attribute} of {given.dtype}; give integers")
        return [int(number) for number in given]

    def call(self, *given: object, **arguments: object) -> Call:
        """Return a call of PyTorch's; what it reads is the first input unless it is given."""
        (read,) = given or (self.input(0),)
        return Call(self.origin, {"self": read} | arguments, self.results, self.tracer)

    def read(self, operator: str, *given: object, **arguments: object) -> None:
        """Read the node as an operator of PyTorch."""
        read_by(OPERATORS[operator], self.call(*given, **arguments))

    def refuse(self, why: str) -> NoReturn:
        """Raise an error about the node."""
        checks.refuse(self.origin, why)
