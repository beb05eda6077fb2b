"""Exported programs of PyTorch (``.pt2``) as graphs of steps."""

from __future__ import annotations

import io
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing import checks
from znni.importing.calls import OperatorCall, Value, flat
from znni.importing.graph import Operation, needed
from znni.importing.margins import margins
from znni.importing.norm_parts import PartOfNorm
from znni.importing.operators import COPIES, OPERATORS, read
from znni.importing.pt2_archive import ATEN, EXPORT_AGAIN, Archive, Computed, Node
from znni.importing.reading import Reading, check_local, first_maps
from znni.importing.steps import Found, Graph, Original
from znni.importing.tracing import traced
from znni.network.weights import Float32

DECOMPOSED = ("convolution", "_native_batch_norm_legit_no_training", "native_group_norm")
# What is computed from extents, by Python's own functions and those of PyTorch's numbers.
OF_OPERATOR = ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg")
NUMBERS: Mapping[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in OF_OPERATOR},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    "torch.sym_max": max,
    "torch.sym_min": min,
    "torch.sym_float": float,
}
# Operators that give parameters another shape.
SHAPED: Mapping[str, Callable[..., Any]] = {
    "unsqueeze": np.expand_dims,
    **dict.fromkeys(("view", "reshape"), np.reshape),
}
LARGEST_NUMBER = 2**62
# Operators of the network's values that are read, or that have an error of their own.
KNOWN = {*OPERATORS, *DECOMPOSED, "max_pool3d_with_indices", "sym_size"}


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


def check_operators(program: Any) -> None:
    """Check that all operators of a ``torch.export.ExportedProgram`` are known here.

    It reads the program in memory, because to save a large one takes as long as to export it.
    """
    of_input, calls = set(program.graph_signature.user_inputs), list[tuple[str, str]]()
    for node in program.graph.nodes:
        if of_input.isdisjoint(read.name for read in node.all_input_nodes):
            continue  # it computes with parameters only
        of_input.add(node.name)
        library, _, operator = getattr(node.target, "name", str)().partition("::")
        if node.op == "call_function" and library == "aten":
            path = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
            origin = checks.origin(path[-1] if path else node.name, str(node.target))
            calls.append((origin, operator.partition(".")[0].removesuffix("_")))
    for origin, operator in calls:
        check_local(origin, operator)
    for origin, operator in calls:
        if operator not in KNOWN:
            checks.unknown(origin)


def cut_or_added(program: Any) -> list[object]:
    """Return by how much a ``torch.export.ExportedProgram`` crops and pads, node by node."""
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    return [
        (node.name, [each for each in node.args if not hasattr(each, "op")])
        for node in nodes
        if str(node.target).split(".")[1:2] in (["pad"], ["constant_pad_nd"], ["slice"])
    ]


def _found(archive: Archive) -> Found:
    """Return the network of an archive, and a way to run it."""
    start, ends = archive.start(), archive.ends()
    axes = archive.input_axes()
    extents = axes[1:]
    operations = needed(archive.operations(), ends)
    for operation in operations:
        if operation.details.library == ATEN:
            check_local(operation.origin, operation.details.operator)
    maps = axes[0] or first_maps(operations, _weight)

    def read(size: Vec3) -> Graph:
        return _Reading(start, maps, size, {}).graph(operations, ends)

    graph = traced(extents, read)
    if find_spec("torch") is None:
        return Found(graph, "PyTorch, which would run it, is not installed")
    size = None if None in extents else checks.extents("the input", "extents", extents)
    run = _runner(operations, start, ends)
    return Found(graph, Original("PyTorch", run, size, margin=margins(read)))


def _weight(node: Node) -> Any:
    """Return the weights of a convolution; None if they are computed, or it is none."""
    weight = node.arguments.get("weight") if node.operator == "conv3d" else None
    return weight if isinstance(weight, np.ndarray) else None


class _Reading(Reading[Node]):
    """The reading of a program for one size of its input."""

    def read(self, operation: Operation[Node]) -> None:
        """Add the steps of a node."""
        origin, node = operation.origin, operation.details
        for name in operation.reads:
            if name not in self.values:
                checks.refuse(
                    origin, f"reads {name!r}, which nothing before it gives; {EXPORT_AGAIN}"
                )
        arguments = {name: self._known(given) for name, given in node.arguments.items()}
        if number := NUMBERS.get(f"{node.library}.{node.operator}"):
            self.values[node.results[0]] = _checked(origin, number(*arguments.values()))
            return
        if node.library != ATEN:
            checks.unknown(origin)
        call = OperatorCall(origin, arguments, node.results, self.tracer).maps_first()
        if node.operator == "sym_size":
            axis = checks.integer(origin, "dim", arguments["dim"])
            self.values[call.result] = call.extents[axis]
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
        if not any(isinstance(each, Value | PartOfNorm) for each in flat(call.arguments.values())):
            self.values[call.result] = _constant(origin, operator, arguments)
        elif operator in OPERATORS:
            found = read(operator, call)
            self.values.update((name, call.known(found, name)) for name in node.results)
        else:
            checks.unknown(origin)
        for name in operation.writes[len(node.results) :]:  # changed by the operator
            self.values[name] = self.values[call.result]

    def _known(self, given: Any) -> Any:
        """Return an argument, with what is known of a computed one."""
        if isinstance(given, list):
            return [self._known(each) for each in given]
        return self.values[given.name] if isinstance(given, Computed) else given


def _constant(origin: str, operator: str, arguments: Mapping[str, Any]) -> Any:
    """Return what an operator makes of constants only."""
    given = next(iter(arguments.values()), None)
    if isinstance(given, np.ndarray) and operator in SHAPED:
        return SHAPED[operator](*arguments.values())
    if operator not in COPIES or not arguments:
        checks.refuse(
            origin,
            "computes with parameters only; export the result as a parameter (of weight_norm and "
            "the like, by torch.nn.utils.parametrize.remove_parametrizations)",
        )
    return given


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
