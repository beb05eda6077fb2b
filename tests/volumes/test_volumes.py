"""Volumes are read in boxes, whatever their type and layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.engine.reading import read_input
from znni.engine.tiles import cover, make_job
from znni.network.geometry import input_box
from znni.network.input_scaling import InputScaling
from znni.network.layers import Conv
from znni.network.network import Network
from znni.volumes.array import ArrayOutput, ArrayVolume
from znni.volumes.locate import open_volume, split_dataset

SIZE = (5, 6, 7)
BOX = Box(Vec3(1, 2, 0), Vec3(4, 3, 7))
TYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", ">u2", ">i4", ">f4", ">f8"),
]
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (1, 4, 3)},
    "compressed": {"chunks": (2, 3, 7), "compression": "gzip", "shuffle": True},
}


def values(shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    return np.random.default_rng(0).integers(0, 2, shape).astype(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_hdf5_of_every_type_and_layout(dtype: str, layout: str, tmp_path: Path) -> None:
    stored = values(SIZE, dtype)
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_dataset("group/raw", data=stored, **LAYOUTS[layout])
    for source in ("v.h5", "v.h5:/group/raw", "v.h5:group/raw"):
        volume = open_volume(f"{tmp_path}/{source}")
        assert (volume.features, volume.size) == (1, SIZE)
        assert volume.itemsize == stored.itemsize
        found = volume.read(BOX)
        np.testing.assert_array_equal(found, stored[np.newaxis, *BOX.slices])


def test_maps_first(tmp_path: Path) -> None:
    stored = values((3, *SIZE), "uint8")
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["raw"] = stored
        file["not a volume"] = np.zeros((2, 2))
    for volume in (open_volume(tmp_path / "v.h5"), open_volume(stored)):
        assert (volume.features, volume.size) == (3, SIZE)
        np.testing.assert_array_equal(volume.read(BOX), stored[:, *BOX.slices])


def test_one_of_several_datasets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["a"], file["b/c"] = values(SIZE, "uint8"), np.full(SIZE, 7)
    for source, dataset in (("v.h5:/b/c", None), ("v.h5", "b/c"), ("v.h5:/b/c", "b/c")):
        volume = open_volume(f"{tmp_path}/{source}", dataset)
        assert (volume.read(BOX) == 7).all()
    with pytest.raises(InvalidInput, match=r"v\.h5 is no folder; .*, give .*v\.h5:/b/c$"):
        open_volume(tmp_path / "v.h5" / "b" / "c")
    said = r": /a \(5, 6, 7\) uint8, /b/c .*name one, as .*v\.h5:/a$"
    with pytest.raises(InvalidInput, match=said):
        open_volume(tmp_path / "v.h5")


def test_a_colon_in_the_name_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "10:30.h5"
    assert split_dataset(str(path)) == (str(tmp_path / "10"), "30.h5")
    path.touch()
    assert split_dataset(str(path)) == (str(path), None)
    assert split_dataset(f"{path}:/raw") == (str(path), "/raw")
    assert split_dataset("plain.h5") == ("plain.h5", None)


@pytest.mark.parametrize(
    "array",
    [
        [[[1.0]]],
        3,
        None,
        np.zeros((2, 2)),
        np.zeros((0, 2, 2)),
        np.zeros((2, 2, 2), complex),
        np.zeros((2, 2, 2), object),
        np.zeros((2, 2, 2), "datetime64[s]"),
    ],
)
def test_arrays_that_are_no_volumes(array: Any) -> None:
    with pytest.raises(InvalidInput, match="the array"):
        open_volume(array)


def test_an_array_without_end() -> None:
    endless = np.broadcast_to(np.uint8(0), (3, 4, 2**50))
    with pytest.raises(InvalidInput, match="which no volume has; is its metadata damaged"):
        ArrayVolume(endless)


def test_a_type_that_numpy_does_not_know() -> None:
    class Foreign:
        shape = (2, 2, 2)
        dtype = "float8_of_another_library"

        def __getitem__(self, key: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(InvalidInput, match="type that NumPy does not know"):
        ArrayVolume(Foreign())


def test_a_tensor_is_to_be_given_as_an_array() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros((2, 2, 2), dtype=torch.uint8)
    with pytest.raises(InvalidInput, match=r"^the array is a tensor of PyTorch; give tensor\.de"):
        ArrayVolume(tensor)
    assert ArrayVolume(tensor.detach().cpu().numpy()).size == (2, 2, 2)


@dataclass
class Counting:
    """An array that notes what is read from it, and is never read whole."""

    array: NDArray[Any]
    boxes: list[tuple[slice, ...]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __getitem__(self, key: Any) -> Any:
        self.boxes.append(key)
        return self.array[key]

    def __array__(self, *_: Any) -> NDArray[Any]:
        raise AssertionError("the whole volume was asked for")


def test_only_the_boxes_asked_for_are_read() -> None:
    network = Network.chain("one", 1, (Conv("c", 1, 1, Vec3(2, 3, 4), "relu"),))
    view = network.field_of_view
    counting = Counting(np.random.default_rng(0).random((12, 14, 16)))
    volume = ArrayVolume(counting)
    job = make_job(network, volume.size, "same", "reflect", Box(Vec3(0, 3, 2), Vec3(9, 9, 16)))
    patch = Vec3(4, 3, 6)
    for tile in cover(job.output, patch):
        box = job.seen(tile, input_box(network, patch))
        block = read_input(volume, job, box, InputScaling())
        assert block.shape == (1, *(patch + view - 1))
    read = np.zeros(counting.shape, int)
    for box in counting.boxes:
        size = Vec3(*(part.stop - part.start for part in box))
        assert size.within(patch + view - 1)
        read[box] += 1
    before = (view - 1) // 2
    needed = (slice(10), slice(3 - before.y, 10), slice(2 - before.x, None))
    assert read[needed].all()
    read[needed] = 0
    assert not read.any()


def test_numbers_are_scaled_and_reach_the_network_as_float32() -> None:
    network = Network.chain("one", 1, (Conv("c", 1, 1, Vec3(1, 1, 1), "relu"),))
    for dtype in TYPES:
        stored = values(SIZE, dtype)
        volume = ArrayVolume(stored)
        job = make_job(network, volume.size, "valid", "reflect", None)
        found = read_input(volume, job, Box(Vec3(0, 0, 0), job.output), InputScaling(0.5, -1.0))
        assert found.dtype == np.float32
        assert found.dtype.isnative
        np.testing.assert_array_equal(found[0], stored.astype(np.float64) * 0.5 - 1)


@pytest.mark.parametrize("pad", ["reflect", "edge"])
def test_a_voxel_that_is_no_number_is_named_where_it_is(pad: Any) -> None:
    network = Network.chain("one", 1, (Conv("c", 1, 1, Vec3(3, 3, 3), "relu"),))
    stored = np.ones(SIZE)
    stored[4, 0, 6] = np.nan
    volume = ArrayVolume(stored)
    job = make_job(network, volume.size, "same", pad, None)
    patch = Vec3(5, 2, 3)
    for tile in cover(job.output, patch):
        if tile.computed.start.y == 0 and tile.computed.stop.x == 7:
            box = job.seen(tile, input_box(network, patch))
            with pytest.raises(InvalidInput, match="holds nan at voxel z=4, y=0, x=6"):
                read_input(volume, job, box, InputScaling())


def test_output_arrays() -> None:
    size = Vec3(*SIZE)
    for dtype, ok in (("float32", True), ("float64", True), ("int16", False), ("bool", False)):
        array = np.zeros((2, *SIZE), dtype)
        if ok:
            ArrayOutput(array, 2, size).write(BOX, np.ones((2, *BOX.size), np.float32))
            assert array.sum() == array[:, *BOX.slices].sum() == 2 * BOX.size.volume
        else:
            with pytest.raises(InvalidInput, match=f"holds {dtype}, and the output is float32"):
                ArrayOutput(array, 2, size)
    with pytest.raises(InvalidInput, match=r"has shape \(1, 5, 6, 7\); it needs \(2, 5, 6, 7\)"):
        ArrayOutput(np.zeros((1, *SIZE)), 2, size)
    with pytest.raises(InvalidInput, match="the output array is a list"):
        ArrayOutput([], 2, size)
