"""Nodes of ONNX graphs, whose inputs are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from znni.importing.calls import OperatorCall
from znni.importing.operators import read

# PyTorch's names of attributes, where they differ.
NAMES = {
    "axis": "dim", "dilations": "dilation", "epsilon": "eps", "group": "groups",
    "keepdims": "keepdim", "kernel_shape": "kernel_size", "pads": "padding", "perm": "dims",
    "strides": "stride",
}  # fmt: skip


@dataclass(frozen=True)
class NodeCall(OperatorCall):
    """A call of an operator of ONNX.

    Its arguments by PyTorch's names are its first input and its attributes.

    Attributes:
        opset: the version of the operators.
        attributes: its attributes by name.
        inputs: its inputs: ``Value``, constant arrays, or None for those that are left out.
    """

    opset: int
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...]

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
            stated = self.attributes.get(attribute)
            return None if stated is None else [int(number) for number in stated]
        if given.dtype.kind not in "iu" or given.ndim != 1:
            self.refuse(f"has {attribute} of {given.dtype}; give integers")
        return [int(number) for number in given]

    def of(self, first: object) -> NodeCall:
        """Return a call that reads something else."""
        return replace(self, arguments={**self.arguments, "input": first})

    def maps_first(self) -> Self:
        """Return the call with its arrays as (n, f, z, y, x), if their maps are the last axis."""
        together = replace(self, arguments={**self.arguments, "inputs": self.inputs})
        found = super(NodeCall, together).maps_first()
        given = {**found.arguments}
        return replace(found, inputs=given.pop("inputs"), arguments=given)

    def read_as(self, operator: str, **arguments: object) -> object:
        """Read the call as one of an operator of PyTorch, with more arguments."""
        return read(operator, replace(self, arguments={**self.arguments, **arguments}))
