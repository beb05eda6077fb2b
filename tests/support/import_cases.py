"""Networks in the formats of other libraries, for tests of importing them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from znni import import_network
from znni.core.errors import InvalidInput
from znni.importing.folding import Folded
from znni.network.weights import Weights, load_weights
from znni.primitives import tiled_reference

Array = NDArray[Any]

NEEDS_TORCH = "PyTorch, whose networks are imported, is not installed (znni[torch])"
NEEDS_ONNX = "onnx, whose networks are imported, is not installed (znni[onnx])"


def torch_or_skip() -> Any:
    return pytest.importorskip("torch", reason=NEEDS_TORCH)


def onnx_or_skip() -> Any:
    return pytest.importorskip("onnx", reason=NEEDS_ONNX)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def pooled(folded: Folded | tuple[Any, Weights], x: Array) -> Array:
    """Return a network's output for input (f, z, y, x), in float64; pooling has strides."""
    network, weights = (folded.network, folded.weights) if isinstance(folded, Folded) else folded
    return tiled_reference.output_at_once(network, weights, x)


def read_back(path: Path) -> tuple[Any, Weights]:
    """Return a network file's network and weights."""
    from znni.network.network_file import load_network

    network = load_network(path)
    assert network.weights is not None
    return network, load_weights(network.weights, network)


def relative(found: Array, wanted: Array) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def refusal(source: Any, folder: Path) -> str:
    """Return the error of an import that must fail and write nothing."""
    with pytest.raises(InvalidInput) as refused:
        import_network(source, folder / "net.yaml")
    assert not list(folder.glob("net.*"))
    return str(refused.value)


def sequential() -> Any:
    """Return a PyTorch module with every supported layer, in training mode, with random values."""
    torch = torch_or_skip()
    from torch import nn

    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv3d(2, 3, (2, 3, 4)),
        nn.BatchNorm3d(3),
        nn.ReLU(),
        nn.MaxPool3d((1, 2, 2)),
        nn.Dropout3d(),
        nn.Sequential(nn.Conv3d(3, 4, 1, bias=False), nn.MaxPool3d(2), nn.LeakyReLU()),
        nn.BatchNorm3d(4),
        nn.Identity(),
        nn.Conv3d(4, 2, (1, 2, 2), padding="valid"),
        nn.ELU(),
        nn.Softmax(dim=1),
    )
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm3d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
                layer.weight.normal_()  # values of both signs
                layer.bias.normal_()
    return module


def onnx_model(
    nodes: Sequence[Any], arrays: dict[str, Array], maps: int = 1, opset: int = 17, **size: int
) -> Any:
    """Return a model of one chain or graph from ``x`` to ``y``; extents are free unless given."""
    onnx = onnx_or_skip()
    from onnx import TensorProto, helper

    axes = [1, maps, size.get("z", "z"), size.get("y", "y"), size.get("x", "x")]
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, axes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "f", "a", "b", "c"])],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def onnx_chain() -> Any:
    """Return a model with every supported layer."""
    onnx_or_skip()
    from onnx import helper

    node = helper.make_node
    return onnx_model(
        [
            node("Conv", ["x", "w1", "b1"], ["a"], name="first", kernel_shape=[2, 3, 4]),
            node("BatchNormalization", ["a", "s", "t", "m", "v"], ["b"], epsilon=1e-3),
            node("Relu", ["b"], ["c"]),
            node("MaxPool", ["c"], ["d"], kernel_shape=[1, 2, 2], strides=[1, 2, 2]),
            node("Dropout", ["d"], ["e"]),
            node("Identity", ["e"], ["f"]),
            node("Conv", ["f", "w2"], ["g"], auto_pad="VALID"),
            node("LeakyRelu", ["g"], ["h"]),
            node("Conv", ["h", "w3"], ["i"], pads=[0] * 6, strides=[1] * 3),
            node("Softmax", ["i"], ["y"], axis=1),
        ],
        {
            "w1": numbers(3, 2, 2, 3, 4, seed=1),
            "b1": numbers(3, seed=2),
            "s": numbers(3, seed=3),
            "t": numbers(3, seed=4),
            "m": numbers(3, seed=5),
            "v": np.abs(numbers(3, seed=6)) + 0.5,
            "w2": numbers(4, 3, 1, 2, 1, seed=7),
            "w3": numbers(2, 4, 1, 1, 1, seed=8),
        },
        maps=2,
    )


def unet() -> Any:
    """Return a PyTorch module with skips, whose sizes are computed, in evaluation mode."""
    torch = torch_or_skip()
    from torch import nn

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.BatchNorm3d(2), nn.PReLU())
            self.low = nn.Conv3d(2, 2, 3, padding=1, groups=2)
            self.up = nn.ConvTranspose3d(2, 2, (1, 2, 2), stride=(1, 2, 2))
            self.norm, self.end = nn.BatchNorm3d(2), nn.Conv3d(4, 2, (1, 3, 3))

        def forward(self, x: Any) -> Any:
            skip = self.start(x)
            low = nn.functional.leaky_relu(self.low(nn.functional.max_pool3d(skip, (1, 2, 2))), 0.2)
            wide = nn.functional.interpolate(low, size=skip.shape[2:])
            both = torch.relu(self.norm(self.up(low) + wide * torch.sigmoid(skip)))
            y = self.end(torch.cat([both, skip], 1))
            return y + skip[..., 1:-1, 1:-1]

    torch.manual_seed(0)
    return UNet().eval()


def onnx_unet() -> Any:
    """Return a model with skips, whose sizes are computed."""
    onnx_or_skip()
    from onnx import helper

    node = helper.make_node
    return onnx_model(
        [
            node("Conv", ["x", "w1"], ["a"], pads=[1] * 6),
            node("PRelu", ["a", "slope"], ["skip"]),
            node("MaxPool", ["skip"], ["b"], kernel_shape=[1, 2, 2], strides=[1, 2, 2]),
            node("Conv", ["b", "w2"], ["low"], pads=[1] * 6, group=2),
            node("Shape", ["skip"], ["whole"], start=2),
            node("Slice", ["ones", "zero", "two"], ["first"]),
            node("Shape", ["low"], ["maps"], end=2),
            node("Mul", ["maps", "first"], ["same"]),
            node("Concat", ["same", "whole"], ["wanted"], axis=0),
            node("Resize", ["low", "", "", "wanted"], ["up"], mode="nearest"),
            node("ConvTranspose", ["low", "w3"], ["wide"], strides=[1, 2, 2]),
            node("Sigmoid", ["wide"], ["gate"]),
            node("Mul", ["up", "gate"], ["c"]),
            node("Add", ["c", "skip"], ["d"]),
            node("BatchNormalization", ["d", "s", "t", "m", "v"], ["e"]),
            node("Relu", ["e"], ["f"]),
            node("Concat", ["f", "skip"], ["g"], axis=1),
            node("Conv", ["g", "w4"], ["h"]),
            node("Slice", ["skip", "one", "last", "axis"], ["i"]),
            node("Sub", ["h", "i"], ["y"]),
        ],
        {
            "w1": numbers(2, 1, 3, 3, 3, seed=1),
            "slope": np.abs(numbers(2, 1, 1, 1, seed=2)),
            "w2": numbers(2, 1, 3, 3, 3, seed=3),
            "w3": numbers(2, 2, 1, 2, 2, seed=4),
            "w4": numbers(2, 4, 1, 3, 1, seed=5),
            "ones": np.ones(5, np.int64),
            "zero": np.array([0], np.int64),
            "two": np.array([2], np.int64),
            "one": np.array([1], np.int64),
            "last": np.array([-1], np.int64),
            "axis": np.array([3], np.int64),
            "s": numbers(2, seed=6),
            "t": numbers(2, seed=7),
            "m": numbers(2, seed=8),
            "v": np.abs(numbers(2, seed=9)) + 0.5,
        },
        opset=18,
    )


ZNN_FILTERS = {
    "conv1": numbers(1, 3, 2, 3, 4, seed=1),  # (in, out, z, y, x)
    "conv2": numbers(3, 2, 1, 2, 3, seed=2),
}
ZNN_BIASES = {"nconv1": numbers(3, seed=3), "output": numbers(2, seed=4)}


def znn_fields() -> dict[str, dict[str, Any]]:
    """Return the groups of a ZNN file, with the fields that ZNN wrote."""
    conv = {"group_type": "edge", "type": "conv", "init": "xavier", "stride": (1, 1, 1)}
    return {
        "input": {"group_type": "node", "type": "input", "size": (1,)},
        "conv1": conv
        | {"input": "input", "output": "nconv1", "size": (2, 3, 4)}
        | {"filters": ZNN_FILTERS["conv1"], "momentum_vol": 0 * ZNN_FILTERS["conv1"]},
        "nconv1": {
            "group_type": "node",
            "type": "transfer",
            "function": "tanh",
            "function_args": "1.7159,0.6666",
            "size": (3,),
            "biases": ZNN_BIASES["nconv1"],
        },
        "pool1": {
            "group_type": "edge",
            "type": "max_filter",
            "size": (1, 2, 2),
            "stride": (1, 2, 2),
            "input": "nconv1",
            "output": "npool1",
        },
        "npool1": {"group_type": "node", "type": "sum", "size": (3,)},
        "conv2": conv
        | {"input": "npool1", "output": "output", "size": (1, 2, 3)}
        | {"filters": ZNN_FILTERS["conv2"], "momentum_vol": 0 * ZNN_FILTERS["conv2"]},
        "output": {
            "group_type": "node",
            "type": "transfer",
            "function": "linear",
            "function_args": "1,0",
            "size": (2,),
            "biases": ZNN_BIASES["output"],
        },
    }


def write_znn(
    path: Path, fields: dict[str, dict[str, Any]], top: str = "processing/znn/train/network"
) -> Path:
    """Write a file with those groups."""
    with h5py.File(path, "w") as file:
        for group, values in fields.items():
            for field, value in values.items():
                data = np.array(value) if isinstance(value, tuple) else value
                file[f"{top}/{group}/{field}"] = data
    return path
