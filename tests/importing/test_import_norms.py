"""Layer norm over maps and global response normalization, as networks are exported with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from import_cases import numbers, read_back, refusal, relative, torch_or_skip

import znni
from znni.importing.parity import Parity
from znni.primitives.tiled_reference import output_at_once

torch = torch_or_skip()
nn = torch.nn

from norm_networks import convnext, mednext, varied  # noqa: E402 - they need PyTorch

# Comparisons run the reference, which needs no compiling.
pytestmark = pytest.mark.usefixtures("fake_primitives")


def monai_mednext() -> Any:
    nets = pytest.importorskip("monai.networks.nets", reason="monai is not installed (znni[peers])")
    return nets.MedNeXt(
        3, 4, 1, 2, kernel_size=3, use_residual_connection=True, blocks_down=(1, 1),
        blocks_bottleneck=1, blocks_up=(1, 1), global_resp_norm=True,
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], Any], int]] = {
    "ConvNeXt": (lambda: convnext(response=False), 12),
    "ConvNeXt V2": (lambda: convnext(response=True), 12),
    "MedNeXt": (mednext, 12),
    "MONAI MedNeXt": (monai_mednext, 32),
}


def exported(module: Any, x: Any, path: Path, **options: Any) -> Path:
    if path.suffix == ".pt2":
        torch.export.save(torch.export.export(module, (x,)), path)
        return path
    pytest.importorskip("onnx", reason="onnx is not installed (znni[onnx])")
    with warnings.catch_warnings(action="ignore"):  # of the exporter
        torch.onnx.export(module, (x,), path, dynamo=False, **options)
    return path


@pytest.mark.slow_cases
@pytest.mark.parametrize("source", ["net.pt2", "17.onnx", "18.onnx"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_these_norms(name: str, source: str, tmp_path: Path) -> None:
    make, side = NETWORKS[name]
    module, out = varied(make()), tmp_path / "net.yaml"
    opset = {} if source == "net.pt2" else {"opset_version": int(source[:2])}
    file = exported(module, torch.zeros(1, 1, *[side] * 3), tmp_path / source, **opset)
    found = znni.import_network(file, out)
    assert isinstance(found.parity, Parity)
    assert found.parity.error < 1e-5
    kinds = [layer.kind for layer in found.network.layers]
    assert bool(found.network.window_layer) == (name != "ConvNeXt")
    assert "affine" not in kinds  # factors and shifts are those of norms and convolutions
    assert ("layer_norm" in kinds) == (name != "MONAI MedNeXt")
    x = numbers(1, *[side] * 3)
    with torch.no_grad():
        wanted = module.double()(torch.from_numpy(x).double()[None])[0].numpy()
    assert relative(output_at_once(*read_back(out), x), wanted) < 1e-5


class Then(nn.Module):
    """A convolution, and then a function of its output."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.function = nn.Conv3d(1, 8, 3, padding=1), function

    def forward(self, x: Any) -> Any:
        return self.function(self.first(x))


def last(x: Any) -> Any:
    return x.permute(0, 2, 3, 4, 1)


def share(x: Any, *, power: int = 2) -> Any:
    norms = torch.norm(x, p=power, dim=(2, 3, 4), keepdim=True)
    return norms / (norms.mean(1, keepdim=True) + 1e-6)


PART = "is part of no norm that is known here: layer norm over maps, and global response normal"
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "another power": (lambda x: x * share(x, power=1) + x, PART),
    "without the input": (lambda x: (x * share(x)).relu(), PART),
    "of another value": (lambda x: x.relu() - x.mean(1, keepdim=True), PART),
    "root": (lambda x: x.sqrt(), PART),
    "voxels": (
        lambda x: nn.functional.layer_norm(x, (8, 8, 8, 8)),
        "depends on a whole window in a way",
    ),
    "last voxels": (
        lambda x: nn.functional.layer_norm(x, (8,)),
        "depends on a whole window in a way",
    ),
    "other axes": (lambda x: x.permute(0, 1, 4, 3, 2), "permutes axes to [0, 1, 4, 3, 2]"),
    "half": (lambda x: last(x) + x.sum(), "cannot be represented"),
    "joined": (lambda x: last(x.relu()) + x, "joins arrays of which only some have their maps"),
    "pooled": (lambda x: nn.functional.max_pool3d(last(x), 2), "takes an array whose maps are the"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_such_norm_is_refused(name: str, tmp_path: Path) -> None:
    function, why = REFUSED[name]
    program = torch.export.export(Then(function).eval(), (torch.zeros(1, 1, 8, 8, 8),))
    torch.export.save(program, tmp_path / "model.pt2")
    said = refusal(tmp_path / "model.pt2", tmp_path)
    assert why in said
