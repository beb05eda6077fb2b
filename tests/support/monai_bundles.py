"""Bundles of MONAI with small networks and random weights, and what MONAI itself makes of them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import torch_or_skip
from numpy.typing import NDArray

torch = torch_or_skip()
monai = pytest.importorskip("monai", reason="MONAI, whose bundles are imported, is not installed")
pytest.importorskip("nibabel", reason="it is not installed (znni[nifti])")

UNET: dict[str, Any] = {
    "_target_": "UNet",
    "spatial_dims": 3,
    "in_channels": 1,
    "out_channels": "@classes",
    "channels": [4, 8],
    "strides": [2],
    "num_res_units": 1,
    "norm": "instance",
}
BEFORE: list[dict[str, Any]] = [
    {"_target_": "LoadImaged", "keys": "@image_key"},
    {"_target_": "EnsureChannelFirstd", "keys": "@image_key"},
    {"_target_": "Orientationd", "keys": "@image_key", "axcodes": "RAS"},
    {
        "_target_": "Spacingd", "keys": ["@image_key"], "pixdim": [1.5, 1.5, 2.0],
        "mode": "bilinear",
    },
    {
        "_target_": "ScaleIntensityRanged", "keys": "@image_key", "a_min": -57, "a_max": 164,
        "b_min": 0, "b_max": 1, "clip": True,
    },
    {"_target_": "EnsureTyped", "keys": "@image_key", "device": "@device"},
]  # fmt: skip
SOFTMAX = {"_target_": "Activationsd", "keys": "pred", "softmax": True}
SIGMOID = {"_target_": "Activationsd", "keys": "pred", "sigmoid": True}
INVERTED = {
    "_target_": "Invertd", "keys": "pred", "transform": "@preprocessing",
    "orig_keys": "@image_key", "nearest_interp": False, "to_tensor": True,
}  # fmt: skip
NEAREST = INVERTED | {"nearest_interp": True}
ARGMAX = {"_target_": "AsDiscreted", "keys": "pred", "argmax": True}
THRESHOLD = {"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.5}
SAVED = {"_target_": "SaveImaged", "keys": "pred", "output_dir": "$@bundle_root + '/eval'"}
AFTER = [SOFTMAX, INVERTED, ARGMAX, SAVED]
INFERER: dict[str, Any] = {
    "_target_": "SlidingWindowInferer", "roi_size": [16, 16, 8], "sw_batch_size": 2,
    "overlap": 0.5,
}  # fmt: skip
METADATA = {
    "network_data_format": {
        "inputs": {"image": {"channel_def": {"0": "CT"}}},
        "outputs": {"pred": {"channel_def": {"0": "background", "1": "spleen", "2": "liver"}}},
    }
}


def config(**changes: Any) -> dict[str, Any]:
    """Return the configuration of a bundle, as MONAI's model zoo has it."""
    return {
        "imports": ["$import glob", "$import os"],
        "bundle_root": ".",
        "image_key": "image",
        "classes": 3,
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "network_def": UNET,
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": BEFORE},
        "inferer": INFERER,
        "postprocessing": {"_target_": "Compose", "transforms": AFTER},
        "run": ["$@evaluator.run()"],
    } | changes


def write_bundle(
    folder: Path, content: dict[str, Any], metadata: dict[str, Any] = METADATA
) -> Path:
    """Write a bundle with random weights."""
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "configs" / "inference.json").write_text(json.dumps(content))
    (folder / "configs" / "metadata.json").write_text(json.dumps(metadata))
    torch.manual_seed(3)
    network = parsed(content).get_parsed_content("network_def")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    torch.save(network.state_dict(), folder / "models" / "model.pt")
    return folder


def parsed(content: dict[str, Any]) -> Any:
    from monai.bundle import ConfigParser

    parser = ConfigParser(json.loads(json.dumps(content)))
    parser.parse()
    return parser


def by_monai(folder: Path, files: list[Path]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the labels (f, x, y, z) that MONAI computes, and the values that decide on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MONAI warns of its own defaults
        return _by_monai(folder, files)


def _by_monai(folder: Path, files: list[Path]) -> tuple[NDArray[Any], NDArray[Any]]:
    content = json.loads((folder / "configs" / "inference.json").read_text())
    transforms = [
        each
        for each in content["postprocessing"]["transforms"]
        if each["_target_"] not in ("SaveImaged", "KeepLargestConnectedComponentd")
    ]
    content["postprocessing"]["transforms"] = transforms
    parser = parsed(content)
    network = parser.get_parsed_content("network_def").eval()
    network.load_state_dict(torch.load(folder / "models" / "model.pt", weights_only=True))
    before = parser.get_parsed_content("preprocessing")
    data = before({"image": [str(file) for file in files] if len(files) > 1 else str(files[0])})
    with torch.no_grad():
        inferer = parser.get_parsed_content("inferer")
        data["pred"] = inferer(data["image"][None], network)[0]
    after = parser.get_parsed_content("postprocessing")
    decided = [each for each in after.transforms if type(each).__name__ != "AsDiscreted"]
    labels = after(dict(data))["pred"]
    values = dict(data)
    for transform in decided:
        values = transform(values)
    return np.asarray(labels), np.asarray(values["pred"])
