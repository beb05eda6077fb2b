"""Labels of many classes within little memory, by a run that is killed again and again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import psutil
import typer

from bench.record import Row
from bench.session import Out, Threads, ceilings_with, machine_with, progress, report_all
from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Vec3
from znni.inference.planning import search
from znni.network.network_file import load_network
from znni.volumes.locate import open_volume

CLASSES_NET = """\
name: classes
window: {{size: [{window}, {window}, {window}], overlap: {overlap}, blend: gaussian}}
layers:
  - conv: {{features: {features}, kernel: 3, padding: same}}
  - instance_norm: {{activation: leaky_relu}}
  - conv: {{features: {features}, kernel: 3, padding: same}}
  - instance_norm: {{activation: leaky_relu}}
  - conv: {{features: {classes}, kernel: 1, activation: identity}}
"""
SEED = 0
POLL = 0.05  # seconds between two looks at a run's memory
SLAB = 32  # planes that are written or compared at a time
FEATURES = 8

Size = Annotated[int, typer.Option(min=8, help="Voxels of the volume per axis.")]
Classes = Annotated[int, typer.Option(min=2, help="Maps of the network.")]
Edge = Annotated[int, typer.Option("--window", min=8, help="Voxels of a window per axis.")]
Overlap = Annotated[float, typer.Option(min=0, max=0.9, help="Share that windows overlap.")]
Ram = Annotated[str, typer.Option(help="Memory that each run may take.")]
Kills = Annotated[int, typer.Option(min=0, help="Times that the run is killed.")]
Folder = Annotated[
    Path | None, typer.Option(help="Folder for the volume and outputs. Default: a temporary one.")
]


def killed_labels_command(
    size: Size = 1024,
    *,
    classes: Classes = 100,
    window: Edge = 128,
    overlap: Overlap = 0.25,
    ram: Ram = "4GiB",
    kills: Kills = 20,
    folder: Folder = None,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """Compute labels of many classes; kill the run at random moments, and compare both outputs."""
    cores = machine_with("cpu", threads).host.threads
    with TemporaryDirectory(dir=folder) as place:
        at = Path(place)
        net = at / "net.yaml"
        net.write_text(
            CLASSES_NET.format(window=window, overlap=overlap, features=FEATURES, classes=classes)
        )
        progress(f"a volume of {size}^3")
        write_noise(at / "volume.npy", size)
        plan = search(
            load_network(net), (size,) * 3, labels=True, input_itemsize=1,
            ram=ram, threads=cores, device="cpu", costs="built-in",
        ).fastest()[0]  # fmt: skip
        progress(f"one run in blocks of {plan.patch}, as planned in {plan.seconds:.0f} s")
        alone = _Run(at, net, "alone.zarr", ram, cores)
        seconds = alone.to_the_end()
        progress(f"the same, killed {kills} times")
        killed = _Run(at, net, "killed.zarr", ram, cores)
        generator = random.Random(SEED)
        mean = 1.2 * seconds / max(1, kills)
        begun, done = time.perf_counter(), 0
        while done < kills and killed.until(mean * generator.uniform(0.5, 1.5)):
            done += 1
        if done < kills:
            raise InvalidInput(f"the run ended after {done} kills; give a larger --size")
        killed.to_the_end()
        together = time.perf_counter() - begun
        progress("both outputs are compared")
        apart, labels = _apart(at / "alone.zarr", at / "killed.zarr", size)
    assert plan.network.window is not None
    once = prod(len(starts) for starts in plan.network.window.starts)
    row: Row = {
        "name": f"{size}^3",
        "classes": classes,
        "window": f"{window}^3",
        "overlap": overlap,
        "block": str(plan.patch),
        "recomputation": float(plan.windows * plan.patches / once),
        "seconds": seconds,
        "predicted_seconds": plan.seconds,
        "voxels_per_s": size**3 / seconds,
        "allowed_gib": plan.machine.host.memory / 2**30,
        "declared_gib": plan.memory.total / 2**30,
        "peak_gib": alone.peak / 2**30,
        "peak_killed_gib": killed.peak / 2**30,
        "kills": done,
        "seconds_killed": together,
        "labels_found": labels,
        "voxels_apart": apart,
    }
    report_all("killed-labels", [[row]], [ceilings_with("cpu", cores)], out)


class _Run:
    """A run of ``znni infer``, which goes on where it was killed.

    Attributes:
        peak: the most bytes that a process of it has taken.
    """

    def __init__(self, folder: Path, net: Path, out: str, ram: str, threads: int) -> None:
        self.peak = 0
        self._command = [
            sys.executable, "-m", "znni", "infer", str(folder / "volume.npy"), "--net", str(net),
            "--random-weights", str(SEED), "--labels", "--ram", ram, "--threads", str(threads),
            "--device", "cpu", "--costs", "built-in", "--out", str(folder / out),
        ]  # fmt: skip

    def to_the_end(self) -> float:
        """Return the seconds that the rest of the run takes."""
        begun = time.perf_counter()
        if self.until(float("inf")):
            raise AssertionError("an endless run has no end")
        return time.perf_counter() - begun

    def until(self, seconds: float) -> bool:
        """Go on, kill the run after so many seconds, and return whether it was still at work."""
        with subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                self._look(process.pid)
                try:
                    said, _ = process.communicate(timeout=POLL)
                except subprocess.TimeoutExpired:
                    continue
                if process.returncode:
                    raise InvalidInput(f"the run failed: {said[-500:]}")
                return False
            process.kill()
        return True

    def _look(self, pid: int) -> None:
        with suppress(psutil.Error, OSError, IndexError):
            told = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            self.peak = max(self.peak, int(told.split("VmHWM:")[1].split()[0]) * 1024)


def write_noise(path: Path, size: int) -> None:
    """Write blurred noise as uint8, a slab at a time."""
    generator = np.random.default_rng(SEED)
    volume = np.lib.format.open_memmap(path, "w+", np.uint8, (size,) * 3)
    for z in range(0, size, SLAB):
        planes = min(SLAB, size - z)
        coarse = generator.integers(0, 200, (planes, -(-size // 8), -(-size // 8)), np.uint8)
        slab = coarse.repeat(8, axis=1)[:, :size].repeat(8, axis=2)[:, :, :size]
        volume[z : z + planes] = slab + generator.integers(0, 56, slab.shape, np.uint8)
    volume.flush()
    os.sync()


def _apart(first: Path, second: Path, size: int) -> tuple[int, int]:
    """Return how many voxels of two outputs differ, and how many labels they have."""
    one, other = open_volume(str(first)), open_volume(str(second))
    apart, found = 0, np.zeros(256, bool)
    for z in range(0, size, SLAB):
        box = Box(Vec3(z, 0, 0), Vec3(min(z + SLAB, size), size, size))
        labels: Any = one.read(box)
        apart += int((labels != other.read(box)).sum())
        found[np.unique(labels)] = True
    return apart, int(found.sum())
