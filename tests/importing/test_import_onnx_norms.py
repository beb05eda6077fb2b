"""Norms of ONNX models, of many values: onnxruntime computes them as exactly as others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import numbers, onnx_model, onnx_or_skip

import znni
from znni.core.shapes import Vec3
from znni.importing.onnx_original import original
from znni.importing.parity import Parity

onnx = onnx_or_skip()
node = onnx.helper.make_node
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (znni[onnx])")

SIDE, MAPS, GROUPS, EPS = 48, 4, 2, 1e-3
FACTORS, SHIFTS = np.array([2, -1, 0.5, 1], np.float32), np.array([0, 1, -1, 3], np.float32)
OF_RESHAPED = [
    node("Reshape", ["r", "groups"], ["g"]),
    node("InstanceNormalization", ["g", "ones", "zeros"], ["n"], epsilon=EPS),
    node("Reshape", ["n", "whole"], ["f"]),
    node("Mul", ["f", "by"], ["m"]),
    node("Add", ["m", "plus"], ["y"]),
]
OF_MAPS = [node("InstanceNormalization", ["r", "factors", "shifts"], ["y"], epsilon=EPS)]
GROUPED = [
    node("GroupNormalization", ["r", "factors", "shifts"], ["y"], num_groups=GROUPS, epsilon=EPS)
]


def model(norm: list[Any], opset: int) -> Any:
    """Return a model with a norm of values of which half are zero."""
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["r"]), *norm]
    arrays = {
        "w": numbers(MAPS, 1, 1, 1, 1),
        "factors": FACTORS,
        "shifts": SHIFTS,
        "groups": np.array([0, GROUPS, -1], np.int64),
        "whole": np.array([1, MAPS, *[SIDE] * 3], np.int64),
        "ones": np.ones(GROUPS, np.float32),
        "zeros": np.zeros(GROUPS, np.float32),
        "by": FACTORS.reshape(-1, 1, 1, 1),
        "plus": SHIFTS.reshape(-1, 1, 1, 1),
    }
    used = {name for each in nodes for name in each.input}
    held = {name: array for name, array in arrays.items() if name in used}
    return onnx_model(nodes, held, opset=opset, x=SIDE, y=SIDE, z=SIDE)


MODELS = {
    "maps": (model(OF_MAPS, 17), MAPS),
    "maps, opset 18": (model(OF_MAPS, 18), MAPS),
    "reshaped": (model(OF_RESHAPED, 17), GROUPS),
    "groups": (model(GROUPED, 21), GROUPS),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_original_is_exact(name: str, tmp_path: Path) -> None:
    made, groups = MODELS[name]
    file = tmp_path / "net.onnx"
    onnx.save(made, file)
    x = numbers(1, SIDE, SIDE, SIDE)
    found = original(file, onnx.load(file), "x", Vec3.of(SIDE))
    assert found.runtime == "onnxruntime, with norms in float64"
    relu = np.maximum(numbers(MAPS, 1).astype(float) * x.reshape(1, -1), 0).reshape(groups, -1)
    unit = (relu - relu.mean(1, keepdims=True)) / np.sqrt(relu.var(1, keepdims=True) + EPS)
    wanted = unit.reshape(MAPS, -1) * FACTORS[:, None] + SHIFTS[:, None]
    assert np.abs(found.run(x).reshape(MAPS, -1) - wanted).max() < 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("name", MODELS)
def test_the_import_agrees(name: str, tmp_path: Path) -> None:
    made, _ = MODELS[name]
    file = tmp_path / "net.onnx"
    onnx.save(made, file)
    compared = znni.import_network(file, tmp_path / "net.yaml").parity
    assert isinstance(compared, Parity)
    assert compared.error < 2e-6
