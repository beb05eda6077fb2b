"""Tests of the replacement for MONAI's inferer, and of arrays from other libraries."""

from __future__ import annotations

import copy
import inspect
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h5py
import numpy as np
import pytest
from command_line import voxels
from numpy.typing import NDArray
from tiny_network import expected

import znni
from znni.core.errors import InvalidInput
from znni.inference.monai import OF_MONAI
from znni.inference.network_import import network_of

pytestmark = pytest.mark.usefixtures("small_case", "fake_primitives")


def as_numpy(values: NDArray[Any]) -> Any:
    return values


def as_h5py(values: NDArray[Any]) -> Any:
    return h5py.File("a.h5", "w").create_dataset("a", data=values, chunks=True)


def as_dask(values: NDArray[Any]) -> Any:
    return pytest.importorskip("dask.array").from_array(values, chunks=5)


def as_zarr(values: NDArray[Any]) -> Any:
    return pytest.importorskip("zarr").array(values, store="a.zarr")


def as_tensorstore(values: NDArray[Any]) -> Any:
    ts = pytest.importorskip("tensorstore")
    kind = {"driver": "zarr3", "kvstore": {"driver": "memory"}}
    stored = ts.open(kind, create=True, dtype=values.dtype.name, shape=values.shape).result()
    stored[...] = values
    return stored


def as_translated_tensorstore(values: NDArray[Any]) -> Any:
    ts = pytest.importorskip("tensorstore")
    return as_tensorstore(values)[ts.d[:].translate_by[3]]


ARRAYS = [as_numpy, as_h5py, as_dask, as_zarr, as_tensorstore, as_translated_tensorstore]


@pytest.mark.slow_cases
@pytest.mark.parametrize("made", ARRAYS)
def test_arrays_of_other_libraries(made: Any) -> None:
    values = voxels()
    array, whole = made(values), expected(values)
    np.testing.assert_allclose(znni.Inferer("tiny.yaml")(array), whole, rtol=0, atol=1e-6)
    out = np.zeros((2, 2, 4, 5), np.float32)
    znni.infer(array, "tiny.yaml", out, roi=np.s_[1:3, 4:8, 6:11])
    np.testing.assert_allclose(out, whole[:, 1:3, 2:6, 3:8], rtol=0, atol=1e-6)


@pytest.mark.parametrize("made", [m for m in ARRAYS if m is not as_dask])
def test_outputs_into_arrays_of_other_libraries(made: Any) -> None:
    out = made(np.zeros((2, 6, 15, 16), np.float32))
    znni.infer("volume.h5", "tiny.yaml", out)
    np.testing.assert_allclose(np.asarray(out), expected(voxels()), rtol=0, atol=1e-6)


def test_arrays_that_cannot_be_written_into() -> None:
    with pytest.raises(InvalidInput, match="the output array is a Fixed, which cannot be written"):
        znni.infer("volume.h5", "tiny.yaml", Fixed())


class Fixed:
    shape = (2, 6, 15, 16)
    dtype = np.dtype(np.float32)


def test_a_batch_of_arrays() -> None:
    images = np.stack([voxels(), voxels()[::-1]])[:, np.newaxis]
    found = znni.SlidingWindowInferer("tiny.yaml", border="valid")(images)
    assert (found.shape, found.dtype) == ((2, 2, 6, 15, 16), np.float32)
    for image, output in zip(images, found, strict=True):
        np.testing.assert_allclose(output, expected(image), rtol=0, atol=1e-6)
    same = znni.SlidingWindowInferer("tiny.yaml", pad="edge")
    assert same(images).shape == (2, 2, *images.shape[2:])


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((1, 7, 20, 23), r"shape \(1, 7, 20, 23\)"),
        ((0, 1, 7, 20, 23), r"shape \(0, 1, .*"),
        ((), r"shape \(\)"),
    ],
)
def test_what_is_no_batch(shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(InvalidInput, match=f"the inputs have {said}; give a batch"):
        znni.SlidingWindowInferer("tiny.yaml")(np.zeros(shape, np.uint8))


def test_which_network() -> None:
    images = voxels()[np.newaxis, np.newaxis]
    network = znni.load_network("tiny.yaml")
    with pytest.raises(InvalidInput, match="there is no network; give it"):
        znni.SlidingWindowInferer()(images)
    with pytest.raises(InvalidInput, match="the inferer has another network"):
        znni.SlidingWindowInferer("tiny.yaml")(images, network)
    with pytest.raises(InvalidInput, match="float: is no network"):
        znni.SlidingWindowInferer()(images, 3.0)
    with pytest.raises(InvalidInput, match="the volume has 2 maps"):
        znni.SlidingWindowInferer(network)(np.zeros((1, 2, 7, 20, 23)))
    inferer = znni.SlidingWindowInferer(network, border="valid")
    np.testing.assert_array_equal(inferer(images, network), inferer(images))


def test_threads_that_share_one_make_a_network_ready_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[znni.Inferer] = []

    def slowly(*arguments: Any, **options: Any) -> znni.Inferer:
        time.sleep(0.05)
        made.append(znni.Inferer(*arguments, **options))
        return made[-1]

    monkeypatch.setattr("znni.inference.monai.Inferer", slowly)
    images, network = voxels()[np.newaxis, np.newaxis], znni.load_network("tiny.yaml")
    inferer = znni.SlidingWindowInferer(border="valid")
    with ThreadPoolExecutor(4) as threads:
        outputs = list(threads.map(inferer, [images] * 4, [network] * 4))
    assert len(made) == 1
    for found in outputs:
        np.testing.assert_allclose(found[0], expected(voxels()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("copied", [copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_gives_the_same(copied: Any) -> None:
    images = voxels()[np.newaxis, np.newaxis]
    inferer = znni.SlidingWindowInferer("tiny.yaml", border="valid")
    found = inferer(images)
    other = copied(inferer)
    np.testing.assert_array_equal(other(images), found)
    assert other._inferer is not inferer._inferer


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((), {"roi_size": (96, -1, 96)}, "roi_size is .* give three extents of 1 or more"),
        (((96, 96),), {}, "give three extents of 1 or more"),
        (((96, 96, 96), 4), {}, "weights is 4; give it as sw_batch_size=4"),
        ((96,), {"overlap": (0.5, 0.5, 0.5)}, "give one share for all axes"),
        ((96,), {"overlap": 1.0}, "give a share from 0 to less than 1"),
        ((96,), {"mode": "linear"}, "choose one of gaussian, constant"),
        ((), {"mode": "gaussian", "overlap": 0.5}, r"are about windows; give roi_size="),
        (("tiny.yaml",), {"padding_mode": "reflect"}, "windows see zeros beyond .*; leave it out$"),
    ],
)
def test_what_only_monai_is_told(arguments: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        znni.SlidingWindowInferer(*arguments, **options)


def test_all_that_monai_takes_is_answered() -> None:
    monai = pytest.importorskip("monai.inferers")
    named = set(inspect.signature(monai.SlidingWindowInferer.__init__).parameters) - {"self"}
    ours = set(inspect.signature(znni.SlidingWindowInferer.__init__).parameters)
    assert named - set(OF_MONAI) - ours - {"args", "kwargs"} <= {"device"}


@pytest.mark.slow
def test_a_network_of_torch() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv3d(1, 3, 3), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(3, 2, 2)).eval()
    images = torch.rand(2, 1, 11, 12, 13)
    inferer = znni.SlidingWindowInferer(border="valid")
    for _ in range(2):
        found = inferer(images, model)
        assert (found.dtype, found.shape) == (torch.float32, (2, 2, 6, 7, 8))
        for at in ((0, 0, 0), (3, 4, 5), (5, 6, 7)):
            z, y, x = at
            window = images[:, :, z : z + 6, y : y + 6, x : x + 6]
            with torch.no_grad():
                wanted = model(window)[:, :, 0, 0, 0]
            np.testing.assert_allclose(found[:, :, z, y, x], wanted, rtol=0, atol=1e-5)
        with torch.no_grad():
            model[0].weight *= 2  # as in a training step; the next call uses the new values
    with pytest.raises(InvalidInput, match="require gradients"):
        inferer(images.requires_grad_(), model)
    with torch.no_grad():
        assert inferer(images, model).shape == found.shape


@pytest.mark.slow
def test_a_network_that_goes_back_to_training() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 1), torch.nn.BatchNorm3d(2)).eval()
    inferer = znni.SlidingWindowInferer()
    images = torch.rand(1, 1, 3, 4, 5).half()
    assert inferer(images, model).dtype == torch.float32
    said = r"1 \(BatchNorm3d\) is in training mode, .*eval"
    with pytest.raises(InvalidInput, match=said):
        inferer(images, model.train())


def test_an_exported_program_of_torch() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 1)).eval()
    images = torch.rand(1, 1, 3, 4, 5)
    found = znni.SlidingWindowInferer()(images, torch.export.export(model, (images,)))
    np.testing.assert_allclose(found, model(images).detach(), rtol=0, atol=1e-5)


def test_as_a_predictor_of_monai() -> None:
    torch = pytest.importorskip("torch")
    monai = pytest.importorskip("monai.inferers")
    images = torch.from_numpy(voxels()[np.newaxis, np.newaxis].astype(np.float32))
    ours = znni.SlidingWindowInferer("tiny.yaml", pad="edge")
    theirs = monai.SlidingWindowInferer(roi_size=images.shape[2:], mode="constant")
    np.testing.assert_array_equal(theirs(images, ours), ours(images))


def test_networks_in_memory() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Conv3d(1, 2, 2), torch.nn.ReLU())
    network, weights = network_of(model)
    assert (network.name, network.out_features) == ("Sequential", 2)
    np.testing.assert_array_equal(weights[network.layers[0].name].weight, model[0].weight.detach())


@pytest.mark.slow
def test_a_meta_tensor_comes_back_as_one() -> None:
    torch = pytest.importorskip("torch")

    class MetaTensor(torch.Tensor):  # type: ignore[misc]
        """What MONAI's class does where it matters here."""

        meta: dict[str, Any]

        def copy_meta_from(self, other: Any) -> None:
            self.meta = other.meta

    images = torch.rand(1, 1, 24, 32, 40).as_subclass(MetaTensor)
    images.meta = {"affine": "of the scanner"}
    outputs = znni.SlidingWindowInferer("boundaries", ram="2GiB")(images)
    assert type(outputs) is MetaTensor
    assert outputs.meta == images.meta
    assert tuple(outputs.shape) == (1, 1, 24, 32, 40)
