"""A trained nnU-Net over a volume, from file to file: by nnU-Net's own command, and by znni's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from numpy.typing import NDArray

from bench.accuracy import gaps_of_labels
from bench.peers.nnunet_model import image_of, make_model, save_image
from bench.record import Row
from bench.session import Out, Repeats, Threads, ceilings_with, machine_with, progress, report_all
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.inference.api import infer
from znni.inference.network_import import import_network
from znni.network.network_as_text import network_text
from znni.volumes.locate import open_volume

POLL = 0.2  # seconds between two looks at a command's memory
STEP = 0.5

Extents = Annotated[list[int], typer.Option("--size", min=1, help="Voxels of the volume per axis.")]
Mirror = Annotated[bool, typer.Option(help="Mirror windows along all axes, as trained.")]
Folds = Annotated[int, typer.Option(min=1, help="Networks that are averaged.")]
Model = Annotated[
    Path | None,
    typer.Option(help="A results folder with checkpoints. Default: one made by nnU-Net for noise."),
]


def nnunet_command(
    size: Extents = [128],  # noqa: B006 - typer reads it
    *,
    mirror: Mirror = False,
    folds: Folds = 1,
    model: Model = None,
    repeats: Repeats = 1,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Compare whole runs of nnU-Net's predictor with znni: time, memory and labels."""
    if len(size) not in (1, 3):
        raise InvalidInput(f"--size is given {len(size)} times; give one extent, or z, y and x")
    extents = Vec3(*size) if len(size) == 3 else Vec3.of(size[0])
    cores = machine_with("cpu", threads).host.threads
    with TemporaryDirectory() as place:
        folder = Path(place)
        if model is None:
            progress("nnU-Net plans, and saves its networks")
            model = make_model(folder / "nnunet", folds)
        rows = _compared(model, folder, extents, mirror, folds, repeats, cores)
    report_all("nnunet", [rows], [ceilings_with("cpu", cores)], out)


def _compared(
    model: Path, folder: Path, extents: Vec3, mirror: bool, folds: int, repeats: int, cores: int
) -> list[Row]:
    inputs, theirs = folder / "inputs", folder / "theirs"
    inputs.mkdir()
    source = inputs / "case_0000.nii.gz"
    save_image(image_of(extents, 100), source)
    net = folder / "net.yaml"
    begun = time.perf_counter()
    made = import_network(model if folds > 1 else model / "fold_0", net)
    imported = time.perf_counter() - begun
    window = made.network.window
    if window is None:
        raise InvalidInput(f"{model} names no windows")
    if not mirror:
        network = replace(made.network, window=replace(window, mirror=""))
        net = folder / "unmirrored.yaml"
        net.write_text(network_text(network))
    weights = folder / "net.safetensors"
    labels = folder / "labels.zarr"
    commands = {
        "znni": [
            sys.executable, "-m", "znni", "infer", str(source), "--net", str(net), "--weights",
            str(weights), "--labels", "--threads", str(cores), "--overwrite",
            "--out", str(labels),
        ],
        "nnU-Net": [
            sys.executable, "-c",
            "from nnunetv2.inference.predict_from_raw_data import "
            "predict_entry_point_modelfolder as run; run()",
            "-i", str(inputs), "-o", str(theirs), "-m", str(model), "-f", *map(str, range(folds)),
            "-device", "cpu", "-npp", "1", "-nps", "1", "-step_size", str(STEP),
            *([] if mirror else ["--disable_tta"]),
        ],
    }  # fmt: skip
    environment = os.environ | {"nnUNet_compile": "f", "OMP_NUM_THREADS": str(cores)}
    taken: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            progress(f"{name} over {extents}")
            taken[name].append(timed_command(command, environment))
    progress("znni's values, to see how close the maps are where labels differ")
    infer(source, net, folder / "values.zarr", weights=weights, threads=cores)
    found, values = _read_all(labels)[0], _read_all(folder / "values.zarr")
    gaps = gaps_of_labels(found, _read_image(theirs / "case.nii.gz"), values)
    rows = []
    for name, runs in taken.items():
        seconds = float(np.median([seconds for seconds, _ in runs]))
        rows.append(
            {
                "name": name,
                "volume": str(extents),
                "window": str(window.size),
                "mirror": window.mirror if mirror else "none",
                "folds": folds,
                "rounds": repeats,
                "seconds": seconds,
                "voxels_per_s": extents.volume / seconds,
                "peak_gib": max(peak for _, peak in runs) / 2**30,
                "import_seconds": imported if name == "znni" else None,
                "labels_apart": len(gaps) if name == "znni" else None,
                "largest_gap": float(gaps.max(initial=0)) if name == "znni" else None,
            }
        )
    return rows


def _read_all(path: Path) -> NDArray[Any]:
    volume = open_volume(str(path))
    return volume.read(Box(Vec3(0, 0, 0), volume.size))


def timed_command(
    command: list[str], environment: Mapping[str, str], *, allowed: float = inf
) -> tuple[float, int]:
    """Return the seconds of a command, and the peak bytes of it and all that it starts.

    A command that takes more bytes than allowed is killed. Its peak is then above them.
    """
    begun = time.perf_counter()
    peak = 0
    with subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        watched = psutil.Process(process.pid)
        while True:
            try:
                said, _ = process.communicate(timeout=POLL)
            except subprocess.TimeoutExpired:
                peak = max(peak, _resident(watched))
                if peak > allowed:
                    process.kill()
            else:
                break
    if process.returncode and peak <= allowed:
        raise InvalidInput(f"{command[0]} failed: {said[-500:]}")
    return time.perf_counter() - begun, peak


def _resident(process: psutil.Process) -> int:
    """Return the bytes of a process and its children; memory that they share counts once."""
    total = 0
    try:
        for each in (process, *process.children(recursive=True)):
            total += each.memory_full_info().pss
    except psutil.NoSuchProcess:
        pass
    return total


def _read_image(path: Path) -> NDArray[Any]:
    import SimpleITK

    return np.asarray(SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path))))
