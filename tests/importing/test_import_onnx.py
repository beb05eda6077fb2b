"""ONNX graphs: which are accepted, and which are refused."""

from __future__ import annotations

import sys
import warnings
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
from znni.importing.parity import Parity

onnx = onnx_or_skip()
node = onnx.helper.make_node


# Comparisons run the reference, which needs no compiling.
pytestmark = pytest.mark.usefixtures("fake_primitives")


def saved(model: Any, folder: Path) -> Path:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_a_graph_as_a_network_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx.reference import ReferenceEvaluator

    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # onnx's own evaluator works as well
    monkeypatch.setattr("znni.importing.onnx_graph._session", lambda _path: None)
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
    monkeypatch.setattr("znni.importing.onnx_graph._session", lambda _path: None)
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
    "w2": numbers(2, 2, 1, 1, 1),
    "half": numbers(2, 1, 1, 1, 1),
    "flat": numbers(2, 1, 3, 3),
    "b": numbers(2),
    "v": np.ones(2, np.float32),
    "true": np.array(True),
    "ratio": np.array(0.5, np.float32),
}
FIRST = node("Conv", ["x", "w"], ["c"])
NORM = ["c", "b", "b", "b", "v"]


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ([node("Conv", ["x", "w"], ["y"], strides=[1, 2, 2])], "y (Conv) has stride [1, 2, 2]"),
        ([node("Conv", ["x", "w"], ["y"], pads=[0, 1, 1] * 2)], "has padding [0, 1, 1, 0, 1, 1]"),
        ([node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER")], "has padding SAME_UPPER"),
        ([node("Conv", ["x", "w"], ["y"], dilations=[1, 2, 2])], "has dilation [1, 2, 2]"),
        ([node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 2, 1])], "kernel_shape [3, 2, 1]"),
        ([FIRST, node("Conv", ["c", "half"], ["y"], group=2)], "y (Conv) has 2 groups"),
        ([node("Conv", ["x", "flat"], ["y"])], "weights of shape (2, 1, 3, 3)"),
        ([FIRST, node("ConvTranspose", ["c", "w2"], ["y"])], "y (ConvTranspose) cannot be"),
        (
            [FIRST, node("MaxPool", ["c"], ["y"], kernel_shape=[1, 2, 2])],
            "pools 1x2x2 with stride 1x1x1",
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
        ([FIRST, node("AveragePool", ["c"], ["y"], kernel_shape=[2] * 3)], "(AveragePool) cannot"),
        ([FIRST, node("Add", ["c", "c"], ["y"])], "y (Add) reads 'c', 'c'; skip connections"),
        ([FIRST, node("Relu", ["c"], ["r"]), node("Add", ["c", "r"], ["y"])], "skip connections"),
        ([FIRST, node("Concat", ["c", "c"], ["y"], axis=1)], "y (Concat) reads 'c', 'c'; skip"),
        ([FIRST, node("Softmax", ["c"], ["y"])], "is over axis -1"),
        ([FIRST, node("LeakyRelu", ["c"], ["y"], alpha=0.2)], "leaky_relu has 0.01"),
        ([FIRST, node("Elu", ["c"], ["y"], alpha=0.5)], "elu has 1.0"),
        ([FIRST, node("Selu", ["c"], ["y"])], "y (Selu) cannot be represented"),
        ([FIRST, node("Dropout", ["c", "ratio", "true"], ["y"])], "in training mode"),
        (
            [FIRST, node("BatchNormalization", NORM, ["y", "m1", "v1"], training_mode=1)],
            "gives 3 results",
        ),
        ([node("Relu", ["x"], ["y"])], "no 3D convolution"),
    ],
)
def test_a_graph_with_what_cannot_be_represented(
    nodes: list[Any], named: str, tmp_path: Path
) -> None:
    said = refusal(saved(onnx_model(nodes, ARRAYS), tmp_path), tmp_path)
    assert said.startswith(f"{tmp_path / 'model.onnx'}: ")
    assert named in said


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
    monkeypatch.setattr("znni.importing.onnx_graph._session", lambda _path: None)
    monkeypatch.setattr("znni.importing.onnx_graph.REFERENCE_FLOPS", 10.0)
    found = znni.import_network(saved(onnx_chain(), tmp_path), tmp_path / "net.yaml")
    assert "install onnxruntime to have it compared" in str(found)
