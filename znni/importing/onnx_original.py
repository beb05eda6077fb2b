"""ONNX models, computed by onnxruntime or by onnx."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from znni.core.shapes import Vec3
from znni.importing.steps import Original
from znni.network.weights import Float32

# onnx's own evaluator is plain NumPy. It does this many operations in about a minute.
REFERENCE_FLOPS = 5e9
NORMS = ("InstanceNormalization", "GroupNormalization")
NORM_INPUTS = 3  # values, factors and shifts
LARGEST_MESSAGE = 2**31 - 2**20  # bytes of the largest model that fits into one message
AXES_ARE_INPUTS = 18  # the first opset in which ReduceMean takes its axes as an input


def original(path: Path, model: Any, start: str, size: Vec3 | None) -> Original:
    """Return a model that onnxruntime runs, or onnx's own evaluator if onnxruntime cannot."""
    precise = _with_precise_norms(model)
    if precise and (session := _session(precise)):
        return Original("onnxruntime, with norms in float64", _runner(session, start), size)
    if session := _session(path):
        return Original("onnxruntime", _runner(session, start), size)
    from onnx.reference import ReferenceEvaluator

    return Original("onnx", _runner(ReferenceEvaluator(str(path)), start), size, REFERENCE_FLOPS)


def _session(model: Path | bytes) -> Any:
    """Return a session of onnxruntime; None if it is absent or cannot run the model."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so they need no printing
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime has errors of its own, of all kinds
        return None


def _with_precise_norms(model: Any) -> bytes | None:
    """Return a model whose norms are computed in float64, or None if it has no norms.

    onnxruntime adds up all values of a norm in float32, one after the other. In windows of usual
    size, that alone can change outputs by a thousandth.
    """
    nodes = model.graph.node
    norms = [node for node in nodes if node.op_type in NORMS]
    if not norms or _bytes_of_weights(model) > LARGEST_MESSAGE:
        return None
    if any(len(norm.input) != NORM_INPUTS or len(norm.output) != 1 for norm in norms):
        return None  # onnxruntime says what is wrong
    opset = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    precise = deepcopy(model)
    del precise.graph.node[:]
    for node in nodes:
        precise.graph.node.extend(_precise(node, opset) if node.op_type in NORMS else [node])
    serialized: bytes = precise.SerializeToString()
    return serialized


def _bytes_of_weights(model: Any) -> int:
    """Return the bytes of a model's weights; a whole model of over 2 GiB cannot be measured."""
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


def _precise(norm: Any, opset: int) -> Iterator[Any]:
    """Yield the nodes that compute a norm in float64."""
    from onnx import TensorProto, helper, numpy_helper

    def at(part: str) -> str:
        return f"{norm.output[0]}/in float64/{part}"

    def constant(part: str, value: object, kind: type) -> Any:
        tensor = numpy_helper.from_array(np.array(value, kind))
        return helper.make_node("Constant", [], [at(part)], value=tensor)

    def node(kind: str, reads: list[str], part: str, **attributes: Any) -> Any:
        return helper.make_node(kind, reads, [at(part)], **attributes)

    def mean(read: str, part: str) -> Any:
        if opset >= AXES_ARE_INPUTS:
            return node("ReduceMean", [at(read), at("last")], part)
        return node("ReduceMean", [at(read)], part, axes=[2])

    x, scale, shift = norm.input
    attributes = {each.name: helper.get_attribute_value(each) for each in norm.attribute}
    yield constant("eps", attributes.get("epsilon", 1e-5), np.float64)
    yield constant("last", [2], np.int64)
    # In a shape, 0 keeps an extent, and -1 takes all remaining values.
    yield constant("groups", [0, attributes.get("num_groups", 0), -1], np.int64)
    yield constant("keep", [0], np.int64)
    yield constant("rest", [-1], np.int64)
    yield constant("column", [-1, 1], np.int64)
    yield node("Shape", [x], "shape")
    yield node("Reshape", [x, at("groups")], "flat")
    yield node("Cast", [at("flat")], "wide", to=TensorProto.DOUBLE)
    yield mean("wide", "mean")
    yield node("Sub", [at("wide"), at("mean")], "centred")
    yield node("Mul", [at("centred"), at("centred")], "squares")
    yield mean("squares", "variance")
    yield node("Add", [at("variance"), at("eps")], "positive")
    yield node("Sqrt", [at("positive")], "deviation")
    yield node("Div", [at("centred"), at("deviation")], "unit")
    # A norm has a factor and a shift for each map, or for each group.
    yield node("Shape", [scale], "number")
    yield node("Concat", [at("keep"), at("number"), at("rest")], "parts", axis=0)
    yield node("Reshape", [at("unit"), at("parts")], "parted")
    yield node("Cast", [scale], "scale", to=TensorProto.DOUBLE)
    yield node("Reshape", [at("scale"), at("column")], "factors")
    yield node("Mul", [at("parted"), at("factors")], "scaled")
    yield node("Cast", [shift], "shift", to=TensorProto.DOUBLE)
    yield node("Reshape", [at("shift"), at("column")], "shifts")
    yield node("Add", [at("scaled"), at("shifts")], "shifted")
    yield node("Cast", [at("shifted")], "narrow", to=TensorProto.FLOAT)
    yield helper.make_node("Reshape", [at("narrow"), at("shape")], list(norm.output))


def _runner(session: Any, start: str) -> Callable[[Float32], Float32]:
    def run(x: Float32) -> Float32:
        # onnx's sigmoid computes both of its branches everywhere; the unused one may be infinite.
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = session.run(None, {start: x[np.newaxis]})
        return np.concatenate([np.asarray(output[0], np.float32) for output in outputs])

    return run
