"""Files that are written from start to end, opened by the libraries that own their formats."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Box, Vec3
from znni.core.volume import Affine, Grid, NewOutput, Output
from znni.volumes import staged_output
from znni.volumes.locate import begun_output, open_output, open_volume, read_ledger

SIZE = Vec3(9, 300, 13)
PATCH = Vec3(9, 128, 13)
BOXES = list(Box(Vec3(0, 0, 0), SIZE).cut(PATCH))
VALUES = np.random.default_rng(0).random((2, *SIZE), np.float32)
GRID = Grid((40, 4, 2), (8, 0.5, 1), ("nanometer",) * 3)
NAMES = ("out.nii", "out.nii.gz", "out.tif", "out.npy")

pytestmark = pytest.mark.usefixtures("own_folder")


def wanted(features: int = 2, **options: Any) -> NewOutput:
    return NewOutput(
        features, SIZE, **{"grid": GRID, "identity": {"the input": "a"}, "resume": True} | options
    )


def begin(name: str, **options: Any) -> Output:
    output = open_output(name, "input.h5", wanted(**options))
    attributes = {"voxel_offset": (1, 2, 3), "seconds": 0.0, "predicted_memory_bytes": 0}
    output.describe(attributes, PATCH)
    return output


def write(output: Output, boxes: Sequence[Box], values: NDArray[Any] = VALUES) -> None:
    for box in boxes:
        output.write(box, values[(slice(None), *box.slices)])


def make(name: str, values: NDArray[Any] = VALUES, **options: Any) -> None:
    output = begin(name, features=len(values), dtype=str(values.dtype), **options)
    write(output, BOXES, values)
    output.finish({"seconds": 1.5})
    assert not list(Path().glob("*.partial*"))


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_is_read(name: str) -> None:
    make(name)
    volume = open_volume(name)
    np.testing.assert_array_equal(volume.read(Box(Vec3(0, 0, 0), SIZE)), VALUES)
    if name != "out.npy":
        assert list(volume.attribute("voxel_offset")) == [1, 2, 3]  # type: ignore[attr-defined]
        assert volume.attribute("seconds") == 1.5  # type: ignore[attr-defined]
        assert sorted(read_ledger(name).checksums) == sorted(BOXES)


@pytest.mark.parametrize("name", ["out.nii", "out.nii.gz"])
@pytest.mark.parametrize("features", [1, 2])
def test_nibabel_reads_it(name: str, features: int) -> None:
    make(name, VALUES[:features])
    image = nibabel.load(name)
    shape = SIZE[::-1] if features == 1 else (*SIZE[::-1], 1, 2)
    assert image.shape == shape
    np.testing.assert_array_equal(image.get_fdata().reshape(*SIZE[::-1], -1).T, VALUES[:features])
    assert image.header.get_xyzt_units()[0] == "micron"
    np.testing.assert_allclose(image.header.get_zooms()[:3], (0.002, 0.004, 0.04))
    np.testing.assert_allclose(np.diag(image.affine)[:3], (0.002, 0.004, 0.04))
    np.testing.assert_allclose(image.affine[:3, 3], (0.001, 0.0005, 0.008))


def test_nifti_keeps_the_orientation() -> None:
    affine = Affine((-2, 0, 0, 90, 0, 0, 3, -126, 0, 2.5, 0, -72), 4)
    grid = Grid((3, 2.5, 2), units=("millimeter",) * 3, affine=affine)
    make("out.nii.gz", grid=grid)
    image = nibabel.load("out.nii.gz")
    np.testing.assert_array_equal(image.affine.ravel()[:12], affine.rows)
    assert (int(image.header["sform_code"]), int(image.header["qform_code"])) == (4, 4)
    np.testing.assert_allclose(image.header.get_qform(), image.affine, atol=1e-5)
    assert open_volume("out.nii.gz").grid == grid


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "uint16"])
@pytest.mark.parametrize("compression", [None, "gzip", "none"])
def test_tifffile_reads_it(dtype: str, compression: Any) -> None:
    values = (VALUES * 200).astype(dtype)
    make("out.tif", values, compression=compression)
    with tifffile.TiffFile("out.tif") as file:
        (series,) = file.series
        assert (file.is_ome, file.is_bigtiff) == (True, False)
        np.testing.assert_array_equal(series.asarray(), values)
        assert series.axes == "CZYX"
        assert file.pages[0].tile == (256, 256)
        packed = compression == "gzip" or (compression is None and "int" in dtype)
        assert file.pages[0].compression == (8 if packed else 1)
        xml = file.ome_metadata
    assert tifffile.OmeXml.validate is not None
    assert 'PhysicalSizeZ="40' in xml
    assert 'PhysicalSizeXUnit="nm"' in xml
    assert open_volume("out.tif").grid == GRID


def test_a_large_tiff_has_wide_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.tiff.output.BIG", VALUES.nbytes - 1)
    make("out.tif")
    with tifffile.TiffFile("out.tif") as file:
        assert file.is_bigtiff
        np.testing.assert_array_equal(file.asarray(), VALUES)


def test_a_tiff_without_a_known_grid_stays_without() -> None:
    make("out.tif", grid=Grid())
    assert open_volume("out.tif").grid == Grid()


def test_numpy_reads_it() -> None:
    make("out.npy")
    np.testing.assert_array_equal(np.load("out.npy"), VALUES)


def voxels_of(name: str) -> bytes:
    """The bytes of a file, without what a run measured."""
    data = Path(name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_stops_is_continued(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(name)
    alone = voxels_of(name)
    Path(name).unlink()
    output = begin(name)
    write(output, BOXES[:1])
    assert f"{name}.partial" in output.abandon()
    assert not Path(name).exists()
    assert len(begun_output(name, "input.h5", wanted()).history) == 1
    with pytest.raises(InvalidInput, match="another run, which differs in the input"):
        begun_output(name, "input.h5", wanted(identity={"the input": "b"}))

    output = begin(name)
    assert [box for box, _ in output.begun.history] == BOXES[:1]
    write(output, BOXES[1:])
    with monkeypatch.context() as patch:
        patch.setattr(staged_output, "write_whole", full)
        with pytest.raises(RunFailed, match="cannot be written: No space left"):
            output.finish({"seconds": 1.5})
    output.abandon()
    assert not Path(name).exists()

    output = begin(name)
    assert [box for box, _ in output.begun.history] == BOXES
    output.finish({"seconds": 1.5})
    assert voxels_of(name) == alone
    assert not list(Path().glob("*.partial*"))


def full(new: Path, *_: Any) -> None:
    new.write_bytes(b"half")
    raise staged_output._failed(new, OSError(28, "No space left on device"))


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("out.nii", {"dtype": "float16"}, r"NIfTI has no float16; give dtype='float32'"),
        ("out.tif", {"dtype": "float16"}, "OME-TIFF has no float16; give dtype='float32'"),
        ("out.nii", {"compression": "gzip"}, "NIfTI takes no compression='gzip'"),
        ("out.tif", {"compression": "zstd"}, "give compression='gzip'"),
        ("out.tif", {"sharded": True}, "TIFF takes no sharded=True"),
        ("out.npy", {"pyramid": True}, "NumPy takes no pyramid=True"),
        ("s3://bucket/out.tif", {}, "only a Zarr is written to a URL"),
        ("none/out.tif", {}, "there is no folder none"),
        ("folder.tif", {}, "is a folder; name a file in it"),
        ("there.tif", {}, r"exists; give overwrite=True"),
    ],
)
def test_outputs_that_cannot_be_made(name: str, options: dict[str, Any], said: str) -> None:
    Path("folder.tif").mkdir()
    Path("there.tif").touch()
    for refuse in (begun_output, open_output):
        with pytest.raises(InvalidInput, match=said):
            refuse(name, "input.h5", wanted(**options))


def test_an_existing_file_is_replaced_if_asked() -> None:
    Path("out.tif").write_text("old")
    make("out.tif", overwrite=True)
    np.testing.assert_array_equal(tifffile.imread("out.tif"), VALUES)
