"""State dicts are matched with the layers of a network file, or an error says what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import numbers, pooled, read_back, relative, sequential, torch_or_skip
from safetensors.numpy import save_file

import znni
from znni.core.errors import InvalidInput
from znni.network.input_scaling import InputScaling

LIKE = """\
name: known
in_features: 2
input: {scale: 0.5, offset: -1.0}
layers:
  - conv: {features: 3, kernel: [1, 2, 3], activation: relu}
  - pool: {window: [1, 2, 2]}
  - name: last
    conv: {features: 1, kernel: [2, 1, 2], activation: sigmoid}
"""
FIRST, SECOND = numbers(3, 2, 1, 2, 3, seed=1), numbers(1, 3, 2, 1, 2, seed=2)


def norm(prefix: str) -> dict[str, Any]:
    return {
        f"{prefix}.weight": numbers(3, seed=3),
        f"{prefix}.bias": numbers(3, seed=4),
        f"{prefix}.running_mean": numbers(3, seed=5),
        f"{prefix}.running_var": np.abs(numbers(3, seed=6)) + 0.5,
        f"{prefix}.num_batches_tracked": np.array(7),
    }


def tensors(first: str, second: str, **more: Any) -> dict[str, Any]:
    return {
        f"{first}.weight": FIRST,
        f"{first}.bias": numbers(3, seed=7),
        f"{second}.weight": SECOND,
        f"{second}.bias": numbers(1, seed=8),
        **more,
    }


def like(folder: Path) -> Path:
    (folder / "like.yaml").write_text(LIKE)
    return folder / "like.yaml"


def saved(folder: Path, arrays: dict[str, Any]) -> Path:
    save_file(arrays, folder / "state.safetensors")
    return folder / "state.safetensors"


def imported(source: Any, folder: Path) -> Any:
    return znni.import_network(source, folder / "net.yaml", like=like(folder), overwrite=True)


def refusal(arrays: dict[str, Any], folder: Path) -> str:
    with pytest.raises(InvalidInput) as refused:
        imported(saved(folder, arrays), folder)
    assert not (folder / "net.yaml").exists()
    return str(refused.value)


@pytest.mark.parametrize(
    ("first", "second"), [("0", "12"), ("conv2", "conv10"), ("last.0", "last.1"), ("conv1", "last")]
)
def test_layers_are_matched_by_number_or_name(first: str, second: str, tmp_path: Path) -> None:
    found = imported(saved(tmp_path, tensors(first, second)), tmp_path)
    assert (found.network.name, found.network.scaling) == ("known", InputScaling(0.5, -1.0))
    assert [layer.name for layer in found.network.layers] == ["conv1", "pool1", "last"]
    _, weights = read_back(tmp_path / "net.yaml")
    assert (weights["conv1"].weight == FIRST).all()
    assert (weights["last"].weight == SECOND).all()
    assert "not compared: a state dict does not say how its layers are connected" in str(found)


def test_without_a_network_file_it_says_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    file = saved(tmp_path, tensors("0", "3"))
    with pytest.raises(InvalidInput) as refused:
        znni.import_network(file, tmp_path / "net.yaml")
    message = str(refused.value)
    assert "2 convolutions (0: 2 -> 3 maps, kernel 1x2x3; 3: 3 -> 1 maps" in message
    assert "which activations and pooling" in message
    assert "--like NET.yaml" in message


@pytest.mark.parametrize(
    ("names", "name"),
    [(("0", "4"), "1"), (("conv1", "conv2"), "bn1"), (("f.0.0", "f.1.0"), "f.0.1")],
)
def test_a_batch_normalization_is_folded_into_the_convolution_before_it(
    names: tuple[str, str], name: str, tmp_path: Path
) -> None:
    found = imported(saved(tmp_path, tensors(*names) | norm(name)), tmp_path)
    assert f"note: batch normalization {name} is taken to come right after convolution" in str(
        found
    )
    _, weights = read_back(tmp_path / "net.yaml")
    arrays = norm(name)
    scale = arrays[f"{name}.weight"] / np.sqrt(arrays[f"{name}.running_var"] + 1e-5)
    wanted = FIRST * scale[:, None, None, None, None]
    assert relative(weights["conv1"].weight, wanted) < 1e-6
    bias = (numbers(3, seed=7) - arrays[f"{name}.running_mean"]) * scale + arrays[f"{name}.bias"]
    assert relative(weights["conv1"].bias, bias) < 1e-6


@pytest.mark.parametrize(
    ("first", "name", "second"),
    [
        ("down.conv", "down.adn.N", "up.conv"),  # MONAI
        ("down1.conv1", "down1.norm1", "up1.conv1"),
        ("enc.0", "enc.1", "dec.0"),
        ("encode", "norm", "decode"),
    ],
)
def test_a_batch_normalization_belongs_to_the_nearest_module(
    first: str, name: str, second: str, tmp_path: Path
) -> None:
    both = tensors(first, second)
    ordered = {key: both[key] for key in both if key.startswith(f"{first}.")} | norm(name) | both
    found = imported(ordered, tmp_path)
    assert f"{name} is taken to come right after convolution {first}, before" in str(found)


@pytest.mark.parametrize(
    "ordered",
    [
        norm("a.norm") | tensors("a.conv", "b.conv"),
        tensors("a.conv", "b.conv") | norm("b.norm"),
        tensors("a.conv", "b.conv") | norm("norm"),
        tensors("a.conv", "a.shortcut") | norm("a.norm"),
    ],
    ids=["before its convolution", "after other maps", "in another module", "after two"],
)
def test_a_batch_normalization_elsewhere_is_refused(
    ordered: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="does not tell whether it comes right after"):
        imported(ordered, tmp_path)


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        (tensors("0", "4") | norm("2"), "does not tell whether it comes right after"),
        (tensors("conv1", "conv2") | norm("bn3"), "'bn3', and its name does not tell"),
        (tensors("encoder", "decoder"), "(name: decoder), or save it with torch.save"),
        (tensors("1", "0"), "convolution '0' has weights (1, 3, 2, 1, 2), and layer conv1"),
        ({"0.weight": FIRST}, "has 1 convolution (0), and network known has 2"),
        (tensors("0", "1") | {"2.weight": numbers(3, 4)}, "layer '2' has weight (3, 4)"),
        (tensors("0", "1") | {"2.weight": numbers(3)}, "has 1 prelu (2), and network known has 0"),
        (
            tensors("0", "1") | {"2.weight": numbers(3), "2.bias": numbers(3)},
            "has 1 instance, group or layer normalization (2), and network known has 0",
        ),
        ({"0.weight": numbers(3, 4)}, "neither a 3D convolution nor a normalization nor a prelu"),
        (tensors("0", "1") | {"0.bias": numbers(2)}, "bias of shape (2,) for 3 maps"),
        (tensors("0", "1") | {"0.weight": FIRST * np.nan}, "not finite"),
        (tensors("0", "1") | {"0.weight": FIRST.astype(np.int32)}, "weight of int32"),
    ],
)
def test_what_does_not_agree_is_refused(arrays: dict[str, Any], named: str, tmp_path: Path) -> None:
    assert named in refusal(arrays, tmp_path)


def test_files_of_torch_keep_their_order(tmp_path: Path) -> None:
    torch = torch_or_skip()
    state = {key: torch.from_numpy(np.asarray(value)) for key, value in tensors("b", "a").items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "state.pt")
    found = imported(tmp_path / "state.pt", tmp_path)
    assert found.network.convolutions[0].weight_shape == FIRST.shape
    imported(state, tmp_path)
    torch.save({"one": state, "two": state}, tmp_path / "two.pt")
    with pytest.raises(InvalidInput, match="has to hold one state dict, and holds one, two"):
        imported(tmp_path / "two.pt", tmp_path)


def test_a_module_and_its_state_dict_give_the_same_network(tmp_path: Path) -> None:
    torch = torch_or_skip()
    module = torch.nn.Sequential(*list(sequential())[:4])
    (tmp_path / "like.yaml").write_text(
        "name: same\nin_features: 2\nlayers:\n"
        "- conv: {features: 3, kernel: [2, 3, 4], activation: relu}\n- pool: {window: [1, 2, 2]}\n"
    )
    out = tmp_path / "net.yaml"
    znni.import_network(module.state_dict(), out, like=tmp_path / "like.yaml")
    x = numbers(2, 5, 9, 11)
    with torch.no_grad():
        wanted = module.eval()(torch.from_numpy(x)[None])[0].numpy()
    assert relative(pooled(read_back(out), x), wanted) < 1e-5


GRAPH = """\
name: graph
layers:
  - conv: {features: 3, kernel: 3, padding: 1, activation: prelu}
  - pool: {window: [1, 2, 2]}
  - conv: {features: 6, kernel: 3, padding: same, groups: 3, activation: {leaky_relu: 0.2}}
  - conv_transpose: {features: 3, kernel: [1, 2, 2], stride: [1, 2, 2]}
  - add: {}
    from: [conv_transpose1, conv1]
  - name: NORM
    affine: {activation: elu}
  - name: gate
    conv: {features: 1, kernel: 1, activation: sigmoid}
  - multiply: {}
    from: [NORM, gate]
  - concat: {}
    from: [multiply1, add1]
  - conv: {features: 2, kernel: 1}
"""


def module() -> Any:
    torch = torch_or_skip()
    nn = torch.nn

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1, self.act = (
                nn.Conv3d(1, 3, 3, padding=1),
                nn.BatchNorm3d(3),
                nn.PReLU(),
            )
            self.conv2 = nn.Conv3d(3, 6, 3, padding=1, groups=3, bias=False)
            self.up3 = nn.ConvTranspose3d(6, 3, (1, 2, 2), stride=(1, 2, 2))
            self.last = nn.BatchNorm3d(3)
            self.conv4, self.conv5 = nn.Conv3d(3, 1, 1), nn.Conv3d(6, 2, 1)

        def forward(self, x: Any) -> Any:
            x = self.act(self.bn1(self.conv1(x)))
            y = nn.functional.max_pool3d(x, (1, 2, 2))
            y = self.up3(nn.functional.leaky_relu(self.conv2(y), 0.2)) + x
            z = nn.functional.elu(self.last(y))
            return self.conv5(torch.cat([z * torch.sigmoid(self.conv4(z)), y], 1))

    made = Module().eval()
    with torch.no_grad():
        for norm in (made.bn1, made.last):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            norm.weight.normal_()
    return made


@pytest.mark.parametrize("name", ["last", "norm"])
def test_a_state_dict_fills_a_graph(name: str, tmp_path: Path) -> None:
    torch = torch_or_skip()
    own, out = module(), tmp_path / "net.yaml"
    (tmp_path / "graph.yaml").write_text(GRAPH.replace("NORM", name))
    found = znni.import_network(own.state_dict(), out, like=tmp_path / "graph.yaml")
    assert found.notes == (
        "batch normalization bn1 is taken to come right after convolution conv1, before its "
        "activation, with PyTorch's epsilon of 1e-05",
    )
    assert [layer.name for layer in found.network.layers][-5:] == [
        name,
        "gate",
        "multiply1",
        "concat1",
        "conv4",
    ]
    x = numbers(1, 4, 6, 8)
    with torch.no_grad():
        wanted = own(torch.from_numpy(x)[None])[0].numpy()
    assert relative(pooled(read_back(out), x), wanted) < 1e-5


def test_a_norm_or_prelu_too_few(tmp_path: Path) -> None:
    own = module()
    (tmp_path / "graph.yaml").write_text(GRAPH.replace("NORM", "norm"))
    for left_out, named in (
        ("last", "has no batch normalization for layer norm; give the layer the name of one"),
        ("act", "has 0 prelus (), and network graph has 1"),
        ("conv5", "has 4 convolutions (conv1, conv2, up3, conv4), and network graph has 5"),
    ):
        state = {key: value for key, value in own.state_dict().items() if left_out not in key}
        with pytest.raises(InvalidInput) as refused:
            znni.import_network(state, tmp_path / "net.yaml", like=tmp_path / "graph.yaml")
        assert named in str(refused.value)


NORMS = """\
name: norms
layers:
  - conv: {features: 4, kernel: 3, padding: same}
  - instance_norm: {activation: leaky_relu}
  - conv: {features: 6, kernel: 1}
  - name: SECOND
    group_norm: {groups: 3, eps: 0.001, activation: relu}
"""


def norm_module(*, affine: bool) -> Any:
    nn = torch_or_skip().nn
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1),
        nn.InstanceNorm3d(4, affine=affine),
        nn.LeakyReLU(),
        nn.Conv3d(4, 6, 1),
        nn.GroupNorm(3, 6, 1e-3, affine=affine),
        nn.ReLU(),
    )


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("names", [("1", "4"), ("instance_norm1", "SECOND")])
def test_instance_and_group_norms_are_filled(
    names: tuple[str, str], affine: bool, tmp_path: Path
) -> None:
    torch = torch_or_skip()
    made = norm_module(affine=affine)
    for at in (1, 4):
        for values in made[at].parameters():
            torch.nn.init.normal_(values)
    state = made.state_dict()
    for before, after in zip(("1", "4"), names, strict=True):
        for kind in ("weight", "bias")[: 2 * affine]:
            state[f"{after}.{kind}"] = state.pop(f"{before}.{kind}")
    (tmp_path / "like.yaml").write_text(NORMS)
    out = tmp_path / "net.yaml"
    report = str(znni.import_network(state, out, like=tmp_path / "like.yaml"))
    assert ("normalization 4 fills layer SECOND" in report) == (affine and names[0] == "1")
    network, weights = read_back(out)
    assert [layer.eps for layer in network.layers[1::2]] == [1e-5, 1e-3]
    for layer, at in ((network.layers[1], 1), (network.layers[3], 4)):
        found, held = weights[layer.name], made[at]
        np.testing.assert_array_equal(found.weight, held.weight.detach() if affine else 1)
        np.testing.assert_array_equal(found.bias, held.bias.detach() if affine else 0)


def test_norms_too_few(tmp_path: Path) -> None:
    state = norm_module(affine=True).state_dict()
    del state["4.weight"], state["4.bias"]
    (tmp_path / "like.yaml").write_text(NORMS)
    with pytest.raises(
        InvalidInput, match=r"has 1 instance, group or layer normalization \(1\), and"
    ):
        znni.import_network(state, tmp_path / "net.yaml", like=tmp_path / "like.yaml")


def test_the_network_file_also_gives_what_a_state_dict_cannot_say(tmp_path: Path) -> None:
    torch = torch_or_skip()
    more = (
        'about: "Cells"\nexpects: "grey levels"\nlabels: {a: 0, b: 3, c: 4, d: 5}\n'
        "spacing: 1.5,1,1mm\n"
        "window: {size: [8, 16, 16], overlap: 0.25, blend: constant}\n"
    )
    path = tmp_path / "like.yaml"
    path.write_text(
        f"name: known\nin_features: 1\ninput: {{normalize: zscore}}\n{more}layers:\n"
        "  - conv: {features: 4, kernel: 3, padding: same}\n  - group_norm: {groups: 2}\n"
    )
    state = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3), torch.nn.GroupNorm(2, 4)).state_dict()
    found = znni.import_network(state, tmp_path / "net.yaml", like=path).network
    known = znni.load_network(path)
    for name in ("about", "expects", "labels", "has_regions", "spacing", "window", "scaling"):
        assert getattr(found, name) == getattr(known, name), name
    assert dict(found.labels) == {"a": 0, "b": 3, "c": 4, "d": 5}
