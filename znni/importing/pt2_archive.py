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
from znni.core.shapes import Vec3
from znni.importing import checks
from znni.importing.graph import Operation

SCHEMA = 8  # major version of the graph's JSON
LARGEST_JSON = 2**26  # bytes of a graph: a thousand layers take a few MiB
EXPORT_AGAIN = "export it again with a recent PyTorch (torch.export.save; that of 2.13 is tested)"
# PyTorch's numbers of the types that NumPy has, too.
TYPES: Mapping[int, str] = {5: "<i8", 6: "<f2", 7: "<f4", 8: "<f8"}
DECOMPOSED = ("convolution", "_native_batch_norm_legit_no_training", "max_pool3d_with_indices")


@dataclass(frozen=True)
class Node:
    """An operator of ATen: its name, its overload, and its arguments by name.

    Arguments are Python values, arrays, or a ``Tensor`` for a computed value.
    """

    operator: str
    overload: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Tensor:
    """A computed value of the graph or its input, by name."""

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
        computed = {self.ends()[0]} | {
            output["as_tensor"]["name"]
            for node in self._graph["nodes"]
            for output in node["outputs"]
            if "as_tensor" in output
        }
        constants = self._constants()
        return [self._operation(node, constants, computed) for node in self._graph["nodes"]]

    def ends(self) -> tuple[str, str]:
        """Return the names of the graph's only input and only output."""
        inputs = [spec["user_input"]["arg"] for spec in self._inputs("user_input")]
        outputs = self._graph["outputs"]
        if len(inputs) != 1 or len(outputs) != 1:
            raise InvalidInput(
                f"has {len(inputs)} inputs and {len(outputs)} outputs; {checks.CHAIN}: export a "
                f"network with one of each"
            )
        return inputs[0]["as_tensor"]["name"], outputs[0]["as_tensor"]["name"]

    def _inputs(self, kind: str) -> list[Any]:
        return [spec for spec in self._signature["input_specs"] if kind in spec]

    def input_size(self) -> Vec3 | None:
        """Return the extents that the program was exported for; None if they are free."""
        sizes = self._graph["tensor_values"][self.ends()[0]]["sizes"]
        if len(sizes) != 5:
            raise InvalidInput(
                f"takes an input of {len(sizes)} axes; export it for (1, f, z, y, x)"
            )
        if not all("as_int" in size for size in sizes[2:]):
            return None
        return checks.extents("the input", "extents", [size["as_int"] for size in sizes[2:]])

    def _constants(self) -> dict[str, NDArray[np.generic]]:
        """Return parameters and buffers by their names in the graph."""
        config = self._json("data/weights/model_weights_config.json")["config"]
        constants = {}
        for kind in ("parameter", "buffer"):
            for spec in self._inputs(kind):
                entry = config[spec[kind][f"{kind}_name"]]
                constants[spec[kind]["arg"]["name"]] = self._array(entry)
        return constants

    def _array(self, entry: Mapping[str, Any]) -> NDArray[np.generic]:
        meta = entry["tensor_meta"]
        if entry["use_pickle"] or meta["dtype"] not in TYPES:
            raise InvalidInput("has weights that are not plain float32; export it in float32")
        data = self._bytes(f"data/weights/{entry['path_name']}")
        dtype = np.dtype(TYPES[meta["dtype"]])
        shape = tuple(size["as_int"] for size in meta["sizes"])
        strides = tuple(stride["as_int"] * dtype.itemsize for stride in meta["strides"])
        offset = meta["storage_offset"]["as_int"] * dtype.itemsize
        if len(shape) != len(strides) or min((offset, *shape, *strides)) < 0:
            raise ValueError(f"shape {shape} with strides {strides}")
        return np.ndarray(shape, dtype, data, offset, strides)  # raises if they exceed the data

    def _operation(
        self,
        node: Mapping[str, Any],
        constants: Mapping[str, NDArray[np.generic]],
        computed: set[str],
    ) -> Operation[Node]:
        """Return a node of the JSON, with parameters in place of their names."""
        namespace, _, full = node["target"].rpartition("torch.ops.aten.")
        origin = checks.origin(_path(node), node["target"].removeprefix("torch.ops."))
        if namespace or not full:
            checks.unknown(origin)
        operator, _, overload = full.partition(".")
        if operator in DECOMPOSED:
            checks.refuse(origin, "is a decomposed operator; export without run_decompositions()")
        reads: list[str] = []
        arguments: dict[str, Any] = {}
        for argument in node["inputs"]:
            ((kind, value),) = argument["arg"].items()
            if kind == "as_tensor":
                name = value["name"]
                if name in computed:
                    reads.append(name)
                    value = Tensor(name)
                elif name in constants:
                    value = constants[name]
                else:
                    checks.refuse(origin, f"reads the constant {name!r}; export it as a parameter")
            elif kind == "as_tensors":
                reads += [tensor["name"] for tensor in value if tensor["name"] in computed]
            arguments[argument["name"]] = None if kind == "as_none" else value
        writes = [
            output["as_tensor"]["name"] for output in node["outputs"] if "as_tensor" in output
        ]
        return Operation(origin, tuple(reads), tuple(writes), Node(operator, overload, arguments))

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


def _path(node: Mapping[str, Any]) -> str:
    """Return the module that a node stands for; if it is unknown, the node's name."""
    stack = str(node.get("metadata", {}).get("nn_module_stack", ""))
    innermost = stack.rpartition(";")[2].split(",")  # key, path and type of the module
    return innermost[1] if len(innermost) == 3 else str(node["name"])
