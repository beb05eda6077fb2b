"""A volume of synthetic cells, to try networks on."""

from __future__ import annotations

from pathlib import Path

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.volumes.output_place import check_new, refused_at
from znni.volumes.partial_file import partial_name

ENDINGS = (".h5", ".hdf5")
LEAST_EXTENT = 16  # smaller volumes hold no cell


def write_example(path: Path, seed: int, size: Vec3, *, overwrite: bool) -> None:
    """Write a volume of synthetic cells as the dataset ``/raw`` of an HDF5 file.

    Equal seeds and sizes give equal volumes.

    Raises:
        InvalidInput: the name does not end in .h5 or .hdf5, the file exists or cannot be written,
            the seed is negative, or an extent is too small.
    """
    if path.suffix not in ENDINGS:
        raise InvalidInput(f"{path}: the example is an HDF5 file; let its name end in .h5")
    if seed < 0 or min(size) < LEAST_EXTENT:
        raise InvalidInput(
            f"seed {seed} and size {size} make no volume; give a seed from 0 and extents from "
            f"{LEAST_EXTENT}"
        )
    with refused_at(path):
        check_new(path, overwrite=overwrite)
    # These take a moment to import.
    import h5py

    from znni.volumes.synthetic_cells import synthetic_cells

    raw = synthetic_cells(seed, size).raw
    partial = partial_name(path)
    with refused_at(path):
        try:
            with h5py.File(partial, "w") as file:
                file.create_dataset("raw", data=raw, chunks=True, compression="gzip")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
