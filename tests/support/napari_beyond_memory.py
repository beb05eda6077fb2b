"""Segment a volume several times as large as the memory of the run, in napari's window.

    xvfb-run -s "-screen 0 1400x1000x24" python tests/support/napari_beyond_memory.py \
        --limit 640MiB --times 4 --folder FOLDER --out record.json

This writes a volume of cells and a network that finds dark membranes. It fills in the form, plans
and runs. Meanwhile the window shows the labels, and every second another plane. A timer notes how
long the window did not react. Afterwards the output is verified.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import h5py
import napari
import numpy as np
import psutil
from qtpy.QtCore import QTimer
from qtpy.QtWidgets import QApplication

import znni
from znni.core.plan_options import memory_size
from znni.core.shapes import Vec3
from znni.napari.form import THRESHOLD
from znni.network.network_file import load_network
from znni.volumes.synthetic_cells import synthetic_cells

NET = """\
name: membranes
input: {scale: 0.00392156862745098}
weights: membranes.npz
layers:
  - conv: {features: 1, kernel: 3, activation: relu}
  - pool: {window: 2}
  - conv: {features: 1, kernel: 3, activation: sigmoid}
"""
DARK, STEEPNESS = 0.5, 20  # grey level below which a voxel is membrane

PLANE = (1024, 1024)
CHUNK = 64
TILE = Vec3(64, 128, 128)
VOXEL = (0.03, 0.01, 0.01)  # micrometers
BEAT = 0.01  # seconds between two looks whether the window reacts
PAUSE = 0.002  # seconds between two looks for events
LOOK = 0.05  # seconds between two looks at memory
MOVE = 1.0  # seconds between two planes that are shown
LONGEST_SECONDS = 1800.0


def main() -> None:
    """Write, segment, verify and record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--limit", type=memory_size, default=memory_size("640MiB"))
    parser.add_argument("--times", type=float, default=4.0, help="the volume in limits")
    parser.add_argument("--folder", type=Path, required=True, help="for the volume; on a disk")
    parser.add_argument("--out", type=Path, help="record to write, in JSON")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    volume, net, out = (given.folder / name for name in ("cells.h5", "net.yaml", "labels.zarr"))
    for old in given.folder.glob(f"{out.name}*"):  # of an earlier volume
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    write_network(net)
    nbytes = write_volume(volume, int(given.limit * given.times))
    record = {"limit_bytes": given.limit, "volume_bytes": nbytes}
    record |= segment(volume, net, out, given.limit)
    found = znni.verify(out, source=volume, voxels=64, seed=1)
    record |= {"verified": str(found).partition(": ")[2], "agrees": found.agrees}
    print(json.dumps(record, indent=1))
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(not found.agrees or record["peak_bytes"] > given.limit)


def write_network(path: Path) -> None:
    """Write a network that averages grey levels and finds the dark ones."""
    path.write_text(NET)
    first, second = (layer for layer in load_network(path).weighted)
    mean = np.full(first.weight_shape, 1 / 27, np.float32)
    np.savez(
        path.with_name("membranes.npz"),
        **{
            f"{first.name}.weight": mean,
            f"{first.name}.bias": np.zeros(1, np.float32),
            f"{second.name}.weight": -STEEPNESS * mean,
            f"{second.name}.bias": np.full(1, STEEPNESS * DARK, np.float32),
        },
    )


def write_volume(path: Path, nbytes: int) -> int:
    """Write cells of at least so many bytes; return the exact number."""
    depth = -(-nbytes // (PLANE[0] * PLANE[1]))
    cells = synthetic_cells(1, TILE).raw
    slab = np.tile(cells, (1, PLANE[0] // TILE.y, PLANE[1] // TILE.x))
    with h5py.File(path, "w") as file:
        raw = file.create_dataset("raw", (depth, *PLANE), "u1", chunks=(CHUNK,) * 3)
        raw.attrs["element_size_um"] = VOXEL
        for z in range(0, depth, TILE.z):
            raw[z : z + TILE.z] = slab[: depth - z]
    return depth * PLANE[0] * PLANE[1]


def segment(volume: Path, net: Path, out: Path, limit: int) -> dict[str, Any]:
    """Segment a volume in a new window, and return what was measured."""
    viewer = napari.Viewer()
    _, widget = viewer.window.add_plugin_dock_widget("znni", "Run a network")
    window = Window()
    widget.open(str(volume))
    widget.form.network.setCurrentText(str(net))
    widget.form.stored.setCurrentText(THRESHOLD)
    widget.form.out.setText(str(out))
    widget.form.ram.setText(str(limit))
    window.wait(lambda: True)
    blocked = {"opening": window.longest()}
    widget.plan.click()
    window.wait(lambda: not widget.is_busy)
    blocked["planning"] = window.longest()
    print(widget.summary.text(), flush=True)
    if not widget.run.isEnabled():
        sys.exit(widget.status.text())
    begun = monotonic()
    with peak_of_run() as peak:
        widget.run.click()
        window.wait(lambda: widget._output is not None and len(viewer.layers) > 1)
        refreshes = seconds_of(widget._output, "update")
        planes = browse(viewer, window, lambda: not widget.is_busy)
    seconds = monotonic() - begun
    blocked["running"] = window.longest()
    print(widget.status.text(), flush=True)
    first, made = viewer.layers
    return {
        "seconds": round(seconds, 1),
        "planned_bytes": int(znni.open_volume(out).attributes()["predicted_memory_bytes"]),
        "peak_bytes": max(peak),
        "bytes_of_napari": psutil.Process().memory_info().rss,
        "refreshes": len(refreshes),
        "refresh_ms": milliseconds(refreshes),
        "planes": len(planes),
        "plane_ms": milliseconds(planes),
        "blocked_ms": {phase: round(1e3 * each) for phase, each in blocked.items()},
        "layer": type(made).__name__,
        "levels": [list(level.shape) for level in made.data],
        "same_scale": bool(np.array_equal(made.scale, first.scale)),
    }


class Window:
    """The window, and how long it did not react."""

    def __init__(self) -> None:
        self._longest, self._last = 0.0, monotonic()
        self._timer = QTimer()
        self._timer.timeout.connect(self._beat)
        self._timer.start(round(1e3 * BEAT))

    def wait(self, reached: Callable[[], bool]) -> None:
        """Let the window work until something is reached.

        Raises:
            TimeoutError: that takes too long.
        """
        end = monotonic() + LONGEST_SECONDS
        while True:
            QApplication.processEvents()
            if reached():
                return
            sleep(PAUSE)
            if monotonic() > end:
                raise TimeoutError("the window did not reach the next step")

    def longest(self) -> float:
        """Return the most seconds without a reaction since the last call."""
        self._beat()
        found, self._longest = self._longest, 0.0
        return found

    def _beat(self) -> None:
        now = monotonic()
        self._longest = max(self._longest, now - self._last - BEAT)
        self._last = now


def browse(viewer: Any, window: Window, ended: Callable[[], bool]) -> list[float]:
    """Show one plane after another until the end, and return the seconds of each."""
    seconds: list[float] = []
    steps = viewer.dims.nsteps[0]
    while not ended():
        end = monotonic() + MOVE
        window.wait(lambda end=end: ended() or monotonic() > end)
        begun = monotonic()
        viewer.dims.set_current_step(0, 37 * len(seconds) % steps)
        QApplication.processEvents()
        seconds.append(monotonic() - begun)
    return seconds


def seconds_of(owner: Any, name: str) -> list[float]:
    """Return a list that gets the seconds of each call of a method."""
    method, seconds = getattr(owner, name), list[float]()

    def timed() -> None:
        begun = monotonic()
        method()
        if (taken := monotonic() - begun) > 1e-3:  # else there was nothing to do
            seconds.append(taken)

    setattr(owner, name, timed)
    return seconds


@contextmanager
def peak_of_run() -> Iterator[list[int]]:
    """Yield a list that gets the resident bytes of all children, many times a second."""
    found, end = [0], Event()

    def look() -> None:
        while not end.wait(LOOK):
            taken = 0
            for child in psutil.Process().children(recursive=True):
                try:
                    taken += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            found.append(taken)

    thread = Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        end.set()
        thread.join()


def milliseconds(seconds: list[float]) -> dict[str, int]:
    """Return the median and the largest of times, in milliseconds."""
    return {"median": round(1e3 * median(seconds)), "largest": round(1e3 * max(seconds))}


if __name__ == "__main__":
    main()
