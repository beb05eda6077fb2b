"""Crops that no join needs, as in funlib: import leaves them out, or refuses them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_cases import NEEDS_ONNX, numbers, pooled, read_back, refusal, relative, torch_or_skip

import znni
from znni.core.shapes import Vec3
from znni.importing.parity import Parity

torch = torch_or_skip()
nn = torch.nn
networks = import_module("bench.peers.torch_networks")
libraries = import_module("bench.library_networks")

# Comparisons run the reference, which needs no compiling.
pytestmark = pytest.mark.usefixtures("fake_primitives")

LEFT_OUT = "the original crops values by more samples than it needs to join them"
SIZE = Vec3(44, 56, 52)  # along y, two voxels of the output on each side are cropped


def cropping(*, transposed: bool = False) -> Any:
    """Return a U-Net that crops what its lowest level gives, by how much depends on the size."""
    maps, windows = (2, 3, 4), [(2, 2, 2)] * 2
    return libraries.seeded(
        lambda: networks.ValidUNet(maps, windows, transposed=transposed, evens=True)
    )


def as_torch_computes(module: Any, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return np.asarray(module.double()(torch.from_numpy(x).double()[None])[0])


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_what_a_unet_crops_is_computed(ending: str, transposed: bool, tmp_path: Path) -> None:
    if ending == ".onnx":
        pytest.importorskip("onnx", reason=NEEDS_ONNX)
    module, file, out = cropping(transposed=transposed), tmp_path / f"net{ending}", tmp_path / "net"
    libraries.export(module, SIZE, file)
    found = znni.import_network(file, out.with_suffix(".yaml"))
    assert isinstance(found.parity, Parity)
    assert found.parity.error < 1e-5
    assert LEFT_OUT in str(found)
    x = numbers(1, *SIZE)
    ours = pooled(read_back(found.path), x)
    theirs = as_torch_computes(module, x)
    assert ours.shape == (3, 4, 16, 12)
    assert relative(ours[:, :, 2:-2], theirs) < 1e-5


def test_axes_in_another_order(tmp_path: Path) -> None:
    file = tmp_path / "net.pt2"
    libraries.export(cropping(), SIZE, file)
    found = znni.import_network(file, tmp_path / "net.yaml", axes="yxz")
    assert isinstance(found.parity, Parity)
    assert found.parity.size == (52, 44, 56)
    assert found.parity.error < 1e-5


class Cropping(nn.Module):
    """A join of values that are cropped along x, and what follows."""

    def __init__(self, crops: tuple[slice, slice], after: Callable[[Any], Any]) -> None:
        super().__init__()
        self.crops, self.after = crops, after
        self.wide, self.narrow = nn.Conv3d(1, 2, 1), nn.Conv3d(1, 2, (1, 1, 3))

    def forward(self, x: Any) -> Any:
        wide, narrow = self.crops
        return self.after(torch.cat([self.wide(x)[..., wide], self.narrow(x)[..., narrow]], 1))


CENTRED = slice(2, -2), slice(1, -1)


@pytest.mark.slow
def test_a_module_is_compared_at_the_size_for_which_it_was_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("znni.importing.torch_module.SIZES", (9,))
    module = libraries.seeded(lambda: Cropping(CENTRED, nn.Identity()))
    found = znni.import_network(module, tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    assert found.parity.size == (9, 9, 9)
    assert found.parity.error < 1e-6
    assert LEFT_OUT in str(found)


@pytest.mark.parametrize(
    ("crops", "after", "cropped"),
    [
        (CENTRED, nn.Identity(), (1, 1)),
        (CENTRED, nn.Sequential(nn.Conv3d(4, 2, 3), nn.BatchNorm3d(2), nn.ReLU()), (1, 1)),
        ((slice(3, -2), slice(2, -1)), nn.Conv3d(4, 2, 3), (2, 1)),
    ],
)
def test_what_may_follow_a_crop(
    crops: tuple[slice, slice], after: Any, cropped: tuple[int, int], tmp_path: Path
) -> None:
    module, file = libraries.seeded(lambda: Cropping(crops, after)), tmp_path / "net.pt2"
    size = Vec3(5, 6, 12)
    libraries.export(module, size, file)
    found = znni.import_network(file, tmp_path / "net.yaml")
    assert isinstance(found.parity, Parity)
    x = numbers(1, *size)
    ours = pooled(read_back(found.path), x)
    before, rest = cropped
    inside = ours[..., before : ours.shape[-1] - rest]
    assert relative(inside, as_torch_computes(module, x)) < 1e-5


@pytest.mark.parametrize(
    ("crops", "after", "said"),
    [
        (CENTRED, nn.Conv3d(4, 2, 3, padding=1), "a crop of 0x0x1 before and 0x0x1 after"),
        (CENTRED, nn.Conv3d(4, 2, 3, stride=2), "only convolutions without stride and padding"),
        (CENTRED, nn.MaxPool3d(2), "that no join needs"),
        (CENTRED, nn.ConvTranspose3d(4, 2, 3, 2), "that no join needs"),
        (CENTRED, nn.Upsample(scale_factor=2.0, mode="trilinear"), "that no join needs"),
        (CENTRED, nn.InstanceNorm3d(4), "that no join needs"),
        (CENTRED, nn.ConstantPad3d(1, 0.0), "that no join needs"),
        ((slice(3, -1), slice(1, -1)), nn.Identity(), "by itself would crop"),
    ],
)
def test_what_may_not_follow_a_crop(
    crops: tuple[slice, slice], after: Any, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.pt2"
    libraries.export(Cropping(crops, after).eval(), Vec3(8, 8, 12), file)
    assert said in refusal(file, tmp_path)


def test_windows_that_lose_voxels_are_refused(tmp_path: Path) -> None:
    module, file = nn.Sequential(nn.Conv3d(1, 2, 3), nn.InstanceNorm3d(2)), tmp_path / "file.pt2"
    libraries.export(module.eval(), Vec3(8, 8, 8), file)
    assert "gives 2x2x2 fewer voxels than a window has" in refusal(file, tmp_path)
