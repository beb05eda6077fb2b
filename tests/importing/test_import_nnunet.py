"""Results folders of nnU-Net, with small networks and random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnunet_folders import (
    KERNELS,
    STRIDES,
    planar_module,
    planar_plans,
    results_module,
    results_plans,
    torch,
    unet,
    write_results,
)

import znni
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.core.voxel_size import VoxelSize
from znni.importing import parity
from znni.importing.nnunet_folder import Results, is_results
from znni.importing.parity import Parity
from znni.machine.detect import detect_host
from znni.network.case_rules import CaseRules, PreviousStage, ResampleRule
from znni.network.input_scaling import Fixed, InputScaling, Percentiles, ZScore
from znni.network.network_file import load_network
from znni.network.window import Window


@pytest.mark.slow
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


@pytest.mark.slow
def test_folds_are_averaged_in_the_order_of_the_input_s_axes(tmp_path: Path) -> None:
    order = (2, 0, 1)  # nnU-Net's first axis is the volume's last
    modules = [results_module(seed) for seed in range(2)]
    folder = write_results(tmp_path / "results", results_plans(order, ["NoNormalization"]), modules)
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


def test_a_2d_network_sees_slices(tmp_path: Path) -> None:
    order, module = (2, 0, 1), planar_module(0)  # slices lie across the volume's last axis
    plans = planar_plans(order, ["NoNormalization"])
    folder = write_results(tmp_path / "results", plans, [module], mirrored=(0,))
    made = znni.import_network(folder, tmp_path / "net.yaml")
    assert isinstance(made.parity, Parity)
    network = load_network(tmp_path / "net.yaml")
    assert network.window == Window(Vec3(16, 12, 1), 0.5, mirror="z", like="nnunet")
    assert network.spacing == VoxelSize((1.0, 0.5, 1.0), free="x")
    assert "it expects voxels of 1, 0.5, any" in str(made)

    x = np.random.default_rng(0).standard_normal((16, 12, 5)).astype(np.float32)
    given = torch.from_numpy(x.transpose(order).copy())[:, None]
    with torch.inference_mode():
        wanted = (module(given)[0] + module(given.flip(2))[0].flip(2)).numpy() / 2
    found = znni.Inferer(network, border="same", threads=1, costs="built-in")(x)
    wanted = wanted.transpose(1, 2, 3, 0)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.slow
def test_a_later_stage_takes_maps_of_labels(tmp_path: Path) -> None:
    plans = results_plans((0, 1, 2), ["CTNormalization"], previous_stage="3d_lowres")
    regions = {"background": 0, "cell": [1, 2], "nucleus": 2, "rim": [1, 3]}
    folder = write_results(
        tmp_path / "results", plans, [results_module(0, maps=4)], regions, regions=[1, 2, 3]
    )
    made = znni.import_network(folder, tmp_path / "net.yaml")
    assert isinstance(made.parity, Parity)
    network = load_network(tmp_path / "net.yaml")
    assert network.in_features == 4
    assert network.scaling.normalize[1:] == (Fixed(0, 1),) * 3
    assert network.case == CaseRules(
        ("image",), previous_stage=PreviousStage("3d_lowres", (1, 2, 3), ResampleRule(order=1))
    )


@pytest.mark.slow
def test_one_fold_is_given_by_its_folder(tmp_path: Path) -> None:
    folder = write_results(
        tmp_path,
        results_plans((0, 1, 2), ["ZScoreNormalization"]),
        [results_module(0), results_module(1)],
    )
    made = znni.import_network(folder / "fold_1", tmp_path / "net.yaml")
    assert "averaged" not in str(made)
    assert len(made.network.convolutions) == 4
    assert made.network.scaling.normalize == (ZScore(),)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pkl", "json"])
def test_post_processing_is_named_if_there_is_some(ending: str, tmp_path: Path) -> None:
    folder = write_results(
        tmp_path, results_plans((0, 1, 2), ["ZScoreNormalization"]), [results_module(0)]
    )
    assert "postprocessing" not in str(znni.import_network(folder, tmp_path / "none.yaml"))
    evaluated = folder / "crossval_results_folds_0"
    evaluated.mkdir()
    (evaluated / f"postprocessing.{ending}").touch()
    made = znni.import_network(folder, tmp_path / "net.yaml")
    said = f"crossval_results_folds_0/postprocessing.{ending} is not applied; znni nnunet predict"
    assert said in str(made)


@pytest.mark.slow
def test_each_map_is_normalized_by_its_own_scheme(tmp_path: Path) -> None:
    schemes = ["CTNormalization", "RescaleTo01Normalization", "RGBTo01Normalization"]
    folder = write_results(
        tmp_path, results_plans((0, 1, 2), schemes), [results_module(0, 3)], mirrored=None
    )
    network = znni.import_network(folder, tmp_path / "net.yaml").network
    assert network.scaling.normalize == (
        Fixed(100, 20, (60, 150)),
        Percentiles(0, 100),
        Fixed(0, 255),
    )
    assert network.window
    assert network.window.mirror == ""


def test_normalization_where_a_map_is_not_0(tmp_path: Path) -> None:
    masked = results_plans((0, 1, 2), ["ZScoreNormalization"], use_mask_for_norm=[True])
    made = znni.import_network(
        write_results(tmp_path, masked, [results_module(0)]), tmp_path / "net.yaml"
    )
    scaling = InputScaling(normalize=(ZScore(),), within="nonzero", crop="nonzero")
    assert made.network.scaling == scaling
    assert "znni does so for whole cases alone" in str(made)


@pytest.mark.slow
def test_regions_have_the_labels_of_their_order(tmp_path: Path) -> None:
    labels = {"background": 0, "whole": [1, 2], "core": [2]}
    plans = results_plans((0, 1, 2), ["NoNormalization"])
    folder = write_results(tmp_path, plans, [results_module(0, heads=2)], labels, regions=[2, 1])
    network = znni.import_network(folder, tmp_path / "net.yaml").network
    assert (network.labels, network.has_regions) == ((("whole", 2), ("core", 1)), True)
    write_results(tmp_path, plans, [results_module(0, heads=2)], labels, regions=[1])
    with pytest.raises(InvalidInput, match="2 regions and a regions_class_order of 1"):
        znni.import_network(folder, tmp_path / "net.yaml", overwrite=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "reader", "expected"),
    [
        ({}, "SimpleITKIO", CaseRules(("image",))),
        (
            {"resampling_fn_data_kwargs": {"order": 1, "order_z": 1, "force_separate_z": True}},
            "NibabelIOWithReorient",
            CaseRules(("image",), orientation="RAS", image=ResampleRule(1, 1, "always")),
        ),
        (
            {
                "resampling_fn_data": "resample_torch_fornnunet",
                "resampling_fn_data_kwargs": {"is_seg": False, "force_separate_z": False},
                "resampling_fn_probabilities": "resample_torch_fornnunet",
            },
            "NibabelIO",
            CaseRules(
                ("image",), image=ResampleRule(1, 0, "never"), output=ResampleRule(1, 0, "auto")
            ),
        ),
    ],
)
def test_the_steps_of_whole_cases(
    tmp_path: Path, changes: dict[str, Any], reader: str, expected: CaseRules
) -> None:
    plans = results_plans((0, 1, 2), ["NoNormalization"], **changes)
    plans["image_reader_writer"] = reader
    folder = write_results(tmp_path, plans, [results_module(0)])
    made = znni.import_network(folder, tmp_path / "net.yaml")
    assert made.network.case == expected
    assert load_network(tmp_path / "net.yaml").case == expected


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("changes", "reader", "note"),
    [
        ({"resampling_fn_data": "no_resampling_hack"}, "NibabelIO", "resamples by no_resampling"),
        ({}, "NaturalImage2DIO", "reads images by NaturalImage2DIO, which znni does not"),
    ],
)
def test_a_network_with_unknown_steps_runs_over_no_whole_cases(
    tmp_path: Path, changes: dict[str, Any], reader: str, note: str
) -> None:
    plans = results_plans((0, 1, 2), ["NoNormalization"], **changes)
    plans["image_reader_writer"] = reader
    folder = write_results(tmp_path, plans, [results_module(0)])
    made = znni.import_network(folder, tmp_path / "net.yaml")
    assert made.network.case is None
    assert note in str(made)


def test_folds_are_chosen_by_name(tmp_path: Path) -> None:
    plans = results_plans((0, 1, 2), ["NoNormalization"])
    folder = write_results(tmp_path, plans, [results_module(0), results_module(1)])
    assert [it.parent.name for it in Results(folder).checkpoints] == ["fold_0", "fold_1"]
    assert [it.parent.name for it in Results(folder, ("1",)).checkpoints] == ["fold_1"]
    with pytest.raises(InvalidInput, match="its folds are 0, 1"):
        _ = Results(folder, ("1", "2")).checkpoints
    with pytest.raises(InvalidInput, match=r"has no fold_0/checkpoint_best\.pth"):
        _ = Results(folder, ("0",), "checkpoint_best.pth").checkpoints


@pytest.mark.slow
def test_plans_before_version_2_4(tmp_path: Path) -> None:
    plans = results_plans((0, 1, 2), ["NoNormalization"])
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
    folder = write_results(tmp_path, plans, [results_module(0)])
    made = znni.import_network(folder, tmp_path / "net.yaml")
    assert isinstance(made.parity, Parity)
    del base["conv_kernel_sizes"]
    (folder / "plans.json").write_text(json.dumps(plans))
    with pytest.raises(InvalidInput, match="wrong or no conv_kernel_sizes"):
        znni.import_network(folder, tmp_path / "other.yaml")


def test_a_checkpoint_is_given_by_its_file(tmp_path: Path) -> None:
    # A checkpoint of the first versions says nothing of mirroring, and this one is not the last.
    schemes = ["ZScoreNormalization", "NoNormalization"]
    plans = results_plans((0, 1, 2), schemes, use_mask_for_norm=[True, False])
    folder = write_results(
        tmp_path / "results", plans, [results_module(0, maps=2), results_module(1, maps=2)]
    )
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
    folder = write_results(
        tmp_path / "results", results_plans((0, 1, 2), ["NoNormalization"]), [results_module(0)]
    )
    monkeypatch.chdir(folder / "fold_0")
    assert is_results(Path())
    assert not is_results(folder / "plans.json")


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


def _planar(folder: Path) -> None:
    plans = planar_plans((0, 1, 2), ["NoNormalization"])
    write_results(folder, plans, [planar_module(0)], mirrored=(0, 2))


def _not_json(folder: Path) -> None:
    (folder / "dataset.json").write_text("{")


def _of_another_kind(folder: Path) -> None:
    torch.save({"epoch": 1}, folder / "fold_0" / "checkpoint_final.pth")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_changed(patch_size=[16, 16]), "wrong spacing"),
        (_changed(previous_stage="3d_lowres"), "fold_0 has other parameters"),
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
        (_planar, "mirrored along an axis that its network does not have"),
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
    folder = write_results(
        tmp_path, results_plans((0, 1, 2), ["NoNormalization"]), [results_module(0)]
    )
    spoil(folder)
    with pytest.raises(InvalidInput) as error:
        znni.import_network(folder, tmp_path / "net.yaml")
    assert message in str(error.value)
    assert not (tmp_path / "net.yaml").exists()


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has no plans\.json"):
        znni.import_network(tmp_path, tmp_path / "net.yaml")
