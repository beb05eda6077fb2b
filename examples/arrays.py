"""Read a volume through several array libraries; znni reads only the blocks that it needs.

znni accepts any array that can be sliced.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import znni

NETWORKS = Path(__file__).parent.parent / "networks"
REGION = np.s_[40:46, 60:74, 60:74]


def arrays(volume: h5py.Dataset, folder: str) -> dict[str, Any]:
    """Return one volume as arrays of the libraries that are installed."""
    made = {"NumPy": volume[()], "h5py": volume}
    if find_spec("dask"):
        import dask.array

        made["dask"] = dask.array.from_array(volume, chunks=(16, 32, 32)).astype(np.float32)
    if find_spec("zarr"):
        import zarr

        made["zarr"] = zarr.create_array(f"{folder}/cells.zarr", data=volume[()])
    if find_spec("tensorstore") and "zarr" in made:
        import tensorstore

        store = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/cells.zarr"}}
        made["TensorStore"] = tensorstore.open(store).result()
    return made


def main() -> None:
    """Run the network over a region of the volume, read through each library."""
    network = znni.load_network(NETWORKS / "boundaries.yaml")
    plan = znni.plan(network, (96, 160, 160), roi=REGION, threads=2)
    out = np.empty((1, 6, 14, 14), np.float32)  # or an array of one of these libraries
    with tempfile.TemporaryDirectory() as folder, h5py.File(NETWORKS / "cells.h5") as file:
        for library, array in arrays(file["raw"], folder).items():
            znni.infer(array, network, out, roi=REGION, plan=plan, threads=2)
            print(f"{library}: a mean probability of {out.mean():.6f}")


if __name__ == "__main__":
    main()
