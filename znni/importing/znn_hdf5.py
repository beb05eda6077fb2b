"""Networks that ZNN trained, in the HDF5 files that its Python interface wrote.

There is one group for each group of nodes (of maps) and of edges (between nodes). The field
``group_type`` tells them apart, and edges name their ``input`` and ``output`` nodes. Filters are
stored as (in, out, z, y, x) and are true convolutions, flipped along every axis. Networks here have
cross-correlations (out, in, z, y, x). Nodes have the biases and the transfer function. ZNN's
``max_filter`` is max-pooling at every voxel, and all later layers step by its ``stride``.

The layout is that of seung-lab/znn-release, python/front_end/znetio.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from znni.core.errors import InvalidInput, option
from znni.importing import checks, operations
from znni.importing.graph import ONE_PATH, in_order
from znni.importing.graph import Operation as GraphOperation
from znni.importing.steps import Found, Layered, Nonlinearity, Operation, affine, chained
from znni.network.layers import Activation, Conv

NETWORK = "processing/znn/train/network"
FUNCTIONS: Mapping[str, Activation] = {
    "rectify_linear": "relu",
    "logistics": "sigmoid",
    "forward_logistics": "sigmoid",
}
NOT_COMPARED = "ZNN itself, which would run it, is not here"
NUMBERS = ("filters", "biases", "size", "stride")

Fields: TypeAlias = Mapping[str, Any]  # fields of one group of nodes or edges


def read_znn(path: Path) -> Found:
    """Return the network of a ZNN file.

    Raises:
        InvalidInput: the file is not from ZNN, or its network cannot be represented.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            groups = file.get(NETWORK, file)
            fields = {
                name: _fields(group)
                for name, group in groups.items()
                if isinstance(group, h5py.Group) and "group_type" in group
            }
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"cannot be read as HDF5: {error}; is the file whole? copy it again"
        ) from None
    nodes = {name: group for name, group in fields.items() if group.get("group_type") == "node"}
    edges = {name: group for name, group in fields.items() if group.get("group_type") == "edge"}
    if not nodes or not edges:
        raise InvalidInput(
            f"has no network of ZNN (groups with a group_type, in {NETWORK} or at the top); "
            f"weights for a network file need no import: give {option('weights', 'FILE')} for a run"
        )
    steps = tuple(_steps(nodes, edges))
    layers = (step.layer for step in steps if isinstance(step, Layered))
    first = next((layer for layer in layers if isinstance(layer, Conv)), None)
    if first is None:
        raise InvalidInput("there is no convolution in it; is it the right file?")
    return Found(chained(first.in_features, steps), NOT_COMPARED)


def _fields(group: Any) -> Fields:
    """Return a group's datasets: numbers as arrays, all else as text."""
    import h5py

    fields = {}
    for name, item in group.items():
        if not isinstance(item, h5py.Dataset) or name == "momentum_vol":
            continue
        if name in NUMBERS:
            fields[name] = item[()]
        elif item.size == 1:
            value = item[()]
            fields[name] = (
                value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            )
    return fields


def _steps(nodes: Mapping[str, Fields], edges: Mapping[str, Fields]) -> Iterator[Operation]:
    """Yield the steps of each edge and of the node that it leads to."""
    every = [_operation(name, edge, nodes) for name, edge in edges.items()]
    starts = [name for name, node in nodes.items() if node.get("type") == "input"]
    read = {name for operation in every for name in operation.reads}
    ends = [name for name in nodes if name not in read]
    if len(starts) != 1 or len(ends) != 1:
        raise InvalidInput(f"has inputs {starts} and outputs {ends}; {ONE_PATH}: with one of each")
    for operation in in_order(every, starts[0], ends[0]):
        yield from _edge_steps(operation.origin, operation.details)
        node = operation.writes[0]
        yield from _node_steps(node, nodes[node])


def _operation(name: str, edge: Fields, nodes: Mapping[str, Fields]) -> GraphOperation[Fields]:
    origin = checks.origin(name, str(edge.get("type")))
    for end in ("input", "output"):
        if edge.get(end) not in nodes:
            checks.refuse(
                origin, f"has {edge.get(end)!r} for its {end}, which is no node; is the file whole?"
            )
    return GraphOperation(origin, (edge["input"],), (edge["output"],), edge)


def _edge_steps(origin: str, edge: Fields) -> Iterator[Operation]:
    """Yield the step of an edge, or nothing."""
    match edge.get("type"):
        case "conv":
            filters = checks.floats(origin, "filters", edge.get("filters"))
            if filters.ndim != 5:
                checks.refuse(
                    origin, f"has filters of shape {filters.shape}; they are (in, out, z, y, x)"
                )
            size = _whole(edge.get("size"))
            if size != list(filters.shape[2:]):
                checks.refuse(
                    origin, f"has size {size} and filters of {filters.shape}; is the file whole?"
                )
            weight = np.flip(filters, axis=(2, 3, 4)).swapaxes(0, 1)
            if (stride := _whole(edge.get("stride", 1))) not in (1, [1, 1, 1]):
                checks.refuse(origin, f"has stride {stride}; ZNN's networks here have stride 1")
            yield operations.convolution(origin, weight)
        case "max_filter":
            window, stride = _whole(edge.get("size")), _whole(edge.get("stride", 1))
            if window != stride:
                checks.refuse(
                    origin, f"pools {window} with stride {stride}; give a stride that is the window"
                )
            yield operations.max_pooling(origin, window, stride=stride)
        case "max_pool":
            yield operations.max_pooling(origin, _whole(edge.get("size")), stride=None)
        case "dropout" | "dummy":
            return
        case _:
            checks.unknown(origin)


def _node_steps(name: str, node: Fields) -> Iterator[Operation]:
    """Yield what a node does to the sum of its inputs: a bias, then a function."""
    origin = checks.origin(name, str(node.get("type")))
    match node.get("type"):
        case "sum":
            return
        case "transfer":
            biases = checks.floats(origin, "biases", node.get("biases"))
            if biases.ndim != 1:
                checks.refuse(origin, f"has biases of shape {biases.shape}; they are (maps,)")
            yield affine(origin, np.ones_like(biases), biases)
            yield from _function(origin, len(biases), node)
        case _:
            checks.unknown(origin)


def _function(origin: str, maps: int, node: Fields) -> Iterator[Operation]:
    """Yield a transfer function: ``a * tanh(b * x)``, ``a * x + b``, or one without arguments."""
    match node.get("function"):
        case "tanh":
            height, slope = _arguments(origin, node, (1.0, 1.0))
            yield _scaled(origin, maps, slope)
            yield Nonlinearity(origin, "tanh")
            yield _scaled(origin, maps, height)
        case "linear":
            slope, intercept = _arguments(origin, node, (1.0, 0.0))
            yield _scaled(origin, maps, slope, intercept)
        case "rectify_linear" | "logistics" | "forward_logistics" as function:
            yield Nonlinearity(origin, FUNCTIONS[function])
        case other:
            checks.refuse(origin, f"has the function {other!r}; {checks.LAYERS}")


def _scaled(origin: str, maps: int, factor: float, shift: float = 0.0) -> Layered:
    return affine(origin, np.full(maps, factor), np.full(maps, shift))


def _arguments(origin: str, node: Fields, defaults: tuple[float, float]) -> tuple[float, float]:
    """Return two numbers, separated by a comma; missing ones get defaults."""
    text = str(node.get("function_args", ""))
    try:
        given = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        given = [float("nan")]
    if len(given) > 2 or not np.isfinite(given).all():
        checks.refuse(origin, f"has arguments {text!r} of its function; they are two numbers")
    first, second = (*given, *defaults[len(given) :])
    return first, second


def _whole(value: object) -> object:
    """Return an array of integers as a Python list, so that messages show it so."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
