"""Networks that slide by dilation: every voxel has the output of its own window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import znni
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3, offsets
from znni.inference.brute_force import at_voxel
from znni.network.description import describe
from znni.network.geometry import context
from znni.network.layers import Join, Pool
from znni.network.network_file import load_network
from znni.network.node import INPUT, Node
from znni.network.strides_to_dilations import slid
from znni.network.weights import Float32, Weights
from znni.primitives import tiled_reference

LAYERS = {
    "averages": [
        "conv: {features: 3, kernel: [2, 3, 2], activation: relu}",
        "pool: {window: [1, 2, 2], kind: average}",
        "conv: {features: 2, kernel: 2, stride: [2, 1, 1], activation: tanh}",
        "pool: {window: 2}",
        "conv: {features: 2, kernel: [1, 2, 1]}",
    ],
    "overlapping windows": [
        "conv: {features: 3, kernel: 2, activation: elu}",
        "pool: {window: [2, 3, 3], stride: 2}",
        "pool: {window: 2, stride: 1, dilation: [1, 1, 2]}",
        "conv: {features: 2, kernel: 2, dilation: [1, 2, 1]}",
    ],
    "strides": [
        "conv: {features: 4, kernel: [2, 3, 3], stride: [1, 2, 3], activation: relu}",
        "affine: {activation: relu}",
        "conv: {features: 4, kernel: [2, 2, 1], groups: 2, stride: 2}",
        "conv: {features: 1, kernel: 1, activation: sigmoid}",
    ],
    "a residual": [
        "name: skip\n    conv: {features: 2, kernel: 1, stride: 2}",
        "conv: {features: 2, kernel: 3, activation: relu}",
        "conv: {features: 2, kernel: 1}",
        "add: {activation: relu}\n    from: [skip, conv3]",
        "pool: {window: 2, kind: average}",
    ],
}
REFUSED = {
    "padding": ["conv: {features: 2, kernel: 3, padding: 1}", "pool: {window: 2}"],
    "a centre between samples": [
        "name: skip\n    conv: {features: 2, kernel: 1, stride: 2}",
        "conv: {features: 2, kernel: 2, activation: relu}",
        "add: {activation: relu}\n    from: [skip, conv2]",
    ],
}


def file_of(folder: Path, layers: list[str]) -> Path:
    """Write a network file."""
    path = folder / "net.yaml"
    path.write_text("name: net\nlayers:\n" + "".join(f"  - {layer}\n" for layer in layers))
    return path


def strided_nodes(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[Node]:
    """Return the layers of a file as they are written there, without those that slide."""
    seen: list[Node] = []

    def noted(nodes: list[Node], output: str) -> object:
        seen.extend(nodes)
        return slid(nodes, output)

    with monkeypatch.context() as patched:
        patched.setattr("znni.network.network_entries.slid", noted)
        load_network(path)
    return seen


def of_window(nodes: list[Node], weights: Weights, window: Float32) -> Float32:
    """Return the only output of layers with strides for a window of their field of view."""
    values: dict[str, Float32] = {INPUT: window[None]}
    for node in nodes:
        taken = [values[name] for name in node.inputs]
        if isinstance(node.layer, Join):
            sizes = [Vec3(*each.shape[2:]) for each in taken]
            made = node.layer.size_from(*sizes)
            starts = [(size - made) // 2 for size in sizes]
            taken = [
                each[:, :, *Box(start, start + made).slices]
                for each, start in zip(taken, starts, strict=True)
            ]
        values[node.name] = tiled_reference.local(node.layer, weights, taken)
    made = values[nodes[-1].name]
    assert made.shape[2:] == (1, 1, 1)
    return made[0, :, 0, 0, 0]


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", LAYERS)
def test_every_voxel_has_the_output_of_its_window(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, LAYERS[name])
    network, nodes = load_network(path), strided_nodes(monkeypatch, path)
    assert max(slid(nodes, nodes[-1].name).stride) > 1
    assert network.strides[network.output] == Vec3(1, 1, 1)
    weights, view = znni.random_weights(network, 1), context(network) + 1
    size = Vec3(3, 4, 5)
    x = np.random.default_rng(2).standard_normal((1, *(view + size - 1)), np.float32)
    right = np.empty((network.out_features, *size))
    for at in offsets(size):
        right[:, *at] = of_window(nodes, weights, x[:, *Box(at, at + view).slices])
    inferer = znni.Inferer(network, weights, border="valid", threads=1, costs="built-in")
    np.testing.assert_allclose(inferer(x), right, rtol=0, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_cannot_slide_are_errors(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="use only layers without padding"):
        load_network(file_of(tmp_path, REFUSED[name]))


def test_the_layers_of_a_network_that_slides_say_how(tmp_path: Path) -> None:
    network = load_network(file_of(tmp_path, LAYERS["averages"]))
    assert "max-pool 2x2x2, stride 1x1x1, dilation 2x2x2" in describe(network)
    pools = [layer for layer in network.layers if isinstance(layer, Pool)]
    assert pools[1].dilation == Vec3(2, 2, 2)
    assert pools[1].stride == Vec3(1, 1, 1)


def test_averages_alone_slide_by_fragments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(
        tmp_path,
        [
            "conv: {features: 3, kernel: [2, 1, 2], activation: relu}",
            "pool: {window: [1, 2, 3], kind: average}",
            "conv: {features: 2, kernel: [1, 2, 2], activation: tanh}",
            "pool: {window: 2}",
            "conv: {features: 2, kernel: [1, 2, 1]}",
        ],
    )
    network, nodes = load_network(path), strided_nodes(monkeypatch, path)
    assert not network.is_tiled
    weights, view = znni.random_weights(network, 1), network.field_of_view
    size = Vec3(3, 4, 7)
    x = np.random.default_rng(2).standard_normal((1, *(view + size - 1)), np.float32)
    right = np.empty((network.out_features, *size))
    for at in offsets(size):
        right[:, *at] = of_window(nodes, weights, x[:, *Box(at, at + view).slices])
    inferer = znni.Inferer(network, weights, border="valid", threads=1, costs="built-in")
    np.testing.assert_allclose(inferer(x), right, rtol=0, atol=1e-5 * np.abs(right).max())
    found = at_voxel(network, weights, x[:, *Box(Vec3(0, 0, 0), view).slices])
    np.testing.assert_allclose(found.values, right[:, 0, 0, 0], rtol=0, atol=1e-10)
