"""Exported programs of PyTorch (``.pt2``) as graphs of steps."""

from __future__ import annotations

import io
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing import checks
from znni.importing.aten_operators import COPIES, OPERATORS, Call
from znni.importing.calls import Value
from znni.importing.graph import Operation, needed
from znni.importing.margins import margins
from znni.importing.pt2_archive import ATEN, EXPORT_AGAIN, Archive, Computed, Node
from znni.importing.steps import Found, Graph, Original
from znni.importing.tracing import Tracer, traced
from znni.network.node import INPUT
from znni.network.weights import Float32

DECOMPOSED = ("convolution", "_native_batch_norm_legit_no_training", "native_group_norm")
# What looks at whole windows, and what to do about it.
WINDOWED: Mapping[str, str] = {
    "layer_norm": checks.NORMS,
    "matmul": checks.ATTENTION,
    "bmm": checks.ATTENTION,
    "einsum": checks.ATTENTION,
    "scaled_dot_product_attention": checks.ATTENTION,
}
# What is computed from extents, by Python's own functions and those of PyTorch's numbers.
NUMBERS: Mapping[str, Callable[..., Any]] = {
    "_operator.add": operator.add,
    "_operator.sub": operator.sub,
    "_operator.mul": operator.mul,
    "_operator.floordiv": operator.floordiv,
    "_operator.truediv": operator.truediv,
    "_operator.mod": operator.mod,
    "_operator.neg": operator.neg,
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch.sym_float": float,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.trunc": math.trunc,
}
LARGEST_NUMBER = 2**62


def read_exported_program(file: Path | io.BytesIO) -> Found:
    """Return the network of a ``.pt2`` file.

    Raises:
        InvalidInput: the file is no exported program, or has an operator that cannot be
            represented.
    """
    try:
        with ZipFile(file) as archive:
            return _found(Archive(archive))
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        problem = f"cannot be read as an exported program: {error}"
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"is not laid out as an exported program: {type(error).__name__} {error}"
    raise InvalidInput(f"{problem}; is the file whole? {EXPORT_AGAIN}")


def of_live_program(program: Any) -> Found:
    """Return the network of a ``torch.export.ExportedProgram``."""
    import torch

    saved = io.BytesIO()
    torch.export.save(program, saved)
    return read_exported_program(saved)


def _found(archive: Archive) -> Found:
    """Return the network of an archive, and a way to run it."""
    start, ends = archive.start(), archive.ends()
    axes = archive.input_axes()
    extents = axes[1:]
    operations = needed(archive.operations(), ends)
    for operation in operations:
        _check_local(operation)
    maps = axes[0] or _first_maps(operations)

    def read(size: Vec3) -> Graph:
        return _Reading(start, maps, size).graph(operations, ends)

    graph = traced(extents, read)
    if find_spec("torch") is None:
        return Found(graph, "PyTorch, which would run it, is not installed")
    size = None if None in extents else checks.extents("the input", "extents", extents)
    run = _runner(operations, start, ends)
    return Found(graph, Original("PyTorch", run, size, margin=margins(read)))


def _check_local(operation: Operation[Node]) -> None:
    """Refuse an operator that computes a voxel from all of its input."""
    node = operation.details
    remedy = WINDOWED.get(node.operator) if node.library == ATEN else None
    if remedy:
        checks.refuse(operation.origin, f"{checks.WINDOWS}; {remedy}, {checks.AS_IT_IS}")


def _first_maps(operations: Sequence[Operation[Node]]) -> int:
    """Return the maps that the first convolution takes."""
    for operation in operations:
        weight = operation.details.arguments.get("weight")
        if operation.details.operator == "conv3d" and isinstance(weight, np.ndarray):
            return int(weight.shape[1])
    raise InvalidInput("there is no 3D convolution in it; give a network that has one")


class _Reading:
    """The reading of a program for one size of its input."""

    def __init__(self, start: str, maps: int, size: Vec3) -> None:
        self._tracer = Tracer(maps, size)
        self._values: dict[str, Any] = {start: Value(INPUT)}  # arrays and numbers

    def graph(self, operations: Sequence[Operation[Node]], ends: Sequence[str]) -> Graph:
        """Return the graph of steps."""
        for operation in operations:
            self._read(operation)
        outputs = [self._values.get(end) for end in ends]
        named = [value.name for value in outputs if isinstance(value, Value)]
        if len(named) != len(ends):
            raise InvalidInput(f"has outputs {list(ends)}, which are no arrays; export it again")
        return self._tracer.graph(named)

    def _read(self, operation: Operation[Node]) -> None:
        """Read one operator."""
        origin, node = operation.origin, operation.details
        for name in operation.reads:
            if name not in self._values:
                checks.refuse(
                    origin, f"reads {name!r}, which nothing before it gives; {EXPORT_AGAIN}"
                )
        arguments = {name: self._known(given) for name, given in node.arguments.items()}
        if number := NUMBERS.get(f"{node.library}.{node.operator}"):
            self._values[node.results[0]] = _checked(origin, number(*arguments.values()))
            return
        if node.library != ATEN:
            checks.unknown(origin)
        call = Call(origin, node.results, self._tracer, arguments)
        if node.operator == "sym_size":
            held = self._tracer.values[call.read]
            axes = (1, held.maps, *held.size)
            self._values[call.result] = axes[checks.integer(origin, "dim", arguments["dim"])]
            return
        if node.operator in DECOMPOSED:
            checks.refuse(origin, "is a decomposed operator; export without run_decompositions()")
        if node.operator == "max_pool3d_with_indices":
            checks.refuse(
                origin,
                "returns indices, or is a decomposed operator; give it return_indices=False, and "
                "export without run_decompositions()",
            )
        operator = node.operator.removesuffix("_")
        if not any(isinstance(given, Value) for given in _flat(arguments.values())):
            self._values[call.result] = _constant(origin, operator, arguments)
        elif reader := OPERATORS.get(operator):
            reader(call)
            self._values.update((name, Value(name)) for name in node.results)
        else:
            checks.unknown(origin)
        for name in operation.writes[len(node.results) :]:  # changed by the operator
            self._values[name] = self._values[call.result]

    def _known(self, given: Any) -> Any:
        """Return an argument, with what is known of a computed one."""
        if isinstance(given, list):
            return [self._known(each) for each in given]
        return self._values[given.name] if isinstance(given, Computed) else given


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield arguments, and the members of those that are lists."""
    for argument in arguments:
        yield from argument if isinstance(argument, list) else [argument]


def _constant(origin: str, operator: str, arguments: Mapping[str, Any]) -> Any:
    """Return what an operator makes of constants only."""
    if operator not in COPIES or not arguments:
        checks.refuse(
            origin,
            "computes with parameters only; export the result as a parameter (of weight_norm and "
            "the like, by torch.nn.utils.parametrize.remove_parametrizations)",
        )
    return next(iter(arguments.values()))


def _checked(origin: str, number: Any) -> Any:
    """Return a number that was computed from extents, which is not too large."""
    if not isinstance(number, int | float) or not abs(number) <= LARGEST_NUMBER:
        checks.refuse(origin, f"computes {number!r} from extents; export it again")
    return number


def _runner(
    operations: Sequence[Operation[Node]], start: str, ends: Sequence[str]
) -> Callable[[Float32], Float32]:
    """Return a function by which PyTorch runs operators in order, with their own arguments."""
    reads = Counter(name for operation in operations for name in operation.reads)
    reads.update(ends)

    def run(x: Float32) -> Float32:
        import torch

        left = reads.copy()
        values: dict[str, Any] = {start: torch.from_numpy(x.copy())[None]}
        with torch.inference_mode():
            for operation in operations:
                node = operation.details
                given = {name: _as_torch(one, values) for name, one in node.arguments.items()}
                if number := NUMBERS.get(f"{node.library}.{node.operator}"):
                    made = number(*given.values())
                else:
                    made = getattr(getattr(torch.ops.aten, node.operator), node.overload)(**given)
                several = made if isinstance(made, list | tuple) else [made]
                values.update(zip(node.results, several, strict=True))
                left.subtract(operation.reads)
                for name in {*operation.reads, *node.results}:
                    if not left[name]:
                        del values[name]
            outputs = torch.cat([values[end] for end in ends], 1)
        return np.asarray(outputs[0].numpy(), np.float32)

    return run


def _as_torch(argument: Any, values: Mapping[str, Any]) -> Any:
    """Return an operator's argument, with arrays as float32 tensors."""
    import torch

    if isinstance(argument, list):
        return [_as_torch(each, values) for each in argument]
    if isinstance(argument, Computed):
        return values[argument.name]
    if not isinstance(argument, np.ndarray):
        return argument
    return torch.from_numpy(np.array(argument, np.float32))
