"""Import of the networks that people use, at full width: does each give what its library gives?

Each network has random weights, and is exported for a fixed size of its input. The size is small,
so that two cores compute it in seconds. znni imports the file, and compares the result with the
original in PyTorch or ONNX Runtime. Networks of libraries that are not installed are left out.

Some networks are also computed in windows. A network that znni cannot express runs as it is: its
own library computes each window. One window is compared with PyTorch in float64, and a volume with
MONAI's sliding windows in float64. Each network has a process of its own, whose memory is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from bench.child import Child, ChildFailed
from bench.library_networks import export, monai, nnunet, primus, pytorch_3dunet, seeded
from bench.peers.sliding_window import in_windows_of_monai
from bench.record import Row
from bench.session import Out, ceilings_with, check_known, machine_with, progress
from bench.session import report_all as report
from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Vec3
from znni.importing.checks import NotExpressed
from znni.importing.parity import Parity
from znni.inference.inferer import Inferer
from znni.inference.network_import import import_network
from znni.network.geometry import with_window
from znni.network.network_file import load_network
from znni.network.window import Window

ENDINGS = (".pt2", ".onnx")
# The libraries that formats need.
READERS: Mapping[str, tuple[str, ...]] = {".pt2": (), ".onnx": ("onnx", "onnxruntime")}

CUBE, HALF, IN_PLANE = (2, 2, 2), (1, 2, 2), (1, 3, 3)
OVERLAP = 0.5

Name = Annotated[list[str] | None, typer.Option("--net", help="A network; repeatable.")]
Endings = Annotated[list[str] | None, typer.Option("--format", help=".pt2 or .onnx; repeatable.")]


@dataclass(frozen=True)
class Family:
    """A network to import.

    Attributes:
        make: returns the module. It can be pickled.
        size: the extents of the input for which it is exported.
        libraries: the libraries that it needs beside PyTorch.
        volume: the extents of a volume that is computed in windows of ``size``. None: there is no
            such volume.
    """

    make: Callable[[], Any]
    size: Vec3
    libraries: tuple[str, ...] = ()
    volume: Vec3 | None = None


def _valid(maps: tuple[int, ...], window: tuple[int, int, int], **options: bool) -> Any:
    from bench.peers.torch_networks import ValidUNet

    return ValidUNet(maps, [window] * (len(maps) - 1), **options)


def _residual(**options: Any) -> Any:
    from bench.peers.torch_networks import ResidualUNet

    return ResidualUNet((16, 32, 64, 128, 256), **options)


def _mesh_net() -> Any:
    from bench.peers.torch_networks import mesh_net

    return mesh_net(30, (1, 2, 4, 8, 16, 8, 4, 2, 1))


def _with_library(library: str, side: int | Vec3, make: Callable[..., Any], *args: Any) -> Family:
    return Family(partial(make, *args), Vec3.of(side), (library,))


def _nnunet(size: Vec3, *args: Any) -> Family:
    return _with_library("dynamic_network_architectures", size, nnunet, *args)


def _unet3d(side: int, *args: Any) -> Family:
    return _with_library("pytorch3dunet", side, pytorch_3dunet, *args)


def _monai(side: int, name: str, *args: Any, **options: Any) -> Family:
    return _with_library("monai", side, partial(monai, name, *args, **options))


def _in_windows(side: int, libraries: tuple[str, ...], make: Callable[[], Any]) -> Family:
    """Return a network with a volume of two windows."""
    return Family(make, Vec3.of(side), libraries, Vec3(side, side, side * 3 // 2))


RESIDUAL, FIVE = (1, 3, 4, 6, 6, 6, 6), (16, 32, 64, 128, 256)
FAMILIES: dict[str, Family] = {
    "valid U-Net, 12 x 5, nearest": Family(
        partial(_valid, (12, 60, 300, 1500), CUBE), Vec3.of(92)
    ),
    "valid U-Net, 12 x 5, transposed": Family(
        partial(_valid, (12, 60, 300, 1500), CUBE, transposed=True), Vec3.of(92)
    ),
    "valid U-Net, 12 x 5, cropped further": Family(
        partial(_valid, (12, 60, 300, 1500), CUBE, evens=True), Vec3.of(124)
    ),
    "valid U-Net, 12 x 5, in the plane": Family(
        partial(_valid, (12, 60, 300, 1500), IN_PLANE), Vec3(30, 214, 214)
    ),
    "valid U-Net, 12 x 6, nearest": Family(
        partial(_valid, (12, 72, 432, 2592), CUBE), Vec3.of(92)
    ),
    "valid U-Net, 24 x 3, nearest": Family(
        partial(_valid, (24, 72, 216, 648), CUBE), Vec3.of(92)
    ),
    "valid U-Net, 24 x 3, in the plane": Family(
        partial(_valid, (24, 72, 216, 648), IN_PLANE, transposed=True), Vec3(30, 214, 214)
    ),
    "valid U-Net, 32 x 2, transposed": Family(
        partial(_valid, (32, 64, 128, 256), CUBE, transposed=True), Vec3.of(92)
    ),
    "valid U-Net, 32 x 2, three levels": Family(
        partial(_valid, (32, 64, 128), CUBE), Vec3.of(56)
    ),
    "nnU-Net 3d_fullres": _nnunet(Vec3.of(64), "PlainConvUNet", 2, 2),
    "nnU-Net 3d_fullres, flat first": _nnunet(Vec3(16, 128, 128), "PlainConvUNet", 2, 2, 2),
    "nnU-Net ResEnc M": _nnunet(Vec3.of(64), "ResidualEncoderUNet", RESIDUAL[:6], 1),
    "nnU-Net ResEnc L, flat first": _nnunet(
        Vec3(32, 64, 64), "ResidualEncoderUNet", RESIDUAL[:6], 1, 1
    ),
    "nnU-Net ResEnc XL, 7 stages": _nnunet(
        Vec3(64, 128, 128), "ResidualEncoderUNet", RESIDUAL, 1, 1, 7
    ),
    "UNet3D gcr": _unet3d(48, "UNet3D"),
    "UNet3D bcr": _unet3d(48, "UNet3D", "bcr"),
    "ResidualUNet3D gcr": _unet3d(48, "ResidualUNet3D", "gcr", 32, 5),
    "ResidualUNet3D gcr, 64 maps": _unet3d(32, "ResidualUNet3D", "gcr", 64, 5),
    "ResidualUNetSE3D gcr": _unet3d(48, "ResidualUNetSE3D", "gcr", 32, 5),
    "MONAI UNet": _monai(64, "UNet", 3, 1, 2, FIVE, (2,) * 4, num_res_units=2),
    "MONAI UNet, batch norm": _monai(
        64, "UNet", 3, 1, 2, FIVE, (2,) * 4, num_res_units=2, norm="batch"
    ),
    "MONAI BasicUNet": _monai(64, "BasicUNet", 3, 1, 2),
    "MONAI DynUNet": _monai(
        64, "DynUNet", 3, 1, 3, (3,) * 6, (1, 2, 2, 2, 2, 2), (2,) * 5, norm_name="instance",
        res_block=True,
    ),
    "MONAI SegResNet": _monai(64, "SegResNet", 3, 32, 1, 2, blocks_down=(1, 2, 2, 4)),
    "MONAI VNet": _monai(32, "VNet", 3, 1, 2),
    "MONAI AttentionUnet": _monai(64, "AttentionUnet", 3, 1, 2, FIVE, (2,) * 4),
    "RSUNet, bilinear": Family(_residual, Vec3(10, 64, 64)),
    "RSUNet, nearest": Family(partial(_residual, up="nearest"), Vec3(10, 64, 64)),
    "RSUNet, norm last": Family(partial(_residual, norm_first=False), Vec3(10, 64, 64)),
    "MeshNet": Family(_mesh_net, Vec3.of(64)),
    **{
        f"MONAI MedNeXt {size}, kernel {kernel}": _in_windows(
            side, ("monai",), partial(monai, f"MedNeXt{size}", kernel_size=kernel)
        )
        for size, side in (("S", 48), ("B", 32), ("M", 32), ("L", 32))
        for kernel in (3, 5)
    },
    "MONAI SwinUNETR": _in_windows(
        64, ("monai", "einops"), partial(monai, "SwinUNETR", 1, 2, feature_size=48)
    ),
    "MONAI UNETR": _in_windows(32, ("monai", "einops"), partial(monai, "UNETR", 1, 2, (32,) * 3)),
    **{
        f"Primus {size}": _in_windows(
            32, ("dynamic_network_architectures", "timm"), partial(primus, size, 32)
        )
        for size in "SBML"
    },
}  # fmt: skip


def import_families_command(net: Name = None, format: Endings = None, out: Out = None) -> None:
    """Import the networks that people use, and compare them with their originals."""
    check_known("net", net or [], FAMILIES)
    check_known("format", format or [], ENDINGS)
    threads = machine_with("cpu", None).host.threads
    rows = (list(_rows(name, format or list(ENDINGS))) for name in net or FAMILIES)
    report("import-families", rows, [ceilings_with("cpu", threads)], out)


def _rows(name: str, endings: list[str]) -> Iterator[Row]:
    family = FAMILIES[name]
    needed = {end: ("torch", *family.libraries, *READERS[end]) for end in endings}
    lacking = {end: [it for it in needed[end] if find_spec(it) is None] for end in endings}
    about: Row = {"name": name, "size": str(family.size)}
    for ending in endings:
        if lacking[ending]:
            yield about | {"source": ending, "skipped": f"{lacking[ending][0]} is not installed"}
    able = [ending for ending in endings if not lacking[ending]]
    if not able:
        return
    progress(f"{name}: PyTorch")
    try:
        with TemporaryDirectory() as folder, Child(Original, family, folder) as child:
            for ending in able:
                progress(f"{name}: as {ending}")
                yield about | {"source": ending} | child.call("imported_as", ending)
    except ChildFailed as error:
        yield about | {"result": "failed", "skipped": str(error)}


class Original:
    """A network with random weights, and what PyTorch computes in float64.

    Args:
        family: the network.
        folder: the place of its files.
    """

    def __init__(self, family: Family, folder: str) -> None:
        self._size, self._volume, self._folder = family.size, family.volume, Path(folder)
        self._module = seeded(family.make)
        generator = np.random.default_rng(1)
        self._inputs = [
            generator.standard_normal((1, *extents), np.float32)
            for extents in ((self._size, self._volume) if self._volume else ())
        ]
        self._wanted = [self._in_float64(x) for x in self._inputs]

    def imported_as(self, ending: str) -> Row:
        """Export the network, import it, and return how it differs from the original."""
        file = self._folder / f"net{ending}"
        export(self._module, self._size, file)
        row: Row = {"parameters": sum(each.numel() for each in self._module.parameters())}
        try:
            made = import_network(file, file.with_suffix(".yaml"), overwrite=True)
            parity = made.parity
            row |= {"result": "imported"}
            if isinstance(parity, Parity):
                row |= {"runtime": parity.runtime, "error": parity.error}
            else:
                row |= {"result": "not compared", "skipped": parity}
            return row | self._in_windows(made.path)
        except NotExpressed as error:
            row |= {"result": "refused", "skipped": error.why.partition(";")[0]}
            if self._volume:
                row |= {"result": "runs as it is"} | self._in_windows(file)
            return row
        except InvalidInput as error:
            return row | {"result": "refused", "skipped": str(error)}
        except RunFailed as error:
            return row | {"result": "differs", "skipped": str(error)}

    def _in_float64(self, x: Any) -> Any:
        """Return the blended windows of an input, by MONAI and PyTorch in float64."""
        import torch

        double = self._module.double()
        given = torch.from_numpy(x).double()
        made = in_windows_of_monai(given, self._size, OVERLAP, double).numpy()
        self._module.float()
        return made

    def _in_windows(self, file: Path) -> Row:
        """Return how the network in a file differs from PyTorch, on one window and on a volume."""
        if self._volume is None:
            return {}
        network = with_window(load_network(file), Window(self._size, OVERLAP))
        inferer = Inferer(network, device="cpu", costs="built-in")
        models = inferer.network.models
        errors = (
            float(np.abs(inferer(x) - wanted).max() / np.abs(wanted).max())
            for x, wanted in zip(self._inputs, self._wanted, strict=True)
        )
        return {
            "volume": str(self._volume),
            "computed_by": models[0].runtime if models else "znni",
            **dict(zip(("window_error", "volume_error"), errors, strict=True)),
        }
