"""ONNX graphs: which are accepted, and which are refused."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import (
    numbers,
    onnx_chain,
    onnx_model,
    onnx_or_skip,
    pooled,
    read_back,
    refusal,
    relative,
    sequential,
    torch_or_skip,
)

import znni
from znni.core.errors import InvalidInput
from znni.importing import onnx_original
from znni.importing.parity import Parity

onnx = onnx_or_skip()
ReferenceEvaluator = import_module("onnx.reference").ReferenceEvaluator
node = onnx.helper.make_node


# Comparisons run the reference, which needs no compiling.
pytestmark = pytest.mark.usefixtures("fake_primitives")


def saved(model: Any, folder: Path) -> Path:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_a_graph_as_a_network_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # onnx's own evaluator works as well
    monkeypatch.setattr("znni.importing.onnx_original._session", lambda *_: None)
    model, out = onnx_chain(), tmp_path / "net.yaml"
    found = znni.import_network(saved(model, tmp_path), out)
    assert isinstance(found.parity, Parity)
    assert found.parity.runtime == "onnx"
    x = numbers(2, 5, 8, 12)
    wanted = ReferenceEvaluator(model).run(None, {"x": x[np.newaxis]})[0][0]
    assert relative(pooled(read_back(out), x), wanted) < 1e-5
    assert "# first (Conv), b (BatchNormalization), c (Relu)" in out.read_text()


@pytest.mark.filterwarnings("error")
def test_saturated_activations_are_compared_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.importing.onnx_original._session", lambda *_: None)
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Sigmoid", ["c"], ["y"])]
    file = saved(onnx_model(nodes, {"w": np.full((1, 1, 1, 1, 1), 150, np.float32)}), tmp_path)
    found = znni.import_network(file, tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)


def test_onnxruntime_is_preferred(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (znni[onnx])")
    found = znni.import_network(saved(onnx_chain(), tmp_path), tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    assert found.parity.runtime == "onnxruntime"


def test_fixed_extents_are_kept_to(tmp_path: Path) -> None:
    arrays = {"w": numbers(1, 1, 2, 3, 4)}
    file = saved(onnx_model([node("Conv", ["x", "w"], ["y"])], arrays, z=4, y=5, x=6), tmp_path)
    found = znni.import_network(file, tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    assert found.parity.size == (4, 5, 6)
    file = saved(onnx_model([node("Conv", ["x", "w"], ["y"])], arrays, z=1, y=5, x=6), tmp_path)
    assert "less than its field of view of 2x3x4" in str(
        znni.import_network(file, tmp_path / "net.yaml", overwrite=True)
    )


def test_pytorch_s_own_export_is_read(tmp_path: Path) -> None:
    torch = torch_or_skip()
    module, file = sequential().eval(), tmp_path / "model.onnx"
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(module, (torch.zeros(1, 2, 7, 13, 15),), file, dynamo=False)
    found = znni.import_network(file, tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    x = numbers(2, 7, 13, 15)
    with torch.no_grad():
        wanted = module(torch.from_numpy(x)[None])[0].numpy()
    assert relative(pooled(read_back(tmp_path / "net.yaml"), x), wanted) < 1e-5


ARRAYS = {
    "w": numbers(2, 1, 1, 2, 3),
    "same": numbers(2, 2, 3, 3, 3),
    "deep": numbers(2, 1, 3, 3, 3),
    "w2": numbers(2, 2, 1, 1, 1),
    "half": numbers(2, 1, 1, 1, 1),
    "one": numbers(1, 2, 1, 1, 1),
    "up": numbers(2, 2, 1, 3, 2),
    "flat": numbers(2, 1, 3, 3),
    "b": numbers(2),
    "v": np.ones(2, np.float32),
    "maps": numbers(2, 1, 1, 1),
    "plane": numbers(4, 6),
    "true": np.array(True),
    "ratio": np.array(0.5, np.float32),
    "root": np.array(2**0.5, np.float32),
    "unit": np.array(1, np.float32),
    "nought": np.array(0, np.float32),
    "scales": np.array([1, 1, 1, 2, 2], np.float32),
    "twice": np.array([2, 2], np.float32),
    "odd": np.array([1, 1, 1, 1.5, 2], np.float32),
    "size": np.array([1, 2, 4, 12, 16], np.int64),
    "ones": np.array([1, 1, 1, 1, 1], np.int64),
    "repeats": np.array([1, 3, 1, 1, 1], np.int64),
    "pads": np.array([0, 0, 1, 0, 2, 0, 0, 1, 1, 0], np.int64),
    "minus": np.array([0, 0, 0, 0, -1, 0, 0, 0, 0, -1], np.int64),
    "i1": np.array([1], np.int64),
    "i2": np.array([2], np.int64),
    "i4": np.array([4], np.int64),
    "far": np.array([2**62], np.int64),
    "most": np.array([-1], np.int64),
    "volume": np.array([2, 3, 4], np.int64),
    "voxels": np.array([2, 3, 4], np.int64),
    "matrix": numbers(2, 2),
    "three ones": np.array([1, 1, 1], np.int64),
}
FIRST = node("Conv", ["x", "w"], ["c"])
NORM = ["c", "b", "b", "b", "v"]
LOW = [
    node("Conv", ["x", "deep"], ["a"], pads=[1] * 6),
    node("MaxPool", ["a"], ["low"], kernel_shape=[1, 2, 2], strides=[1, 2, 2]),
]
PADDED = {"pads": [1] * 6}
SMALL = (4, 6, 8)


def pieces(*last: Any) -> list[Any]:
    """Return nodes that begin with a convolution from ``x`` to ``c`` that keeps the size."""
    return [node("Conv", ["x", "deep"], ["c"], **PADDED), *last]


GRAPHS: dict[str, list[Any]] = {
    "padded": [node("Conv", ["x", "deep"], ["y"], pads=[1, 0, 1, 1, 2, 1])],
    "same upper": [node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER")],
    "same lower": [node("Conv", ["x", "w"], ["y"], auto_pad="SAME_LOWER")],
    "dilated": [node("Conv", ["x", "w"], ["y"], dilations=[1, 2, 2], pads=[0, 1, 2] * 2)],
    "grouped": pieces(node("Conv", ["c", "half"], ["y"], group=2)),
    "add": pieces(node("Relu", ["c"], ["r"]), node("Add", ["c", "r"], ["y"])),
    "sum of three": pieces(node("Relu", ["c"], ["r"]), node("Sum", ["c", "r", "c"], ["y"])),
    "difference": pieces(node("Tanh", ["c"], ["r"]), node("Sub", ["c", "r"], ["y"])),
    "twice itself": pieces(node("Add", ["c", "c"], ["y"])),
    "constants": pieces(
        node("Mul", ["maps", "c"], ["d"]),
        node("Add", ["d", "ratio"], ["e"]),
        node("Div", ["e", "root"], ["f"]),
        node("Sub", ["maps", "f"], ["g"]),
        node("Sub", ["g", "ratio"], ["h"]),
        node("Neg", ["h"], ["y"]),
    ),
    "gate": pieces(
        node("Conv", ["c", "one"], ["g"]),
        node("Sigmoid", ["g"], ["s"]),
        node("Mul", ["s", "c"], ["y"]),
    ),
    "squeezed": pieces(
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Flatten", ["p"], ["vector"]),
        node("Gemm", ["vector", "matrix", "b"], ["f"], alpha=0.5),
        node("Sigmoid", ["f"], ["s"]),
        node("Shape", ["c"], ["all of c"], start=0, end=2),
        node("Concat", ["all of c", "three ones"], ["axes"], axis=0),
        node("Reshape", ["s", "axes"], ["r"]),
        node("Mul", ["r", "c"], ["y"]),
    ),
    "peaks": pieces(
        node("ReduceMax", ["c", "voxels"], ["p"], keepdims=0),
        node("Unsqueeze", ["p", "voxels"], ["vector"]),
        node("ReduceMean", ["c", "voxels"], ["q"]),
        node("Max", ["vector", "q"], ["r"]),
        node("Shape", ["c"], ["whole"]),
        node("Expand", ["r", "whole"], ["e"]),
        node("Mul", ["c", "e"], ["y"]),
    ),
    "concat": pieces(node("Elu", ["c"], ["e"]), node("Concat", ["e", "x", "c"], ["y"], axis=-4)),
    "gelu": pieces(
        node("Div", ["c", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "unit"], ["f"]),
        node("Mul", ["c", "f"], ["g"]),
        node("Mul", ["g", "ratio"], ["y"]),
    ),
    "gelu in another order": pieces(
        node("Div", ["c", "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["unit", "e"], ["f"]),
        node("Mul", ["c", "ratio"], ["g"]),
        node("Mul", ["f", "g"], ["y"]),
    ),
    "gelu of a crop": pieces(
        node("Conv", ["x", "deep"], ["d"], pads=[1, 1, 0] * 2),
        node("Slice", ["c", "i1", "most", "i4"], ["e"]),
        node("Div", ["e", "root"], ["f"]),
        node("Erf", ["f"], ["g"]),
        node("Add", ["g", "unit"], ["h"]),
        node("Identity", ["e"], ["again"]),
        node("Mul", ["again", "h"], ["i"]),
        node("Mul", ["i", "ratio"], ["j"]),
        node("Add", ["j", "d"], ["y"]),
    ),
    "leaky": pieces(node("LeakyRelu", ["c"], ["y"], alpha=0.2)),
    "prelu": pieces(node("PRelu", ["c", "maps"], ["y"])),
    "pooled and back": [*LOW, node("Resize", ["low", "", "scales"], ["y"], mode="nearest")],
    "interpolated": [*LOW, node("Resize", ["low", "", "scales"], ["y"], mode="linear")],
    "floor": [
        *LOW,
        node(
            "Resize",
            ["low", "", "scales"],
            ["y"],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        ),
    ],
    "by axes": [*LOW, node("Resize", ["low", "", "twice"], ["y"], mode="nearest", axes=[3, 4])],
    "to the size of another": [
        *LOW,
        node("Shape", ["a"], ["s"]),
        node("Resize", ["low", "", "", "s"], ["y"], mode="nearest"),
    ],
    "to a computed size": [
        *LOW,
        node("Shape", ["low"], ["s"], start=2),
        node("Slice", ["s", "i1", "far"], ["yx"]),
        node("Mul", ["yx", "i2"], ["double"]),
        node("Shape", ["a"], ["whole"], end=-2),
        node("Concat", ["whole", "double"], ["wanted"], axis=0),
        node("Resize", ["low", "", "", "wanted"], ["y"], mode="nearest"),
    ],
    "every other sample": [
        *LOW,
        node("Resize", ["low", "", "scales"], ["u"], mode="nearest"),
        node("Slice", ["u", "i1", "far", "i4", "i2"], ["t"]),
        node("Concat", ["t", "t"], ["tt"], axis=1),
        node("Resize", ["tt", "", "", "all"], ["y"], mode="nearest"),
    ],
    "transposed": [
        *LOW,
        node(
            "ConvTranspose",
            ["low", "up", "b"],
            ["y"],
            strides=[1, 2, 2],
            pads=[0, 1, 0, 0, 1, 0],
            output_padding=[0, 1, 0],
        ),
    ],
    "average": pieces(
        node(
            "AveragePool",
            ["c"],
            ["y"],
            kernel_shape=[3, 1, 3],
            pads=[1, 0, 1] * 2,
            count_include_pad=1,
        )
    ),
    "maximum": pieces(node("MaxPool", ["c"], ["y"], kernel_shape=[1, 3, 3], pads=[0, 1, 1] * 2)),
    "padding of its own": [node("Pad", ["x", "pads"], ["p"]), node("Conv", ["p", "deep"], ["y"])],
    **{
        f"padding by {mode}": [
            node("Pad", ["x", "pads"], ["p"], mode=mode),
            node("Conv", ["p", "deep"], ["y"]),
        ]
        for mode in ("reflect", "edge")
    },
    "cropped": pieces(
        node("Conv", ["x", "deep"], ["d"], pads=[1, 1, 0] * 2),
        node("Pad", ["c", "minus"], ["e"]),
        node("Add", ["d", "e"], ["y"]),
    ),
    "sliced": pieces(
        node("Conv", ["x", "deep"], ["d"], pads=[1, 1, 0] * 2),
        node("Slice", ["c", "i1", "most", "i4"], ["e"]),
        node("Concat", ["e", "d"], ["y"], axis=1),
    ),
    "parts": pieces(
        node("Split", ["c"], ["p", "q"], axis=1, num_outputs=2),
        node("Concat", ["q", "p", "q"], ["y"], axis=1),
    ),
    "repeated": pieces(
        node("Tile", ["x", "repeats"], ["t"]), node("Concat", ["t", "c"], ["y"], axis=1)
    ),
    "expanded": pieces(node("Expand", ["x", "ones"], ["e"]), node("Add", ["e", "c"], ["y"])),
}


def shaped(nodes: list[Any], size: tuple[int, ...] | None) -> Any:
    """Return a model for an input of a size, or of any."""
    extents = dict(zip("zyx", size, strict=True)) if size else {}
    arrays = ARRAYS | {"all": np.array([1, 4, 4, 6, 8], np.int64)}
    used = {name for each in nodes for name in each.input}
    held = {name: array for name, array in arrays.items() if name in used}
    return onnx_model(nodes, held, opset=18, **extents)


@pytest.mark.slow_cases
@pytest.mark.parametrize("size", [None, SMALL], ids=["free", "fixed"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_with_joins_as_a_network_file(
    name: str, size: tuple[int, ...] | None, tmp_path: Path
) -> None:
    if size is None and name == "every other sample":
        size = SMALL  # it has a size of its own
    model, out = shaped(GRAPHS[name], size), tmp_path / "net.yaml"
    if name in ("maximum", "cropped"):  # onnx's own evaluator fails at these
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (znni[onnx])")
    found = znni.import_network(saved(model, tmp_path), out)
    assert isinstance(found.parity, Parity)
    assert found.parity.error < 1e-6
    x = numbers(1, *SMALL)
    session = onnx_original._session(tmp_path / "model.onnx") or ReferenceEvaluator(model)
    wanted = session.run(None, {"x": x[np.newaxis]})[0][0]
    assert relative(pooled(read_back(out), x), wanted) < 1e-5


def test_a_gelu_is_one_activation(tmp_path: Path) -> None:
    for name in ("gelu", "gelu in another order"):
        model = shaped(GRAPHS[name], None)
        found = znni.import_network(saved(model, tmp_path), tmp_path / "net.yaml", overwrite=True)
        (layer,) = found.network.layers
        assert layer.activation == "gelu"  # type: ignore[union-attr]


def test_outputs_keep_their_order(tmp_path: Path) -> None:
    nodes = pieces(node("Sigmoid", ["c"], ["s"]), node("Conv", ["c", "one"], ["y"]))
    model, out = shaped(nodes, None), tmp_path / "net.yaml"
    model.graph.output.append(onnx.helper.make_tensor_value_info("s", 1, [1, 2, "a", "b", "c"]))
    znni.import_network(saved(model, tmp_path), out)
    x = numbers(1, *SMALL)
    outputs = ReferenceEvaluator(model).run(None, {"x": x[np.newaxis]})
    wanted = np.concatenate([output[0] for output in outputs])
    assert relative(pooled(read_back(out), x), wanted) < 1e-5
    assert 'outputs: ["conv2", "affine1"]' in out.read_text()


def test_the_maps_of_an_input_may_be_free(tmp_path: Path) -> None:
    model, out = shaped(GRAPHS["add"], None), tmp_path / "net.yaml"
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "maps"
    found = znni.import_network(saved(model, tmp_path), out)
    assert found.network.in_features == 1
    assert isinstance(found.parity, Parity)


WINDOWS = "depends on a whole window in a way that this version does not run; "


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        (
            [node("Conv", ["x", "w"], ["y"], strides=[1, 2, 2], pads=[0, 0, 1] * 2)],
            "a sample of its output spans 1x2x2",
        ),
        ([node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 2, 1])], "kernel_shape [3, 2, 1]"),
        ([node("Conv", ["x", "flat"], ["y"])], "weights of shape (2, 1, 3, 3)"),
        ([node("Conv", ["x", "w"], ["y"], group=3)], "y (Conv) has 3 groups for 2 maps"),
        ([FIRST, node("Conv", ["c", "w"], ["y"])], "takes 1 map, but the layer before it gives 2"),
        (
            [FIRST, node("ConvTranspose", ["c", "up"], ["y"], output_shape=[9, 9, 9])],
            "y (ConvTranspose) has an output_shape",
        ),
        ([FIRST, node("ConvTranspose", ["c", "up"], ["y"], auto_pad="SAME_UPPER")], "has auto_pad"),
        ([FIRST, node("ConvTranspose", ["c", "up"], ["y"], strides=[1, 2, 2])], "finer than the"),
        ([node("Conv", ["x", "w"], ["y"], pads=[1] * 6)], "gives more voxels than it takes"),
        (
            [FIRST, node("ConvTranspose", ["c", "up"], ["y"], pads=[0, 0, 0, 0, 1, 1])],
            "cuts off 0x0x0 samples at the beginning of its output and 0x1x1 at its end",
        ),
        (
            [
                FIRST,
                node("MaxPool", ["c"], ["y"], kernel_shape=[1] * 3, strides=[1] * 3, ceil_mode=1),
            ],
            "ceil_mode",
        ),
        (
            [FIRST, node("MaxPool", ["c"], ["y", "i"], kernel_shape=[2] * 3, strides=[2] * 3)],
            "y (MaxPool) gives 2 results",
        ),
        (
            [FIRST, node("AveragePool", ["c"], ["y"], kernel_shape=[3] * 3, pads=[1] * 6)],
            "leaves its padding out of averages",
        ),
        ([FIRST, node("Softmax", ["c"], ["y"])], "is over axis -1"),
        ([FIRST, node("Elu", ["c"], ["y"], alpha=0.5)], "elu has 1 here"),
        ([FIRST, node("Selu", ["c"], ["y"])], "y (Selu) cannot be represented"),
        ([FIRST, node("ArgMax", ["c"], ["y"], axis=1)], "y (ArgMax) gives the number of the"),
        ([FIRST, node("Dropout", ["c", "ratio", "true"], ["y"])], "in training mode"),
        (
            [FIRST, node("BatchNormalization", NORM, ["y", "m1", "v1"], training_mode=1)],
            "gives 3 results",
        ),
        ([node("Relu", ["x"], ["y"])], "no 3D convolution"),
        (
            [FIRST, node("LayerNormalization", ["c", "b", "b"], ["y"])],
            "y (LayerNormalization) " + WINDOWS + "replace it by batch normalization",
        ),
        ([FIRST, node("ReduceMean", ["c", "i2"], ["y"])], "only all voxels are pooled here"),
        ([FIRST, node("Gemm", ["c", "matrix"], ["y"])], "multiplies by a matrix what is not"),
        ([FIRST, node("MatMul", ["c", "c"], ["y"])], WINDOWS + "replace it by convolutions"),
        (
            [
                FIRST,
                node("Reshape", ["c", "volume"], ["r"]),
                node("InstanceNormalization", ["r", "b", "b"], ["y"]),
            ],
            "r (Reshape) changes the axes of (1, 2, ",
        ),
        (pieces(node("Unsqueeze", ["c", "i1"], ["y"])), "y (Unsqueeze) adds or takes away an axis"),
        (pieces(node("Concat", ["c", "c"], ["y"], axis=2)), "joins values along axis 2"),
        (pieces(node("Mul", ["c", "plane"], ["y"])), "has a constant of shape (4, 6) for 2 maps"),
        (pieces(node("Div", ["c", "nought"], ["y"])), "divides by zero"),
        (pieces(node("Div", ["c", "c"], ["y"])), "divides by a value"),
        (pieces(node("Erf", ["c"], ["y"])), "y (Erf) is part of no gelu"),
        (
            pieces(
                node("Div", ["c", "root"], ["d"]),
                node("Erf", ["d"], ["e"]),
                node("Add", ["e", "ratio"], ["y"]),
            ),
            "y (Add) is part of no gelu",
        ),
        (
            pieces(
                node("Div", ["c", "root"], ["d"]),
                node("Erf", ["d"], ["e"]),
                node("Mul", ["e", "d"], ["y"]),
            ),
            "y (Mul) is part of no gelu",
        ),
        (
            pieces(node("Div", ["c", "root"], ["d"]), node("Erf", ["d"], ["y"])),
            "which are no arrays of the network",
        ),
        (pieces(node("Split", ["c"], ["y", "z"], axis=2, num_outputs=2)), "splits axis 2"),
        (pieces(node("Resize", ["c", "", "twice"], ["y"], axes=[1, 4])), "resize voxels only"),
        (pieces(node("Expand", ["c", "volume"], ["y"])), "only maps are repeated"),
        ([*LOW, node("Resize", ["low", "", "odd"], ["y"])], "only whole factors are represented"),
        ([*LOW, node("Resize", ["low", "", "", "size"], ["y"])], "only whole factors"),
        ([*LOW, node("Resize", ["low", "", "scales"], ["y"], mode="cubic")], "with mode cubic"),
        (
            [
                *LOW,
                node(
                    "Resize",
                    ["low", "", "scales"],
                    ["y"],
                    mode="linear",
                    coordinate_transformation_mode="align_corners",
                ),
            ],
            "has align_corners, and so depends on a whole window",
        ),
        (
            [
                *LOW,
                node(
                    "Resize",
                    ["low", "", "scales"],
                    ["y"],
                    mode="nearest",
                    coordinate_transformation_mode="asymmetric",
                ),
            ],
            "with mode nearest, asymmetric and round_prefer_floor",
        ),
        (pieces(node("Slice", ["c", "i1", "far", "i4"], ["y"])), "crops what the output reads"),
        (pieces(node("Slice", ["c", "i1", "far", "i4", "i2"], ["y"])), "every 2th sample"),
        (
            [
                *LOW,
                node("Resize", ["low", "", "scales"], ["u"], mode="nearest"),
                node("Slice", ["u", "i2", "far", "i4"], ["cut"]),
                node("Slice", ["cut", "i1", "far", "i4", "i2"], ["y"]),
            ],
            "every 2th sample",
        ),
        (
            pieces(
                node("Slice", ["c", "i1", "far", "i4"], ["d"]), node("Conv", ["d", "w2"], ["y"])
            ),
            "crops what y (Conv) reads; only what is joined",
        ),
        (
            pieces(
                node("Conv", ["x", "deep"], ["d"], pads=[1, 1, 0] * 2),
                node("Slice", ["c", "i2", "far", "i4"], ["e"]),
                node("Add", ["e", "d"], ["y"]),
            ),
            "crops 0x0x2 before and 0x0x0 after, and y (Add) by itself would crop 0x0x1 and 0x0x1",
        ),
        (pieces(node("Pad", ["c", "pads", "unit"], ["y"])), "that are no zeros"),
        (pieces(node("Pad", ["c", "pads"], ["y"])), "gives more voxels than it takes"),
        (pieces(node("Tile", ["c", "volume"], ["y"])), "only maps are repeated"),
        (pieces(node("Cast", ["c"], ["y"], to=10)), "changes the type of numbers"),
    ],
)
def test_a_graph_with_what_cannot_be_represented(
    nodes: list[Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        znni.import_network(saved(shaped(nodes, None), tmp_path), tmp_path / "net.yaml")
    assert str(refused.value).startswith(f"{tmp_path / 'model.onnx'}: ")
    assert named in str(refused.value)
    assert not (tmp_path / "net.yaml").exists()


def test_constants_are_computed_but_no_large_ones(tmp_path: Path) -> None:
    arrays = {"n": np.array([2**20, 2**20], np.int64), "deep": ARRAYS["deep"]}
    nodes = pieces(
        node("ConstantOfShape", ["n"], ["k"]),
        node("Add", ["c", "k"], ["y"]),
    )
    with pytest.raises(InvalidInput, match=r"k \(ConstantOfShape\) computes a large constant"):
        znni.import_network(saved(onnx_model(nodes, arrays), tmp_path), tmp_path / "net.yaml")


def test_softmax_of_old_opsets_is_another_function(tmp_path: Path) -> None:
    old = onnx_model([FIRST, node("Softmax", ["c"], ["y"], axis=1)], ARRAYS, opset=11)
    assert "is of opset 11" in refusal(saved(old, tmp_path), tmp_path)


def test_without_onnx_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").touch()
    monkeypatch.setattr("znni.importing.onnx_graph.find_spec", lambda _name: None)
    assert "pip install 'znni[onnx]'" in refusal(tmp_path / "model.onnx", tmp_path)


def test_a_sentence_of_onnx_is_quoted_without_its_dot(tmp_path: Path) -> None:
    onnx_or_skip()
    (tmp_path / "model.onnx").touch()
    with pytest.raises(InvalidInput, match=r"an ONNX model: [^;]*[^.;]; is it whole"):
        znni.import_network(tmp_path / "model.onnx", tmp_path / "net.yaml")


def test_a_slow_evaluator_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.importing.onnx_original._session", lambda *_: None)
    monkeypatch.setattr("znni.importing.onnx_original.REFERENCE_FLOPS", 10.0)
    found = znni.import_network(saved(onnx_chain(), tmp_path), tmp_path / "net.yaml")
    assert "install onnxruntime to have it compared" in str(found)
