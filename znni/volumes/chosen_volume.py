"""A volume as options choose it: one of its maps, inverted, or with voxels of another size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from znni.core.errors import InvalidInput, option
from znni.core.option_types import Channel
from znni.core.shapes import Box
from znni.core.text import counted
from znni.core.volume import Grid
from znni.core.voxel_size import VoxelSize
from znni.volumes.array import ALL, ArrayVolume


def listed(volume: ArrayVolume) -> str:
    """Return the numbers of a volume's maps, with their names if they have some."""
    if not volume.maps:
        return f"0 to {volume.features - 1}"
    return ", ".join(f"{number} ({name})" for number, name in enumerate(volume.maps))


def map_number(volume: ArrayVolume, channel: Channel) -> int:
    """Return the number of a map, given that or its name."""
    if not isinstance(channel, str):
        return channel
    if channel in volume.maps:
        return volume.maps.index(channel)
    if not volume.maps:
        raise InvalidInput(
            f"{option('channel', channel)}: maps of {volume.name} have no names; give a number"
        )
    raise InvalidInput(
        f"{option('channel', channel)}: {volume.name} has no map of this name; choose one of "
        f"{listed(volume)}"
    )


class ChosenVolume(ArrayVolume):
    """A volume that is read as one of its maps, inverted, or with voxels of another size.

    Args:
        channel: number of the map; None for all.
        invert: exchange light and dark: the type's largest value less the value; of floats, 1 less
            the value.
        voxels: extents of a voxel, instead of those that the volume has.
        finest: grid of the finest resolution, if the volume is a coarser one.
    """

    def __init__(
        self,
        volume: ArrayVolume,
        channel: int | None,
        *,
        invert: bool,
        voxels: VoxelSize | None = None,
        finest: Grid | None = None,
    ) -> None:
        if channel is not None and not 0 <= channel < volume.features:
            remedy = f"choose one of {listed(volume)}" if volume.features > 1 else "leave it out"
            raise InvalidInput(
                f"{option('channel', channel)}: {volume.name} has "
                f"{counted(volume.features, 'map')}; {remedy}"
            )
        self._volume = volume
        self._channel, self._inverts, self._voxels = channel, invert, voxels
        self._maps = ALL if channel is None else slice(channel, channel + 1)
        self.features = volume.features if channel is None else 1
        self.maps = volume.maps[self._maps]
        self.name, self.size = volume.name, volume.size
        self.assumed = "" if voxels else volume.assumed
        self.grid = voxels.given_to(volume.grid, finest) if voxels else volume.grid
        self.dtype, self.itemsize = volume.dtype, volume.itemsize
        self.chunks, self.pieces = volume.chunks, volume.pieces
        self.chunk_bytes = volume.chunk_bytes
        self.shape = (self.features, *self.size)

    def read(self, box: Box, maps: slice = ALL) -> NDArray[Any]:
        """Return the values (f, z, y, x) of a box within the volume."""
        chosen = range(self._volume.features)[self._maps][maps]
        values = self._volume.read(box, slice(chosen.start, chosen.stop))
        if not self._inverts:
            return values
        return 1 - values if values.dtype.kind == "f" else np.invert(values)

    def coarser(self) -> list[ArrayVolume]:
        """Return the coarser resolutions that are stored too, chosen and inverted alike."""
        return [
            ChosenVolume(
                volume,
                self._channel,
                invert=self._inverts,
                voxels=self._voxels,
                finest=self._volume.grid,
            )
            for volume in self._volume.coarser()
        ]

    def attributes(self) -> dict[str, Any]:
        """Return all attributes that are stored with the volume."""
        return self._volume.attributes()
