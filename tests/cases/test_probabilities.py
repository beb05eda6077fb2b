"""Probabilities of whole cases, as nnU-Net saves them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_reference import OPTIONS, network, reference, run, run_case
from case_scans import nibabel, scan, weights_file, write
from numpy.typing import NDArray

from znni.cases import probabilities
from znni.cases.case_folder import Case
from znni.cases.folder import predict_cases

SPACING = (2.5, 1.2, 1.0)


def saved(path: Path) -> NDArray[np.float32]:
    with np.load(path) as file:
        assert file.files == ["probabilities"]
        found = file["probabilities"]
    assert found.dtype == np.float32
    return np.asarray(found)


@pytest.mark.slow_cases
@pytest.mark.parametrize("values", [2**22, 100])
def test_probabilities_are_those_of_resampled_maps(
    tmp_path: Path, values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probabilities, "PART_VALUES", values)
    net, file = network(), write(tmp_path / "scan.nii", scan())
    expected = run(net, (file,), tmp_path / "expected.nii")
    case = Case((file,), tmp_path / "a.nii", probabilities=tmp_path / "a.npz")
    labels = run_case(case, net)
    np.testing.assert_array_equal(labels, expected)
    maps = reference(net, scan(), SPACING)
    inside = ~np.isnan(maps[0])
    powers = np.exp(maps - maps.max(axis=0))
    wanted = powers / powers.sum(axis=0)
    wanted[:, ~inside] = [[1], [0], [0]]
    found = saved(tmp_path / "a.npz")
    assert found.shape == (3, *scan().shape)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_regions_have_probabilities_of_their_own(tmp_path: Path) -> None:
    net = replace(network(), has_regions=True, labels=(("a", 2), ("b", 1), ("c", 3)))
    file = write(tmp_path / "scan.nii", scan())
    expected = run(net, (file,), tmp_path / "expected.nii")
    case = Case((file,), tmp_path / "a.nii", probabilities=tmp_path / "a.npz")
    np.testing.assert_array_equal(run_case(case, net), expected)
    wanted = 1 / (1 + np.exp(-np.nan_to_num(reference(net, scan(), SPACING), nan=-np.inf)))
    np.testing.assert_allclose(saved(tmp_path / "a.npz"), wanted, rtol=0, atol=1e-5)


def flipped(path: Path) -> Path:
    """Write a scan whose axes run otherwise than those of space."""
    image = nibabel.load(write(path.with_name("straight.nii"), scan()))
    nibabel.save(image.as_reoriented(np.array([[1, -1], [2, 1], [0, -1]])), path)
    return path


@pytest.mark.parametrize("orientation", ["stored", "RAS"])
def test_the_place_of_a_scan_is_that_of_nnunet_s_readers(tmp_path: Path, orientation: str) -> None:
    """Probabilities have the axes of the reader, which may turn a scan."""
    net = network(case=f"{{channels: [CT], orientation: {orientation}}}")
    file = flipped(tmp_path / "scan.nii")
    run_case(Case((file,), tmp_path / "a.nii", probabilities=tmp_path / "a.npz"), net)
    given = nibabel.load(file)
    read = nibabel.as_closest_canonical(given) if orientation == "RAS" else given
    with (tmp_path / "a.pkl").open("rb") as opened:
        about: dict[str, Any] = pickle.load(opened)
    affines = about["nibabel_stuff"]
    np.testing.assert_allclose(affines["original_affine"], given.affine)
    np.testing.assert_allclose(affines["reoriented_affine"], read.affine, atol=1e-6)
    assert about["spacing"] == pytest.approx(read.header.get_zooms()[::-1])
    assert about["shape_before_cropping"] == read.shape[::-1]
    itk = about["sitk_stuff"]
    assert itk["spacing"] == pytest.approx(read.header.get_zooms())
    sides = np.diag([-1, -1, 1])
    np.testing.assert_allclose(itk["origin"], sides @ read.affine[:3, 3])
    columns = np.reshape(itk["direction"], (3, 3)) * itk["spacing"]
    np.testing.assert_allclose(columns, sides @ read.affine[:3, :3], atol=1e-6)
    if orientation == "RAS":
        assert itk["original_orientation"] == "".join(nibabel.aff2axcodes(given.affine))
    found = saved(tmp_path / "a.npz")
    assert found.shape[1:] == read.shape[::-1]
    labels = nibabel.load(tmp_path / "a.nii")
    same = nibabel.as_closest_canonical(labels) if orientation == "RAS" else labels
    assert (found.argmax(axis=0) == np.asarray(same.dataobj).T).mean() > 0.999
    assert b"znni" not in (tmp_path / "a.pkl").read_bytes()


def test_a_case_without_its_probabilities_is_not_finished(tmp_path: Path) -> None:
    net = network()
    weights_file(tmp_path / "organs.npz", net)
    net = replace(net, weights=tmp_path / "organs.npz")
    file = write(tmp_path / "scan.nii", scan())
    case = Case((file,), tmp_path / "a.nii", probabilities=tmp_path / "a.npz")
    plain = replace(case, probabilities=None)
    assert not predict_cases([plain], net, OPTIONS).failures
    again = predict_cases([plain], net, OPTIONS, skip_finished=True)
    assert again.finished_before == [case.out]
    made = predict_cases([case], net, OPTIONS, skip_finished=True)
    assert not made.finished_before
    assert [*made.reports[case.out].seconds][-2:] == ["probabilities", "writing"]
    assert predict_cases([case], net, OPTIONS, skip_finished=True).finished_before == [case.out]


def test_a_disk_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    weights_file(tmp_path / "organs.npz", net)
    net = replace(net, weights=tmp_path / "organs.npz")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(probabilities, "_write_archive", full)
    file = write(tmp_path / "scan.nii", scan())
    case = Case((file,), tmp_path / "a.nii", probabilities=tmp_path / "a.npz")
    (failure,) = predict_cases([case], net, OPTIONS).failures
    assert "a.npz: cannot be written: No space left on device" in str(failure)
    assert not case.out.exists()
