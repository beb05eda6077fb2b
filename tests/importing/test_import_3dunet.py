"""Checkpoints of pytorch-3dunet, whose networks are built from the configuration beside them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bioimageio_packages import write_package
from import_cases import numbers, pooled, read_back, refusal, relative, torch_or_skip
from ruamel.yaml import YAML

import znni
from znni.importing.parity import Parity
from znni.network.input_scaling import Fixed, InputScaling, ZScore

torch = torch_or_skip()
nn = torch.nn
MODEL = {"name": "UNet3D", "in_channels": 1, "out_channels": 2, "f_maps": 4}
TRAINING = {"slice_builder": {"name": "SliceBuilder", "patch_shape": [8, 16, 16]}}

pytestmark = pytest.mark.usefixtures("fake_primitives")


class _Stub(nn.Module):
    """Stands for a network of the library, with the arguments that it takes."""

    def __init__(
        self, in_channels: int, out_channels: int, f_maps: int, final_sigmoid: bool = True,
        layer_order: str = "gcr", **_others: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        first = nn.Conv3d(in_channels, f_maps, 3, padding=1)
        norm = nn.GroupNorm(2, f_maps) if "g" in layer_order else nn.Identity()
        self.layers = nn.Sequential(first, norm, nn.ReLU(), nn.Conv3d(f_maps, out_channels, 1))
        self.last = nn.Sigmoid() if final_sigmoid else nn.Softmax(1)

    def forward(self, x: Any) -> Any:
        y = self.layers(x)
        return y if self.training else self.last(y)


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stub in the place of the library, whose dependencies are many."""
    for name in ("pytorch3dunet", "pytorch3dunet.unet3d", "pytorch3dunet.unet3d.model"):
        module = ModuleType(name)
        module.UNet3D = _Stub  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    found = lambda name: name == "pytorch3dunet" or find_spec(name)  # noqa: E731
    monkeypatch.setattr("znni.importing.known_networks.find_spec", found)


def write(
    folder: Path, train: dict[str, Any] | None = None, config: str = "config.yaml", **model: Any
) -> tuple[Path, Any]:
    """Write a checkpoint and its configuration; return the file and the network."""
    wanted = MODEL | model
    module = _Stub(**{key: value for key, value in wanted.items() if key != "name"})
    held = {"num_epochs": 3, "best_eval_score": 0.5, "model_state_dict": module.state_dict()}
    torch.save(held, folder / "best_checkpoint.pytorch")
    content = {"model_path": None, "model": wanted, "loaders": {"train": TRAINING | (train or {})}}
    if config:
        YAML(typ="safe").dump(content, folder / config)
    return folder / "best_checkpoint.pytorch", module.eval()


def transformed(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"transformer": {"raw": [*steps, {"name": "ToTensor", "expand_dims": True}]}}


@pytest.mark.parametrize("final_sigmoid", [True, False])
@pytest.mark.parametrize("config", ["config.yaml", "train_config.yml"])
def test_a_checkpoint_is_the_network_that_its_configuration_names(
    final_sigmoid: bool, config: str, tmp_path: Path
) -> None:
    source, module = write(
        tmp_path, None, config, layer_order="cr", final_sigmoid=final_sigmoid, num_levels=3
    )
    found = znni.import_network(source, tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    x = numbers(1, 8, 9, 10)
    with torch.no_grad():
        wanted = module.double()(torch.from_numpy(x).double()[None])[0].numpy()
    assert relative(pooled(read_back(found.path), x), wanted) < 1e-5
    assert found.network.window is None
    assert found.network.scaling == InputScaling()


def test_a_network_that_needs_windows_gets_the_patches_of_its_training(tmp_path: Path) -> None:
    source, _ = write(tmp_path)
    window = znni.import_network(source, tmp_path / "net.yaml").network.window
    assert window is not None
    assert window.size == (8, 16, 16)


@pytest.mark.parametrize(
    ("steps", "scaling", "note"),
    [
        ([{"name": "Standardize"}], InputScaling(normalize=(ZScore(),), together=True), ""),
        (
            [{"name": "Standardize", "channelwise": True}],
            InputScaling(normalize=(ZScore(),)),
            "",
        ),
        (
            [{"name": "Standardize", "mean": 3.0, "std": 2.0}],
            InputScaling(normalize=(Fixed(3.0, 2.0),)),
            "",
        ),
        (
            [{"name": "Normalize", "norm01": True}],
            InputScaling(),
            "prepared the input by Normalize",
        ),
    ],
)
def test_the_input_is_scaled_as_in_the_training(
    steps: Any, scaling: InputScaling, note: str, tmp_path: Path
) -> None:
    source, _ = write(tmp_path, transformed(*steps))
    found = znni.import_network(source, tmp_path / "net.yaml")
    assert found.network.scaling == scaling
    assert note in " ".join(found.notes)


def test_without_its_configuration_python_comes_first(tmp_path: Path) -> None:
    source, _ = write(tmp_path, config="")
    said = refusal(source, tmp_path)
    assert "neither config.yaml of its training nor rdf.yaml of bioimage.io lies beside it" in said
    assert said.index("znni.import_network(model.eval(), 'net.yaml')") < said.index("--like")


@pytest.mark.parametrize("version", ["0.4.10", "0.5.3"])
def test_the_description_of_bioimageio_may_lie_beside_it(version: str, tmp_path: Path) -> None:
    source, module = write(tmp_path, config="", layer_order="cr")
    arguments = {key: value for key, value in MODEL.items() if key != "name"}
    arguments["layer_order"] = "cr"
    library = "pytorch3dunet.unet3d.model"
    architecture: Any = {"callable": "UNet3D", "import_from": library, "kwargs": arguments}
    entry = {"source": source.name, "architecture": architecture, "pytorch_version": "2.6"}
    if version.startswith("0.4"):
        entry |= {"architecture": f"{library}.UNet3D", "kwargs": arguments}
    x = numbers(1, 8, 12, 16)
    with torch.inference_mode():
        wanted = module(torch.from_numpy(x)[None])[0].numpy()
    write_package(tmp_path, version, {"pytorch_state_dict": entry}, x, wanted)
    found = znni.import_network(source, tmp_path / "net.yaml")
    assert isinstance(found.sample, Parity)
    assert relative(pooled(read_back(found.path), x), wanted) < 1e-5


def test_other_configurations_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = write(tmp_path)
    content = {"model": MODEL | {"f_maps": 8}}
    YAML(typ="safe").dump(content, tmp_path / "other.yaml")
    assert "may be of config.yaml, other.yaml" in refusal(source, tmp_path)
    (tmp_path / "config.yaml").unlink()
    assert "do not fit UNet3D of pytorch3dunet here: Error(s) in loading" in refusal(
        source, tmp_path
    )
    YAML(typ="safe").dump({"model": MODEL | {"name": "UNet2D"}}, tmp_path / "other.yaml")
    assert "is of the class UNet2D, and those read here are UNet3D" in refusal(source, tmp_path)
    write(tmp_path, config="other.yaml")
    monkeypatch.setattr("znni.importing.known_networks.find_spec", lambda _name: None)
    assert "is not installed: pip install pytorch3dunet" in refusal(source, tmp_path)


def test_a_network_file_may_take_its_place(tmp_path: Path) -> None:
    source, _ = write(tmp_path, config="", layer_order="cr")
    like = tmp_path / "like.yaml"
    like.write_text(
        "name: known\nin_features: 1\nlayers:\n"
        "  - conv: {features: 4, kernel: 3, padding: 1, activation: relu}\n"
        "  - conv: {features: 2, kernel: 1, activation: sigmoid}\n"
    )
    found = znni.import_network(source, tmp_path / "net.yaml", like=like)
    assert found.network.out_features == 2
