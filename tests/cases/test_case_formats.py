"""Whole cases whose scans are NRRD, MetaImage and TIFF give the labels of NIfTI."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_scans import NET, scan, write
from numpy.typing import NDArray

import znni
from znni.cases.case import predict
from znni.cases.case_folder import Case, open_folder
from znni.cases.folder import cases_in
from znni.cases.networks import alone
from znni.cases.spacing_file import read_spacing
from znni.core.errors import InvalidInput
from znni.core.plan_options import Choices
from znni.core.run_options import Options
from znni.core.shapes import Box, Vec3
from znni.inference.session import Session
from znni.network.network import Network
from znni.network.network_file import network_from_text
from znni.network.weights import random_weights
from znni.volumes.locate import open_volume

OPTIONS = Options(limits=Choices(device="cpu", costs="built-in"))
NETWORK = network_from_text(NET, "organs.yaml")


def run(net: Network, file: Path, out: Path) -> NDArray[Any]:
    """Return the labels (z, y, x) of a case."""
    predict(Case((file,), out), net, random_weights(net, 7), Session(), OPTIONS)
    volume = open_volume(out)
    return volume.read(Box(Vec3(0, 0, 0), volume.size))[0]


@pytest.fixture
def nifti(tmp_path: Path) -> Path:
    """Return an oblique scan, whose x axis runs to the left."""
    affine = np.diag([-1.0, 1.2, 2.5, 1.0])
    affine[:3, :3] = [[-0.8, 0.72, 0], [0.6, 0.96, 0], [0, 0, 2.5]]
    affine[:3, 3] = 10, -20, 30
    return write(tmp_path / "scan.nii", scan(), affine)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".nrrd", ".mha"])
@pytest.mark.parametrize("compression", ["gzip", "none"])
@pytest.mark.parametrize("orientation", ["stored", "RAS"])
def test_itk_formats(nifti: Path, ending: str, compression: Any, orientation: Any) -> None:
    assert NETWORK.case is not None
    net = replace(NETWORK, case=replace(NETWORK.case, orientation=orientation))
    expected = run(net, nifti, nifti.with_name("expected.nii"))
    file = nifti.with_suffix(ending)
    znni.export(nifti, file, compression=compression)
    out = file.with_name(f"labels{ending}")
    np.testing.assert_array_equal(run(net, file, out), expected)
    before, after = open_volume(file).grid.affine, open_volume(out).grid.affine
    assert before is not None
    assert after is not None
    np.testing.assert_allclose(after.rows, before.rows, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_tiff_with_its_voxels_in_another_file(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="it is not installed (znni[tiff])")
    assert NETWORK.case is not None
    net = replace(NETWORK, case=replace(NETWORK.case, file_ending=".tif", voxels="json"))
    assert net.case is not None
    straight = write(tmp_path / "scan.nii", scan())
    expected = run(NETWORK, straight, tmp_path / "expected.nii")
    scans = tmp_path / "scans"
    scans.mkdir()
    tifffile.imwrite(scans / "a_0000.tif", scan())
    (scans / "a.json").write_text(json.dumps({"spacing": [2.5, 1.2, 1.0]}))
    (case,) = cases_in(scans, tmp_path, net.case)
    found = run(net, case.files[0], case.out)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(tifffile.imread(case.out), expected)
    assert json.loads((tmp_path / "a.json").read_text()) == {"spacing": [2.5, 1.2, 1.0]}
    assert open_volume(case.out).grid.scale == (2.5, 1.2, 1.0)


def test_a_file_of_voxels_that_is_missing_or_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_spacing(tmp_path / "b_0000.tif") == (1, 1, 1)
    assert "b.json: there is no such file, so voxels of 1, 1, 1 are taken" in caplog.text
    for wrong in ("{}", '{"spacing": [1, 2]}', '{"spacing": [0, 1, 1]}', "spacing"):
        (tmp_path / "c.json").write_text(wrong)
        with pytest.raises(InvalidInput, match=r"c.json: cannot be read as nnU-Net writes it"):
            read_spacing(tmp_path / "c.tif")


@pytest.mark.parametrize("changed", ["scan.nhdr", "values.of.any.name", "chunk"])
def test_a_case_begins_anew_if_a_file_of_its_scan_has_changed(tmp_path: Path, changed: str) -> None:
    file, values = tmp_path / "scan.nhdr", tmp_path / "values.of.any.name"
    if changed == "chunk":
        zarr = pytest.importorskip("zarr", reason="it is not installed (znni[zarr])")
        zarr.save_array(tmp_path / "scan.zarr", scan())
        file, changed = tmp_path / "scan.zarr", "scan.zarr/c/0/0/0"
    else:
        scan().tofile(values)
        sizes = " ".join(map(str, scan().shape[::-1]))
        file.write_text(
            f"NRRD0004\ntype: short\ndimension: 3\nsizes: {sizes}\nspacings: 1 1.2 2.5\n"
            f"endian: little\nencoding: raw\ndata file: {values.name}\n\n"
        )
    case = Case((file,), tmp_path / "labels.nii")
    given = alone(NETWORK), (random_weights(NETWORK, 7),), OPTIONS
    with open_folder(case, *given) as is_new:
        assert is_new
        (case.folder / "left").touch()
    with open_folder(case, *given) as is_new:
        assert not is_new
        assert (case.folder / "left").exists()
    os.utime(tmp_path / changed, (1, 1))
    with open_folder(case, *given) as is_new:
        assert is_new
        assert not (case.folder / "left").exists()
