"""Memory of znni, MONAI's inferer and nnU-Net's predictor for labels of many classes.

Each computes growing volumes until it takes more than is allowed. Two sizes that it survived give
the memory of a larger volume, because arrays of maps grow with the voxels.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from bench.killed_labels import (
    CLASSES_NET,
    FEATURES,
    SEED,
    Classes,
    Edge,
    Overlap,
    Ram,
    write_noise,
)
from bench.nnunet import timed_command
from bench.peers.sliding_labels import MONAI, LabelsRun
from bench.peers.sliding_window import NNUNET
from bench.peers.torch_settings import ENVIRONMENT
from bench.record import Row
from bench.session import (
    Out,
    Peer,
    Threads,
    ceilings_with,
    check_known,
    machine_with,
    progress,
    report_all,
)
from znni.core.options import memory_size
from znni.core.shapes import Box, Vec3
from znni.volumes.locate import open_volume

OURS = "znni"
CONTESTANTS = (OURS, MONAI, NNUNET)
LARGE = 1024  # voxels per axis of the volume whose memory is extrapolated

Sizes = Annotated[
    list[int], typer.Option("--size", min=8, help="Voxels of a volume per axis; repeatable.")
]
Allowed = Annotated[str, typer.Option(help="Memory beyond which a contestant is killed.")]


def labels_memory_command(
    size: Sizes = [128, 192, 256],  # noqa: B006 - typer reads it
    *,
    classes: Classes = 100,
    window: Edge = 128,
    overlap: Overlap = 0.25,
    ram: Ram = "4GiB",
    allowed: Allowed = "12GiB",
    peer: Peer = None,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Compare the memory of labels of many classes with MONAI's inferer and nnU-Net's predictor.

    Peers are named ``znni`` too, so that each contestant can run alone. ``--ram`` is for znni.
    """
    check_known("peer", peer or [], CONTESTANTS)
    cores = machine_with("cpu", threads).host.threads
    rows: list[Row] = []
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "net.yaml").write_text(
            CLASSES_NET.format(window=window, overlap=overlap, features=FEATURES, classes=classes)
        )
        for name in peer or CONTESTANTS:
            survived: list[Row] = []
            for extent in sorted(size):
                progress(f"{name} over {extent}^3")
                row = _row(name, folder, extent, ram, memory_size(allowed), cores)
                row |= {"classes": classes, "window": f"{window}^3", "overlap": overlap}
                if row["seconds"] is None:
                    rows.append(row)
                    break
                survived.append(row)
            if len(survived) > 1 and name != OURS:
                survived[-1]["large_gib"] = _extrapolated(*survived[-2:])
            rows += survived
    rows.sort(key=lambda row: (CONTESTANTS.index(row["name"]), row["voxels"]))
    report_all("labels-memory", [rows], [ceilings_with("cpu", cores)], out)


def _row(name: str, folder: Path, extent: int, ram: str, allowed: int, cores: int) -> Row:
    """Run a contestant over a volume, from file to file, in a process of its own."""
    volume = folder / f"volume-{extent}.npy"
    if not volume.exists():
        write_noise(volume, extent)
    target = folder / f"{name}-{extent}.npy"
    environment = os.environ | {"OMP_NUM_THREADS": str(cores)}
    if name == OURS:
        command = [
            sys.executable, "-m", "znni", "infer", str(volume), "--net", str(folder / "net.yaml"),
            "--random-weights", str(SEED), "--labels", "--ram", ram, "--threads", str(cores),
            "--device", "cpu", "--out", str(_ours(folder, extent)),
        ]  # fmt: skip
    else:
        run = LabelsRun(name, str(folder / "net.yaml"), SEED, cores, str(volume), str(target))
        command, environment = run.command, environment | ENVIRONMENT
    seconds, peak = timed_command(command, environment, allowed=allowed)
    row: Row = {
        "name": name,
        "volume": f"{extent}^3",
        "voxels": extent**3,
        "allowed_gib": allowed / 2**30,
        "peak_gib": peak / 2**30,
        "seconds": seconds if peak <= allowed else None,
    }
    if peak > allowed:
        row["skipped"] = "killed: it took more than was allowed"
    elif name == MONAI and _ours(folder, extent).exists():
        row["labels_apart"] = int((np.load(target) != _read(_ours(folder, extent))).sum())
    return row


def _extrapolated(smaller: Row, larger: Row) -> float:
    """Return the GiB of a large volume, on the line through two that were measured."""
    slope = (larger["peak_gib"] - smaller["peak_gib"]) / (larger["voxels"] - smaller["voxels"])
    return float(larger["peak_gib"] + slope * (LARGE**3 - larger["voxels"]))


def _ours(folder: Path, extent: int) -> Path:
    return folder / f"znni-{extent}.zarr"


def _read(path: Path) -> NDArray[Any]:
    volume = open_volume(str(path))
    labels: NDArray[Any] = volume.read(Box(Vec3(0, 0, 0), volume.size))[0]
    return labels
