"""Memory of znni, MONAI's inferer and nnU-Net's predictor for labels of many classes.

Each computes growing volumes until it takes more than is allowed. Two sizes that it survived give
the memory of a larger volume, because arrays of maps grow with the voxels.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from bench.many_patches import ZNNI
from bench.nnunet import timed_command
from bench.peers.sliding_window import NNUNET, SlidingRun
from bench.peers.torch_settings import ENVIRONMENT
from bench.record import Row
from bench.session import (
    Device,
    GpuMemory,
    Out,
    Peer,
    Threads,
    ceilings_with,
    check_known,
    machine_with,
    progress,
    refuse,
    report_all,
)
from bench.unet_networks import save_weights
from znni.core.plan_options import memory_size
from znni.core.processors import DeviceKind
from znni.core.shapes import Box, Vec3
from znni.network.network_file import load_network
from znni.network.weights import random_weights
from znni.volumes.locate import open_volume

OURS, MONAI = "znni", "MONAI"
ENGINES = {MONAI: "torch fp32 contiguous_format", NNUNET: NNUNET}  # of ``SlidingRun``
CONTESTANTS = (OURS, *ENGINES)
LARGE = 1024  # voxels per axis of the volume whose memory is extrapolated

Sizes = Annotated[
    list[int], typer.Option("--size", min=8, help="Voxels of a volume per axis; repeatable.")
]
Allowed = Annotated[str, typer.Option(help="Memory beyond which a contestant is killed.")]


@dataclass(frozen=True)
class _Case:
    """A job that all contestants do.

    Attributes:
        folder: holds volumes, the network, its weights, and the outputs.
        device: where layers run.
        threads: of each contestant.
        limits: the options of ``znni infer`` that say how much memory it may take.
        allowed: bytes of the host beyond which a contestant is killed.
    """

    folder: Path
    device: DeviceKind
    threads: int
    limits: Sequence[str]
    allowed: int

    @property
    def net(self) -> Path:
        """The network's file."""
        return self.folder / "net.yaml"

    @property
    def weights(self) -> Path:
        """The file of its weights."""
        return self.folder / "net.safetensors"

    def ours(self, extent: int) -> Path:
        """The file of znni's labels of a volume."""
        return self.folder / f"znni-{extent}.h5"


def labels_memory_command(
    size: Sizes = [128, 192, 256],  # noqa: B006 - typer reads it
    *,
    classes: Classes = 100,
    window: Edge = 128,
    overlap: Overlap = 0.25,
    device: Device = "cpu",
    ram: Ram = "4GiB",
    gpu_memory: GpuMemory = None,
    allowed: Allowed = "12GiB",
    peer: Peer = None,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Compare the memory of labels of many classes with MONAI's inferer and nnU-Net's predictor.

    Peers are named ``znni`` too, so that each contestant can run alone. ``--ram`` and
    ``--gpu-memory`` are for znni.
    """
    check_known("peer", peer or [], CONTESTANTS)
    if device == "cpu":
        refuse(device, gpu_memory=gpu_memory)
    cores = machine_with(device, threads).host.threads
    limits = ["--ram", ram, *(["--gpu-memory", str(gpu_memory)] if gpu_memory else [])]
    rows: list[Row] = []
    with TemporaryDirectory() as place:
        case = _Case(Path(place), device, cores, limits, memory_size(allowed))
        case.net.write_text(
            CLASSES_NET.format(window=window, overlap=overlap, features=FEATURES, classes=classes)
        )
        save_weights(random_weights(load_network(case.net), SEED), case.weights)
        for name in peer or CONTESTANTS:
            survived: list[Row] = []
            for extent in sorted(size):
                progress(f"{name} over {extent}^3")
                row = _row(case, name, extent)
                row |= {"classes": classes, "window": f"{window}^3", "overlap": overlap}
                if row["seconds"] is None:
                    rows.append(row)
                    break
                survived.append(row)
            if len(survived) > 1 and name != OURS:
                survived[-1]["large_gib"] = _extrapolated(*survived[-2:])
            rows += survived
    rows.sort(key=lambda row: (CONTESTANTS.index(row["name"]), row["voxels"]))
    report_all("labels-memory", [rows], [ceilings_with(device, cores)], out)


def _row(case: _Case, name: str, extent: int) -> Row:
    """Run a contestant over a volume, from file to file, in a process of its own."""
    volume = case.folder / f"volume-{extent}.npy"
    if not volume.exists():
        write_noise(volume, extent)
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads)}
    run = SlidingRun(
        ENGINES.get(name, ""), str(case.net), str(case.weights),
        "cuda" if case.device == "gpu" else "cpu", case.threads, 1, True, str(volume),
        str(case.folder / "theirs.npy"),
    )  # fmt: skip
    if name == OURS:
        command = [
            *ZNNI, "infer", str(volume), "--net", str(case.net), "--weights", str(case.weights),
            "--labels", "--threads", str(case.threads), "--device", case.device, *case.limits,
            "--out", str(case.ours(extent)),
        ]  # fmt: skip
    else:
        command = run.command
        environment |= ENVIRONMENT if case.device == "cpu" else {}
    seconds, peak = timed_command(command, environment, allowed=case.allowed)
    row: Row = {
        "name": name,
        "volume": f"{extent}^3",
        "voxels": extent**3,
        "allowed_gib": case.allowed / 2**30,
        "peak_gib": peak / 2**30,
        "seconds": seconds if peak <= case.allowed else None,
    }
    if peak > case.allowed:
        return row | {"skipped": "killed: it took more than was allowed"}
    if case.device == "gpu":
        told = json.loads(run.report.read_text()) if name != OURS else _told(case.ours(extent))
        row["gpu_peak_gib"] = told["gpu_peak_memory_bytes"] / 2**30
    if name == MONAI and case.ours(extent).exists():
        row["labels_apart"] = int((np.load(run.target) != _read(case.ours(extent))).sum())
    return row


def _told(out: Path) -> Mapping[str, Any]:
    """Return the attributes of znni's output, among which is what it measured."""
    return open_volume(str(out)).attributes()


def _extrapolated(smaller: Row, larger: Row) -> float:
    """Return the GiB of a large volume, on the line through two that were measured."""
    slope = (larger["peak_gib"] - smaller["peak_gib"]) / (larger["voxels"] - smaller["voxels"])
    return float(larger["peak_gib"] + slope * (LARGE**3 - larger["voxels"]))


def _read(path: Path) -> NDArray[Any]:
    volume = open_volume(str(path))
    labels: NDArray[Any] = volume.read(Box(Vec3(0, 0, 0), volume.size))[0]
    return labels
