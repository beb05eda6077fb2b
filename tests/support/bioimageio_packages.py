"""Packages of bioimage.io in both formats, with a small network as ONNX or as a state dict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from import_cases import Array, numbers, onnx_model, onnx_or_skip
from ruamel.yaml import YAML

FULL = {
    "name": "cells",
    "description": "finds cells",
    "authors": [{"name": "A Person"}],
    "cite": [{"text": "a paper", "url": "https://example.org/paper"}],
    "license": "BSD-3-Clause",
    "documentation": "README.md",
    "timestamp": "2026-01-01T00:00:00",
    "type": "model",
}
Steps = Sequence[tuple[str, dict[str, Any]]]


def small_network(maps: int = 1, *, sees_windows: bool = False) -> Any:
    """Return an ONNX model of a convolution with zeros around, and one of kernel 1."""
    onnx = onnx_or_skip()
    node = onnx.helper.make_node
    nodes = [node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 0, 2, 1, 0, 2])]
    arrays = {
        "w1": numbers(4, maps, 3, 1, 5, seed=1) / 4,
        "b1": numbers(4, seed=2) / 4,
        "w2": numbers(2, 4, 1, 1, 1, seed=3),
    }
    if sees_windows:
        nodes.append(node("InstanceNormalization", ["a", "s", "t"], ["b"]))
        arrays |= {"s": np.ones(4, np.float32), "t": np.zeros(4, np.float32)}
    nodes += [
        node("Relu", ["b" if sees_windows else "a"], ["c"]),
        node("Conv", ["c", "w2"], ["y"]),
    ]
    return onnx_model(nodes, arrays, maps)


def outputs_of(model: Any, given: Array) -> Array:
    """Return what an ONNX model makes of an input (f, z, y, x), whose axes are as it has them."""
    onnx_or_skip()
    from onnx.reference import ReferenceEvaluator

    made = ReferenceEvaluator(model).run(None, {"x": given[np.newaxis].astype(np.float32)})
    return np.asarray(made[0][0], np.float32)


def saved(model: Any, folder: Path) -> dict[str, Any]:
    """Write an ONNX model to a package's folder, and return the entry of its weights."""
    onnx_or_skip().save(model, folder / "weights.onnx")
    return {"onnx": {"source": "weights.onnx", "opset_version": 17}}


def write_package(
    folder: Path,
    version: str,
    weights: Mapping[str, Any],
    given: Array,
    output: Array,
    *,
    before: Steps = (),
    after: Steps = (),
    space: str = "zyx",
    halo: int = 0,
    fixed: bool = False,
) -> Path:
    """Write a package as a folder.

    Args:
        folder: where it goes; the files of the weights are there.
        version: the format's version.
        weights: the entries of the weights.
        given: the test input (f, and the axes of space).
        output: the test output.
        before: preprocessing: kinds and arguments.
        after: postprocessing.
        space: the axes of space in the network's order.
        halo: voxels to cut off along the last axis.
        fixed: whether the input has fixed extents.
    """
    np.save(folder / "input.npy", given[np.newaxis])
    np.save(folder / "output.npy", output[np.newaxis])
    (folder / "README.md").write_text("# cells\n")
    hashed = {key: _hashed(entry, folder) for key, entry in weights.items()}
    content = FULL | {"format_version": version, "weights": hashed}
    if version.startswith("0.4"):
        content |= _old(given, output, before, after, space, halo, fixed)
    else:
        content |= _new(folder, given, output, before, after, space, halo, fixed)
    with (folder / "rdf.yaml").open("w") as file:
        YAML(typ="safe", pure=True).dump(content, file)
    return folder


def _hashed(entry: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    digest = hashlib.sha256((folder / entry["source"]).read_bytes()).hexdigest()
    return {**entry, "sha256": digest}


def _old(
    given: Array,
    output: Array,
    before: Steps,
    after: Steps,
    space: str,
    halo: int,
    fixed: bool,
) -> dict[str, Any]:
    shape: Any = [1, *given.shape]
    if not fixed:
        shape = {"min": [1, len(given), 7, 7, 7], "step": [0, 0, 1, 1, 1]}
    ratio = len(output) / len(given)
    made = {"reference_tensor": "raw", "scale": [1, ratio, 1, 1, 1], "offset": [0] * 5}

    def listed(steps: Steps) -> list[dict[str, Any]]:
        return [{"name": name} | ({"kwargs": kwargs} if kwargs else {}) for name, kwargs in steps]

    common = {"axes": "bc" + space, "data_type": "float32"}
    return {
        "inputs": [{"name": "raw", "shape": shape, "preprocessing": listed(before), **common}],
        "outputs": [
            {
                "name": "cells",
                "shape": [1, *output.shape] if fixed else made,
                "halo": [0, 0, 0, 0, halo],
                "postprocessing": listed(after),
                **common,
            }
        ],
        "test_inputs": ["input.npy"],
        "test_outputs": ["output.npy"],
    }


def _new(
    folder: Path,
    given: Array,
    output: Array,
    before: Steps,
    after: Steps,
    space: str,
    halo: int,
    fixed: bool,
) -> dict[str, Any]:
    def axes(array: Array, sizes: Callable[[int, str], Any], **more: Any) -> list[dict[str, Any]]:
        names = [f"map{index}" for index in range(len(array))]
        found = [{"type": "batch"}, {"type": "channel", "channel_names": names}]
        found += [
            {"type": "space", "id": axis, "size": sizes(extent, axis)}
            for axis, extent in zip(space, array.shape[1:], strict=True)
        ]
        found[-1] |= more
        return found

    def listed(steps: Steps) -> list[dict[str, Any]]:
        return [{"id": name} | ({"kwargs": kwargs} if kwargs else {}) for name, kwargs in steps]

    free = axes(given, lambda extent, _: extent if fixed else {"min": 7, "step": 1})
    same = axes(
        output,
        lambda _, axis: {"tensor_id": "raw", "axis_id": axis},
        **({"halo": halo} if halo else {}),
    )
    return {
        "inputs": [
            {
                "id": "raw",
                "axes": free,
                "preprocessing": listed(before),
                "test_tensor": _hashed({"source": "input.npy"}, folder),
            }
        ],
        "outputs": [
            {
                "id": "cells",
                "axes": same,
                "postprocessing": listed(after),
                "test_tensor": _hashed({"source": "output.npy"}, folder),
            }
        ],
    }


def zipped(folder: Path, name: str = "model.zip") -> Path:
    """Return a package's folder as a zip beside it."""
    path = folder.parent / name
    with ZipFile(path, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    return path
