"""Network files with graphs: every kind of layer, the way back to text, and clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import EVERY_KIND, graphs
from hypothesis import given
from numpy.typing import NDArray
from random_networks import networks

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.network.layers import (
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    Multiply,
    Normalize,
    Padding,
    Pool,
    Upsample,
    VoxelNorm,
)
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.network_file import network_from_text
from znni.network.node import INPUT, Node
from znni.network.weights import load_weights, random_weights

ONE = Vec3(1, 1, 1)
Array = NDArray[Any]


def test_every_kind_of_layer() -> None:
    network = network_from_text(EVERY_KIND, "unet.yaml")
    same, two = Padding(ONE, ONE), Vec3(2, 2, 2)
    anisotropic = Padding(Vec3(0, 2, 0), Vec3(0, 2, 1))
    uneven = Padding(Vec3(0, 0, 0), Vec3(1, 0, 1))
    assert network.nodes == (
        Node(Conv("conv1", 2, 4, Vec3(3, 3, 3), "leaky_relu", padding=same, slope=0.2), (INPUT,)),
        Node(
            Conv("skip", 4, 4, Vec3(1, 3, 2), "identity", ONE, Vec3(1, 2, 1), 4, anisotropic),
            ("conv1",),
        ),
        Node(Affine("affine1", 4, "prelu"), ("skip",)),
        Node(Pool("pool1", Vec3(3, 3, 3), "average", two, same), ("affine1",)),
        Node(Conv("conv3", 4, 8, two, "gelu", two), ("pool1",)),
        Node(Upsample("upsample1", two, "trilinear"), ("conv3",)),
        Node(
            ConvTranspose(
                "conv_transpose1", 8, 4, Vec3(3, 3, 3), "identity", two, ONE, Vec3(0, 0, 1)
            ),
            ("upsample1",),
        ),
        Node(Add("add1", "elu"), ("conv_transpose1", "skip")),
        Node(Conv("gate", 2, 1, Vec3(3, 3, 3), "sigmoid", padding=same), (INPUT,)),
        Node(Multiply("multiply1", is_gate=True), ("add1", "gate")),
        Node(Concat("concat1"), ("multiply1", INPUT)),
        Node(Conv("boundary", 6, 1, two, "sigmoid", padding=uneven), ("concat1",)),
        Node(Conv("classes", 6, 3, ONE, "softmax"), ("concat1",)),
        Node(Concat("outputs"), ("boundary", "classes")),
    )
    assert network.output == "outputs"
    assert network.out_features == 4
    assert network_from_text(network_text(network), "again") == network


NORMS = """\
name: norms
layers:
  - conv: {features: 4, kernel: 3, padding: same}
  - layer_norm: {}
  - layer_norm: {groups: 2, eps: 0.001, activation: gelu}
  - response_norm: {}
  - response_norm: {groups: 4, eps: 0, activation: relu}
window: {size: 8}
"""


def test_norms() -> None:
    network = network_from_text(NORMS, "norms.yaml")
    assert network.layers[1:] == (
        VoxelNorm("layer_norm1", 4, 1),
        VoxelNorm("layer_norm2", 4, 2, 1e-3, "gelu"),
        Normalize("response_norm1", 4, 1, by="response"),
        Normalize("response_norm2", 4, 4, 0, "relu", by="response"),
    )
    assert network.window_layer == "response_norm1"  # each voxel has a layer norm by itself
    assert network_from_text(network_text(network), "again") == network


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("groups: 2", "groups: 3", "layer layer_norm2 has 3 groups for 4 maps; give a number of"),
        ("eps: 0.001", "eps: -1", "layer layer_norm2: eps is -1; give 0 or more"),
        (
            "layer_norm: {groups: 2",
            "response_norm: {groups: 3",
            "layer response_norm1 has 3 groups for",
        ),
        ("eps: 0.001", "epsilon: 1", "unknown key 'epsilon' in layers.2.layer_norm"),
    ],
)
def test_a_mistake_of_a_norm(old: str, new: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=rf"norms.yaml, line 5: {said}"):
        network_from_text(NORMS.replace(old, new), "norms.yaml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weight": np.ones(3)}, r"layer layer_norm1: weight has shape \(3,\)"),
        ({"bias": np.ones((4, 1))}, r"layer layer_norm1: bias has shape \(4, 1\)"),
    ],
)
def test_weights_of_a_norm_of_a_wrong_shape(
    changes: dict[str, Array], said: str, tmp_path: Path
) -> None:
    network = network_from_text(NORMS, "norms.yaml")
    arrays = {
        f"{layer}.{kind}": array
        for layer, own in random_weights(network, 0).layers.items()
        for kind, array in own.arrays.items()
    }
    arrays |= {f"layer_norm1.{kind}": array.astype(np.float32) for kind, array in changes.items()}
    np.savez(tmp_path / "norms.npz", **arrays)
    with pytest.raises(InvalidInput, match=said):
        load_weights(tmp_path / "norms.npz", network)


@given(graphs())
def test_a_graph_is_the_same_after_text(network: Network) -> None:
    assert network_from_text(network_text(network), "text") == network


@given(networks())
def test_a_chain_is_the_same_after_text(network: Network) -> None:
    assert network_from_text(network_text(network), "text") == network


def test_a_network_that_classifies_whole_windows_is_refused() -> None:
    text = "name: classes\nlayers:\n  - global_pool: {}\n  - conv: {features: 2, kernel: 1}\n"
    with pytest.raises(InvalidInput, match=r"network classes: its output has one sample for a"):
        network_from_text(text, "classes.yaml")


def test_a_layer_may_have_the_name_of_the_input() -> None:
    first = Conv("input", 1, 1, ONE, "relu")
    nodes = (Node(first, (INPUT,)), Node(Add("sum"), ("input", INPUT)))
    network = Network("net", 1, nodes, "sum")
    assert network_from_text(network_text(network), "text") == network


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("[add1, gate]", "[add1, gaet]", 18, "takes 'gaet', but no layer has that name; did you "
         "mean 'gate'? Choose from input, conv1, skip"),
        ("from: input", "from: boundary", 15, "layer gate takes 'boundary', which comes after it; "
         "put boundary before it, because a network has no cycles"),
        ("from: input", "from: gate", 15, "layer gate takes its own output; name an earlier layer"),
        ("from: input", "from: 3", 15, "from is 3; give the name of an earlier layer, or a list"),
        ("from: input", "from: []", 15, "from is []; give the name of an earlier layer"),
        ("from: input", "form: input", 15, "unknown key 'form' in layers.8; did you mean 'from'?"),
        ("[add1, gate]", "[add1]", 17, "layer multiply1 takes 2 values, but it is given 1"),
        ("[multiply1, input]", "input", 19, "layer concat1 takes 2 or more values, but it is"),
        ("from: concat1", "from: [concat1, gate]", 23, "layer classes takes 1 value, but it is "),
        ("[add1, gate]", "[add1, conv3]", 17, "layer multiply1 joins 4 maps with 8; give both the "
         "same number of maps"),
        ("[multiply1, input]", "[multiply1, upsample1]", 19, "layer concat1 joins 'multiply1' "
         "(1x1x1) and 'upsample1' (2x2x2), whose strides differ; upsample the coarser one first"),
        ("factor: 2,", "factor: 3,", 10, "layer upsample1 upsamples by 3x3x3 where a sample spans "
         "4x4x4 voxels"),
        ("outputs: [boundary, classes]", "outputs: [boundary, class]", 26, "there is no layer "
         "'class'; the layers are conv1, skip"),
        ("outputs: [boundary, classes]", "outputs: classes", 3, "nothing takes the output of layer "
         "'boundary'; remove it"),
        ("[boundary, classes]", "[boundary, classes, conv3]", 26, "layer outputs joins 'boundary' "
         "(1x1x1) and 'classes' (1x1x1) and 'conv3' (4x4x4), whose strides differ"),
        ("name: classes", "name: outputs", 26, "there is no layer 'classes'"),
        ("groups: 4", "groups: 3", 5, "layer skip: groups is 3, which does not divide its 4 input "
         "and 4 output maps; give a number that divides both"),
        ("padding: same, dilation", "padding: sam, dilation", 6, "padding is 'sam'; give valid, "
         "same, or zeros per side as 1 or [z, y, x]"),
        ("padding: same, dilation", "padding: -1, dilation", 6, "padding is -1; give valid, same,"),
        ("padding: same, dilation", "padding: [1, 1], dilation", 6, "padding is [1, 1]; give"),
        ("padding: same, dilation", "padding: true, dilation", 6, "padding is True; give valid"),
        ("kernel: 2, stride: 2", "kernel: 2, stride: 2, padding: same", 9, "padding: same needs "
         "stride 1; give the zeros per side as a number"),
        ("leaky_relu: 0.2", "leaky_relu: x", 4, "give a finite number"),
        ("leaky_relu: 0.2", "relu: 0.2", 4, "choose one of relu, sigmoid"),
        ("kind: average", "kind: mean", 8, "unknown kind 'mean'; choose one of max, average"),
        ("mode: trilinear", "mode: linear", 10, "unknown mode 'linear'; choose one of nearest, "),
        ("mode: trilinear", "align_corners: true", 10, "unknown key 'align_corners' in "
         "layers.5.upsample; leave it out"),
        ("mode: trilinear", "shift: 1", 10, "layer upsample1 has factor 2x2x2 and shift 1x1x1; "
         "give one of them, and the other to a layer of its own"),
        ("mode: trilinear", "shift: -1", 10, "shift is -1; give an integer from 0 to "),
        ("stride: 2, padding: 1}", "stride: 2, padding: 3}", 8, "layer pool1: padding 3x3x3 is as "
         "large as the window 3x3x3; give less"),
        ("output_padding: [1, 1, 0]", "output_padding: 2", 11, "layer conv_transpose1: "
         "output_padding is 2x2x2; give 0 or more, and less than its stride 2x2x2"),
        ("  - multiply: {}\n", "  - multiply: {activation: prelu}\n", 17, "prelu needs weights"),
        ("  - multiply: {}\n", "  - divide: {}\n", 17, "unknown key 'divide' in layers.9; the keys "
         "are name, from, conv, conv_transpose, pool, global_pool, upsample, pad, affine, concat, "
         "add, multiply, maximum"),
        ("  - affine: {activation: prelu}", "  - group_norm: {groups: 7}", 7, "layer group_norm1 "
         "has 7 groups for"),
        ("  - affine: {activation: prelu}", "  - global_pool: {window: 2}", 7, "unknown key "
         "'window' in layers.2.global_pool; its window is that of the network"),
        ("  - affine: {activation: prelu}", "  - global_pool: {}", 3, "of network unet joins a "
         "globally pooled value with one that is not"),
        ("  - affine: {activation: prelu}", "  - batch_norm: {}", 7, "or give an affine layer"),
        ("stride: 2, padding: 1, output", "stride: 1, padding: 1, output", 11, "output_padding is "
         "1x1x0; give 0 or more, and less than its stride 1x1x1"),
    ],
)  # fmt: skip
def test_a_mistake_is_found_at_its_line(old: str, new: str, line: int, said: str) -> None:
    text = EVERY_KIND.replace(old, new, 1)
    assert text != EVERY_KIND
    with pytest.raises(InvalidInput) as refused:
        network_from_text(text, "net.yaml")
    message = str(refused.value)
    assert said in message
    assert message.startswith(f"net.yaml, line {line}: ")
    assert "\n" not in message


def test_networks_without_an_exact_output_are_errors() -> None:
    text = "name: n\nlayers: [{conv: {features: 1, kernel: 3, padding: 2}}]"
    with pytest.raises(InvalidInput, match=r"gives more voxels than it takes \(by 2x2x2 per axis"):
        network_from_text(text, "net.yaml")
    text = "name: n\nlayers: [{conv: {features: 1, kernel: 3, stride: 2, padding: 1}}]"
    with pytest.raises(InvalidInput, match="a sample of its output spans 2x2x2 voxels; end it"):
        network_from_text(text, "net.yaml")
    steps = "{pool: {window: 1048576}}, {conv: {features: 1, kernel: 1048576, padding: same}}"
    text = f"name: n\nlayers: [{steps}, {{upsample: {{factor: 1048576}}}}]"
    with pytest.raises(InvalidInput, match="pools by 1048576 along z before it upsamples"):
        network_from_text(text, "net.yaml")
    conv, shift = "{conv: {features: 1, kernel: 3}}", "{upsample: {factor: 1, shift: [0, 1, 0]}}"
    text = f"name: n\nlayers: [{conv}, {shift}]"
    said = "layer upsample1 shifts by 0x1x0, and blocks of network n allow 0x0x0; shift only after"
    with pytest.raises(InvalidInput, match=said):
        network_from_text(text, "net.yaml")
