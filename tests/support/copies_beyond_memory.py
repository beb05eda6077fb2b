"""Export and pyramids of a volume several times as large as the memory limit of the process.

    python tests/support/copies_beyond_memory.py --limit 1GiB --times 4 --folder /tmp/x --out r.json

This writes a volume of random numbers and runs ``znni export`` and ``znni pyramid`` over it. The
system limits the data of each process (``RLIMIT_DATA``: all private memory that it maps for
writing). Afterwards each copy is read again, and a sample of it compared with the volume.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from znni.core.plan_options import memory_size
from znni.core.shapes import Box, Vec3
from znni.volumes.locate import open_volume

PLANE = (2048, 2048)
CHUNK = 64
SAMPLES = 32  # boxes that are compared
# The commands, in their order; the pyramid is that of the Zarr.
COPIES: dict[str, tuple[str, ...]] = {
    "HDF5 to OME-Zarr": ("export", "volume.h5", "copy.zarr", "--no-pyramid"),
    "pyramid of the OME-Zarr": ("pyramid", "copy.zarr"),
    "OME-Zarr to HDF5": ("export", "copy.zarr", "copy.h5"),
    "OME-Zarr to OME-TIFF with a pyramid": ("export", "copy.zarr", "copy.tif", "--pyramid"),
    "OME-Zarr to NIfTI": ("export", "copy.zarr", "copy.nii"),
    "OME-Zarr to .npy": ("export", "copy.zarr", "copy.npy"),
}


def write_volume(path: Path, nbytes: int) -> Vec3:
    """Write random bytes, at least so many; return the extents."""
    depth = -(-nbytes // (PLANE[0] * PLANE[1]))
    generator = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        main = file.create_dataset("raw", (depth, *PLANE), "u1", chunks=(CHUNK,) * 3)
        main.attrs["element_size_um"] = (0.25, 0.1, 0.1)
        for z in range(0, depth, CHUNK):
            count = min(CHUNK, depth - z)
            main[z : z + count] = generator.integers(0, 256, (count, *PLANE), np.uint8)
    return Vec3(depth, *PLANE)


def run_within(limit: int, folder: Path, command: tuple[str, ...]) -> int:
    """Run a command in another process; return its peak resident bytes."""
    ram = ("--ram", str(limit), "--overwrite") if command[0] == "export" else ("--overwrite",)
    process = subprocess.Popen(
        [sys.executable, "-m", "znni", *command, *ram],
        cwd=folder,
    )
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, limit))
    _, status, used = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)}: ended with {code}")
    return used.ru_maxrss * 1024


def same(first: Path, second: Path, size: Vec3) -> bool:
    """Return whether some boxes of two volumes have the same values and grids alike."""
    one, other = open_volume(first), open_volume(second)
    generator = np.random.default_rng(2)
    extent = Vec3(CHUNK, CHUNK, CHUNK).minimum(size)
    for _ in range(SAMPLES):
        start = Vec3(*(int(generator.integers(0, end + 1)) for end in size - extent))
        box = Box(start, start + extent)
        if not np.array_equal(one.read(box), other.read(box)):
            return False
    known = second.suffix != ".npy"
    return not known or np.allclose(one.grid.scale, other.grid.scale, rtol=1e-6)


def main() -> None:
    """Write, copy, compare and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=memory_size, default=memory_size("1GiB"))
    parser.add_argument("--times", type=float, default=4.0, help="the volume in limits")
    parser.add_argument("--folder", type=Path, required=True, help="for the volume; on a disk")
    parser.add_argument("--out", type=Path, help="record to write, in JSON")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    volume = given.folder / "volume.h5"
    size = write_volume(volume, int(given.limit * given.times))
    rows: list[dict[str, Any]] = []
    for name, command in COPIES.items():
        peak = run_within(given.limit, given.folder, command)
        copy = given.folder / (command[2] if command[0] == "export" else command[1])
        row = {
            "copy": name,
            "peak_bytes": peak,
            "same": same(volume, copy, size),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
        if copy.is_file():
            copy.unlink()
    record = {
        "limit_bytes": given.limit,
        "volume_bytes": size.volume,
        "volume_in_limits": round(size.volume / given.limit, 2),
        "copies": rows,
    }
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(not all(row["same"] and row["peak_bytes"] <= given.limit for row in rows))


if __name__ == "__main__":
    main()
