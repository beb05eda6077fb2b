"""A U-Net over a volume, from file to file: znni beside MONAI's inferer and nnU-Net's predictor.

Each run is a process of its own, as a user starts it: from reading its code to its end. ``work s``
is the time without starting and planning. A peer's is that from one array to another, without
preparing, compiling and tuning. Ours has building, reading and writing in it, because they go on at
the same time. The first run may compile what later ones find; ``s`` is the median of the later
ones, if there are any.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import numpy as np
import typer

from bench.end_to_end import time_run
from bench.many_patches import ZNNI
from bench.nnunet import timed_command
from bench.peers.sliding_window import NNUNET, NNUNET_COMPILED, NNUNETS, SlidingRun
from bench.peers.torch_settings import CPU_KINDS, ENVIRONMENT, LAYOUTS, TYPES
from bench.record import SAME, Record, Row, circumstances, join, load, write
from bench.session import (
    AccuracyClass,
    Device,
    GpuMemory,
    Out,
    Peer,
    RamByDevice,
    Threads,
    ceilings_with,
    check_known,
    machine_with,
    progress,
    refuse,
    report_all,
)
from bench.unet_networks import UNETS, save_weights, unet_weights
from znni.core.errors import InvalidInput
from znni.core.option_types import WindowRules
from znni.core.processors import DeviceKind
from znni.core.shapes import Box, Vec3
from znni.network.geometry import with_window
from znni.network.network import Network
from znni.network.network_as_text import network_text
from znni.network.window import Window
from znni.volumes.locate import open_volume

OURS = "znni"
OURS_AS_NNUNET = "znni, as nnU-Net"
OURS_EXACT = "znni, no windows"
OUR_WAYS = (OURS, OURS_AS_NNUNET, OURS_EXACT)
WAYS = ("torch", "torch-compiled")
CONTESTANTS: dict[DeviceKind, tuple[str, ...]] = {
    "cpu": (
        *OUR_WAYS,
        "openvino fp32",
        "openvino bf16",
        "onnxruntime fp32",
        *(f"{way} {kind} {layout}" for way in WAYS for kind in CPU_KINDS for layout in LAYOUTS),
        *NNUNETS,
    ),
    "gpu": (
        *OUR_WAYS,
        *(f"{way} {kind} {layout}" for way in WAYS for kind in TYPES for layout in LAYOUTS),
        NNUNET,
        NNUNET_COMPILED,
    ),
}
# MONAI and nnU-Net weigh windows differently, most of all near the faces of a volume. So each peer
# is compared with znni's output by the peer's rules.
AS_NNUNET = (OURS_AS_NNUNET, *NNUNETS)
MIRRORING = (OURS, *AS_NNUNET)
SLAB = 32  # planes that are compared at a time

Net = Annotated[str, typer.Option(help="A U-Net.")]
Size = Annotated[int, typer.Option(min=1, help="Voxels of the volume per axis.")]
Extent = Annotated[int, typer.Option(min=1, help="Voxels of a window per axis.")]
Overlap = Annotated[float, typer.Option(min=0, max=0.99, help="Share that windows overlap by.")]
Mirror = Annotated[
    bool, typer.Option("--mirror", help="Also compute windows mirrored along all axes.")
]
AsLabels = Annotated[
    bool, typer.Option("--labels", help="Store the label of the largest map, instead of values.")
]
Batch = Annotated[list[int], typer.Option(min=1, help="Windows in one call by MONAI; repeatable.")]
Runs = Annotated[
    int,
    typer.Option(
        min=1,
        help="Runs of each contestant, one after the other. The first is only told, unless alone.",
    ),
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the record's rows of contestants that do not run now.")
]
Folder = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="A folder for volume and outputs that are kept."),
]


class _Contestant(NamedTuple):
    """A contestant.

    Attributes:
        name: its name.
        batch: windows in one call by MONAI; None for others.
    """

    name: str
    batch: int | None


@dataclass(frozen=True)
class _Case:
    """A job that all contestants do.

    Attributes:
        network: the network, with windows as MONAI has them.
        size: extents of the volume.
        labels: whether the label of the largest map is stored, instead of values.
        device: where layers run.
        threads: of each contestant.
        options: further ones of ``znni infer``.
        runs: of each contestant.
        folder: holds the volume, the networks, their weights, and the outputs.
    """

    network: Network
    size: Vec3
    labels: bool
    device: DeviceKind
    threads: int
    options: Sequence[str]
    runs: int
    folder: Path

    @property
    def source(self) -> Path:
        """The file of the volume."""
        return self.folder / f"volume-{self.size.x}.npy"

    @property
    def weights(self) -> Path:
        """The file of the weights."""
        return self.folder / f"{self.network.name}.safetensors"

    @property
    def window(self) -> Window:
        """The windows, as MONAI has them."""
        assert self.network.window is not None
        return self.network.window

    def ours(self, rules: WindowRules | None) -> Path:
        """The file of our output in windows by some rules; None: without windows."""
        kind = "labels" if self.labels else "values"
        return self.folder / f"{self.network.name}-{rules or 'exact'}-{kind}.h5"

    @property
    def theirs(self) -> Path:
        """The file of a peer's output."""
        return self.folder / "theirs.npy"

    def about(self, one: _Contestant) -> Row:
        """Return what tells a contestant's row from all others."""
        return {
            "name": one.name,
            "network": self.network.name,
            "volume": str(self.size),
            "output": "labels" if self.labels else "values",
            "window": str(self.window.size) if one.name != OURS_EXACT else None,
            "overlap": self.window.overlap if one.name != OURS_EXACT else None,
            "mirror": self.window.mirror or None,
            "batch": one.batch,
        }

    def net(self, rules: WindowRules | None) -> Path:
        """Write the network's file, with windows by some rules or without windows."""
        window = replace(self.window, like=rules) if rules else None
        path = self.folder / f"{self.network.name}-{rules or 'exact'}.yaml"
        path.write_text(network_text(replace(self.network, window=window)))
        return path


def sliding_windows_command(
    net: Net = "nnunet-instance",
    size: Size = 256,
    window: Extent = 128,
    overlap: Overlap = 0.5,
    mirror: Mirror = False,
    labels: AsLabels = False,
    device: Device = "cpu",
    accuracy: AccuracyClass = "float32",
    ram: RamByDevice = None,
    gpu_memory: GpuMemory = None,
    peer: Peer = None,
    batch: Batch = [1],  # noqa: B006 - typer reads it
    repeats: Runs = 1,
    keep: Keep = False,
    folder: Folder = None,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Compare whole runs with MONAI's inferer and nnU-Net's predictor.

    Peers are named ``znni`` too, so that each contestant can run alone. Memory limits and the class
    of accuracy are for znni.
    """
    check_known("net", [net], UNETS)
    if device == "cpu":
        refuse(device, gpu_memory=gpu_memory)
    around = Window(Vec3.of(window), overlap, mirror="zyx" if mirror else "")
    network = with_window(UNETS[net](), around)
    able = _able(network, device)
    check_known("peer", peer or [], able)
    cores = machine_with(device, threads).host.threads
    options = ["--accuracy", accuracy, "--device", device, "--threads", str(cores)]
    for option, limit in (("--ram", ram), ("--gpu-memory", gpu_memory)):
        options += [option, str(limit)] if limit else []
    with TemporaryDirectory() as place:
        where = folder or Path(place)
        where.mkdir(parents=True, exist_ok=True)
        case = _Case(network, Vec3.of(size), labels, device, cores, options, repeats, where)
        wanted = [
            _Contestant(name, count)
            for name in peer or able
            for count in (batch if name.split()[0] in WAYS else [None])
        ]
        kept = _kept(out, [case.about(each) for each in wanted]) if keep else None
        _prepare(case)
        tables = ([_row(case, each)] for each in wanted)
        made = out.with_name(f"{out.name}.new") if out and kept else out
        report_all("sliding-windows", tables, [ceilings_with(device, cores)], made)
    if out and made and kept:
        write(out, join([kept, load(made)]) if kept.rows else load(made))
        made.unlink()


def _able(network: Network, device: DeviceKind) -> list[str]:
    """Return the contestants that can compute a network with its windows."""
    assert network.window is not None
    names = MIRRORING if network.window.mirror else CONTESTANTS[device]
    whole = not network.window.mirror and not network.window_layer
    return [name for name in CONTESTANTS[device] if name in names and (name != OURS_EXACT or whole)]


def _prepare(case: _Case) -> None:
    """Write the volume, unless it is there, and the weights."""
    if not case.source.exists():
        np.save(case.source, np.random.default_rng(0).standard_normal(case.size, np.float32))
    save_weights(unet_weights(case.network), case.weights)


def _kept(out: Path | None, measured: list[Row]) -> Record:
    """Return a record without the rows of contestants that are measured again."""
    if out is None or not out.exists():
        raise InvalidInput("--keep keeps rows of a record; give its file as --out")
    before, now = load(out, "sliding-windows"), circumstances()
    if changed := [kind for kind in SAME if before.about[kind] != now[kind]]:
        raise InvalidInput(f"{out} was measured with another {' and '.join(changed)}")
    rows = [row for row in before.rows if all(row | one != row for one in measured)]
    return replace(before, rows=rows)


def _row(case: _Case, one: _Contestant) -> Row:
    """Return a contestant's row, after all its runs."""
    about = case.about(one)
    rules: WindowRules = "nnunet" if one.name in AS_NNUNET else "monai"
    found: list[Row] = []
    for number in range(case.runs):
        progress(f"{one.name} over {case.size}, run {number + 1}")
        try:
            if one.name in OUR_WAYS:
                found.append(_our_run(case, None if one.name == OURS_EXACT else rules))
            else:
                found.append(_their_run(case, one, rules))
        except InvalidInput as failure:
            found.append({"skipped": str(failure).strip().splitlines()[-1]})
        if "skipped" in found[-1]:
            return about | found[-1]
    first, *later = found
    seconds = median(row["seconds"] for row in later or found)
    row = about | found[-1]
    row |= {
        "seconds": seconds,
        "first_seconds": first["seconds"] if later else None,
        "all_seconds": [row["seconds"] for row in found],
        "voxels_per_s": case.size.volume / seconds,
        "work_seconds": median(row["work_seconds"] for row in later or found),
    }
    return row | _apart(case, one, rules)


def _our_run(case: _Case, rules: WindowRules | None) -> Row:
    """Run znni once, and keep its output."""
    out = case.ours(rules)
    command = [
        *ZNNI, "infer", str(case.source), "--net", str(case.net(rules)),
        "--weights", str(case.weights), "--overwrite", "--out", str(out), *case.options,
        *(["--labels"] if case.labels else []),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads)}
    row = time_run(command, out, inf, environment, keep=True)
    return row | {"work_seconds": _work(row)}


def _work(row: Row) -> float | None:
    """Return the time of building and running; None without them.

    The first block is read while layers are built.
    """
    if "running_seconds" not in row:
        return None
    return float(row["building_seconds"] + row["running_seconds"])


def _their_run(case: _Case, one: _Contestant, rules: WindowRules) -> Row:
    """Run a peer once, and keep its output.

    Raises:
        InvalidInput: it fails, as for lack of memory.
    """
    run = SlidingRun(
        one.name, str(case.net(rules)), str(case.weights),
        "cuda" if case.device == "gpu" else "cpu", case.threads, one.batch or 1, case.labels,
        str(case.source), str(case.theirs),
    )  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads)}
    if case.device == "cpu":
        environment |= ENVIRONMENT
    seconds, peak = timed_command(run.command, environment)
    told = json.loads(run.report.read_text())
    row: Row = {
        "seconds": seconds, "work_seconds": told["work_seconds"], "peak_gib": peak / 2**30
    }  # fmt: skip
    if case.device == "gpu":
        row["gpu_peak_gib"] = told["gpu_peak_memory_bytes"] / 2**30
    return row


def _apart(case: _Case, one: _Contestant, rules: WindowRules) -> Row:
    """Return how far an output is from ours in windows by the same rules, if there is one.

    That is the largest difference as a share of the largest value, or the share of other labels.
    Without windows the output is another one, so it is compared with nothing.
    """
    ours = case.ours(rules)
    if one.name in OUR_WAYS or not ours.exists():
        return {}
    first, second = open_volume(str(ours)), open_volume(str(case.theirs))
    apart, largest, labels = 0.0, 0.0, 0
    for z in range(0, case.size.z, SLAB):
        box = Box(Vec3(z, 0, 0), case.size._replace(z=min(z + SLAB, case.size.z)))
        one_slab, other_slab = first.read(box), second.read(box)
        if case.labels:
            labels += int((one_slab != other_slab).sum())
        else:
            apart = max(apart, float(np.abs(one_slab - other_slab).max()))
            largest = max(largest, float(np.abs(one_slab).max()))
    if case.labels:
        return {"labels_apart": labels / case.size.volume}
    return {"difference": apart / largest}
