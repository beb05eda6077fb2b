"""Results folders of nnU-Net, with small networks and random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import torch_or_skip

import znni
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.core.voxel_size import VoxelSize
from znni.importing import nnunet_results, parity
from znni.importing.parity import Parity
from znni.machine.detect import detect_host
from znni.network.input_scaling import Fixed, InputScaling, Percentiles, ZScore
from znni.network.network_file import load_network
from znni.network.window import Window

torch = torch_or_skip()
unet = pytest.importorskip(
    "dynamic_network_architectures.architectures.unet", reason="it is not installed (znni[nnunet])"
)

KERNELS, STRIDES = [[1, 3, 3], [3, 3, 3]], [[1, 1, 1], [1, 2, 2]]
PATCH = [4, 16, 12]
INTENSITIES = {"mean": 100.0, "std": 20.0, "percentile_00_5": 60.0, "percentile_99_5": 150.0}


def _plans(order: tuple[int, int, int], schemes: list[str], **changes: Any) -> dict[str, Any]:
    configuration = {
        "patch_size": PATCH,
        "spacing": [3.0, 1.0, 0.5],
        "normalization_schemes": schemes,
        "use_mask_for_norm": [False] * len(schemes),
        "architecture": {
            "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
            "arch_kwargs": {
                "n_stages": 2,
                "features_per_stage": [4, 6],
                "conv_op": "torch.nn.modules.conv.Conv3d",
                "kernel_sizes": KERNELS,
                "strides": STRIDES,
                "n_conv_per_stage": [1, 1],
                "n_conv_per_stage_decoder": [1],
                "conv_bias": True,
                "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
                "norm_op_kwargs": {"eps": 1e-5, "affine": True},
                "dropout_op": None,
                "dropout_op_kwargs": None,
                "nonlin": "torch.nn.LeakyReLU",
                "nonlin_kwargs": {"inplace": True},
            },
        },
    } | changes
    return {
        "transpose_forward": list(order),
        "configurations": {
            "2d": {},
            "base": configuration,
            "3d_fullres": {"inherits_from": "base"},
        },
        "foreground_intensity_properties_per_channel": {
            str(index): INTENSITIES for index in range(len(schemes))
        },
    }


def _module(seed: int, maps: int = 1, heads: int = 3) -> Any:
    torch.manual_seed(seed)
    nn = torch.nn
    return unet.PlainConvUNet(
        maps, 2, [4, 6], nn.Conv3d, KERNELS, STRIDES, [1, 1], heads, [1],
        conv_bias=True, norm_op=nn.InstanceNorm3d, norm_op_kwargs={"eps": 1e-5, "affine": True},
        nonlin=nn.LeakyReLU, deep_supervision=True,
    ).eval()  # fmt: skip


def _write(
    folder: Path,
    plans: dict[str, Any],
    modules: list[Any],
    labels: dict[str, Any] | None = None,
    mirrored: tuple[int, ...] | None = (0, 2),
) -> Path:
    """Write a folder as nnU-Net's trainer does."""
    channels = len(plans["configurations"]["base"]["normalization_schemes"])
    dataset = {
        "channel_names": {str(index): "image" for index in range(channels)},
        "labels": labels or {"background": 0, "cell": 1, "nucleus": 2, "ignore": 3},
    }
    folder.mkdir(exist_ok=True)
    (folder / "plans.json").write_text(json.dumps(plans))
    (folder / "dataset.json").write_text(json.dumps(dataset))
    for fold, module in enumerate(modules):
        (folder / f"fold_{fold}").mkdir(exist_ok=True)
        held = {
            "network_weights": module.state_dict(),
            "logging": {"ema_fg_dice": [np.float64(0.5)], "epoch": [1]},
            "_best_ema": np.float32(0.5),
            "init_args": {"configuration": "3d_fullres", "plans": plans, "fold": fold},
            "trainer_name": "nnUNetTrainer",
            "inference_allowed_mirroring_axes": mirrored,
        }
        torch.save(held, folder / f"fold_{fold}" / "checkpoint_final.pth")
    return folder


def test_a_deep_network_is_compared_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the plain definition, which large networks do not use, takes the samples of a kernel."""
    nn = torch.nn
    module = unet.PlainConvUNet(
        1, 6, [4] * 6, nn.Conv3d, 3, [1, 2, 2, 2, 2, 2], 1, 2, 1, norm_op=nn.InstanceNorm3d,
        nonlin=nn.ReLU,
    ).eval()  # fmt: skip
    monkeypatch.setattr(parity, "detect_host", lambda: detect_host("1GiB"))
    made = znni.import_network(module, tmp_path / "net.yaml")
    assert "PyTorch would take some 2.53 GiB for an input of 64x64x64, and" in str(made.parity)
    monkeypatch.setattr(parity, "EXACT_FLOPS", 1e8)
    made = znni.import_network(module, tmp_path / "net.yaml", overwrite=True)
    assert isinstance(made.parity, Parity)


def test_folds_are_averaged_in_the_order_of_the_input_s_axes(tmp_path: Path) -> None:
    order = (2, 0, 1)  # nnU-Net's first axis is the volume's last
    modules = [_module(seed) for seed in range(2)]
    folder = _write(tmp_path / "results", _plans(order, ["NoNormalization"]), modules)
    made = znni.import_network(folder, tmp_path / "net.yaml")
    assert isinstance(made.parity, Parity)
    assert made.parity.error < 1e-5
    network = load_network(tmp_path / "net.yaml")
    assert network.window == Window(Vec3(16, 12, 4), 0.5, mirror="yx", like="nnunet")
    assert network.labels == (("background", 0), ("cell", 1), ("nucleus", 2))
    assert network.scaling == InputScaling(normalize=(Fixed(0, 1),), crop="nonzero")
    assert network.spacing == VoxelSize((1.0, 0.5, 3.0))
    assert "it expects voxels of 1, 0.5, 3" in str(made)
    assert "2 folds are averaged" in str(made)

    x = np.random.default_rng(0).standard_normal((16, 12, 4)).astype(np.float32)
    given = torch.from_numpy(x.transpose(order).copy())[None, None]
    with torch.inference_mode():
        copies = [
            module(given.flip(axes))[0].flip(axes)[0]
            for module in modules
            for axes in ([], [2], [4], [2, 4])
        ]
    wanted = torch.stack(copies).mean(0).numpy().transpose(0, 2, 3, 1)
    found = znni.Inferer(network, border="same", threads=1, costs="built-in")(x)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_one_fold_is_given_by_its_folder(tmp_path: Path) -> None:
    folder = _write(tmp_path, _plans((0, 1, 2), ["ZScoreNormalization"]), [_module(0), _module(1)])
    made = znni.import_network(folder / "fold_1", tmp_path / "net.yaml")
    assert "averaged" not in str(made)
    assert len(made.network.convolutions) == 4
    assert made.network.scaling.normalize == (ZScore(),)


def test_post_processing_is_named_if_there_is_some(tmp_path: Path) -> None:
    folder = _write(tmp_path, _plans((0, 1, 2), ["ZScoreNormalization"]), [_module(0)])
    assert "postprocessing" not in str(znni.import_network(folder, tmp_path / "none.yaml"))
    evaluated = folder / "crossval_results_folds_0"
    evaluated.mkdir()
    (evaluated / "postprocessing.pkl").touch()
    made = znni.import_network(folder, tmp_path / "net.yaml")
    said = "crossval_results_folds_0/postprocessing.pkl is not applied: after the run, give labels"
    assert said in str(made)


def test_each_map_is_normalized_by_its_own_scheme(tmp_path: Path) -> None:
    schemes = ["CTNormalization", "RescaleTo01Normalization", "RGBTo01Normalization"]
    folder = _write(tmp_path, _plans((0, 1, 2), schemes), [_module(0, 3)], mirrored=None)
    network = znni.import_network(folder, tmp_path / "net.yaml").network
    assert network.scaling.normalize == (
        Fixed(100, 20, (60, 150)),
        Percentiles(0, 100),
        Fixed(0, 255),
    )
    assert network.window
    assert network.window.mirror == ""


def test_normalization_where_a_map_is_not_0(tmp_path: Path) -> None:
    masked = _plans((0, 1, 2), ["ZScoreNormalization"], use_mask_for_norm=[True])
    made = znni.import_network(_write(tmp_path, masked, [_module(0)]), tmp_path / "net.yaml")
    scaling = InputScaling(normalize=(ZScore(),), within="nonzero", crop="nonzero")
    assert made.network.scaling == scaling
    assert "leaves them 0" in str(made)


def test_regions_are_maps_without_labels(tmp_path: Path) -> None:
    labels = {"background": 0, "whole": [1, 2], "core": [2]}
    plans = _plans((0, 1, 2), ["NoNormalization"])
    folder = _write(tmp_path, plans, [_module(0, heads=2)], labels)
    made = znni.import_network(folder, tmp_path / "net.yaml")
    assert (made.network.out_features, made.network.labels) == (2, ())
    assert "whole, core" in str(made)


def test_plans_before_version_2_4(tmp_path: Path) -> None:
    plans = _plans((0, 1, 2), ["NoNormalization"])
    base = plans["configurations"]["base"]
    del base["architecture"]
    base |= {
        "UNet_class_name": "PlainConvUNet",
        "UNet_base_num_features": 4,
        "unet_max_num_features": 6,
        "n_conv_per_stage_encoder": [1, 1],
        "n_conv_per_stage_decoder": [1],
        "pool_op_kernel_sizes": STRIDES,
        "conv_kernel_sizes": KERNELS,
    }
    folder = _write(tmp_path, plans, [_module(0)])
    made = znni.import_network(folder, tmp_path / "net.yaml")
    assert isinstance(made.parity, Parity)
    del base["conv_kernel_sizes"]
    (folder / "plans.json").write_text(json.dumps(plans))
    with pytest.raises(InvalidInput, match="wrong or no conv_kernel_sizes"):
        znni.import_network(folder, tmp_path / "other.yaml")


def test_a_checkpoint_is_given_by_its_file(tmp_path: Path) -> None:
    # A checkpoint of the first versions says nothing of mirroring, and this one is not the last.
    schemes = ["ZScoreNormalization", "NoNormalization"]
    plans = _plans((0, 1, 2), schemes, use_mask_for_norm=[True, False])
    folder = _write(tmp_path / "results", plans, [_module(0, maps=2), _module(1, maps=2)])
    final, best = (folder / "fold_1" / f"checkpoint_{name}.pth" for name in ("final", "best"))
    held = torch.load(final, weights_only=False)
    del held["inference_allowed_mirroring_axes"]
    torch.save(held, best)
    final.unlink()
    with pytest.raises(InvalidInput, match=r"give the file of another checkpoint"):
        znni.import_network(folder / "fold_1", tmp_path / "net.yaml")
    made = znni.import_network(best, tmp_path / "net.yaml").network
    assert made.window
    assert made.window.mirror == ""
    rules = ZScore(), Fixed(0, 1)
    assert made.scaling == InputScaling(normalize=rules, within="nonzero", crop="nonzero")


def test_the_folder_of_a_fold_may_be_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _write(tmp_path / "results", _plans((0, 1, 2), ["NoNormalization"]), [_module(0)])
    monkeypatch.chdir(folder / "fold_0")
    assert nnunet_results.is_results(Path())
    assert not nnunet_results.is_results(folder / "plans.json")


def _changed(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        plans = json.loads((folder / "plans.json").read_text())
        plans["configurations"]["base"] |= changes
        (folder / "plans.json").write_text(json.dumps(plans))

    return change


def _architecture(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        plans = json.loads((folder / "plans.json").read_text())
        architecture = plans["configurations"]["base"]["architecture"]
        architecture["arch_kwargs"] |= changes
        (folder / "plans.json").write_text(json.dumps(plans))

    return change


def _held(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "fold_0" / "checkpoint_final.pth"
        torch.save(torch.load(path, weights_only=False) | changes, path)

    return change


def _without_labels(folder: Path) -> None:
    dataset = json.loads((folder / "dataset.json").read_text())
    dataset["labels"] = {"background": 0, "cell": []}
    (folder / "dataset.json").write_text(json.dumps(dataset))


def _without_checkpoint(folder: Path) -> None:
    (folder / "fold_0" / "checkpoint_final.pth").unlink()


def _of_code(folder: Path) -> None:
    held = {"network_weights": Path("code")}
    torch.save(held, folder / "fold_0" / "checkpoint_final.pth")


def _not_json(folder: Path) -> None:
    (folder / "dataset.json").write_text("{")


def _of_another_kind(folder: Path) -> None:
    torch.save({"epoch": 1}, folder / "fold_0" / "checkpoint_final.pth")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_changed(patch_size=[16, 16]), "two dimensions"),
        (_changed(previous_stage="3d_lowres"), "labels of 3d_lowres"),
        (_changed(normalization_schemes=["NoNormalization"] * 2), "normalizes 2 maps"),
        (_changed(normalization_schemes=["OwnNormalization"]), "OwnNormalization"),
        (_changed(spacing="no"), "wrong or no spacing"),
        (
            _changed(architecture={"network_class_name": "x.Own", "arch_kwargs": {}}),
            "the network is a Own",
        ),
        (_architecture(norm_op="torch.nn.Unknown"), "norm_op is torch.nn.Unknown"),
        (_architecture(features_per_stage=[4, 8]), "fold_0 has other parameters"),
        (_architecture(unknown=1), "fold_0 has other parameters"),
        (_architecture(kernel_sizes=None), "fold_0 has other parameters"),
        (_changed(patch_size=[4, 16, 12, 3]), "wrong patch_size"),
        (_changed(spacing=[1, 1]), "wrong spacing"),
        (_changed(use_mask_for_norm=[]), "of 0 whether a mask counts"),
        (_changed(inherits_from=["base"]), "no configuration ['base']"),
        (_changed(architecture=None), "wrong or no architecture"),
        (_held(inference_allowed_mirroring_axes=(0, 5)), "not as nnU-Net 2 writes it"),
        (_held(network_weights={"a": 1.0}), "not as nnU-Net 2 writes it"),
        (_without_labels, "wrong or missing at labels"),
        (_without_checkpoint, "no checkpoint_final.pth"),
        (_of_code, "would run code"),
        (_not_json, "dataset.json is not as nnU-Net"),
        (_of_another_kind, "not as nnU-Net 2 writes it"),
    ],
)
def test_folders_that_cannot_be_read(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    folder = _write(tmp_path, _plans((0, 1, 2), ["NoNormalization"]), [_module(0)])
    spoil(folder)
    with pytest.raises(InvalidInput) as error:
        znni.import_network(folder, tmp_path / "net.yaml")
    assert message in str(error.value)
    assert not (tmp_path / "net.yaml").exists()


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has no plans\.json"):
        znni.import_network(tmp_path, tmp_path / "net.yaml")
