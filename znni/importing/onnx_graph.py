"""ONNX graphs as graphs of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, MissingLibrary, first_line
from znni.core.shapes import Vec3
from znni.importing import checks
from znni.importing.calls import Value
from znni.importing.graph import Operation, needed
from znni.importing.margins import margins
from znni.importing.onnx_nodes import NAMES, NodeCall
from znni.importing.onnx_operators import OPERATORS_OF_ONNX
from znni.importing.onnx_original import original
from znni.importing.reading import Reading, check_local, first_maps
from znni.importing.steps import Found, Graph
from znni.importing.tracing import traced

INSTALL = "pip install 'znni[onnx]'"
# What may be computed from constants and extents, by onnx's own evaluator.
# fmt: off
COMPUTED = frozenset((
    "Abs", "Add", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal",
    "Expand", "Floor", "Gather", "Greater", "Identity", "Less", "Max", "Min", "Mod", "Mul", "Neg",
    "Not", "Range", "Reshape", "Round", "Shape", "Size", "Slice", "Split", "Sqrt", "Squeeze",
    "Sub", "Transpose", "Unsqueeze", "Where",
))
# fmt: on
LARGEST_COMPUTED = 2**26  # values of such an array


def read_onnx(path: Path) -> Found:
    """Return the network of an ``.onnx`` file.

    Raises:
        InvalidInput: onnx is not installed, the file is no model, or it has a node that cannot be
            represented.
    """
    if find_spec("onnx") is None:
        raise MissingLibrary(f"needs the library onnx, which is not installed: {INSTALL}")
    import onnx

    try:
        model = onnx.load(path)
        onnx.checker.check_model(str(path))
        held = _Model(model)
    except InvalidInput:
        raise
    except Exception as error:  # protobuf, the checker and onnx have errors of their own
        raise InvalidInput(
            f"cannot be read as an ONNX model: {first_line(error)}; is it whole (with any file of "
            f"weights beside it)? export it again"
        ) from None
    start, ends, axes = held.start(), held.ends(), held.input_axes()
    operations = needed(held.operations(), ends)

    def read(size: Vec3) -> Graph:
        for operation in operations:
            known = [name in held.constants for name in operation.reads]
            by_matrix = operation.details.op_type == "MatMul" and any(known)
            if not all(known) and not by_matrix:
                check_local(operation.origin, operation.details.op_type)
        maps = axes[0] or first_maps(operations, held.weight)
        return _Reading(held, maps, size).graph(operations, ends)

    graph = traced(axes[1:], read)
    size = None if None in axes[1:] else checks.extents("the input", "extents", axes[1:])
    return Found(graph, replace(original(path, model, start, size), margin=margins(read)))


class _Model:
    """The parts of a model that a network needs."""

    def __init__(self, model: Any) -> None:
        import onnx

        self._graph = model.graph
        self.opset = max(
            (o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1
        )
        self.constants: dict[str, NDArray[np.generic]] = {
            tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in self._graph.initializer
        }

    def start(self) -> str:
        """Return the name of the only input."""
        inputs = [value.name for value in self._inputs()]
        if len(inputs) != 1:
            raise InvalidInput(f"has inputs {inputs}; export a network with one")
        return str(inputs[0])

    def ends(self) -> list[str]:
        """Return the names of the outputs."""
        return [value.name for value in self._graph.output]

    def operations(self) -> list[Operation[Any]]:
        """Return all nodes."""
        return [
            Operation(
                checks.origin(node.name or node.output[0], node.op_type),
                tuple(name for name in node.input if name),
                tuple(filter(None, node.output)),
                node,
            )
            for node in self._graph.node
        ]

    def input_axes(self) -> list[int | None]:
        """Return the maps and extents of the input that the graph requires; None if free."""
        axes = self._inputs()[0].type.tensor_type.shape.dim
        if len(axes) not in (0, 5):
            raise InvalidInput(f"takes an input of {len(axes)} axes; export it for (1, f, z, y, x)")
        sizes = [axis.dim_value for axis in axes[1:]] or [0] * 4
        return [size if size > 0 else None for size in sizes]

    def weight(self, node: Any) -> NDArray[np.generic] | None:
        """Return the weights of a convolution; None if they are computed, or it is none."""
        return self.constants.get(node.input[1]) if node.op_type == "Conv" else None

    def _inputs(self) -> list[Any]:
        return [value for value in self._graph.input if value.name not in self.constants]


class _Reading(Reading[Any]):
    """The reading of a model for one size of its input."""

    def __init__(self, model: _Model, maps: int, size: Vec3) -> None:
        super().__init__(model.start(), maps, size, {"": None, **model.constants})
        self._opset = model.opset

    def read(self, operation: Operation[Any]) -> None:
        """Add the steps of a node."""
        import onnx

        origin, node = operation.origin, operation.details
        kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        attributes = {a.name: _value(onnx.helper.get_attribute_value(a)) for a in node.attribute}
        given = {NAMES.get(name, name): value for name, value in attributes.items()}
        inputs = tuple(self.values[name] for name in node.input)
        results = tuple(filter(None, node.output))
        arguments = {"input": inputs[0] if inputs else None} | given
        call = NodeCall(origin, arguments, results, self.tracer, self._opset, attributes, inputs)
        call = call.maps_first()
        if kind == "Shape" and isinstance(call.input(0), Value):
            axes = np.array(call.extents, np.int64)
            self.values[results[0]] = axes[
                call.attributes.get("start", 0) : call.attributes.get("end")
            ]
        elif kind in COMPUTED and all(
            given is None or isinstance(given, np.ndarray) for given in inputs
        ):
            self.values.update(zip(node.output, self._computed(origin, node, inputs), strict=True))
        elif (reader := OPERATORS_OF_ONNX.get(kind)) is None:
            checks.unknown(origin)
        elif len(results) > 1 and kind != "Split":
            checks.refuse(
                origin,
                f"gives {len(results)} results; here each layer gives one: export the network "
                f"without the others",
            )
        else:
            found = reader(call)
            self.values.update((name, call.known(found, name)) for name in results)

    def _computed(self, origin: str, node: Any, inputs: Sequence[Any]) -> list[NDArray[np.generic]]:
        """Return what a node computes from constants."""
        from onnx.reference import ReferenceEvaluator

        if _made_size(node.op_type, inputs) > LARGEST_COMPUTED:
            checks.refuse(origin, "computes a large constant; export with constant folding")
        named = {name: given for name, given in zip(node.input, inputs, strict=True) if name}
        try:
            with np.errstate(all="ignore"):
                evaluator = ReferenceEvaluator(node, opsets={"": self._opset})
                return [np.asarray(made) for made in evaluator.run(None, named)]
        except Exception as error:  # onnx's evaluator raises any kind
            checks.refuse(origin, f"cannot be computed: {first_line(error)}; export it again")


def _value(attribute: Any) -> Any:
    """Return an attribute's value; text as str."""
    return attribute.decode(errors="replace") if isinstance(attribute, bytes) else attribute


def _made_size(kind: str, inputs: Sequence[NDArray[np.generic] | None]) -> float:
    """Return at least the number of values that a node makes from its inputs."""
    given = [np.asarray(each) for each in inputs if each is not None]
    numbers = [array.astype(np.float64).reshape(-1) for array in given if array.size < 8]
    if kind == "Range" and len(numbers) == 3:
        start, stop, step = (float(each[0]) if each.size else 0.0 for each in numbers)
        return abs(stop - start) / abs(step) if step else 0.0
    if kind in ("ConstantOfShape", "Expand"):
        return math.prod(numbers[-1].clip(1)) * max(given[0].size, 1) if numbers else math.inf
    try:
        return math.prod(np.broadcast_shapes(*(array.shape for array in given)))
    except ValueError:
        return math.prod(array.size for array in given)
