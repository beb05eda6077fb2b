"""What nnU-Net's predictor gives for the cases of ``nnunet_folders``, as it is and in float32.

nnU-Net's Python runs it: ``python -m bench.peers.nnunet_predict FOLDER NAME...``. As it is, nnU-Net
adds windows and folds up in float16, even on a CPU, and rounds resampled logits to float16. So a
case gets two folders of labels and probabilities: ``expected``, and ``expected-float32`` with sums
and weights of windows in float32.
"""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

from bench.peers.nnunet_cases import BY_NAME, NO_FLIPS, Case

FOLDERS = {"expected": False, "expected-float32": True}  # whether sums are in float32
STEP = "-step_size"


@contextmanager
def float32_sums() -> Iterator[None]:
    """Have nnU-Net weigh and add up windows in float32 instead of float16."""
    import torch
    from nnunetv2.inference import predict_from_raw_data as source

    weights = partial(source.compute_gaussian, dtype=torch.float32)
    weights.cache_clear = source.compute_gaussian.cache_clear  # type: ignore[attr-defined]
    sums = patch.object(torch, "half", torch.float32)
    with patch.object(source, "compute_gaussian", weights), sums:
        yield


def predict(case: Case, folder: Path) -> None:
    """Write the labels and probabilities of a case."""
    for name, precise in FOLDERS.items():
        out = folder / name
        shutil.rmtree(out, ignore_errors=True)
        with float32_sums() if precise else nullcontext():
            _predict_stages(case, folder, out)
        if case.postprocessing:
            _postprocess(folder, out, case)


def _predict_stages(case: Case, folder: Path, out: Path) -> None:
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    step = float(case.options[case.options.index(STEP) + 1]) if STEP in case.options else 0.5
    earlier = None
    for stage in case.stages:
        predictor = nnUNetPredictor(
            tile_step_size=step, use_mirroring=NO_FLIPS not in case.options,
            device=torch.device("cpu"), allow_tqdm=False,
        )  # fmt: skip
        (model,) = (folder / "results").glob(f"*/*__{stage.name}")
        predictor.initialize_from_trained_model_folder(str(model), case.folds)
        place = out if stage is case.stages[-1] else out / stage.name
        place.mkdir(parents=True, exist_ok=True)
        predictor.predict_from_files_sequential(
            str(folder / "input"), str(place), save_probabilities=True,
            folder_with_segs_from_prev_stage=earlier,
        )  # fmt: skip
        earlier = str(place)


def _postprocess(folder: Path, out: Path, case: Case) -> None:
    from nnunetv2.postprocessing.remove_connected_components import load_postprocess_save
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    functions, settings = pickle.loads((folder / "model" / "postprocessing.pkl").read_bytes())
    files = PlansManager(str(folder / "model" / "plans.json")).image_reader_writer_class()
    made = out / "postprocessed"
    made.mkdir()
    for probabilities in out.glob("*.npz"):
        (made / probabilities.name).symlink_to(probabilities)
    for path in out.glob(f"*{case.ending}"):
        load_postprocess_save(str(path), str(made / path.name), files, functions, settings)


def main() -> None:
    """Predict the cases whose names are given, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="Default: all cases.")
    given = parser.parse_args()
    for name in ("raw", "preprocessed", "results"):  # it warns if they are not set
        os.environ[f"nnUNet_{name}"] = str(given.folder)
    for name in given.names or BY_NAME:
        predict(BY_NAME[name], given.folder.resolve() / name)


if __name__ == "__main__":
    main()
