"""Labels of cases are verified by NumPy and SciPy, and wrong ones are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_scans import NET, nibabel, scan, weights_file, write
from command_line import refused, succeeds

from znni.cases.case import predict
from znni.cases.case_folder import Case
from znni.cases.verification import CaseVerification, _labelled, verify_case
from znni.core.errors import InvalidInput
from znni.core.plan_options import Choices
from znni.core.run_options import Options
from znni.inference.session import Session
from znni.inference.verify import wrong_share
from znni.network.network import Network
from znni.network.network_file import load_network, network_from_text
from znni.network.weights import random_weights
from znni.volumes.array import ArrayVolume

OPTIONS = Options(limits=Choices(device="cpu", costs="built-in"))
INPUTS = {
    "CT": "[{mean: 20, std: 50, clip: [-100, 150]}]",
    "z-score": "zscore",
    "z-score-masked": "zscore, within: nonzero",
    "to 0..1": "{percentiles: [0, 100]}",
}


def network(normalize: str = "CT", **changes: str) -> Network:
    text = NET.replace(INPUTS["CT"], INPUTS[normalize])
    for key, value in changes.items():
        line = next(line for line in NET.splitlines() if line.startswith(f"{key}:"))
        text = text.replace(line, f"{key}: {value}")
    return network_from_text(text, "organs.yaml")


def verified(folder: Path, net: Network, affine: Any = None, voxels: int = 24) -> CaseVerification:
    values = scan()
    values[5:9, 8:13, 7:12] = 0
    case = Case((write(folder / "scan.nii.gz", values, affine),), folder / "labels.nii.gz")
    weights = random_weights(net, 7)
    predict(case, net, weights, Session(), OPTIONS)
    told: list[tuple[int, int]] = []
    found = verify_case(
        case, net, weights, voxels=voxels, seed=1, progress=lambda *both: told.append(both)
    )
    assert told == [(done, len(told) - 1) for done in range(len(told))]
    assert sorted(path.name for path in folder.iterdir()) == ["labels.nii.gz", "scan.nii.gz"]
    return found


@pytest.mark.slow_cases
@pytest.mark.parametrize("normalize", INPUTS)
def test_right_labels_agree(tmp_path: Path, normalize: str) -> None:
    found = verified(tmp_path, network(normalize))
    assert found.agrees
    assert (found.voxels, found.seed) == (24, 1)
    assert found.ties <= 1
    assert "24 voxels computed again in float64, 12 of them chosen among those" in str(found)
    assert "more than 22 % wrong ones of all voxels, or of those with labels, would" in str(found)


@pytest.mark.slow_cases
@pytest.mark.parametrize("spacing", ["2.5,1.2,1", "2,1.5,1.5"])
@pytest.mark.parametrize("zooms", [(1.0, 1.2, 2.5), (1.2, 1.2, 6.0), (5.0, 1.2, 1.2)])
@pytest.mark.parametrize("orientation", ["stored", "RAS"])
def test_labels_of_turned_scans_and_of_slices_agree(
    tmp_path: Path, spacing: str, zooms: tuple[float, ...], orientation: Any
) -> None:
    net = network(spacing=spacing)
    assert net.case is not None
    net = replace(net, case=replace(net.case, orientation=orientation))
    affine = np.diag([*zooms, 1.0])[:, [1, 0, 2, 3]] * [-1, 1, 1, 1]
    assert verified(tmp_path, net, affine, 12).agrees


@pytest.mark.slow
def test_regions_and_mirrored_windows_agree(tmp_path: Path) -> None:
    net = network(window="{size: [6, 8, 8], like: nnunet, mirror: zx}")
    assert verified(tmp_path, net, voxels=8).agrees
    text = NET.replace(
        "labels: {background: 0, organ: 1, vessel: 2}", "labels: {a: 2, b: 1, c: 3}\nregions: true"
    )
    (tmp_path / "again").mkdir()
    assert verified(tmp_path / "again", network_from_text(text, "organs.yaml"), voxels=8).agrees


def test_wrong_labels_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("organs.yaml").write_text(NET.replace("name: organs", "name: organs\nweights: w.npz"))
    weights_file(Path("w.npz"), load_network(Path("organs.yaml")))
    write(Path("ct.nii.gz"), scan())
    known = "--case", "ct.nii.gz", "--net", "organs.yaml"
    succeeds(
        "infer", "ct.nii.gz", "--net", "organs.yaml", "--case", "--out", "seg.nii.gz",
        "--device", "cpu",
    )  # fmt: skip
    said = succeeds("verify", "seg.nii.gz", *known, "--voxels", 12, "--seed", 3)
    assert "12 voxels computed again in float64, 6 of them chosen among" in said
    assert "all labels agree (seed 3)" in said
    image = nibabel.load("seg.nii.gz")
    wrong = 2 - np.asarray(image.dataobj)
    nibabel.save(nibabel.Nifti1Image(wrong, image.affine), "wrong.nii")
    said = refused("verify", "wrong.nii", *known, "--voxels", 12, "--seed", 3, code=5)
    assert "labels differ, as that at z=" in said
    empty = nibabel.Nifti1Image(np.zeros_like(wrong), image.affine)
    nibabel.save(empty, "empty.nii")
    assert "12 voxels computed again in float64, 0 of" in refused(
        "verify", "empty.nii", *known, "--voxels", 12, code=5
    )
    nibabel.save(nibabel.Nifti1Image(wrong[1:], image.affine), "part.nii")
    assert "give the labels of this scan" in refused("verify", "part.nii", *known)
    line = "verify", "seg.nii.gz", *known
    assert "does not apply to a whole case" in refused(*line, "--mask", "m")
    assert "a whole case has a scan and a network" in refused("verify", "seg.nii.gz", *known[:2])


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["nii.gz", "nrrd", "mha", "h5", "zarr"])
def test_labels_say_in_which_windows_they_were_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = NET.replace("name: organs", "name: organs\nweights: w.npz")
    Path("organs.yaml").write_text(text.replace("like: nnunet", "like: nnunet, mirror: zyx"))
    weights_file(Path("w.npz"), load_network(Path("organs.yaml")))
    write(Path("ct.nii.gz"), scan())
    net, out = ("--net", "organs.yaml"), f"seg.{ending}"
    windows = "--mirror", "x", "--overlap", "0.2"
    run = "infer", "ct.nii.gz", *net, "--case", "--device", "cpu", *windows, "--out", out
    if ending == "zarr":  # a case has scans as files
        succeeds(*run[:-1], "seg.nrrd")
        succeeds("export", "seg.nrrd", out)
    else:
        succeeds(*run)
    line = "verify", out, "--case", "ct.nii.gz", *net, "--voxels", 40, "--seed", 3
    assert "all labels agree" in succeeds(*line)
    if ending == "nii.gz":
        image = nibabel.load(out)
        nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine), "plain.nii")
        line = "verify", "plain.nii", *line[2:]
        assert "differ" in refused(*line, code=5)
        assert "all labels agree" in succeeds(*line, *windows)
        assert "leave out --window, --overlap" in refused("verify", out, *windows)


def test_wrong_labels_are_found_as_often_as_promised() -> None:
    """Voxels are chosen one by one: among all, and among those with a label."""
    values = np.zeros((20, 30, 40), np.uint8)
    values[3, 4, 5:25] = 1
    labels, generator = ArrayVolume(values, "labels"), np.random.default_rng(0)
    chosen = _labelled(labels, 4000, generator)
    assert all(values[at] for at in chosen)
    counts = np.bincount([at.x - 5 for at in chosen], minlength=20)
    assert 120 < counts.min() <= counts.max() < 280
    assert _labelled(ArrayVolume(values * 0, "labels"), 5, generator) == []
    share = float(wrong_share(8).split()[2]) / 100
    missed = np.mean((generator.random((10**5, 8)) > share).all(axis=1))
    assert missed == pytest.approx(0.05, abs=0.004)


def test_labels_of_other_weights_are_refused(
    tmp_path: Path,
) -> None:
    net, scan_file = network(), write(tmp_path / "scan.nii", scan())
    case = Case((scan_file,), tmp_path / "labels.nii")
    predict(case, net, random_weights(net, 7), Session(), OPTIONS)
    with pytest.raises(InvalidInput, match="was computed with other weights than those of"):
        verify_case(case, net, random_weights(net, 8))


def test_labels_of_another_scan_are_refused(tmp_path: Path) -> None:
    net = network()
    case = Case((write(tmp_path / "scan.nii", scan()),), tmp_path / "none.nii")
    with pytest.raises(InvalidInput, match="no such file"):
        verify_case(case, net, random_weights(net, 7))
