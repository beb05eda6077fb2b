"""Networks of so many operations that the engine computes them for the comparison at import."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from import_cases import NEEDS_ONNX, torch_or_skip

import znni
from znni.core.shapes import Vec3
from znni.importing import parity
from znni.importing.parity import Parity

torch = torch_or_skip()
nn = torch.nn
functional = nn.functional
networks = import_module("bench.peers.torch_networks")
libraries = import_module("bench.library_networks")

CUBES = [(2, 2, 2)] * 2


class Mixed(nn.Module):
    """A U-Net of which some convolutions pad zeros, along some axes."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.low = nn.Conv3d(1, 4, 3, padding=(1, 0, 0)), nn.Conv3d(4, 4, 3)
        self.up, self.right = nn.ConvTranspose3d(4, 4, 2, 2), nn.Conv3d(8, 4, 3, padding=(0, 0, 1))
        self.end = nn.Conv3d(4, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        skip = self.start(x)
        low = self.up(self.low(functional.max_pool3d(skip, 2)).relu())
        size = low.shape[2:]
        i, j, k = ((a - b) // 2 for a, b in zip(skip.shape[2:], size, strict=True))
        skip = skip[:, :, i : i + size[0], j : j + size[1], k : k + size[2]]
        return self.end(self.right(torch.cat([low, skip], 1)).relu())


class Normalized(nn.Module):
    """A network that depends on whole windows, and keeps their size."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.norm = nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4, affine=True)
        self.end = nn.Conv3d(4, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.end(self.norm(self.start(x)).relu() + x)


def imported(module: Any, size: Vec3, ending: str, folder: Path) -> Parity:
    """Return how a network differs that was exported and imported."""
    file = folder / f"net{ending}"
    if ending == ".onnx":
        pytest.importorskip("onnx", reason=NEEDS_ONNX)
    libraries.export(module, size, file)
    compared = znni.import_network(file, folder / "net.yaml").parity
    assert isinstance(compared, Parity)
    assert compared.size == size
    return compared


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_a_valid_unet_of_real_size(ending: str, tmp_path: Path) -> None:
    if ending == ".onnx":
        reason = "onnxruntime, which runs large originals, is not installed (znni[onnx])"
        pytest.importorskip("onnxruntime", reason=reason)
    module, size = libraries.seeded(lambda: networks.ValidUNet((32, 64, 128), CUBES)), Vec3.of(56)
    assert imported(module, size, ending, tmp_path).error < 1e-5
    network = znni.load_network(tmp_path / "net.yaml")
    assert parity._work(network, size)[1] > parity.EXACT_FLOPS


SMALL = {
    "valid": (lambda: networks.ValidUNet((4, 6, 8), CUBES, transposed=True), Vec3(44, 48, 44)),
    "mixed": (Mixed, Vec3(12, 14, 16)),
    "same": (lambda: networks.mesh_net(4, (1, 2, 1)), Vec3(9, 10, 11)),
    "windows": (Normalized, Vec3(9, 10, 11)),
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
@pytest.mark.parametrize("name", SMALL)
def test_the_engine_pads_as_the_layers_do(
    name: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "EXACT_FLOPS", 0)
    make, size = SMALL[name]
    assert imported(libraries.seeded(make), size, ending, tmp_path).error < 1e-5
