"""Coarser resolutions of planes, kept in unnamed files until they are written."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import Coarsening
from znni.core.shapes import Vec3
from znni.core.volume import NewOutput
from znni.volumes.formats.zarr.pyramid import coarser

TILE = 256  # pixels along y and x; resolutions end when a plane is one tile
ROWS = 2 * TILE  # of a plane that become coarser at a time, so that this takes little memory


class CoarserPlanes:
    """The coarser resolutions of all planes of a file, each made of the one before.

    OME-TIFF keeps resolutions plane by plane, so only y and x become coarser. TIFF needs all planes
    of one resolution before the next. So the planes wait in files without a name, which vanish
    with the process. They take a third of the bytes of the finest planes.

    Attributes:
        shapes: shapes (c, z, y, x) of the coarser resolutions, the finest first.
    """

    def __init__(self, wanted: NewOutput, folder: Path) -> None:
        self._dtype = np.dtype(wanted.dtype)
        self._coarsening: Coarsening = wanted.coarsening
        self.shapes = [(wanted.features, *size) for size in _sizes(wanted)]
        self._files: list[IO[bytes]] = []
        try:
            for _ in self.shapes:
                self._files.append(TemporaryFile(dir=folder, prefix=".znni-"))  # noqa: SIM115
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Delete the files."""
        for file in self._files:
            file.close()

    def passing(
        self, planes: Generator[NDArray[np.generic], None, None]
    ) -> Generator[NDArray[np.generic], None, None]:
        """Yield the finest planes as they are, and keep their coarser ones."""
        with closing(planes):
            for plane in planes:
                self._keep(plane)
                yield plane

    def of(self, level: int) -> Generator[NDArray[np.generic], None, None]:
        """Yield the planes of a coarser resolution; 0 is the finest of them."""
        file, (features, depth, *extents) = self._files[level], self.shapes[level]
        file.seek(0)
        nbytes = extents[0] * extents[1] * self._dtype.itemsize
        for _ in range(features * depth):
            yield np.frombuffer(file.read(nbytes), self._dtype).reshape(extents)

    def _keep(self, plane: NDArray[Any]) -> None:
        for file, shape in zip(self._files, self.shapes, strict=True):
            step = Vec3(1, *(1 if old == new else 2 for old, new in _pairs(plane, shape)))
            made = np.empty(shape[-2:], plane.dtype)
            for y in range(0, len(plane), ROWS):
                part = coarser(plane[None, y : y + ROWS], step, self._coarsening)[0]
                made[y // step.y : y // step.y + len(part)] = part
            file.write(made.data)
            plane = made


def _pairs(plane: NDArray[Any], shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    return zip(plane.shape, shape[-2:], strict=True)


def _sizes(wanted: NewOutput) -> Iterator[Vec3]:
    """Yield the extents of the coarser resolutions."""
    size = wanted.size
    while wanted.coarsening and max(size.y, size.x) > TILE:
        size = size.ceil_div(Vec3(1, 2, 2))
        yield size
