"""Networks that people train, as their libraries make them, with random weights and small widths.

Networks of libraries that are not installed are skipped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from import_cases import numbers, pooled, read_back, refusal, relative, torch_or_skip

import znni
from znni.importing.parity import Parity
from znni.primitives.tiled_reference import output_at_once

torch = torch_or_skip()
nn = torch.nn
networks = import_module("bench.peers.torch_networks")

# Comparisons run the reference, which needs no compiling.
pytestmark = pytest.mark.usefixtures("fake_primitives")


def valid(*, transposed: bool) -> Any:
    return networks.ValidUNet((4, 6, 8), [(2, 2, 2)] * 2, transposed=transposed)


def monai(name: str, *args: Any, **options: Any) -> Any:
    nets = pytest.importorskip("monai.networks.nets", reason="monai is not installed (znni[peers])")
    return getattr(nets, name)(*args, **options)


def attention_unet() -> Any:
    """Return MONAI's network with batch norm where its joins have instance norm."""
    module = monai("AttentionUnet", 3, 1, 2, (4, 6, 8), (2, 2))
    for part in list(module.modules()):
        merge = getattr(part, "merge", None)
        for inner in merge.modules() if merge else ():
            for name, layer in list(inner.named_children()):
                if isinstance(layer, nn.InstanceNorm3d):
                    (conv,) = (each for each in merge.modules() if isinstance(each, nn.Conv3d))
                    setattr(inner, name, nn.BatchNorm3d(conv.out_channels))
    return module


def pytorch_3dunet(name: str, order: str) -> Any:
    models = pytest.importorskip("pytorch3dunet.unet3d.model", reason="it is not installed")
    return getattr(models, name)(1, 2, f_maps=4, layer_order=order, num_levels=3)


def nnu_net(name: str, *blocks: Any) -> Any:
    unets = pytest.importorskip(
        "dynamic_network_architectures.architectures.unet", reason="it is not installed"
    )
    kernels, strides = [(1, 3, 3), 3, 3], [1, (1, 2, 2), 2]
    options = {"conv_bias": True, "norm_op": nn.BatchNorm3d, "norm_op_kwargs": {"eps": 1e-5}}
    options |= {"nonlin": nn.LeakyReLU, "nonlin_kwargs": {"inplace": True}}
    convolutions, classes, back = blocks
    return getattr(unets, name)(
        1, 3, (4, 6, 8), nn.Conv3d, kernels, strides, convolutions, classes, back, **options
    )


BATCH = ("batch", {})
SMALL = (8, 16, 16)
NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, int, int]]] = {
    "valid, nearest": (lambda: valid(transposed=False), (44, 48, 44)),
    "valid, transposed": (lambda: valid(transposed=True), (44, 44, 48)),
    "residual symmetric": (lambda: networks.ResidualUNet((4, 6)), (3, 6, 8)),
    "residual symmetric, norm last": (
        lambda: networks.ResidualUNet((4, 6), norm_first=False, up="nearest"),
        (3, 6, 8),
    ),
    "MeshNet": (lambda: networks.mesh_net(4, (1, 1, 2, 4, 8, 1)), (9, 10, 11)),
    "MONAI UNet": (
        lambda: monai("UNet", 3, 1, 2, (4, 6, 8), (2, 2), num_res_units=2, norm="batch"),
        SMALL,
    ),
    "MONAI BasicUNet": (
        lambda: monai("BasicUNet", 3, 1, 2, features=(2, 2, 3, 3, 4, 2), norm="batch"),
        (16, 16, 32),
    ),
    "MONAI DynUNet": (
        lambda: monai(
            "DynUNet",
            3,
            1,
            3,
            [[1, 3, 3], 3, 3],
            [1, [1, 2, 2], 2],
            [[1, 2, 2], 2],
            filters=[4, 6, 8],
            norm_name=BATCH,
            res_block=True,
        ),
        SMALL,
    ),
    "MONAI AttentionUnet": (attention_unet, SMALL),
    "pytorch-3dunet UNet3D": (lambda: pytorch_3dunet("UNet3D", "cbr"), SMALL),
    "pytorch-3dunet UNet3D, norm first": (lambda: pytorch_3dunet("UNet3D", "bcr"), SMALL),
    "pytorch-3dunet ResidualUNet3D": (lambda: pytorch_3dunet("ResidualUNet3D", "cbr"), SMALL),
    "pytorch-3dunet ResidualUNetSE3D": (lambda: pytorch_3dunet("ResidualUNetSE3D", "cbr"), SMALL),
    "MONAI SegResNet": (
        lambda: monai(
            "SegResNet", 3, 4, 1, 2, blocks_down=(1, 1), blocks_up=(1,), norm="batch", act="relu"
        ),
        SMALL,
    ),
    "nnU-Net PlainConvUNet": (lambda: nnu_net("PlainConvUNet", 2, 3, 2), SMALL),
    "nnU-Net ResidualEncoderUNet": (
        lambda: nnu_net("ResidualEncoderUNet", (1, 2, 2), 3, (1, 1)),
        SMALL,
    ),
}


def trained(module: Any) -> Any:
    """Return a module in evaluation mode, with statistics as after training."""
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm3d):
                layer.running_mean.normal_().mul_(0.1)
                layer.running_var.uniform_(0.5, 2)
    return module.eval()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["module", "pt2", "onnx"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_that_people_train(name: str, source: str, tmp_path: Path) -> None:
    make, size = NETWORKS[name]
    module, out = trained(make()), tmp_path / "net.yaml"
    given, inputs = module, (torch.zeros(1, 1, *size),)
    with warnings.catch_warnings(action="ignore"):
        if source == "pt2":
            given = tmp_path / "model.pt2"
            torch.export.save(torch.export.export(module, inputs), given)
        if source == "onnx":
            pytest.importorskip("onnx", reason="onnx is not installed (znni[onnx])")
            given = tmp_path / "model.onnx"
            torch.onnx.export(module, inputs, given, dynamo=False)
        found = znni.import_network(given, out)
    assert isinstance(found.parity, Parity)
    assert found.parity.error < 1e-5
    x = numbers(1, *size)
    with torch.no_grad():
        wanted = module.double()(torch.from_numpy(x).double()[None])[0].numpy()
    assert relative(pooled(read_back(out), x), wanted) < 1e-5


def basic_unet(norm: Any) -> Any:
    return monai("BasicUNet", 3, 1, 2, features=(2, 2, 4, 4, 4, 2), norm=norm)


def mednext(kernel: int) -> Any:
    return monai(
        "MedNeXt", 3, 4, 1, 2, kernel_size=kernel, use_residual_connection=True, blocks_down=(1, 1),
        blocks_bottleneck=1, blocks_up=(1, 1), decoder_expansion_ratio=(3, 2),
    )  # fmt: skip


WITH_NORMS: dict[str, Callable[[], Any]] = {
    "MONAI BasicUNet, instance norm": lambda: basic_unet("instance"),
    "MONAI BasicUNet, group norm": lambda: basic_unet(("group", {"num_groups": 2})),
    "MONAI MedNeXt, kernel 3": lambda: mednext(3),
    "MONAI MedNeXt, kernel 5": lambda: mednext(5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_NORMS)
@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_networks_with_norms(name: str, ending: str, tmp_path: Path) -> None:
    module = WITH_NORMS[name]()
    for parameter in module.parameters():
        if parameter.ndim == 1:  # factors and shifts are 1 and 0 before training
            nn.init.uniform_(parameter, 0.5, 1.5)
    x = torch.zeros(1, 1, 32, 32, 32)
    out, source = tmp_path / "net.yaml", tmp_path / f"model{ending}"
    if ending == ".pt2":
        torch.export.save(torch.export.export(module.eval(), (x,)), source)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter
            torch.onnx.export(module.eval(), (x,), source, dynamo=False)
    found = znni.import_network(source, out)
    assert found.network.window_layer
    assert "depends on whole windows" in str(found)
    assert "(--window Z,Y,X of znni infer)" in str(found)
    if isinstance(found.parity, Parity):
        assert found.parity.error < 1e-5
    network, weights = read_back(out)
    y = output_at_once(network, weights, numbers(1, 32, 32, 32))
    with torch.no_grad():
        wanted = module.double()(torch.from_numpy(numbers(1, 32, 32, 32)).double()[None])[0]
    assert relative(y, wanted.numpy()) < 1e-5


class Windowed(nn.Module):
    """A network with a layer that znni does not have, and extents that an export must prove."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.first, self.layer = nn.Conv3d(1, 4, 3, padding=1), layer

    def forward(self, x: Any) -> Any:
        return self.layer(self.first(x))


class Product(nn.Module):
    def forward(self, x: Any) -> Any:
        return x @ x


class Cumulative(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.cumsum(2)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (
            Product(),
            "depends on a whole window in a way that this version does not run; replace",
        ),
        (Cumulative(), "cannot be represented; networks here have 3D convolutions"),
    ],
)
def test_a_refusal_comes_after_one_export_and_says_first_what_runs(
    layer: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = list[Any]()
    export = torch.export.export

    def counted(*args: Any, **options: Any) -> Any:
        exports.append(options)
        return export(*args, **options)

    monkeypatch.setattr("torch.export.export", counted)
    module = Windowed(layer).eval()
    said = refusal(module, tmp_path)
    assert len(exports) == 1
    assert said.startswith("Windowed: is not imported, but runs as it is, in windows")
    assert said.index("(--net model.pt2), with the window") < said.index(why)
    source = tmp_path / "model.pt2"
    torch.export.save(export(module, (torch.zeros(1, 1, 8, 8, 8),)), source)
    said = refusal(source, tmp_path)
    assert "give the file itself to a run as network=" in said
    assert said.index("--window Z,Y,X)") < said.index(why)
