"""Padding by a network's own values: blocks of any size equal one evaluation over the volume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import znni
from znni.core.errors import InvalidInput
from znni.network.network_file import load_network
from znni.network.weights import Float32
from znni.primitives.tiled_reference import output_at_once

TEXT = """
name: net
in_features: 1
layers:
  - pad: {padding: [1, 2, 1], mode: MODE}
  - conv: {features: 4, kernel: [3, 5, 3], activation: relu}
  - name: skip
    conv: {features: 4, kernel: 3, padding: same}
  - pool: {window: [1, 2, 2]}
  - pad: {padding: {before: [1, 0, 1], after: [0, 1, 1]}, mode: MODE}
  - conv: {features: 6, kernel: [2, 2, 3], activation: relu}
  - upsample: {factor: [1, 2, 2]}
  - concat: {}
    from: [upsample1, skip]
  - pad: {padding: 1, mode: MODE}
  - conv: {features: 2, kernel: 3}
"""
SIZE = (5, 24, 28)


def output(path: Path, x: Float32) -> Float32:
    """Return the output of a network file for random weights."""
    network = load_network(path)
    return znni.Inferer(network, znni.random_weights(network, 3), threads=1, costs="built-in")(x)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_blocks_equal_the_whole_volume(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(TEXT.replace("MODE", mode))
    network = load_network(path)
    x = np.random.default_rng(1).standard_normal((1, *SIZE), np.float32)
    right = output_at_once(network, znni.random_weights(network, 3), x)
    np.testing.assert_allclose(output(path, x), right, rtol=0, atol=1e-5 * np.abs(right).max())


def test_values_from_the_other_side_need_windows(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(TEXT.replace("MODE", "wrap"))
    x = np.random.default_rng(1).standard_normal((1, *SIZE), np.float32)
    with pytest.raises(InvalidInput, match="window"):
        output(path, x)
    window = f"window: {{size: {list(SIZE)}, overlap: 0, blend: constant}}\n"
    path.write_text(TEXT.replace("MODE", "wrap") + window)
    network = load_network(path)
    right = output_at_once(network, znni.random_weights(network, 3), x)
    np.testing.assert_allclose(output(path, x), right, rtol=0, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("padding: 1,", "padding: same,", "padding is the samples on each side; give them as 1"),
        ("padding: 1,", "padding: -1,", "padding is -1"),
        ("mode: MODE", "mode: mirror", "unknown mode 'mirror'; choose one of reflect, edge, wrap"),
    ],
)
def test_mistakes_in_a_file(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(TEXT.replace(old, new).replace("MODE", "edge"))
    with pytest.raises(InvalidInput) as refused:
        load_network(path)
    assert said in str(refused.value)
