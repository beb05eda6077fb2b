"""Whole cases of MONAI bundles against MONAI's own pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_scans import nibabel, scan, write
from command_line import refused, succeeds
from monai_bundles import (
    AFTER,
    ARGMAX,
    BEFORE,
    INFERER,
    INVERTED,
    NEAREST,
    SIGMOID,
    SOFTMAX,
    THRESHOLD,
    UNET,
    by_monai,
    config,
    write_bundle,
)
from numpy.typing import NDArray
from scipy import ndimage

import znni

LOADED = BEFORE[:2]
ORIENTED = BEFORE[2]
SCALED = BEFORE[4]


def normalize(**arguments: Any) -> dict[str, Any]:
    return {"_target_": "NormalizeIntensityd", "keys": "image", **arguments}


def stretch(**arguments: Any) -> dict[str, Any]:
    return {"_target_": "ScaleIntensityd", "keys": "image", **arguments}


def spacing(*pixdim: float, **arguments: Any) -> dict[str, Any]:
    return {"_target_": "Spacingd", "keys": "image", "pixdim": list(pixdim), **arguments}


def before(*transforms: dict[str, Any]) -> dict[str, Any]:
    return {"_target_": "Compose", "transforms": [*LOADED, *transforms]}


def after(*transforms: dict[str, Any]) -> dict[str, Any]:
    return {"_target_": "Compose", "transforms": list(transforms)}


# Bundles that differ from the one of the model zoo's spleen, by name.
BUNDLES: dict[str, dict[str, Any]] = {
    "spleen": {},
    "gaussian": {"inferer": INFERER | {"mode": "gaussian", "overlap": 0.625}},
    "finer": {"preprocessing": before(ORIENTED, spacing(0.7, 0.9, 1.1), SCALED)},
    "whole body": {
        "preprocessing": before(
            ORIENTED, spacing(1.5, 1.5, 1.5), normalize(nonzero=True), stretch(minv=-1, maxv=1)
        ),
        "postprocessing": after(SOFTMAX, ARGMAX, NEAREST),
    },
    "splines": {
        "preprocessing": before(ORIENTED, spacing(1.7, 1.3, 2.1, mode=3), stretch()),
        "postprocessing": after(NEAREST, ARGMAX),
    },
    "stored": {"preprocessing": before(spacing(1.4), normalize(channel_wise=True))},
    "same voxels": {"preprocessing": before(ORIENTED, spacing(1.0003, 1.2, 2.5), SCALED)},
    "not resampled": {
        "preprocessing": before(normalize(nonzero=True, channel_wise=True)),
        "postprocessing": after(SOFTMAX, ARGMAX),
    },
    "sigmoid": {"postprocessing": after(SIGMOID, INVERTED, ARGMAX)},
    "masks": {"postprocessing": after(SIGMOID, INVERTED, THRESHOLD)},
    "nearest masks": {
        "preprocessing": before(ORIENTED, spacing(1.5, 1.5, 2.1), SCALED),
        "postprocessing": after(SIGMOID, THRESHOLD, NEAREST),
    },
    "one mask": {"classes": 1, "postprocessing": after(SIGMOID, INVERTED, THRESHOLD)},
    "larger windows": {"inferer": INFERER | {"roi_size": [16, 48, 32]}},
}


NEAREST_BUNDLES = ("whole body", "splines", "nearest masks")


def turned(path: Path, values: NDArray[Any], angle: float = 0.05) -> Path:
    """Write a scan whose axes are turned, reversed and oblique by an angle."""
    tilt = np.array(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    )
    affine = np.eye(4)
    affine[:3, :3] = tilt @ np.diag([1.0, 1.2, 2.5])
    affine[:3, 3] = -31, 17.5, 204
    image = nibabel.Nifti1Image(values.T, affine)
    nibabel.save(image.as_reoriented(np.array([[1, -1], [0, 1], [2, -1]])), path)
    return path


def imported(folder: Path, **changes: Any) -> Path:
    bundle = write_bundle(folder / "bundle", config(**changes))
    znni.import_network(bundle, folder / "net.yaml")
    return bundle


def infer(folder: Path, *files: Path) -> NDArray[Any]:
    """Return the labels (f, x, y, z) that znni computes."""
    succeeds(
        "infer", *files, "--net", folder / "net.yaml", "--case", "--device", "cpu",
        "--out", folder / "seg.nii",
    )  # fmt: skip
    labels = np.asarray(nibabel.load(folder / "seg.nii").dataobj)
    return labels[None] if labels.ndim == 3 else np.moveaxis(labels[..., 0, :], -1, 0)


def differing(labels: NDArray[Any], wanted: NDArray[Any], values: NDArray[Any]) -> int:
    """Return the labels that differ. All must be ties but for rounding.

    Args:
        labels: the labels (1 or f, x, y, z) that znni computes.
        wanted: the labels that MONAI computes.
        values: the values (f, x, y, z) that decide on them.
    """
    assert labels.shape == wanted.shape
    differ = labels != wanted
    if len(labels) == 1 < len(values):
        two = np.sort(values, axis=0)[-2:]
        margin = (two[1] - two[0])[None]
    else:
        margin = np.abs(values - 0.5)
    assert not differ.any() or margin[differ].max() < 1e-4
    return int(differ.sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spleen", "masks"])
def test_labels_are_verified(name: str, tmp_path: Path) -> None:
    imported(tmp_path, **BUNDLES[name])
    file = turned(tmp_path / "ct.nii.gz", scan((19, 34, 40)))
    infer(tmp_path, file)
    line = "verify", tmp_path / "seg.nii", "--case", file, "--net", tmp_path / "net.yaml"
    assert "all labels agree" in succeeds(*line, "--voxels", 8, "--seed", 1)


@pytest.mark.slow
def test_labels_that_need_statistics_of_the_resampled_scan_are_not_verified(tmp_path: Path) -> None:
    imported(tmp_path, **BUNDLES["stored"])
    file = turned(tmp_path / "ct.nii", scan())
    infer(tmp_path, file)
    line = "verify", tmp_path / "seg.nii", "--case", file, "--net", tmp_path / "net.yaml"
    assert "takes statistics of the resampled scan" in refused(*line)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUNDLES)
def test_labels_are_those_of_monai(name: str, tmp_path: Path) -> None:
    bundle = imported(tmp_path, **BUNDLES[name])
    # The middle plane of an oblique scan is as near to one plane as to another.
    angle = 0.0 if name in NEAREST_BUNDLES else 0.05
    file = turned(tmp_path / "ct.nii.gz", scan((19, 34, 40)), angle)
    labels = infer(tmp_path, file)
    wanted, values = by_monai(bundle, [file])
    assert len(np.unique(wanted)) > 1
    if name == "whole body":  # interpolated zeros are 0, or in MONAI 1e-16, and so normalized
        assert (labels != wanted).sum() < 10
    else:
        assert differing(labels, wanted, values) <= 3


@pytest.mark.slow
def test_channels_are_normalized_by_themselves(tmp_path: Path) -> None:
    bundle = imported(
        tmp_path,
        network_def=UNET | {"in_channels": 2, "_target_": "monai.networks.nets.UNet"},
        preprocessing=before(normalize(nonzero=True, channel_wise=True)),
        postprocessing=after(SIGMOID, INVERTED, THRESHOLD),
    )
    files = [turned(tmp_path / f"{name}.nii", scan(seed=seed)) for seed, name in enumerate("ab")]
    labels = infer(tmp_path, *files)
    assert labels.shape[0] == 3
    assert differing(labels, *by_monai(bundle, files)) <= 3


@pytest.mark.slow
def test_the_largest_component_stays(tmp_path: Path) -> None:
    kept = {
        "_target_": "KeepLargestConnectedComponentd", "keys": "pred", "applied_labels": [1, 2],
    }  # fmt: skip
    bundle = imported(tmp_path, postprocessing=after(*AFTER[:3], kept))
    file = turned(tmp_path / "ct.nii", scan())
    wanted, _ = by_monai(bundle, [file])
    for label in (1, 2):
        parts, count = ndimage.label(wanted[0] == label, np.ones((3, 3, 3)))
        sizes = np.bincount(parts.ravel())[1:]
        assert count > 1
        wanted[0][(parts > 0) & (parts != sizes.argmax() + 1)] = 0
    assert (infer(tmp_path, file) != wanted).sum() <= 3


@pytest.mark.slow
def test_a_scan_smaller_than_windows_that_are_not_padded_by_zeros_is_an_error(
    tmp_path: Path,
) -> None:
    imported(tmp_path, inferer=INFERER | {"padding_mode": "replicate", "roi_size": [96, 96, 96]})
    file = turned(tmp_path / "ct.nii", scan())
    said = refused("infer", file, "--net", tmp_path / "net.yaml", "--case", "--device", "cpu")
    assert "its windows have 96x96x96" in said


@pytest.mark.slow
def test_axes_that_are_not_perpendicular_are_an_error(tmp_path: Path) -> None:
    imported(tmp_path)
    affine = np.diag([1.0, 1.2, 2.5, 1.0])
    affine[0, 1] = 0.1
    file = write(tmp_path / "ct.nii", scan(), affine)
    said = refused("infer", file, "--net", tmp_path / "net.yaml", "--case", "--device", "cpu")
    assert "its axes are not perpendicular" in said


def test_the_network_file_has_all_steps(tmp_path: Path) -> None:
    imported(tmp_path, **BUNDLES["whole body"])
    network = znni.load_network(tmp_path / "net.yaml")
    assert network.labels == (("background", 0), ("spleen", 1), ("liver", 2))
    text = (tmp_path / "net.yaml").read_text()
    assert (
        "values: [{standardize: {nonzero: true, each: false}}, {stretch: {to: [-1.0, 1.0]" in text
    )
    assert 'align: "first"' in text
    assert "spacing: 1.5,1.5,1.5millimeter" in text
