"""A U-Net with instance norm over a volume, from file to file: znni's windows beside MONAI's."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from bench.nnunet import timed_command
from bench.peers.sliding_window import NNUNET, NNUNET_IN_FLOAT32, SlidingRun
from bench.peers.torch_settings import ENVIRONMENT, LAYOUTS
from bench.record import SAME, Row, circumstances, load
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
from bench.unet_networks import UNETS
from znni.core.errors import InvalidInput
from znni.core.options import WindowRules
from znni.core.shapes import Box, Vec3
from znni.network.geometry import with_window
from znni.network.network_file import network_text
from znni.network.window import Window
from znni.volumes.locate import open_volume

NETWORK = "nnunet-instance"
OURS = "znni"
OURS_AS_NNUNET = "znni, as nnU-Net"
CONTESTANTS = (
    OURS,
    OURS_AS_NNUNET,
    "openvino fp32",
    "openvino bf16",
    "onnxruntime fp32",
    *(
        f"{engine} {kind} {layout}"
        for engine in ("torch", "torch-compiled")
        for kind in ("fp32", "bf16")
        for layout in LAYOUTS
    ),
    NNUNET,
    NNUNET_IN_FLOAT32,
)
# MONAI and nnU-Net weigh windows differently, most of all near the faces of a volume. So each peer
# is compared with znni's output by the peer's rules.
AS_NNUNET = (OURS_AS_NNUNET, NNUNET, NNUNET_IN_FLOAT32)

Size = Annotated[int, typer.Option(min=1, help="Voxels of the volume per axis.")]
Extent = Annotated[int, typer.Option(min=1, help="Voxels of a window per axis.")]
Overlap = Annotated[float, typer.Option(min=0, max=0.99, help="Share that windows overlap by.")]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the record's rows of contestants that do not run now.")
]
Place = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="A folder for volume and outputs that are kept."),
]


def sliding_windows_command(
    size: Size = 256,
    window: Extent = 128,
    overlap: Overlap = 0.5,
    peer: Peer = None,
    keep: Keep = False,
    folder: Place = None,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Compare whole runs in windows with MONAI's inferer and nnU-Net's predictor.

    Peers are named ``znni`` too, so that each contestant can run alone.
    """
    check_known("peer", peer or [], CONTESTANTS)
    cores = machine_with("cpu", threads).host.threads
    kept = _kept(out, peer or CONTESTANTS) if keep else []
    with TemporaryDirectory() as place:
        where = folder or Path(place)
        where.mkdir(parents=True, exist_ok=True)
        run = SlidingRun(
            "", NETWORK, window, overlap, cores, str(where / "volume.npy"), str(where / "out.npy")
        )
        if not Path(run.source).exists():
            noise = np.random.default_rng(0).standard_normal(Vec3.of(size), np.float32)
            np.save(run.source, noise)
        found = [_row(replace(run, engine=name), where, size) for name in peer or CONTESTANTS]
    rows = sorted([*kept, *found], key=lambda row: CONTESTANTS.index(row["name"]))
    report_all("sliding-windows", [rows], [ceilings_with("cpu", cores)], out)


def _kept(out: Path | None, measured: Any) -> list[Row]:
    """Return the rows of a record, without those of contestants that are measured again."""
    if out is None or not out.exists():
        raise InvalidInput("--keep keeps rows of a record; give its file as --out")
    before, now = load(out, "sliding-windows"), circumstances()
    if changed := [kind for kind in SAME if before.about[kind] != now[kind]]:
        raise InvalidInput(f"{out} was measured with another {' and '.join(changed)}")
    return [row for row in before.rows if row["name"] not in measured]


def _row(run: SlidingRun, folder: Path, size: int) -> Row:
    """Run a contestant from file to file, in a process of its own."""
    rules: WindowRules = "nnunet" if run.engine in AS_NNUNET else "monai"
    ours = folder / f"znni-{rules}.zarr"
    progress(f"{run.engine} over {Vec3.of(size)}")
    environment = os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": str(run.threads)}
    if run.engine in (OURS, OURS_AS_NNUNET):
        command = _our_command(run, rules, ours)
        environment = os.environ | {"OMP_NUM_THREADS": str(run.threads)}
    else:
        command = run.command
    seconds, peak = timed_command(command, environment)
    difference = None
    if run.engine not in (OURS, OURS_AS_NNUNET) and ours.exists():
        difference = _difference(np.load(run.target, mmap_mode="r"), ours)
    return {
        "name": run.engine,
        "network": run.network,
        "volume": str(Vec3.of(size)),
        "window": str(Vec3.of(run.window)),
        "overlap": run.overlap,
        "seconds": seconds,
        "voxels_per_s": size**3 / seconds,
        "peak_gib": peak / 2**30,
        "difference": difference,
    }


def _our_command(run: SlidingRun, rules: WindowRules, out: Path) -> list[str]:
    window = Window(Vec3.of(run.window), run.overlap, like=rules)
    network = with_window(UNETS[run.network](), window)
    net = out.with_name("net.yaml")
    net.write_text(network_text(network))
    return [
        sys.executable, "-m", "znni", "infer", run.source, "--net", str(net),
        "--random-weights", "0", "--device", "cpu", "--threads", str(run.threads), "--overwrite",
        "--out", str(out),
    ]  # fmt: skip


def _difference(theirs: NDArray[Any], ours: Path) -> float:
    """Return the largest difference from znni's output, as a share of its largest value."""
    volume = open_volume(str(ours))
    found = volume.read(Box(Vec3(0, 0, 0), volume.size))
    return float(np.abs(found - theirs).max() / np.abs(found).max())
