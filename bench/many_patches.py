"""Runs over volumes of many small patches, whose blocks are finished one soon after the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bench.networks import plan_for
from znni.network_file import load_network
from znni.plan_file import save_plans
from znni.plans import Plan
from znni.shapes import Vec3

RAM = 4 << 30


@dataclass(frozen=True)
class OutputKind:
    """A kind of output: its ending, and what is asked for beside it."""

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
    """A volume and a plan for it, in files.

    Attributes:
        net: the network's file.
        random_seed: of its weights; None where it names some.
        volume: its file.
        plan: its file.
        planned: what is in that.
        output: extents of the output.
    """

    net: Path
    random_seed: int | None
    volume: Path
    plan: Path
    planned: Plan
    output: Vec3

    @classmethod
    def written(cls, folder: Path, net: Path, patch: int, patches: int) -> ManyPatches:
        """Write them.

        Args:
            folder: to write to.
            net: a network's file.
            patch: most output voxels per axis of a patch.
            patches: per axis; the last one overlaps its neighbour by a voxel.
        """
        network = load_network(net)
        planned = plan_for(network, patch, RAM, None, patch)
        output = planned.patch * patches - 1
        extents = output + network.field_of_view - 1
        with h5py.File(folder / "volume.h5", "w") as file:
            values = np.random.default_rng(0).integers(0, 256, extents, np.uint8)
            file.create_dataset("raw", data=values, chunks=tuple(extents.minimum(Vec3.of(32))))
        save_plans(folder / "plan.json", [planned])
        seed = None if network.weights else 0
        return cls(net, seed, folder / "volume.h5", folder / "plan.json", planned, output)

    def command(self, out: Path, output: OutputKind) -> list[str]:
        """The arguments of ``znni`` for a run."""
        seed = [] if self.random_seed is None else ["--random-weights", str(self.random_seed)]
        files = ["--net", str(self.net), "--plan", str(self.plan), "--out", str(out)]
        return ["infer", str(self.volume), *files, "--costs", "built-in", *seed, *output.flags]
