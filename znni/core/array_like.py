"""Arrays of any library."""

from __future__ import annotations

from typing import Any, Protocol


class ArrayLike(Protocol):
    """The part of NumPy's array interface that h5py, zarr and dask arrays share."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, (z, y, x) or (f, z, y, x)."""

    @property
    def dtype(self) -> Any:
        """Type of the values."""

    def __getitem__(self, key: Any, /) -> Any: ...
