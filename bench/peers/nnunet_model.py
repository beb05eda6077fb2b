"""A results folder of nnU-Net, made by nnU-Net itself: planned for noise, with random weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from znni.core.shapes import Vec3
from znni.network.weights import Float32

DATASET = "Dataset001_Noise"
CASES = 3
EXTENTS = Vec3(100, 110, 120)  # of the volumes that it plans for
SPACING = (1.5, 1.0, 1.0)  # millimetres (z, y, x)
LABELS = {"background": 0, "cell": 1, "core": 2}
PLANS = "nnUNetPlans"


def image_of(extents: Vec3, seed: int) -> Float32:
    """Return a smooth random image (z, y, x), like those that the network is planned for."""
    from scipy.ndimage import gaussian_filter

    random = np.random.default_rng(seed)
    smooth = gaussian_filter(random.standard_normal(extents, np.float32), 4)
    image = 1000 + 200 * smooth / smooth.std() + 60 * random.standard_normal(extents, np.float32)
    return np.asarray(image, np.float32)


def save_image(image: np.ndarray[Any, Any], path: Path) -> None:
    """Save an image (z, y, x) as NIfTI, as nnU-Net reads it."""
    import SimpleITK

    made = SimpleITK.GetImageFromArray(image)
    made.SetSpacing(SPACING[::-1])
    SimpleITK.WriteImage(made, str(path))


def make_model(folder: Path, folds: int) -> Path:
    """Return a new results folder, with folds that were never trained.

    nnU-Net extracts the fingerprint of the data, plans, and saves the networks by its trainer.
    """
    places = {name: folder / name for name in ("raw", "preprocessed", "results")}
    for name, place in places.items():
        place.mkdir(parents=True)
        os.environ[f"nnUNet_{name}"] = str(place)
    os.environ |= {"nnUNet_n_proc_DA": "1", "nnUNet_compile": "f"}
    _write_dataset(places["raw"] / DATASET)

    import torch
    from nnunetv2.experiment_planning import plan_and_preprocess_api as planning
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    planning.extract_fingerprints([1], num_processes=1, check_dataset_integrity=False)
    planning.plan_experiments([1], preprocess_class_name="DefaultPreprocessor")
    planning.preprocess([1], PLANS, configurations=("3d_fullres",), num_processes=(1,))
    plans = json.loads((places["preprocessed"] / DATASET / f"{PLANS}.json").read_text())
    dataset = json.loads((places["raw"] / DATASET / "dataset.json").read_text())
    for fold in range(folds):
        torch.manual_seed(fold)
        trainer = nnUNetTrainer(
            plans | {"continue_training": False}, "3d_fullres", fold, dataset,
            device=torch.device("cpu"),
        )  # fmt: skip
        trainer.initialize()
        trainer.inference_allowed_mirroring_axes = (0, 1, 2)
        trainer.save_checkpoint(str(Path(trainer.output_folder) / "checkpoint_final.pth"))
    made = Path(trainer.output_folder_base)
    (made / "plans.json").write_text(json.dumps(plans))
    (made / "dataset.json").write_text(json.dumps(dataset))
    return made


def _write_dataset(folder: Path) -> None:
    for name in ("imagesTr", "labelsTr"):
        (folder / name).mkdir(parents=True)
    for case in range(CASES):
        image = image_of(EXTENTS, case)
        labels = (image > 1150).astype(np.uint8) + (image > 1300)
        save_image(image, folder / "imagesTr" / f"case{case}_0000.nii.gz")
        save_image(labels, folder / "labelsTr" / f"case{case}.nii.gz")
    described = {
        "channel_names": {"0": "CT"},
        "labels": LABELS,
        "numTraining": CASES,
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(described))
