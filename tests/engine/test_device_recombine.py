"""Fragments on a GPU go where those on the host do."""

from __future__ import annotations

import numpy as np

from znni.core.shapes import Vec3, offsets
from znni.engine import device_recombine
from znni.engine.host_layers import place


def test_fragments_start_where_the_host_places_them() -> None:
    patch, stride = Vec3(4, 6, 8), Vec3(2, 3, 4)
    at = tuple(offsets(stride))
    fragments = np.arange(len(at) * 3 * 8, dtype=np.float32).reshape(len(at), 3, 2, 2, 2)
    dense = np.zeros((3, *patch), np.float32)
    place(fragments, at, stride, dense)
    firsts = device_recombine.starts(at, patch)
    np.testing.assert_array_equal(dense.reshape(3, -1)[:, firsts], fragments[:, :, 0, 0, 0].T)
