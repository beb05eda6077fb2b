"""Pyramids and copies whose commands are killed outright at a step, and then given again.

Run this as ``python tests/support/killed_copies.py --folder FOLDER --kills 50 --out record.json``.
It kills ``znni pyramid``, ``znni infer --pyramid`` and ``znni export`` to each format, each at so
many steps (``killed_runs.py``). The results are compared with those of undisturbed commands, byte
for byte, and nothing else may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import zarr
from command_line import LONG_VOLUME, voxels, write_case, write_volume
from fakes import fake_catalogue
from killed_runs import ARGUMENTS, NEVER, run, take_away

import znni.inference.planning
from bench.record import circumstances
from bench.same_output import difference
from znni.inference import exporting
from znni.volumes.formats.zarr import pyramid

IMAGE = "image.zarr"
COPIED = (200, 70, 66)
EXPORTS = ("zarr", "h5", "tif", "nii.gz", "nrrd", "mha", "npy")
KINDS = ("pyramid", "pyramid --overwrite", "infer --pyramid", *(f"export .{e}" for e in EXPORTS))


def prepared(kind: str) -> tuple[str, list[str]]:
    """Return the output of a kind of command, and the command."""
    name, _, more = kind.partition(" ")
    if name == "pyramid":
        return IMAGE, ["pyramid", IMAGE, *more.split()]
    if name == "infer":
        return "out.zarr", [*ARGUMENTS, "--out", "out.zarr", more]
    out = f"copy{more}"
    pyramid = ["--pyramid"] if more == ".zarr" else []
    return out, ["export", "copied.h5", out, *pyramid]


def start_again(kind: str, out: str) -> None:
    """Remove an output, or give an image the resolutions that it had before."""
    take_away(out)
    if kind.startswith("pyramid"):
        shutil.copytree("coarse.zarr" if "overwrite" in kind else "fine.zarr", IMAGE)


def differs(one: Path, other: Path, kind: str) -> str:
    """Say where two outputs differ; empty if they do not."""
    if kind.startswith("infer"):
        return difference(one, other)
    if not other.exists():
        return "it is not there"
    if one.is_file():
        return "" if one.read_bytes() == other.read_bytes() else "the bytes"
    names = [sorted(p.relative_to(root) for p in root.rglob("*")) for root in (one, other)]
    if names[0] != names[1]:
        return f"the names: {sorted(map(str, {*names[0]} ^ {*names[1]}))}"
    files = (name for name in names[0] if (one / name).is_file())
    return ", ".join(str(n) for n in files if (one / n).read_bytes() != (other / n).read_bytes())


def complete(kind: str, out: str) -> bool:
    """Return whether a killed command had done all that its user sees."""
    if kind.startswith("pyramid"):
        listed = zarr.open_group(out, mode="r").attrs["ome"]["multiscales"][0]["datasets"]
        return len(listed) > 1 and "overwrite" not in kind
    return Path(out).exists()


def one_kind(kind: str, kills: int) -> dict[str, Any]:
    """Kill a command at so many steps; return how often, and what was wrong."""
    out, command = prepared(kind)
    for _ in range(2):  # the first one imports
        start_again(kind, out)
        before = set(os.listdir())  # noqa: PTH208
        count = run([command], NEVER)
    alone = Path(f"alone-{out}")
    take_away(str(alone))
    Path(out).rename(alone)
    wrong, killed = [], 0
    for number in range(kills):
        step = 1 + number * count // kills
        start_again(kind, out)
        if run([command], step):
            continue
        killed += 1
        whole = complete(kind, out)
        if not whole:
            run([command], NEVER)
        left = sorted({*os.listdir()} - before - {out, str(alone)}) if not whole else []  # noqa: PTH208
        if (found := differs(alone, Path(out), kind)) or left:
            wrong.append({"step": step, "whole": whole, "difference": found, "left": left})
    return {"steps": count, "killed": killed, "wrong": wrong}


def main() -> None:
    """Prepare the files, kill and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for the files; empty")
    parser.add_argument("--kills", type=int, default=50, help="of each kind")
    parser.add_argument("--kind", action="append", choices=KINDS, help="by default all")
    parser.add_argument("--out", type=Path, help="record to write, in JSON")
    asked = parser.parse_args()
    out = asked.out and asked.out.absolute()
    os.chdir(asked.folder)
    znni.inference.planning.catalogue = lambda _: fake_catalogue()  # type: ignore[assignment]
    pyramid.SMALLEST = 16
    exporting.ROOM = 2**18
    write_case(Path())
    write_volume(voxels(COPIED))
    Path("volume.h5").rename("copied.h5")
    write_volume(voxels(LONG_VOLUME))
    run([["export", "copied.h5", "fine.zarr"]], NEVER)
    shutil.copytree("fine.zarr", "coarse.zarr")
    run([["pyramid", "coarse.zarr"]], NEVER)
    found = {}
    for kind in asked.kind or KINDS:
        found[kind] = one_kind(kind, asked.kills)
        print(kind, json.dumps(found[kind]), flush=True)
    if out:
        out.write_text(
            json.dumps({**circumstances("tests/support/killed_copies.py"), **found}, indent=1)
        )
    sys.exit(any(each["wrong"] for each in found.values()))


if __name__ == "__main__":
    main()
