"""Seconds that runs over many small volumes add to those of their layers, by volume.

One process computes all volumes, as ``znni infer A B --out FOLDER/`` does. The first volume of each
kind of file warms caches and is not counted.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import h5py
import numpy as np
import tifffile
import typer

from bench import session
from bench.record import Row
from znni.core.errors import RunFailed
from znni.core.processors import DeviceChoice
from znni.core.run_options import RunKeywords
from znni.core.shapes import Vec3
from znni.inference.many import ManyReport, infer_many
from znni.network.network import Network
from znni.network.network_file import load_network

ENDINGS = (".tif", ".h5")


def many_volumes_command(
    net: session.Nets,
    size: Annotated[int, typer.Option(min=1, help="Voxels per axis of each volume.")] = 48,
    volumes: Annotated[int, typer.Option(min=1, help="Volumes of each kind of file.")] = 200,
    ram: Annotated[
        str | None,
        typer.Option(help="Memory that a plan may take. Default: 1GiB, or 4GiB with CUDA."),
    ] = None,
    device: Annotated[DeviceChoice, typer.Option(help="Where layers run.")] = "cpu",
    out: session.Out = None,
) -> None:
    """Time a loop over many small volumes, and what it adds to the layers' time."""
    ram = ram or ("1GiB" if device == "cpu" else "4GiB")
    found = (
        [time_volumes(load_network(path), size, volumes, ending, ram, device)]
        for path in net
        for ending in ENDINGS
    )
    session.report_all("many-volumes", found, [], out)


def time_volumes(
    network: Network,
    size: int,
    volumes: int,
    ending: str,
    ram: str,
    device: DeviceChoice = "cpu",
) -> Row:
    """Return the milliseconds that a volume took on average.

    Args:
        network: is given random weights if it has none.
        size: voxels per axis of each volume.
        volumes: their number.
        ending: the kind of file.
        ram: memory that a plan may take.
        device: where layers run.

    Raises:
        RunFailed: a volume failed.
    """
    generator = np.random.default_rng(0)
    seed = None if network.weights else 0
    with TemporaryDirectory(prefix="bench-volumes-") as name:
        folder = Path(name)
        files = [folder / f"volume-{number}{ending}" for number in range(volumes + 1)]
        for path in files:
            write(path, generator.integers(0, 256, Vec3(size, size, size), np.uint8))
        session.progress(f"{network.name}: {volumes} volumes of {size}^3 in {ending} files")
        first, *rest = files
        options = RunKeywords(ram=ram, device=device)
        infer_many([first], network, folder / "first", random_seed=seed, **options)
        report = infer_many(rest, network, folder / "out", random_seed=seed, **options)
    about: Row = {"network": network.name, "device": device, "size": size, "files": ending}
    return about | row_of(report)


def write(path: Path, values: np.ndarray) -> None:
    """Write a volume into a TIFF or HDF5 file."""
    if path.suffix == ".tif":
        tifffile.imwrite(path, values)
        return
    with h5py.File(path, "w") as file:
        file["volume"] = values


def row_of(report: ManyReport) -> Row:
    """Return the milliseconds of a volume on average: in all, in layers, and the rest.

    Raises:
        RunFailed: a volume failed.
    """
    if report.failures:
        raise RunFailed(str(report.failures[0]))
    count = len(report.reports)
    stages = [found.time.busy for found in report.reports.values()]
    layers = sum(busy.host_layers + busy.gpu_layers for busy in stages)
    return {
        "volumes": count,
        "ms": 1e3 * report.seconds / count,
        "layers_ms": 1e3 * layers / count,
        "overhead_ms": 1e3 * (report.seconds - layers) / count,
    }
