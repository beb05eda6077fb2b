"""ONNX graphs as steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing import checks
from znni.importing.graph import Operation, in_order
from znni.importing.steps import Found, Original, Step
from znni.network.layers import Activation
from znni.network.weights import Float32

INSTALL = "pip install 'znni[onnx]'"
# Operations that onnx's own evaluator, which is plain NumPy, does in about a minute.
REFERENCE_FLOPS = 5e9
PLAIN: Mapping[str, Activation] = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh"}


def read_onnx(path: Path) -> Found:
    """Return the network of an ``.onnx`` file.

    Raises:
        InvalidInput: onnx is not installed, the file is no model, or it has a node that cannot be
            represented.
    """
    if find_spec("onnx") is None:
        raise InvalidInput(f"needs the library onnx, which is not installed: {INSTALL}")
    import onnx

    try:
        model = onnx.load(path)
        onnx.checker.check_model(str(path))
        graph = _Graph(model)
    except InvalidInput:
        raise
    except Exception as error:  # protobuf, the checker and onnx have errors of their own
        problem = str(error).strip().split("\n")[0].rstrip(".")
        raise InvalidInput(
            f"cannot be read as an ONNX model: {problem}; is it whole (with any file of weights "
            f"beside it)? export it again"
        ) from None
    start, end = graph.ends()
    chain = in_order(graph.operations(), start, end)
    steps = tuple(
        step for operation in chain for step in _steps(operation.origin, operation.details)
    )
    return Found(steps, _original(path, start, graph.input_size()))


class _Node:
    """A node with its attributes and parameters as Python values and arrays."""

    def __init__(self, node: Any, constants: Mapping[str, NDArray[np.generic]], opset: int) -> None:
        import onnx

        self.kind = (
            str(node.op_type) if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        )
        self.opset = opset
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        self._inputs = [constants.get(name) for name in node.input]

    def attribute(self, name: str, default: object = None) -> Any:
        """Return an attribute; text as str."""
        value = self.attributes.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def parameter(self, index: int) -> NDArray[np.generic] | None:
        """Return a constant input; None if it is left out."""
        return self._inputs[index] if index < len(self._inputs) else None


class _Graph:
    """The parts of a model that a network needs."""

    def __init__(self, model: Any) -> None:
        import onnx

        self._graph = model.graph
        self._opset = max(
            (o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1
        )
        to_array = onnx.numpy_helper.to_array
        self._constants: dict[str, NDArray[np.generic]] = {
            tensor.name: to_array(tensor) for tensor in self._graph.initializer
        }
        for node in self._graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self._constants[node.output[0]] = to_array(node.attribute[0].t)

    def ends(self) -> tuple[str, str]:
        """Return the names of the only input and the only output."""
        inputs = [value.name for value in self._inputs()]
        outputs = [value.name for value in self._graph.output]
        if len(inputs) != 1 or len(outputs) != 1:
            raise InvalidInput(
                f"has inputs {inputs} and outputs {outputs}; {checks.CHAIN}: export a network "
                f"with one of each"
            )
        return inputs[0], outputs[0]

    def operations(self) -> list[Operation[_Node]]:
        """Return all nodes except constants."""
        nodes = [node for node in self._graph.node if node.output[0] not in self._constants]
        return [
            Operation(
                checks.origin(node.name or node.output[0], node.op_type),
                tuple(name for name in node.input if name and name not in self._constants),
                tuple(filter(None, node.output)),
                _Node(node, self._constants, self._opset),
            )
            for node in nodes
        ]

    def input_size(self) -> Vec3 | None:
        """Return the extents that the graph requires; None if they are free."""
        axes = self._inputs()[0].type.tensor_type.shape.dim
        if len(axes) not in (0, 5):
            raise InvalidInput(f"takes an input of {len(axes)} axes; export it for (1, f, z, y, x)")
        sizes = [axis.dim_value for axis in axes[2:]]
        return Vec3(*sizes) if sizes and min(sizes) > 0 else None

    def _inputs(self) -> list[Any]:
        return [value for value in self._graph.input if value.name not in self._constants]


def _steps(origin: str, node: _Node) -> Iterator[Step]:
    """Yield one node as a step, or nothing if it does nothing."""
    match node.kind:
        case "Conv":
            kernels = node.parameter(1)
            stated = node.attribute("kernel_shape")
            if kernels is not None and stated not in (None, list(kernels.shape[2:])):
                checks.refuse(origin, f"has kernel_shape {stated} and weights {kernels.shape}")
            yield checks.convolution(
                origin,
                kernels,
                node.parameter(2),
                stride=node.attribute("strides", 1),
                padding=_padding(node),
                dilation=node.attribute("dilations", 1),
                groups=node.attribute("group", 1),
            )
        case "MaxPool":
            yield checks.max_pooling(
                origin,
                node.attribute("kernel_shape"),
                stride=node.attribute("strides", 1),
                padding=_padding(node),
                dilation=node.attribute("dilations", 1),
                ceil_mode=node.attribute("ceil_mode", 0),
            )
        case "BatchNormalization":
            if node.attribute("training_mode", 0) or not node.attribute("is_test", 1):
                checks.refuse(origin, "is in training mode; export the network in evaluation mode")
            scale, shift, mean, variance = map(node.parameter, range(1, 5))
            epsilon = node.attribute("epsilon", 1e-5)
            yield checks.batch_norm(origin, scale, shift, mean, variance, epsilon)
        case "Softmax" if node.opset >= 13:
            yield checks.softmax(origin, node.attribute("axis", -1))
        case "Softmax":
            checks.refuse(
                origin,
                f"is of opset {node.opset}, in which it runs over maps and voxels together; "
                f"export with opset 13 or newer",
            )
        case "LeakyRelu":
            yield checks.nonlinearity(origin, "leaky_relu", node.attribute("alpha", 0.01))
        case "Elu":
            yield checks.nonlinearity(origin, "elu", node.attribute("alpha", 1.0))
        case "Relu" | "Sigmoid" | "Tanh":
            yield checks.nonlinearity(origin, PLAIN[node.kind])
        case "Dropout":
            training = node.parameter(2)
            if (training is not None and training.any()) or not node.attribute("is_test", 1):
                checks.refuse(origin, "is in training mode; export the network in evaluation mode")
        case "Identity":
            return
        case _:
            checks.unknown(origin)


def _padding(node: _Node) -> object:
    """Return a node's padding in the form that ``checks`` takes."""
    automatic = node.attribute("auto_pad", "NOTSET")
    if automatic not in ("NOTSET", "VALID"):
        return automatic
    pads = node.attribute("pads", [])
    return pads if any(pads) else 0


def _original(path: Path, start: str, size: Vec3 | None) -> Original:
    """Return the model in onnxruntime, or in onnx's own evaluator if onnxruntime cannot run it."""
    session = _session(path)
    if session is not None:
        return Original("onnxruntime", _runner(session, start), size)
    from onnx.reference import ReferenceEvaluator

    return Original("onnx", _runner(ReferenceEvaluator(str(path)), start), size, REFERENCE_FLOPS)


def _session(path: Path) -> Any:
    """Return the model in onnxruntime; None if that is absent or older than the model."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so they need no printing
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime has errors of its own, of all kinds
        return None


def _runner(session: Any, start: str) -> Callable[[Float32], Float32]:
    def run(x: Float32) -> Float32:
        # onnx's sigmoid computes both of its branches everywhere; the unused one may be infinite.
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(session.run(None, {start: x[np.newaxis]})[0][0], np.float32)

    return run
