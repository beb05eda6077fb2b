"""The difference between two outputs, byte for byte, except the times of their runs."""

from __future__ import annotations

import json
from pathlib import Path

from znni.engine.block_reader import Skipped
from znni.inference.output_attributes import measured
from znni.plans.job_seconds import JobSeconds

# What a run measured, and what it predicted by the runs that this machine had before.
OF_ITS_TIME = frozenset(measured(JobSeconds(), 0, Skipped())) | {
    "predicted_seconds",
    "predicted_start_seconds",
    "predicted_planning_seconds",
    "predicted_finishing_seconds",
}


def difference(one: Path, other: Path, ignored: frozenset[str] = frozenset()) -> str:
    """Say where two outputs differ, in HDF5 or in a Zarr folder; empty if they do not.

    All datasets of an HDF5 file are compared, to the last bit, with how they are stored and their
    attributes, except those that are of a run's time. The names and bytes of all files of a folder
    are compared, without those attributes.

    Args:
        one: an output.
        other: another one.
        ignored: attributes that may differ, too.
    """
    ignored |= OF_ITS_TIME
    same_kind = one.is_file() == other.is_file()
    read = _hdf5 if one.is_file() else _files
    if not same_kind or (
        (found := read(one, ignored)).keys() != (others := read(other, ignored)).keys()
    ):
        return "the names of what is in them"
    return ", ".join(name for name in found if found[name] != others[name])


def _hdf5(path: Path, ignored: frozenset[str]) -> dict[str, bytes]:
    """Return what each dataset and attribute holds, by its name."""
    import h5py

    found: dict[str, bytes] = {}
    with h5py.File(path, "r") as file:
        for name, dataset in file.items():
            stored = (dataset.shape, dataset.dtype.str, dataset.chunks)
            found[name] = repr(stored).encode() + dataset[()].tobytes()
            for key in dataset.attrs.keys() - ignored:
                found[f"{name}.{key}"] = repr(dataset.attrs[key]).encode()
    return found


def _files(folder: Path, ignored: frozenset[str]) -> dict[str, bytes]:
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    metadata = json.loads(found["0/zarr.json"])
    for name in ignored:
        del metadata["attributes"][name]
    return found | {"0/zarr.json": json.dumps(metadata).encode()}
