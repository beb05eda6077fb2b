"""Compute only what a mask needs, verify some voxels in float64, and view the result."""

from __future__ import annotations

import tempfile
from pathlib import Path

import h5py
import numpy as np

import znni

NETWORKS = Path(__file__).parent.parent / "networks"


def main() -> None:
    """Run, verify and view, in a temporary folder."""
    network = NETWORKS / "boundaries.yaml"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with h5py.File(NETWORKS / "cells.h5") as file:
            volume = file["raw"][:48, :56, :64]
        np.save(folder / "cells.npy", volume)
        mask = np.zeros(volume.shape, bool)
        mask[:, :, :24] = True
        out = folder / "boundaries.h5"
        # The plan is for a smaller volume. Its small patches give as many blocks as a large volume
        # has.
        plan = znni.plan(network, (42, 42, 42), threads=2)
        report = znni.infer(
            folder / "cells.npy", network, out, border="same", mask=mask, plan=plan, threads=2
        )
        print(report)
        print(znni.verify(out, mask=mask, voxels=20, seed=1))
        print(znni.view(folder / "cells.npy", out, folder / "boundaries.html"))


if __name__ == "__main__":
    main()
