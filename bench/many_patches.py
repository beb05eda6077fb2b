"""Runs over volumes of many small patches, whose blocks soon follow each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np

from bench.patches import plan_for
from bench.record import Row
from znni.core.shapes import Vec3
from znni.network.network_file import load_network
from znni.plans.plan import Plan
from znni.plans.plan_file import save_plans
from znni.volumes.ledger_entries import parse

ZNNI = (sys.executable, "-m", "znni")
RAM = 4 << 30


@dataclass(frozen=True)
class OutputKind:
    """A kind of output: its ending, and the options that ask for it."""

    ending: str
    options: dict[str, Any]
    flags: tuple[str, ...] = ()


OUTPUTS = {
    "hdf5": OutputKind(".h5", {}),
    "zarr": OutputKind(".zarr", {}),
    "zarr-sharded": OutputKind(
        ".zarr",
        {"sharded": True, "compression": "none"},
        ("--sharded", "--compression", "none"),
    ),
}


@dataclass(frozen=True)
class ManyPatches:
    """A volume and a plan for it, in files of a folder, and the output that is wanted.

    Attributes:
        folder: with ``volume.h5``, ``plan.json`` and the outputs.
        net: the network's file.
        random_seed: of its weights; None if it names some.
        plan: the content of its file.
        size: extents of the output.
        output: the name of its kind.
    """

    folder: Path
    net: Path
    random_seed: int | None
    plan: Plan
    size: Vec3
    output: str

    @property
    def kind(self) -> OutputKind:
        """The kind of output."""
        return OUTPUTS[self.output]

    @property
    def volume(self) -> Path:
        """The input."""
        return self.folder / "volume.h5"

    @property
    def blocks(self) -> int:
        """The number of blocks of the output."""
        return self.size.ceil_div(self.plan.patch).volume

    def place(self, name: str) -> Path:
        """Return the file or folder of an output."""
        return self.folder / f"{name}{self.kind.ending}"

    def command(self, out: Path) -> list[str]:
        """Return the arguments of ``znni`` for a run."""
        seed = [] if self.random_seed is None else ["--random-weights", str(self.random_seed)]
        plan = str(self.folder / "plan.json")
        files = ["--net", str(self.net), "--plan", plan, "--out", str(out)]
        return ["infer", str(self.volume), *files, "--costs", "built-in", *seed, *self.kind.flags]

    def row(self) -> Row:
        """Return what results say about it."""
        return {
            "output": self.output,
            "network": self.plan.network.name,
            "patch": str(self.plan.patch),
            "blocks": self.blocks,
        }


@contextmanager
def many_patches(net: Path, output: str, patch: int, patches: int) -> Iterator[ManyPatches]:
    """Make such a volume, in a folder that is deleted in the end.

    Args:
        net: a network's file.
        output: the name of a kind of output.
        patch: most output voxels per axis of a patch.
        patches: per axis; the last one overlaps its neighbour by a voxel.
    """
    network = load_network(net)
    plan = plan_for(network, patch, patch, device="cpu", ram=RAM)
    size = plan.patch * patches - 1
    extents = size + network.field_of_view - 1
    seed = None if network.weights else 0
    with TemporaryDirectory() as name:
        case = ManyPatches(Path(name), net, seed, plan, size, output)
        with h5py.File(case.volume, "w") as file:
            values = np.random.default_rng(0).integers(0, 256, extents, np.uint8)
            file.create_dataset("raw", data=values, chunks=tuple(extents.minimum(Vec3.of(32))))
        save_plans(case.folder / "plan.json", [plan])
        yield case


def blocks_in(ledger: Path) -> int:
    """Return the number of blocks in a ledger while it grows."""
    try:
        found, _ = parse(ledger.read_bytes())
    except FileNotFoundError:  # not yet, or no more
        return 0
    return len(found.checksums) if found else 0
