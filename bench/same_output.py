"""Whether two outputs are the same, byte for byte, but for what their runs measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from znni.job_seconds import JobSeconds
from znni.provenance import measured
from znni.skipped import Skipped

MEASURED = frozenset(measured(JobSeconds(), 0, Skipped()))


def difference(one: Path, other: Path) -> str:
    """Where two outputs differ, in HDF5 or in a Zarr folder; empty where they do not.

    Of an HDF5 file all bytes are compared, with the measured attributes set to zero; of a folder
    the names of all files, and their bytes, without those attributes.
    """
    if one.is_file() and other.is_file():
        return "" if _hdf5_bytes(one) == _hdf5_bytes(other) else "the bytes of the files"
    files, others = _files(one), _files(other)
    if files.keys() != others.keys():
        return f"the names of files: {sorted(files.keys() ^ others.keys())}"
    return ", ".join(name for name in files if files[name] != others[name])


def _hdf5_bytes(path: Path) -> bytes:
    import h5py

    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        with h5py.File(copy, "r+") as file:
            for name in MEASURED:
                file["main"].attrs.modify(name, 0)
        return copy.read_bytes()


def _files(folder: Path) -> dict[str, bytes]:
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    metadata = json.loads(found["0/zarr.json"])
    for name in MEASURED:
        del metadata["attributes"][name]
    return found | {"0/zarr.json": json.dumps(metadata).encode()}
