"""Results folders as nnU-Net's trainer saves them, with seeded weights, and scans for them.

nnU-Net's Python runs it: ``python -m bench.peers.nnunet_folders FOLDER NAME...``. A folder ``NAME``
then has ``results`` (for ``nnUNet_results``), ``input``, and ``model``, a link to the last stage.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.peers.nnunet_cases import (
    BY_NAME,
    TORCH,
    TORCH_SEPARATE,
    Case,
    Scan,
    Stage,
    classes,
    scan_case,
)

DATASET, PLANS, TRAINER = "Dataset001_Cases", "nnUNetPlans", "nnUNetTrainer"
CHANNELS_OF = {"CTNormalization": "CT"}
BLOCKS = (1, 3, 4, 6)  # of ResEnc M's encoder
INTENSITIES = {
    "mean": 40.5,
    "median": 30.0,
    "std": 210.25,
    "min": -1024.0,
    "max": 2000.0,
    "percentile_00_5": -630.5,
    "percentile_99_5": 720.25,
}
SPREAD = 3.0  # standard deviation of a class's logits over space
JITTER = 0.2  # of the weights and biases that the trainer leaves at one and zero
BORDER = ((2, 3), (4, 1), (0, 5))  # planes of zeros around a scan, per axis and side


def make_case(case: Case, folder: Path, scan: Path | None = None) -> None:
    """Make the results and inputs of a case; a scan given takes the place of synthetic ones."""
    shutil.rmtree(folder, ignore_errors=True)
    inputs = folder / "input"
    inputs.mkdir(parents=True)
    if scan is not None:
        shutil.copy(scan, inputs / f"case_0000{case.ending}")
    for seed, each in enumerate(case.scans):
        for channel in range(len(case.normalizations)):
            save_scan(synthetic(each, 10 * seed + channel), each, case, inputs, channel)
    for stage in case.stages:
        model = make_results(case, stage, folder)
    (folder / "model").symlink_to(model.relative_to(folder))
    if case.postprocessing:
        _write_postprocessing(case, model / "postprocessing.pkl")


def make_results(case: Case, stage: Stage, folder: Path) -> Path:
    """Return the results folder of one configuration, saved by nnU-Net's trainer."""
    results, preprocessed = folder / "results", folder / "preprocessed"
    data = preprocessed / DATASET / f"{PLANS}_{stage.name}"
    data.mkdir(parents=True)
    (data / "none.b2nd").touch()  # tells the trainer how its data is stored
    for name, place in (("results", results), ("preprocessed", preprocessed)):
        os.environ[f"nnUNet_{name}"] = str(place)
    os.environ |= {"nnUNet_n_proc_DA": "1", "nnUNet_compile": "f"}

    import torch
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    plans, dataset = plans_of(case), dataset_of(case)
    for fold in case.folds:
        torch.manual_seed(1000 * fold + len(stage.name))
        trainer = nnUNetTrainer(
            plans | {"continue_training": False}, stage.name, fold, dataset, torch.device("cpu")
        )
        trainer.initialize()
        trainer.inference_allowed_mirroring_axes = tuple(range(len(stage.patch)))
        _spread(trainer.network, trainer.num_input_channels, stage.patch)
        trainer.save_checkpoint(str(Path(trainer.output_folder) / "checkpoint_final.pth"))
    model = Path(trainer.output_folder_base)
    (model / "plans.json").write_text(json.dumps(plans, indent=1))
    (model / "dataset.json").write_text(json.dumps(dataset, indent=1))
    shutil.rmtree(preprocessed)
    return model


def dataset_of(case: Case) -> dict[str, Any]:
    """Return ``dataset.json``."""
    channels = {
        str(channel): CHANNELS_OF.get(scheme, f"MR{channel}")
        for channel, scheme in enumerate(case.normalizations)
    }
    return {
        "channel_names": channels,
        "labels": case.labels or classes(5),
        **({"regions_class_order": list(case.regions)} if case.regions else {}),
        "numTraining": 1,
        "file_ending": case.ending,
        "overwrite_image_reader_writer": case.reader,
    }


def plans_of(case: Case) -> dict[str, Any]:
    """Return ``plans.json``, as nnU-Net's planner writes it."""
    stages = {stage.name: _configuration(case, stage) for stage in case.stages}
    for stage in case.stages:
        if stage.previous:
            stages[stage.previous]["next_stage"] = stage.name
            # As planned by nnU-Net, this one inherits all but the earlier stage.
            stages["3d_fullres"] = stages[stage.name]
            stages[stage.name] = {"inherits_from": "3d_fullres", "previous_stage": stage.previous}
    backward = np.argsort(case.transpose).tolist()
    return {
        "dataset_name": DATASET,
        "plans_name": PLANS,
        "original_median_spacing_after_transp": list(case.stages[-1].spacing),
        "original_median_shape_after_transp": [64, 64, 64],
        "image_reader_writer": case.reader,
        "transpose_forward": list(case.transpose),
        "transpose_backward": backward,
        "configurations": stages,
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {
            str(channel): INTENSITIES for channel in range(len(case.normalizations))
        },
    }


def _configuration(case: Case, stage: Stage) -> dict[str, Any]:
    return {
        "data_identifier": f"{PLANS}_{stage.name}",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": 2,
        "patch_size": list(stage.patch),
        "median_image_size_in_voxels": [float(each) for each in stage.patch],
        "spacing": list(stage.spacing),
        "normalization_schemes": list(case.normalizations),
        "use_mask_for_norm": [case.masked] * len(case.normalizations),
        **_resampling(case.resampling),
        "architecture": _architecture(stage),
        "batch_dice": True,
    }


def _resampling(variant: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for what, order in (("data", 3), ("seg", 1), ("probabilities", 1)):
        found: dict[str, Any] = {"is_seg": what == "seg"}
        if variant:
            found |= {
                "force_separate_z": {TORCH: False, TORCH_SEPARATE: None}[variant],
                "memefficient_seg_resampling": False,
            }
            name = "resample_torch_fornnunet"
        else:
            found |= {"order": order, "order_z": 0, "force_separate_z": None}
            name = "resample_data_or_seg_to_shape"
        settings |= {f"resampling_fn_{what}": name, f"resampling_fn_{what}_kwargs": found}
    return settings


def _architecture(stage: Stage) -> dict[str, Any]:
    depth, dims = len(stage.strides), len(stage.patch)
    features = [stage.features * min(stage.widest, 2**level) for level in range(depth)]
    base = "dynamic_network_architectures.architectures.unet"
    name, blocks = ("PlainConvUNet", "n_conv_per_stage")
    if stage.residual:
        name, blocks = "ResidualEncoderUNet", "n_blocks_per_stage"
    return {
        "network_class_name": f"{base}.{name}",
        "arch_kwargs": {
            "n_stages": depth,
            "features_per_stage": features,
            "conv_op": f"torch.nn.modules.conv.Conv{dims}d",
            "kernel_sizes": [list(each) for each in stage.kernels],
            "strides": [list(each) for each in stage.strides],
            blocks: list(BLOCKS[:depth]) if stage.residual else [2] * depth,
            "n_conv_per_stage_decoder": [1 if stage.residual else 2] * (depth - 1),
            "conv_bias": True,
            "norm_op": f"torch.nn.modules.instancenorm.InstanceNorm{dims}d",
            "norm_op_kwargs": {"eps": 1e-5, "affine": True},
            "dropout_op": None,
            "dropout_op_kwargs": None,
            "nonlin": "torch.nn.LeakyReLU",
            "nonlin_kwargs": {"inplace": True},
        },
        "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
    }


def _spread(network: Any, channels: int, patch: tuple[int, ...]) -> None:
    """Change fresh weights so that every class is somewhere the largest, and no bias is zero."""
    import torch
    from scipy.ndimage import gaussian_filter

    smooth = np.random.default_rng(0).standard_normal((1, channels, *patch))
    smooth = gaussian_filter(smooth, (0, 0, *[2] * len(patch)))
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=JITTER)
        for layer in network.decoder.seg_layers:
            layer.weight.normal_()
            layer.bias.zero_()
        network.eval()
        outputs = network(torch.from_numpy(smooth / smooth.std()).float())
        for layer, output in zip(reversed(network.decoder.seg_layers), outputs, strict=True):
            maps = output[0].flatten(1)
            scale = SPREAD / maps.std(1)
            layer.weight *= scale.reshape(-1, *[1] * len(patch), 1)
            layer.bias.copy_(-maps.mean(1) * scale)
        network.train()


def synthetic(scan: Scan, seed: int) -> NDArray[Any]:
    """Return smooth structures (z, y, x) inside a border of zeros, with a hole of zeros."""
    from scipy.ndimage import gaussian_filter

    random = np.random.default_rng(seed)
    sigmas = [5 / spacing for spacing in scan.spacing]
    smooth = gaussian_filter(random.standard_normal(scan.extents), sigmas)
    image = 50 + 260 * smooth / smooth.std() + 15 * random.standard_normal(scan.extents)
    if scan.floating:
        image = np.maximum(image + 1200, 1) / 7
    z, y, x = (extent // 2 for extent in scan.extents)
    image[z - 1 : z + 1, y - 3 : y + 4, x - 3 : x + 4] = 0
    if scan.cut:
        image[sum(np.ogrid[tuple(map(slice, scan.extents))]) < sum(scan.extents) / 3] = 0
    for axis, (before, after) in enumerate(BORDER):
        planes = np.moveaxis(image, axis, 0)
        planes[:before] = 0
        planes[len(planes) - after :] = 0
    return np.asarray(image, np.float32 if scan.floating else np.int16)


def save_scan(image: NDArray[Any], scan: Scan, case: Case, folder: Path, channel: int) -> None:
    """Write one channel of a scan."""
    path = folder / f"{scan.name}_{channel:04}{case.ending}"
    if case.ending == ".tif":
        import tifffile

        tifffile.imwrite(path, image)
        (folder / f"{scan.name}.json").write_text(json.dumps({"spacing": scan.spacing}))
        return
    import SimpleITK

    file = SimpleITK.GetImageFromArray(image)
    file.SetSpacing(scan.spacing[::-1])
    file.SetOrigin((-30.5, 12.25, 101.0))
    file.SetDirection(_direction(scan).ravel().tolist())
    SimpleITK.WriteImage(file, str(path), True)


def _direction(scan: Scan) -> NDArray[np.float64]:
    if scan.affine == "flipped":
        return np.array([[0.0, -1, 0], [-1, 0, 0], [0, 0, -1]])
    if scan.affine == "oblique":
        from scipy.spatial.transform import Rotation

        return np.asarray(Rotation.from_euler("xyz", (20, -12, 35), degrees=True).as_matrix())
    return np.eye(3)


def _write_postprocessing(case: Case, path: Path) -> None:
    from nnunetv2.postprocessing.remove_connected_components import (
        remove_all_but_largest_component_from_segmentation as keep_largest,
    )

    settings = [{"labels_or_regions": labels} for labels in case.postprocessing]
    path.write_bytes(pickle.dumps(([keep_largest] * len(settings), settings)))


def main() -> None:
    """Make the cases whose names are given, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="Default: all synthetic cases.")
    parser.add_argument("--scan", type=Path, help="A scan of one's own, in place of the cases.")
    parser.add_argument("--classes", type=int, default=25, help="For that scan.")
    parser.add_argument("--networks", type=int, default=1, help="For that scan.")
    parser.add_argument("--window", type=int, default=64, help="For that scan.")
    parser.add_argument("--torch", action="store_true", help="Resample that scan by PyTorch.")
    given = parser.parse_args()
    if given.scan is not None:
        case = scan_case(
            given.classes, torch=given.torch, networks=given.networks, window=given.window
        )
        make_case(case, given.folder / case.name, given.scan.resolve())
        return
    for name in given.names or BY_NAME:
        make_case(BY_NAME[name], given.folder.resolve() / name)


if __name__ == "__main__":
    main()
