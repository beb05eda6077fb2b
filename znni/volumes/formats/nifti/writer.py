"""Writing NIfTI files."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from io import BytesIO
from typing import IO, Any

import numpy as np

from znni.core.errors import InvalidInput, option
from znni.core.option_types import Packing
from znni.core.volume import Grid, NewOutput
from znni.volumes.formats import check_plain, library
from znni.volumes.formats.nifti import NAME
from znni.volumes.formats.nifti.format import COMMENT, MARK, UNITS, stored_in
from znni.volumes.grid_attributes import in_unit
from znni.volumes.parallel_gzip import gzipped
from znni.volumes.staged_output import Content, StagedWriter
from znni.volumes.stored import local_file

MOST = np.iinfo(np.int16).max  # voxels along an axis in NIfTI-1
LEVEL = 1  # of gzip
ALIGNED = 2  # NIfTI's number of a space whose origin is not known


class NiftiWriter(StagedWriter):
    """Writes a whole file: axes (x, y, z), or (x, y, z, 1, maps) if there are several."""

    def check(self, wanted: NewOutput) -> None:
        """Refuse an output that NIfTI cannot hold."""
        library("nibabel", "nifti")
        check_plain(self.place, wanted, NAME)
        if np.dtype(wanted.dtype) == np.float16:
            raise InvalidInput(
                f"{self.place}: NIfTI has no float16; give {option('dtype', 'float32')}, or write "
                f"to a name that ends in .zarr or .h5"
            )

    def save(self, file: IO[bytes], content: Content) -> None:
        """Write the header, and then the values."""
        with closing(_pieces(_header(content), content)) as pieces:
            packed = self.packing(content.wanted) != "none"
            file.writelines(gzipped(pieces, LEVEL) if packed else pieces)

    def packing(self, wanted: NewOutput) -> Packing:  # noqa: ARG002
        """Return how the file is compressed: as its name says."""
        return "gzip" if self.place.lower().endswith(".gz") else "none"

    def kept_ledger(self) -> bytes:
        """Return the ledger in a whole output."""
        image = library("nibabel", "nifti").load(local_file(self.place, NAME))
        return str(stored_in(image).get("ledger", "")).encode()


WRITER = NiftiWriter


def _pieces(header: Any, content: Content) -> Generator[bytes | memoryview]:
    """Yield the bytes of a file: the header, and then the values, plane by plane."""
    beginning = BytesIO()
    header.write_to(beginning)
    written = int(header["sizeof_hdr"]) + 4 + header.extensions.get_sizeondisk()
    yield beginning.getvalue() + bytes(header.get_data_offset() - written)
    with closing(content.planes()) as planes:
        for plane in planes:
            yield np.ascontiguousarray(plane, plane.dtype.newbyteorder("<")).data


def _header(content: Content) -> Any:
    wanted, nifti = content.wanted, library("nibabel", "nifti")
    z, y, x = wanted.size
    shape = (x, y, z) if wanted.features == 1 else (x, y, z, 1, wanted.features)
    kind = nifti.Nifti2Header if max(shape) > MOST else nifti.Nifti1Header
    header = kind(endianness="<")
    header.set_data_shape(shape)
    header.set_data_dtype(np.dtype(wanted.dtype).newbyteorder("<"))
    grid, unit = _in_one_unit(wanted.grid)
    header.set_zooms([*reversed(grid.scale), *(1.0,) * (len(shape) - 3)])
    header.set_xyzt_units(unit)
    affine, code = np.eye(4), ALIGNED
    if grid.affine:
        affine[:3], code = np.reshape(grid.affine.rows, (3, 4)), grid.affine.code
    else:
        affine[range(3), range(3)] = grid.scale[::-1]
        affine[:3, 3] = grid.translation[::-1]
    header.set_qform(affine, code, strip_shears=True)
    header.set_sform(affine, code)
    header.set_slope_inter(1, 0)
    if notes := content.notes:
        comment = nifti.nifti1.Nifti1Extension(COMMENT, f"{MARK}{notes}".encode())
        header.extensions.append(comment)
    header["vox_offset"] = header.single_vox_offset + header.extensions.get_sizeondisk()
    return header


def _in_one_unit(grid: Grid) -> tuple[Grid, str]:
    """Return a grid in a unit that NIfTI has, and NIfTI's name of the unit."""
    known = {unit: name for name, unit in UNITS.items()}
    if len(set(grid.units)) == 1 and grid.units[0] in known:
        return grid, known[grid.units[0]]
    found = in_unit(grid, "micrometer")
    return found, "micron" if set(found.units) == {"micrometer"} else "unknown"
