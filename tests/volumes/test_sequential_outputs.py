"""Files that are written from start to end, opened by the libraries that own their formats."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray

import znni
from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Box, Vec3
from znni.core.volume import Affine, Grid, NewOutput, Output, ResumeState
from znni.volumes import partial_output, staged_output
from znni.volumes.formats.zarr import output as zarr_output
from znni.volumes.locate import open_output, open_volume, read_ledger, writer_at

SIZE = Vec3(9, 300, 13)
PATCH = Vec3(9, 128, 13)
BOXES = list(Box(Vec3(0, 0, 0), SIZE).cut(PATCH))
VALUES = np.random.default_rng(0).random((2, *SIZE), np.float32)
GRID = Grid((40, 4, 2), (8, 0.5, 1), ("nanometer",) * 3)
NAMES = ("out.nii", "out.nii.gz", "out.tif", "out.npy", "out.nrrd", "out.mha")

pytestmark = pytest.mark.usefixtures("own_folder")


def wanted(features: int = 2, **options: Any) -> NewOutput:
    return NewOutput(
        features, SIZE, **{"grid": GRID, "identity": {"the input": "a"}, "resume": True} | options
    )


def begin(name: str, **options: Any) -> Output:
    output = open_output(name, "input.h5", wanted(**options))
    attributes = {"voxel_offset": (1, 2, 3), "seconds": 0.0, "predicted_memory_bytes": 0}
    output.begin(attributes, PATCH)
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
        assert file.pages[0].tile == (256, 16)  # no larger than the plane needs
        packed = compression == "gzip" or (compression is None and "int" in dtype)
        assert file.pages[0].compression == (8 if packed else 1)
        xml = file.ome_metadata
    assert tifffile.OmeXml.validate is not None
    assert 'PhysicalSizeZ="40' in xml
    assert 'PhysicalSizeXUnit="nm"' in xml
    assert open_volume("out.tif").grid == GRID


def test_a_large_tiff_has_wide_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.volumes.formats.tiff.writer.BIG", VALUES.nbytes - 1)
    make("out.tif")
    with tifffile.TiffFile("out.tif") as file:
        assert file.is_bigtiff
        np.testing.assert_array_equal(file.asarray(), VALUES)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "uint8", "uint16"])
@pytest.mark.parametrize("labels", [False, True])
def test_tifffile_reads_all_resolutions_of_a_pyramid(dtype: str, labels: bool) -> None:
    size = Vec3(3, 530, 1029)
    values = (np.random.default_rng(1).random((2, *size)) * 4).astype(dtype)
    description = NewOutput(2, size, dtype, GRID, pyramid=True, labels=labels)  # type: ignore[arg-type]
    output = open_output("out.tif", "input.h5", description)
    output.begin({"predicted_memory_bytes": 0}, size)
    output.write(Box(Vec3(0, 0, 0), size), values)
    output.finish({})
    with tifffile.TiffFile("out.tif") as file:
        (series,) = file.series
        levels = series.levels
        extents = [(530, 1029), (265, 515), (133, 258), (67, 129)]
        assert [level.shape for level in levels] == [(2, 3, *extent) for extent in extents]
        assert {(level.keyframe.is_tiled, str(level.dtype)) for level in levels} == {(True, dtype)}
        found = [level.asarray() for level in levels]
    np.testing.assert_array_equal(found[0], values)
    for finer, level in pairwise(found):
        np.testing.assert_allclose(level, halved(finer, labels), rtol=1e-6, atol=0)
    np.testing.assert_array_equal(open_volume("out.tif").read(Box(Vec3(0, 0, 0), size)), values)
    volume = open_volume("out.tif")
    assert volume.grid == GRID
    coarser = volume.coarser()
    assert [one.size for one in coarser] == [Vec3(3, *extent) for extent in extents[1:]]
    assert [one.grid.scale for one in coarser] == [(40, 8, 4), (40, 16, 8), (40, 32, 16)]
    assert coarser[0].grid.translation == (8, 2.5, 2)
    np.testing.assert_array_equal(coarser[0].read(Box(Vec3(0, 0, 0), coarser[0].size)), found[1])
    assert sorted(map(str, Path().iterdir())) == ["out.tif"]


def halved(values: NDArray[Any], labels: bool) -> NDArray[Any]:
    """Halve y and x voxel by voxel: the mean or the smallest of the most frequent values."""
    odd = [(0, 0), (0, 0), (0, values.shape[2] % 2), (0, values.shape[3] % 2)]
    whole = np.pad(values, odd, mode="edge")
    four = np.stack([whole[..., y::2, x::2] for y in (0, 1) for x in (0, 1)])
    if not labels:
        mean = four.astype(np.float64).mean(axis=0)
        return mean if values.dtype == np.float32 else np.rint(mean)
    four.sort(axis=0)
    best, most = four[0].copy(), (four == four[0]).sum(axis=0)
    for one in four[1:]:
        count = (four == one).sum(axis=0)
        best, most = np.where(count > most, one, best), np.maximum(count, most)
    return best


def test_a_tiff_has_coarser_resolutions_if_it_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("znni.core.volume.LARGE", SIZE.volume - 1)
    make("out.tif")
    make("one.tif", pyramid=False)
    found = []
    for name in ("out.tif", "one.tif"):
        with tifffile.TiffFile(name) as file:
            found.append(len(file.series[0].levels))
    assert found == [2, 1]


def test_a_full_disk_leaves_no_planes_of_coarser_resolutions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full(BytesIO):
        def write(self, _data: Any) -> int:
            raise OSError(28, "No space left on device")

    made: list[Full] = []

    def full_file(**_: Any) -> Full:
        made.append(Full())
        return made[-1]

    monkeypatch.setattr("znni.volumes.formats.tiff.coarser_planes.TemporaryFile", full_file)
    with pytest.raises(RunFailed, match="cannot be written: No space left"):
        znni.export(VALUES, "out.tif", pyramid=True)
    assert not list(Path().iterdir())
    assert [file.closed for file in made] == [True]


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
    assert len(writer_at(name).resume_state(wanted()).history) == 1
    with pytest.raises(InvalidInput, match="another run, which differs in the input"):
        writer_at(name).resume_state(wanted(identity={"the input": "b"}))

    output = begin(name)
    assert [box for box, _ in output.resume_state.history] == BOXES[:1]
    write(output, BOXES[1:])
    with monkeypatch.context() as patch:
        patch.setattr(staged_output.StagedWriter, "write_whole", full)
        with pytest.raises(RunFailed, match="cannot be written: No space left"):
            output.finish({"seconds": 1.5})
    output.abandon()
    assert not Path(name).exists()

    output = begin(name)
    assert [box for box, _ in output.resume_state.history] == BOXES
    output.finish({"seconds": 1.5})
    assert voxels_of(name) == alone
    assert not list(Path().glob("*.partial*"))


def full(_writer: staged_output.StagedWriter, new: Path, *_: Any) -> None:
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
    writer = writer_at(name)
    for refuse in (writer.resume_state, writer.create):
        with pytest.raises(InvalidInput, match=said):
            refuse(wanted(**options))


def test_an_existing_file_is_replaced_if_asked() -> None:
    Path("out.tif").write_text("old")
    make("out.tif", overwrite=True)
    np.testing.assert_array_equal(tifffile.imread("out.tif"), VALUES)


def test_no_run_goes_on_with_what_is_left_of_a_whole_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system may end a run while it deletes the Zarr. Then a part of that stays."""

    def stopped(folder: Path, **_: Any) -> None:
        (folder / "0" / "zarr.json").unlink()
        raise KeyboardInterrupt

    output = begin("out.npy")
    write(output, BOXES)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", stopped)
        with pytest.raises(KeyboardInterrupt):
            output.finish({})
    assert isinstance(output, staged_output.StagedOutput)
    output._folder.keep()  # a process that ends holds it no more
    assert writer_at("out.npy").resume_state(wanted(overwrite=True)) == ResumeState()
    make("out.npy", overwrite=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_small_output_of_one_block_needs_no_zarr(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    new_array = zarr_output.new_array
    monkeypatch.setattr(zarr_output, "new_array", lambda *a: made.append(a) or new_array(*a))
    whole = Box(Vec3(0, 0, 0), SIZE)

    def written() -> Output:
        output = open_output(name, "input.h5", wanted())
        output.note_plan("a plan")
        output.begin({"voxel_offset": (1, 2, 3), "seconds": 0.0}, SIZE)
        write(output, [whole])
        np.testing.assert_array_equal(output.read(whole), VALUES)
        return output

    files = []
    for held in (0, 1 << 20):
        monkeypatch.setattr(partial_output, "HELD_BYTES", held)
        written().finish({"seconds": 1.5})
        assert [path.name for path in Path().iterdir()] == [name]
        files.append(
            gzip.decompress(Path(name).read_bytes())
            if name.endswith(".gz")
            else Path(name).read_bytes()
        )
        Path(name).unlink()
    assert files[0] == files[1]
    assert len(made) == 1
    output = written()
    monkeypatch.setattr(staged_output.os, "fsync", full_disk)
    with pytest.raises(RunFailed, match="No space left"):
        output.finish({"seconds": 1.5})
    assert output.abandon() == f"{name} was not made"
    assert list(Path().iterdir()) == []


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_blocks_smaller_than_the_plan_says_begin_the_zarr() -> None:
    """As after memory ran out."""
    output = open_output("out.npy", "input.h5", wanted())
    output.begin({}, SIZE)
    write(output, BOXES)
    assert Path("out.npy.partial/0/zarr.json").exists()
    output.finish({})
    np.testing.assert_array_equal(np.load("out.npy"), VALUES)


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_unfinished_output_is_refused_and_released(name: str) -> None:
    output = begin(name)
    write(output, BOXES[:1])
    output.abandon()
    Path(f"{name}.partial/0/zarr.json").write_text("{")
    for _ in range(2):  # the first one leaves the folder to the second
        with pytest.raises(InvalidInput, match=r"cannot be continued: .*; give resume=False"):
            open_output(name, "input.h5", wanted())
    make(name, resume=False)
