"""Networks of other libraries over a volume: znni beside MONAI's sliding windows.

Each network has random weights. It is given as a file or as a module, as users give it. znni or
the file's own library computes it, whichever is predicted to be faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from bench.library_networks import export, monai, nnunet, pytorch_3dunet, seeded
from bench.peers.sliding_window import in_windows_of_monai
from bench.record import Row
from bench.session import Out, Threads, ceilings_with, check_known, machine_with, progress
from bench.session import report_all as report
from znni.core.plan_options import Choices
from znni.core.shapes import Vec3
from znni.inference.inferer import Inferer
from znni.inference.model_choice import chosen
from znni.inference.network_import import import_network
from znni.network.geometry import with_window
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Float32, weights_for
from znni.network.window import Window

MOST_SECONDS_IN_FLOAT64 = 4.0  # in float32, of what is also computed in float64

Name = Annotated[list[str] | None, typer.Option("--net", help="A network; repeatable.")]
Extents = Annotated[int, typer.Option("--size", min=1, help="Voxels of the volume per axis.")]
Side = Annotated[int, typer.Option("--window", min=1, help="Voxels of a window per axis.")]
Overlap = Annotated[float, typer.Option(min=0, max=0.9, help="Overlap of windows.")]


def _dynunet() -> Any:
    return monai("DynUNet", 3, 1, 3, (3,) * 5, (1, 2, 2, 2, 2), (2, 2, 2, 2), norm_name="instance")


@dataclass(frozen=True)
class _Made:
    """A network for the comparison, given to znni as a module or as a file."""

    make: Callable[[], Any]
    source: str


NETS: dict[str, _Made] = {
    "nnU-Net PlainConvUNet": _Made(lambda: nnunet("PlainConvUNet", 2, 2), "module"),
    "nnU-Net ResidualEncoderUNet M": _Made(
        lambda: nnunet("ResidualEncoderUNet", (1, 3, 4, 6, 6, 6), 1), ".pt2"
    ),
    "MONAI BasicUNet": _Made(lambda: monai("BasicUNet", 3, 1, 2), ".onnx"),
    "MONAI DynUNet": _Made(_dynunet, ".pt2"),
    "MONAI SegResNet, instance norm": _Made(
        lambda: monai("SegResNet", 3, 16, 1, 2, norm=("instance", {"affine": True})), ".onnx"
    ),
    "MONAI SegResNet, group norm": _Made(lambda: monai("SegResNet", 3, 16, 1, 2), ".onnx"),
    "MONAI AttentionUnet": _Made(
        lambda: monai("AttentionUnet", 3, 1, 2, (16, 32, 64, 128), (2, 2, 2)), ".onnx"
    ),
    "pytorch-3dunet UNet3D gcr": _Made(lambda: pytorch_3dunet("UNet3D"), ".onnx"),
    "pytorch-3dunet ResidualUNetSE3D": _Made(lambda: pytorch_3dunet("ResidualUNetSE3D"), ".pt2"),
    "MONAI SwinUNETR": _Made(
        lambda: monai("SwinUNETR", in_channels=1, out_channels=3, feature_size=24), ".onnx"
    ),
}


def models_command(
    net: Name = None,
    size: Extents = 80,
    window: Side = 64,
    overlap: Overlap = 0.5,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Compare networks of other libraries over a volume with MONAI's sliding windows."""
    check_known("net", net or [], NETS)
    cores = machine_with("cpu", threads).host.threads
    windows = Window(Vec3.of(window), overlap)
    with TemporaryDirectory() as place:
        rows = [_row(name, Path(place), size, windows, cores) for name in net or NETS]
    report("models", [rows], [ceilings_with("cpu", cores)], out)


def _row(name: str, folder: Path, size: int, window: Window, cores: int) -> Row:
    module = seeded(NETS[name].make)
    volume = np.random.default_rng(1).standard_normal((1, *(size,) * 3), np.float32)
    progress(f"{name}: as {NETS[name].source}")
    network, able, parameters = _given(name, module, folder, volume, window, cores)
    inferer = Inferer(network, weights_for(network, None, None), threads=cores, device="cpu")
    inferer(volume)  # builds, and compiles
    ours, seconds = _timed(lambda: inferer(volume))
    progress(f"{name}: MONAI in float32")
    theirs, monai_seconds = _timed(lambda: _sliding(module, volume, window, cores))
    row: Row = {
        "name": name,
        "parameters": parameters,
        "source": NETS[name].source,
        "computed_by": able,
        "volume": str(Vec3.of(size)),
        "window": str(window.size),
        "overlap": window.overlap,
        "error": _apart(ours, theirs),
        "seconds": seconds,
        "monai_seconds": monai_seconds,
        "speedup": monai_seconds / seconds,
    }
    if monai_seconds < MOST_SECONDS_IN_FLOAT64:
        progress(f"{name}: MONAI in float64")
        exact = _sliding(module.double(), volume.astype(np.float64), window, cores)
        row |= {"error64": _apart(ours, exact), "monai_error64": _apart(theirs, exact)}
    return row


def _given(
    name: str, module: Any, folder: Path, volume: Float32, window: Window, cores: int
) -> tuple[Network, str, int]:
    """Return a network as znni gets it, who computes it, and the number of its parameters."""
    parameters = sum(each.numel() for each in module.parameters())
    source, file = NETS[name].source, folder / f"net{NETS[name].source}"
    if source == "module":
        made = import_network(module, folder / "net.yaml", overwrite=True)
        return with_window(load_network(made.path), window), "znni", parameters
    export(module, window.size, file)
    loaded = with_window(load_network(file), window)
    choices = Choices(threads=cores, device="cpu")
    taken = chosen(loaded, Vec3(*volume.shape[1:]), choices)
    progress(taken.why)
    models = taken.network.models
    return taken.network, models[0].runtime if models else "znni", parameters


def _sliding(module: Any, volume: Any, window: Window, cores: int) -> Any:
    import torch

    torch.set_num_threads(cores)
    return in_windows_of_monai(
        torch.from_numpy(volume), window.size, window.overlap, module
    ).numpy()


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


def _apart(ours: Any, theirs: Any) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
