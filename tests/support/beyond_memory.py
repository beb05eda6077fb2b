"""Run over a volume several times as large as the memory limit of the process.

    python tests/support/beyond_memory.py --limit 640MiB --times 4 --folder /tmp/x --out record.json

This writes a volume of random numbers and runs ``znni infer`` over it. The system limits the data
of that process (``RLIMIT_DATA``: all private memory that it maps for writing). Afterwards the
output is verified.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import znni
from znni.core.plan_options import memory_size

NET = """\
name: small
layers:
  - conv: {features: 4, kernel: 3, activation: relu}
  - pool: {window: 2}
  - conv: {features: 1, kernel: 3, activation: sigmoid}
"""
PLANE = (1024, 1024)
CHUNK = 64


def write_volume(path: Path, nbytes: int) -> int:
    """Write random float32 values of at least ``nbytes`` bytes; return the exact number."""
    depth = -(-nbytes // (4 * PLANE[0] * PLANE[1]))
    generator = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        main = file.create_dataset("raw", (depth, *PLANE), "f4", chunks=(CHUNK,) * 3)
        for z in range(0, depth, CHUNK):
            count = min(CHUNK, depth - z)
            main[z : z + count] = generator.random((count, *PLANE), np.float32)
    return depth * PLANE[0] * PLANE[1] * 4


def run_within(limit: int, folder: Path) -> tuple[int, str]:
    """Run over the volume in another process; return its peak resident bytes and its messages."""

    def be_limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    command = [
        sys.executable,
        "-c",
        "from znni.cli import main; main()",
        "infer",
        "volume.h5",
        "--net",
        "net.yaml",
    ]
    options = ["--random-weights", "1", "--ram", str(limit), "--dtype", "uint8", "--overwrite"]
    done = subprocess.run(
        [*command, *options, "--out", "out.h5"],
        cwd=folder,
        preexec_fn=be_limited,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, done.stdout


def main() -> None:
    """Write, run, verify and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=memory_size, default=memory_size("640MiB"))
    parser.add_argument("--times", type=float, default=4.0, help="the volume in limits")
    parser.add_argument("--folder", type=Path, required=True, help="for the volume; on a disk")
    parser.add_argument("--out", type=Path, help="record to write, in JSON")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "net.yaml").write_text(NET)
    volume = write_volume(given.folder / "volume.h5", int(given.limit * given.times))
    peak, said = run_within(given.limit, given.folder)
    print(said)
    out = given.folder / "out.h5"
    with h5py.File(out) as file:
        attributes = dict(file["main"].attrs)
    found = znni.verify(out, source=given.folder / "volume.h5", voxels=64, seed=1)
    record: dict[str, Any] = {
        "limit_bytes": given.limit,
        "volume_bytes": volume,
        "volume_in_limits": round(volume / given.limit, 2),
        "planned_bytes": int(attributes["predicted_memory_bytes"]),
        "peak_bytes": peak,
        "fallbacks": int(attributes["fallbacks"]),
        "seconds": round(float(attributes["seconds"])),
        "verified": str(found).split(": ", 1)[1],
        "agrees": found.agrees,
    }
    print(json.dumps(record, indent=1))
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(not found.agrees or record["fallbacks"] or peak > given.limit)


if __name__ == "__main__":
    main()
