"""The archive of an exported program of PyTorch (``.pt2``), read without PyTorch.

``torch.export.load`` may unpickle and evaluate parts of such a file. But the graph is JSON and the
weights are plain bytes, so both are read directly here. Schema version 8 is supported, which
PyTorch 2.13 writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.importing import checks
from znni.importing.graph import Operation

SCHEMA = 8  # major version of the graph's JSON
LARGEST_JSON = 2**26  # bytes of a graph: a thousand layers take a few MiB
EXPORT_AGAIN = "export it again with a recent PyTorch (torch.export.save; that of 2.13 is tested)"
# PyTorch's numbers of the types that NumPy has, too.
TYPES: Mapping[int, str] = {5: "<i8", 6: "<f2", 7: "<f4", 8: "<f8"}
ATEN = "torch.ops.aten"
SYMBOLIC = ("as_sym_int", "as_sym_float", "as_sym_bool")


@dataclass(frozen=True)
class Node:
    """An operator: its library, name and overload, and its arguments by name.

    Arguments are Python values, arrays, a ``Computed`` for a value of the graph, or lists of these.
    """

    library: str
    operator: str
    overload: str
    arguments: Mapping[str, Any]
    results: tuple[str, ...]

    @property
    def changes_input(self) -> bool:
        """True if it writes its result into the value that it reads."""
        return self.library == ATEN and self.operator.endswith("_")


@dataclass(frozen=True)
class Computed:
    """A value of the graph or its input, by name: an array or a number."""

    name: str


class Archive:
    """The parts of a ``.pt2`` archive that a network needs."""

    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        self._root = archive.namelist()[0].split("/")[0]
        if "archive_format" not in {name.split("/")[-1] for name in archive.namelist()}:
            raise InvalidInput(f"is no exported program of a version known here; {EXPORT_AGAIN}")
        content = self._json("models/model.json")
        if content["schema_version"]["major"] != SCHEMA:
            raise InvalidInput(
                f"has version {content['schema_version']['major']} of exported programs, and "
                f"{SCHEMA} is read here; {EXPORT_AGAIN}"
            )
        self._graph = content["graph_module"]["graph"]
        self._signature = content["graph_module"]["signature"]

    def operations(self) -> list[Operation[Node]]:
        """Return the graph's nodes, with parameters and buffers as arrays."""
        constants = self._constants()
        return [_operation(node, constants) for node in self._graph["nodes"]]

    def start(self) -> str:
        """Return the name of the graph's only input."""
        inputs = [spec["user_input"]["arg"] for spec in self._inputs("user_input")]
        if len(inputs) != 1:
            raise InvalidInput(f"has {len(inputs)} inputs; export a network with one")
        return str(inputs[0]["as_tensor"]["name"])

    def ends(self) -> list[str]:
        """Return the names of the graph's outputs."""
        specs = self._signature["output_specs"]
        outputs = [spec["user_output"]["arg"] for spec in specs if "user_output" in spec]
        if not outputs or not all("as_tensor" in output for output in outputs):
            raise InvalidInput("has outputs that are no arrays; export it with arrays only")
        return [str(output["as_tensor"]["name"]) for output in outputs]

    def _inputs(self, kind: str) -> list[Any]:
        return [spec for spec in self._signature["input_specs"] if kind in spec]

    def input_axes(self) -> list[int | None]:
        """Return the maps and extents that the program was exported for; None if they are free."""
        sizes = self._graph["tensor_values"][self.start()]["sizes"]
        if len(sizes) != 5:
            raise InvalidInput(
                f"takes an input of {len(sizes)} axes; export it for (1, f, z, y, x)"
            )
        return [
            checks.count("the input", "extents", size["as_int"]) if "as_int" in size else None
            for size in sizes[1:]
        ]

    def _constants(self) -> dict[str, NDArray[np.generic]]:
        """Return parameters and buffers by their names in the graph."""
        weights = self._json("data/weights/model_weights_config.json")["config"]
        others = self._json("data/constants/model_constants_config.json")["config"]
        constants = {}
        for kind in ("parameter", "buffer", "tensor_constant"):
            for spec in self._inputs(kind):
                name = spec[kind][f"{kind}_name"]
                folder, config = ("weights", weights) if name in weights else ("constants", others)
                constants[spec[kind]["arg"]["name"]] = self._array(folder, config[name])
        return constants

    def _array(self, folder: str, entry: Mapping[str, Any]) -> NDArray[np.generic]:
        meta = entry["tensor_meta"]
        if entry["use_pickle"] or meta["dtype"] not in TYPES:
            raise InvalidInput("has weights that are not plain float32; export it in float32")
        data = self._bytes(f"data/{folder}/{entry['path_name']}")
        dtype = np.dtype(TYPES[meta["dtype"]])
        shape = tuple(size["as_int"] for size in meta["sizes"])
        strides = tuple(stride["as_int"] * dtype.itemsize for stride in meta["strides"])
        offset = meta["storage_offset"]["as_int"] * dtype.itemsize
        if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
            raise ValueError(f"shape {shape} with strides {strides}")
        return np.ndarray(shape, dtype, data, offset, strides)  # raises if they exceed the data

    def _json(self, name: str) -> Any:
        if self._archive.getinfo(f"{self._root}/{name}").file_size > LARGEST_JSON:
            raise InvalidInput(
                f"has a description of more than {LARGEST_JSON} bytes; {EXPORT_AGAIN}"
            )
        try:
            return json.loads(self._bytes(name))
        except RecursionError:
            raise ValueError(f"{name} is nested too deeply") from None

    def _bytes(self, name: str) -> bytes:
        full = f"{self._root}/{name}"
        if self._archive.getinfo(full).compress_type != ZIP_STORED:  # torch.export never compresses
            raise ValueError(f"{name} is compressed")
        return self._archive.read(full)


def _operation(
    node: Mapping[str, Any], constants: Mapping[str, NDArray[np.generic]]
) -> Operation[Node]:
    """Return a node of the JSON, with parameters in place of their names."""
    target = str(node["target"])
    aten = target.startswith(f"{ATEN}.")
    library, _, rest = target.removeprefix(f"{ATEN}.").rpartition(".")
    operator, overload = (library, rest) if aten else (rest, "")
    origin = checks.origin(_path(node), target.removeprefix("torch.ops."))
    arguments = {
        argument["name"]: _argument(argument["arg"], constants) for argument in node["inputs"]
    }
    results = tuple(name for output in node["outputs"] for name in _names(output))
    made = Node(ATEN if aten else library, operator, overload, arguments, results)
    reads = [
        value.name
        for argument in arguments.values()
        for value in (argument if isinstance(argument, list) else [argument])
        if isinstance(value, Computed)
    ]
    changed = reads[:1] if made.changes_input else []
    return Operation(origin, tuple(reads), (*results, *changed), made)


def _argument(given: Mapping[str, Any], constants: Mapping[str, NDArray[np.generic]]) -> Any:
    """Return an argument of the JSON as a Python value."""
    ((kind, value),) = given.items()
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return constants.get(value["name"], Computed(value["name"]))
    if kind == "as_tensors":
        return [_argument({"as_tensor": tensor}, constants) for tensor in value]
    if kind in SYMBOLIC:
        ((form, held),) = value.items()
        return Computed(held) if form == "as_name" else held
    if kind.removesuffix("s") in SYMBOLIC:
        return [_argument({kind.removesuffix("s"): each}, constants) for each in value]
    return value


def _names(output: Mapping[str, Any]) -> list[str]:
    """Return the names of the values in an output of the JSON."""
    ((kind, value),) = output.items()
    if kind == "as_tensor":
        return [value["name"]]
    if kind == "as_tensors":
        return [tensor["name"] for tensor in value]
    return [value["as_name"]] if kind in SYMBOLIC else []


def _path(node: Mapping[str, Any]) -> str:
    """Return the module that a node stands for; if it is unknown, the node's name."""
    stack = str(node.get("metadata", {}).get("nn_module_stack", ""))
    innermost = stack.rpartition(";")[2].split(",")  # key, path and type of the module
    module = innermost[1] if len(innermost) == 3 else ""
    return module or str(node["name"])
