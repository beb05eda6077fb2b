"""Whole volumes by znni and by MONAI's sliding windows, each in two tilings.

Input and output are in memory. Each run lasts from the call to the last output, with planning. Two
tilings of one volume can give different outputs. These differences are seams. They come from how
the network is run, not from the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

from bench.peers.sliding_window import in_windows_of_monai
from bench.peers.whole_windows import peers
from bench.record import Row
from bench.session import (
    Out,
    Ram,
    Threads,
    ceilings_with,
    check_known,
    machine_with,
    progress,
    report_all,
)
from bench.unet_networks import UNETS
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.inference.api import infer
from znni.inference.planning import search
from znni.network.geometry import context
from znni.network.input_scaling import InputScaling
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Float32, Weights, load_weights, random_weights

WINDOW_HELP = (
    "MONAI's window, in voxels per axis; repeatable. znni also uses the second and later ones as "
    "its patches. Seams compare the first two tilings."
)

Net = Annotated[str, typer.Option(help="A U-Net of `unets`, or a YAML file with weights.")]
Size = Annotated[int, typer.Option(min=1, help="Voxels of the noise volume per axis.")]
Volume = Annotated[Path | None, typer.Option(help="A volume (z, y, x) in a .npy file, not noise.")]
Windows = Annotated[list[int] | None, typer.Option("--window", help=WINDOW_HELP)]
Overlap = Annotated[float, typer.Option(min=0, max=0.9, help="Share of a window.")]
Inside = Annotated[str, typer.Option("--peer", help="The engine that computes MONAI's windows.")]
Picture = Annotated[Path | None, typer.Option(help="A PNG of how far two tilings differ.")]


class _Made(NamedTuple):
    """The outcome of a whole volume in one tiling.

    Attributes:
        tile: voxels of a patch or window.
        output: the output (f', z, y, x).
    """

    tile: Vec3
    output: Float32


# A function of the input (f, z, y, x), for one tiling.
Run = Callable[[Float32], _Made]


def seams_command(
    net: Net = "unet3d",
    size: Size = 512,
    volume: Volume = None,
    window: Windows = None,
    overlap: Overlap = 0.5,
    peer: Inside = "openvino bf16",
    ram: Ram = 16 << 30,
    threads: Threads = None,
    picture: Picture = None,
    out: Out = None,
) -> None:
    """Compare whole volumes with MONAI's sliding windows: time, and seams between tilings."""
    cores = machine_with("cpu", threads).host.threads
    network, weights = _network(net)
    if not network.is_tiled or context(network) != Vec3(0, 0, 0):
        raise InvalidInput(f"{network.name} does not keep the size of its input; choose another")
    x = _volume(network, size, volume)
    # Both sides get the same floats.
    network = replace(network, scaling=InputScaling())
    with TemporaryDirectory() as folder:
        contestants = {
            "znni": _ours(network, weights, Vec3(*x.shape[1:]), window or [128, 96], ram, cores),
            f"MONAI, {peer}": [
                _sliding(network, weights, tile, overlap, peer, cores, Path(folder))
                for tile in window or [128, 96]
            ],
        }
        rows: list[Row] = []
        differences: dict[str, NDArray[np.float32]] = {}
        for name, runs in contestants.items():
            made: list[Float32] = []
            for run in runs:
                progress(f"{name}, tiling {len(made) + 1} of {len(runs)}")
                begun = time.perf_counter()
                tile, output = run(x)
                seconds = time.perf_counter() - begun
                made.append(output)
                rows.append(
                    {
                        "network": network.name,
                        "name": name,
                        "volume": str(Vec3(*x.shape[1:])),
                        "tile": str(tile),
                        "seconds": seconds,
                        "voxels_per_s": output[0].size / seconds,
                        "seams": None,
                    }
                )
            if len(made) > 1:
                differences[name] = np.abs(made[1] - made[0]).max(axis=0)
                largest = float(differences[name].max() / np.abs(made[0]).max())
                rows[-1]["seams"] = largest
    if picture is not None and differences:
        _draw(x[0], differences, picture)
    report_all("seams", [rows], [ceilings_with("cpu", cores)], out)


def _network(name: str) -> tuple[Network, Weights]:
    """Return a network and its weights, which are random for a U-Net of ``unets``."""
    if name.endswith((".yaml", ".yml")):
        network = load_network(Path(name))
        if network.weights is None:
            raise typer.BadParameter(f"{name} names no weights")
        return network, load_weights(network.weights, network)
    check_known("net", [name], UNETS)
    network = UNETS[name]()
    return network, random_weights(network, 0)


def _volume(network: Network, size: int, file: Path | None) -> Float32:
    """Return the scaled input (f, z, y, x): a file's volume, or noise."""
    if file is None:
        generator = np.random.default_rng(0)
        return generator.standard_normal((network.in_features, *Vec3.of(size)), np.float32)
    scale, offset = np.float32(network.scaling.scale), np.float32(network.scaling.offset)
    x: Float32 = np.load(file).astype(np.float32)[np.newaxis] * scale + offset
    return x


def _ours(
    network: Network, weights: Weights, size: Vec3, tiles: list[int], ram: int, threads: int
) -> list[Run]:
    """Return a run of the fastest plan, and one for each extent but the first."""

    def tiling(patch: Vec3 | None) -> Run:
        def run(x: Float32) -> _Made:
            space = search(network, size, ram=ram, threads=threads, device="cpu")
            chosen = space.fastest_for(patch) if patch else space.fastest(1)[0]
            if chosen is None:
                raise InvalidInput(f"no plan with patches of {patch} fits; choose another --window")
            y = np.empty((network.out_features, *size), np.float32)
            infer(x, network, y, weights=weights, plan=chosen)
            return _Made(chosen.patch, y)

        return run

    return [tiling(None), *(tiling(Vec3.of(tile)) for tile in tiles[1:])]


def _sliding(
    network: Network,
    weights: Weights,
    tile: int,
    overlap: float,
    peer: str,
    threads: int,
    folder: Path,
) -> Run:
    """Return MONAI's inferer with Gaussian weights, and the peer as its predictor."""
    import torch

    window = np.zeros((network.in_features, *Vec3.of(tile)), np.float32)
    makers = dict(peers(network, weights, window, threads, folder))
    check_known("peer", [peer], makers)
    compute = makers[peer]()

    def predictor(windows: Any) -> Any:
        return torch.from_numpy(np.stack([compute(each) for each in windows.numpy()]))

    def run(x: Float32) -> _Made:
        y: Float32 = in_windows_of_monai(
            torch.from_numpy(x), Vec3.of(tile), overlap, predictor
        ).numpy()
        return _Made(Vec3.of(tile), y)

    return run


def _draw(volume: Float32, differences: dict[str, NDArray[np.float32]], picture: Path) -> None:
    """Draw the middle section of the volume, and how far two tilings differ there."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, 1 + len(differences), figsize=(5 * (1 + len(differences)), 5), layout="constrained"
    )
    middle = len(volume) // 2
    axes[0].imshow(volume[middle], cmap="gray")
    axes[0].set_title("input")
    most = max(float(values[middle].max()) for values in differences.values())
    for panel, (name, values) in zip(axes[1:], differences.items(), strict=True):
        drawn = panel.imshow(values[middle], cmap="magma", vmin=0, vmax=most)
        panel.set_title(f"{name}: two tilings differ by up to {values.max():.1e}")
    for panel in axes:
        panel.set(xticks=[], yticks=[])
    figure.colorbar(drawn, ax=axes[-1])
    figure.savefig(picture, dpi=100)
    plt.close(figure)
