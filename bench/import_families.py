"""Import of the networks that people use, at full width: does each give what its library gives?

Each network has random weights, and is exported for a fixed size of its input. The size is small,
so that two cores compute it in seconds. znni imports the file, and compares the result with the
original in PyTorch or ONNX Runtime. Networks of libraries that are not installed are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from bench.library_networks import export, monai, nnunet, pytorch_3dunet, seeded
from bench.record import Row
from bench.session import Out, ceilings_with, check_known, machine_with, progress
from bench.session import report_all as report
from znni.core.errors import InvalidInput, RunFailed
from znni.core.shapes import Vec3
from znni.importing.parity import Parity
from znni.inference.network_import import import_network

ENDINGS = (".pt2", ".onnx")
# The libraries that formats need.
READERS: Mapping[str, tuple[str, ...]] = {".pt2": (), ".onnx": ("onnx", "onnxruntime")}

CUBE, HALF, IN_PLANE = (2, 2, 2), (1, 2, 2), (1, 3, 3)

Name = Annotated[list[str] | None, typer.Option("--net", help="A network; repeatable.")]
Endings = Annotated[list[str] | None, typer.Option("--format", help=".pt2 or .onnx; repeatable.")]


@dataclass(frozen=True)
class Family:
    """A network, the size of its input, and the library that makes it."""

    make: Callable[[], Any]
    size: Vec3
    library: str = "torch"


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
    return Family(lambda: make(*args), Vec3.of(side), library)


def _nnunet(size: Vec3, *args: Any) -> Family:
    return _with_library("dynamic_network_architectures", size, nnunet, *args)


def _unet3d(side: int, *args: Any) -> Family:
    return _with_library("pytorch3dunet", side, pytorch_3dunet, *args)


def _monai(side: int, name: str, *args: Any, **options: Any) -> Family:
    return _with_library("monai", side, lambda: monai(name, *args, **options))


RESIDUAL, FIVE = (1, 3, 4, 6, 6, 6, 6), (16, 32, 64, 128, 256)
FAMILIES: dict[str, Family] = {
    "valid U-Net, 12 x 5, nearest": Family(
        lambda: _valid((12, 60, 300, 1500), CUBE), Vec3.of(92)
    ),
    "valid U-Net, 12 x 5, transposed": Family(
        lambda: _valid((12, 60, 300, 1500), CUBE, transposed=True), Vec3.of(92)
    ),
    "valid U-Net, 12 x 5, cropped further": Family(
        lambda: _valid((12, 60, 300, 1500), CUBE, evens=True), Vec3.of(124)
    ),
    "valid U-Net, 12 x 5, in the plane": Family(
        lambda: _valid((12, 60, 300, 1500), IN_PLANE), Vec3(30, 214, 214)
    ),
    "valid U-Net, 12 x 6, nearest": Family(
        lambda: _valid((12, 72, 432, 2592), CUBE), Vec3.of(92)
    ),
    "valid U-Net, 24 x 3, nearest": Family(
        lambda: _valid((24, 72, 216, 648), CUBE), Vec3.of(92)
    ),
    "valid U-Net, 24 x 3, in the plane": Family(
        lambda: _valid((24, 72, 216, 648), IN_PLANE, transposed=True), Vec3(30, 214, 214)
    ),
    "valid U-Net, 32 x 2, transposed": Family(
        lambda: _valid((32, 64, 128, 256), CUBE, transposed=True), Vec3.of(92)
    ),
    "valid U-Net, 32 x 2, three levels": Family(
        lambda: _valid((32, 64, 128), CUBE), Vec3.of(56)
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
    "RSUNet, nearest": Family(lambda: _residual(up="nearest"), Vec3(10, 64, 64)),
    "RSUNet, norm last": Family(lambda: _residual(norm_first=False), Vec3(10, 64, 64)),
    "MeshNet": Family(_mesh_net, Vec3.of(64)),
}  # fmt: skip


def import_families_command(net: Name = None, format: Endings = None, out: Out = None) -> None:
    """Import the networks that people use, and compare them with their originals."""
    check_known("net", net or [], FAMILIES)
    check_known("format", format or [], ENDINGS)
    threads = machine_with("cpu", None).host.threads
    rows = ([_row(name, ending) for ending in format or ENDINGS] for name in net or FAMILIES)
    report("import-families", rows, [ceilings_with("cpu", threads)], out)


def _row(name: str, ending: str) -> Row:
    family = FAMILIES[name]
    row: Row = {"name": name, "source": ending, "size": str(family.size)}
    for library in ("torch", family.library, *READERS[ending]):
        if find_spec(library) is None:
            return row | {"skipped": f"{library} is not installed"}
    progress(f"{name}: as {ending}")
    with TemporaryDirectory() as folder:
        return row | _imported(family, Path(folder) / f"net{ending}")


def _imported(family: Family, file: Path) -> Row:
    module = seeded(family.make)
    row: Row = {"parameters": sum(each.numel() for each in module.parameters())}
    export(module, family.size, file)
    del module
    begun = time.perf_counter()
    try:
        parity = import_network(file, file.with_suffix(".yaml")).parity
    except InvalidInput as error:
        return row | {"result": "refused", "skipped": str(error)}
    except RunFailed as error:
        return row | {"result": "differs", "skipped": str(error)}
    row["seconds"] = time.perf_counter() - begun
    if not isinstance(parity, Parity):
        return row | {"result": "not compared", "skipped": parity}
    return row | {"result": "imported", "runtime": parity.runtime, "error": parity.error}
