"""Results folders of nnU-Net, with small networks and random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import torch_or_skip

torch = torch_or_skip()
unet = pytest.importorskip(
    "dynamic_network_architectures.architectures.unet", reason="it is not installed (znni[nnunet])"
)

KERNELS, STRIDES = [[1, 3, 3], [3, 3, 3]], [[1, 1, 1], [1, 2, 2]]
PATCH = [4, 16, 12]
INTENSITIES = {"mean": 100.0, "std": 20.0, "percentile_00_5": 60.0, "percentile_99_5": 150.0}


def planar_plans(order: tuple[int, int, int], schemes: list[str]) -> dict[str, Any]:
    """Return plans whose network is 2D."""
    plans = results_plans(order, schemes, patch_size=PATCH[1:], spacing=[1.0, 0.5])
    arguments = plans["configurations"]["base"]["architecture"]["arch_kwargs"]
    arguments |= {
        "conv_op": "torch.nn.modules.conv.Conv2d",
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d",
        "kernel_sizes": [3, [3, 3]],
        "strides": [[1, 1], [2, 2]],
    }
    return plans


def planar_module(seed: int) -> Any:
    torch.manual_seed(seed)
    nn = torch.nn
    return unet.PlainConvUNet(
        1, 2, [4, 6], nn.Conv2d, [3, 3], [1, 2], [1, 1], 3, [1],
        conv_bias=True, norm_op=nn.InstanceNorm2d, norm_op_kwargs={"eps": 1e-5, "affine": True},
        nonlin=nn.LeakyReLU, deep_supervision=True,
    ).eval()  # fmt: skip


def results_plans(
    order: tuple[int, int, int], schemes: list[str], **changes: Any
) -> dict[str, Any]:
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


def results_module(seed: int, maps: int = 1, heads: int = 3) -> Any:
    torch.manual_seed(seed)
    nn = torch.nn
    return unet.PlainConvUNet(
        maps, 2, [4, 6], nn.Conv3d, KERNELS, STRIDES, [1, 1], heads, [1],
        conv_bias=True, norm_op=nn.InstanceNorm3d, norm_op_kwargs={"eps": 1e-5, "affine": True},
        nonlin=nn.LeakyReLU, deep_supervision=True,
    ).eval()  # fmt: skip


def write_results(
    folder: Path,
    plans: dict[str, Any],
    modules: list[Any],
    labels: dict[str, Any] | None = None,
    mirrored: tuple[int, ...] | None = (0, 2),
    regions: list[int] | None = None,
) -> Path:
    """Write a folder as nnU-Net's trainer does."""
    channels = len(plans["configurations"]["base"]["normalization_schemes"])
    dataset = {
        "channel_names": {str(index): "image" for index in range(channels)},
        "labels": labels or {"background": 0, "cell": 1, "nucleus": 2, "ignore": 3},
    }
    if regions:
        dataset["regions_class_order"] = regions
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
