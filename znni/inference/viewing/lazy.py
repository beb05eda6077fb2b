"""Volumes as arrays that other viewers can slice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from znni.core.option_types import PointInTime
from znni.core.shapes import Box, Vec3
from znni.inference.viewing.view import View, as_slice, whole_key
from znni.volumes.array import ArrayVolume
from znni.volumes.locate import open_volume


class LazyArray:
    """Volume in any format, read when it is indexed.

    Args:
        source: a file or URL, as in ``znni.infer``, or a volume.
        dataset: dataset of a file that has several.
        channel: number of the only map to read.
        time: number of the point in time, if there are several; ``all``: they are the maps.
        squeeze: leave out the axis of maps if there is one map only.

    Attributes:
        shape: extents (f, z, y, x), or (z, y, x).
        ndim: number of these axes.
        size: number of values.
        dtype: type of the values.

    Example:
        >>> napari.Viewer().add_image(LazyArray("boundaries.zarr"))

    Raises:
        InvalidInput: the source is not a volume.
    """

    def __init__(
        self,
        source: str | Path | ArrayVolume,
        dataset: str | None = None,
        *,
        channel: int | None = None,
        time: PointInTime | None = None,
        squeeze: bool = False,
    ) -> None:
        self._given = partial(
            LazyArray, source, dataset, channel=channel, time=time, squeeze=squeeze
        )
        if isinstance(source, ArrayVolume):
            self._volume = source
        else:
            self._volume = open_volume(source, dataset, channel=channel, time=time)
        self._squeezed = squeeze and self._volume.features == 1
        self.shape: tuple[int, ...] = self._volume.size
        if not self._squeezed:
            self.shape = (self._volume.features, *self.shape)
        self.ndim = len(self.shape)
        self.size = prod(self.shape)
        self.dtype = self._volume.dtype

    @property
    def levels(self) -> list[View]:
        """Views of this and of the coarser resolutions that are stored too, the finest first."""
        coarser = (LazyArray(one, squeeze=self._squeezed) for one in self._volume.coarser())
        return [View(self), *map(View, coarser)]

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return the values at integers and slices, at most one for each axis."""
        given = whole_key(key, self.ndim)
        if self._squeezed:
            given = (0, *given)
        shape = (self._volume.features, *self._volume.size)
        ranges = [range(extent)[as_slice(k)] for k, extent in zip(given, shape, strict=True)]
        dropped = tuple(0 if isinstance(k, SupportsIndex) else slice(None) for k in given)
        if not all(ranges):
            return np.empty([len(part) for part in ranges], self.dtype)[dropped]
        low = [min(part) for part in ranges]
        box = Box(Vec3(*low[1:]), Vec3(*(max(part) + 1 for part in ranges[1:])))
        values = self._volume.read(box, slice(low[0], max(ranges[0]) + 1))
        values = values.take([feature - low[0] for feature in ranges[0]], axis=0)
        for axis, part in enumerate(ranges[1:], start=1):
            values = values.take([i - low[axis] for i in part], axis=axis)
        return np.asarray(values[dropped])

    def __reduce__(self) -> tuple[Callable[[], LazyArray], tuple[()]]:
        """Pickle the names alone: who unpickles it opens the file again."""
        return self._given, ()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all values, in memory."""
        return np.array(self[:], dtype, copy=copy)
