"""``znni nnunet predict`` with a results folder, as nnU-Net's trainer writes it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from case_scans import nibabel, scan, write
from command_line import changed, refused, succeeds, znni
from nnunet_folders import (
    planar_module,
    planar_plans,
    results_module,
    results_plans,
    write_results,
)

from znni.volumes.locate import open_volume


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with scans, and results of two folds; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("nnUNet_results", str(tmp_path / "results"))
    place = tmp_path / "results" / "Dataset003_Liver" / "nnUNetTrainer__nnUNetPlans__3d_fullres"
    place.mkdir(parents=True)
    plans = results_plans((0, 1, 2), ["CTNormalization"])
    write_results(place, plans, [results_module(0), results_module(1)])
    (tmp_path / "scans").mkdir()
    for name in ("a", "b"):
        write(tmp_path / "scans" / f"{name}_0000.nii.gz", scan(seed=ord(name)))
    return tmp_path


LINE = "nnunet", "predict", "-i", "scans", "-o", "out", "-d", "3", "-c", "3d_fullres"


def labels(path: Path) -> np.ndarray:
    return np.asarray(nibabel.load(path).dataobj)


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_folder_that_cannot_be_made_is_one_clear_error() -> None:
    Path("out").touch()
    said = refused(*LINE, "-device", "cpu")
    assert "out: cannot be written there: File exists; write elsewhere" in said


@pytest.mark.slow
def test_folds_and_mirroring_are_chosen_as_in_nnunet(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "znni")  # --verbose sets it; this sets it back
    caplog.handler.setLevel(logging.INFO)
    quick = "-device", "cpu", "--disable_tta", "--not_on_device"
    done = znni(*LINE, *quick, "-f", "0", "1")
    assert done.code == 0, done.err
    assert len(list(folder.glob("cache/znni/imports/nnunet-*"))) == 1
    assert "2 cases in" in done.out
    dry = *changed(LINE, "-o", "new"), *quick, "-f", "0", "1", "--dry-run"
    said = succeeds(*dry).splitlines()
    assert [line.split("  ")[0] for line in said[:-1]] == ["new/a.nii.gz", "new/b.nii.gz"]
    assert said[-1].startswith("2 cases in ")
    assert not (folder / "new").exists()
    both = labels(folder / "out" / "a.nii.gz")
    assert both.shape == scan().T.shape
    succeeds(*LINE, *quick, "-f", "0", "1", "--continue_prediction")  # imports and computes nothing
    assert "b.nii.gz: " not in caplog.text
    parts = "-num_parts", "2", "-part_id", "1", "--verbose"
    one = znni(*changed(LINE, "-o", "one"), *quick, "-f", "1", *parts)
    assert one.code == 0, one.err
    assert "b.nii.gz: " in caplog.text
    assert len(list(folder.glob("cache/znni/imports/nnunet-*"))) == 2
    assert [path.name for path in (folder / "one").glob("*.nii.gz")] == ["b.nii.gz"]
    assert (labels(folder / "one" / "b.nii.gz") != labels(folder / "out" / "b.nii.gz")).any()


@pytest.mark.slow
def test_labels_of_several_results_folders_are_joined(folder: Path) -> None:
    first = next(folder.glob("results/*/*"))
    plans = results_plans((0, 1, 2), ["CTNormalization"])
    names = {"background": 0, "bone": 1, "vessel": 2, "ignore": 3}
    second = write_results(folder / "second", plans, [results_module(2)], names)
    line = "nnunet", "predict", "-i", "scans", "-device", "cpu", "--disable_tta"
    succeeds(*line, "-o", "both", "-m", first, "-m", second)
    succeeds(*line, "-o", "one", "-m", first)
    succeeds(*line, "-o", "second", "-m", second)  # labels may lie beside the network
    one, two = (labels(folder / name / "a.nii.gz") for name in ("one", "second"))
    expected = np.where(two > 0, two + 2, one)
    np.testing.assert_array_equal(labels(folder / "both" / "a.nii.gz"), expected)
    assert not (folder / "both" / "plans.json").exists()
    numbers = {"background": 0, "cell": 1, "nucleus": 2, "bone": 3, "vessel": 4}
    assert json.loads((folder / "both" / "dataset.json").read_text()) == {
        "channel_names": {"0": "image"}, "labels": numbers, "file_ending": ".nii.gz",
    }  # fmt: skip
    noted = {
        place: open_volume(folder / place / "a.nii.gz").attribute("labels")
        for place in ("both", "one")
    }
    assert json.loads(noted["both"]) == numbers
    assert json.loads(noted["one"]) == {"background": 0, "cell": 1, "nucleus": 2}
    assert (folder / "one" / "plans.json").exists()


@pytest.mark.slow
def test_a_results_folder_is_a_network_of_infer(folder: Path) -> None:
    place = next(folder.glob("results/*/*"))
    done = znni(
        "infer", "scans/a_0000.nii.gz", "--net", place, "--out", "seg.nii.gz", "--device", "cpu",
        "--mirror", "none",
    )  # fmt: skip
    assert done.code == 0, done.err
    znni(*LINE, "-device", "cpu", "--disable_tta")
    np.testing.assert_array_equal(
        labels(folder / "seg.nii.gz"), labels(folder / "out" / "a.nii.gz")
    )


@pytest.mark.slow
def test_a_2d_configuration_is_computed_slice_by_slice(folder: Path) -> None:
    place = folder / "results" / "Dataset003_Liver" / "nnUNetTrainer__nnUNetPlans__2d"
    write_results(
        place, planar_plans((0, 1, 2), ["CTNormalization"]), [planar_module(0)], mirrored=(0, 1)
    )
    done = znni(*LINE[:-1], "2d", "-device", "cpu", "--disable_tta")
    assert done.code == 0, done.err
    assert labels(folder / "out" / "a.nii.gz").shape == scan().T.shape


@pytest.mark.slow
def test_a_cascade_runs_its_earlier_stage_itself(folder: Path) -> None:
    earlier = next(folder.glob("results/*/*"))
    place = earlier.rename(earlier.with_name("nnUNetTrainer__nnUNetPlans__3d_lowres"))
    plans = results_plans((0, 1, 2), ["CTNormalization"], previous_stage="3d_lowres")
    write_results(earlier, plans, [results_module(2, maps=3), results_module(3, maps=3)])
    quick = "-device", "cpu", "--disable_tta"
    low = znni(*changed(LINE[:-1], "-o", "low"), "3d_lowres", *quick)
    assert low.code == 0, low.err
    both = znni(*LINE, *quick, "--save_probabilities")
    assert both.code == 0, both.err
    given = znni(*changed(LINE, "-o", "second"), *quick, "-prev_stage_predictions", "low")
    assert given.code == 0, given.err
    one = "infer", "scans/a_0000.nii.gz", "--net", earlier, "--device", "cpu", "--mirror", "none"
    succeeds(*one, "--out", "seg.nii.gz")
    succeeds("infer", one[1], "low/a.nii.gz", *one[2:], "--out", "given.nii.gz")
    expected = labels(folder / "out" / "a.nii.gz")
    for file in ("second/a.nii.gz", "seg.nii.gz", "given.nii.gz"):
        np.testing.assert_array_equal(labels(folder / file), expected)
    made = {path.name for path in (folder / "out").iterdir()}
    beside = {"plans.json", "dataset.json", "a.npz", "a.pkl", "b.npz", "b.pkl"}
    assert made == {"a.nii.gz", "b.nii.gz"} | beside
    assert "has no previous stage; leave out" in refused(
        *LINE[:-1], "3d_lowres", "-prev_stage_predictions", "low"
    )
    place.rename(folder / "elsewhere")
    assert "takes the labels of 3d_lowres, and there is no" in refused(*LINE, *quick)


@pytest.mark.usefixtures("folder")
def test_what_is_wrong_is_named() -> None:
    assert "its folds are 0, 1" in refused(*LINE, "-f", "7")
    assert "folds follow -f" in refused(*LINE, "7")
    assert "leave out -d and -c" in refused(*LINE, "-m", "results")
    assert "-step_size 0.0: give a share" in refused(*LINE, "-step_size", "0")
    several = *LINE[:-4], "-m", "one", "-m", "two"
    assert "--save_probabilities is for a single network" in refused(
        *several, "--save_probabilities"
    )
    assert "-prev_stage_predictions is for a single network" in refused(
        *several, "-prev_stage_predictions", "low"
    )
    assert "-part_id 2 of -num_parts 2" in refused(*LINE, "-num_parts", "2", "-part_id", "2")


@pytest.mark.usefixtures("folder")
def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("home").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", "home")
    said = refused(*LINE)
    assert (
        "its network is imported into the cache folder home/znni, which cannot be written" in said
    )
    assert "Not a directory; let XDG_CACHE_HOME name a folder that can" in said
