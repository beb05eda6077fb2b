"""Arrays by name in the files of weights: safetensors, .npz and HDF5."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput
from znni.core.mapped_file import MappedFile
from znni.core.shapes import FLOAT_BYTES

LENGTH_BYTES = 8  # at the beginning of a .safetensors file: the length of the header

_one_npz = Lock()


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read all arrays of a file, by name.

    Raises:
        InvalidInput: there is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise InvalidInput(
            f"{path}: no such weights file, looked for at {path.absolute()}; check the path"
        )
    try:
        match path.suffix:
            case ".safetensors":
                from safetensors.numpy import load_file

                return dict(load_file(path))
            case ".npz" if not is_zipfile(path):
                raise ValueError("not a zip archive, which .npz files are")
            case ".npz":
                return _read_npz(path)
            case ".h5" | ".hdf5":
                return _read_hdf5(path)
    except Exception as error:  # each format raises its own errors; all mean the same here
        raise InvalidInput(
            f"{path}: cannot be read as {path.suffix} weights: {error}; is the file whole? "
            f"copy or export it again"
        ) from error
    raise InvalidInput(
        f"{path}: unknown kind of weights file {path.suffix!r}; use .safetensors (from PyTorch: "
        f"safetensors.torch.save_file(model.state_dict(), ...)), .npz or .h5"
    )


def _read_npz(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of an .npz file.

    NumPy parses their headers with ``ast``. Threads of Python 3.11 that do so at the same time get
    errors now and then (https://github.com/python/cpython/issues/106905).
    """
    with _one_npz, path.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _read_hdf5(path: Path) -> dict[str, NDArray[np.generic]]:
    import h5py

    found: dict[str, NDArray[np.generic]] = {}

    def keep(name: str | bytes, item: object) -> None:
        if isinstance(item, h5py.Dataset):  # the name is bytes if it is not valid text
            found[name if isinstance(name, str) else name.decode(errors="replace")] = item[()]

    with h5py.File(path, "r") as file:
        file.visititems(keep)
    return found


def mapped_arrays(path: Path) -> dict[str, NDArray[np.generic]] | None:
    """Map all arrays of a file, by name; None if they have to be read.

    A file of safetensors is mapped if all its arrays are float32.
    """
    if path.suffix != ".safetensors" or not _is_float32(path):
        return None
    file = MappedFile(path)
    begin = LENGTH_BYTES + int.from_bytes(file[:LENGTH_BYTES], "little")
    described = json.loads(file[LENGTH_BYTES:begin])
    described.pop("__metadata__", None)
    return {
        name: file.array(np.float32, begin + each["data_offsets"][0], tuple(each["shape"]))
        for name, each in described.items()
    }


def is_mapped(path: Path | None) -> bool:
    """Return whether ``mapped_arrays`` maps a file."""
    return path is not None and path.suffix == ".safetensors" and _is_float32(path)


def _is_float32(path: Path) -> bool:
    """Return whether a file of safetensors is whole, and has float32 arrays alone."""
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as file:  # arrays of some files would not be aligned
            if int.from_bytes(file.read(LENGTH_BYTES), "little") % FLOAT_BYTES:
                return False
        with safe_open(path, framework="numpy") as opened:
            return all(opened.get_slice(name).get_dtype() == "F32" for name in opened.keys())  # noqa: SIM118
    except (OSError, SafetensorError):  # to read the file gives the error
        return False
