"""Fragments back to dense output."""

from __future__ import annotations

from collections.abc import Sequence

from znni.shapes import Vec3
from znni.weights import Float32


def place(fragments: Float32, at: Sequence[Vec3], stride: Vec3, dense: Float32) -> None:
    """Write fragments (n, f, z, y, x) to their positions in the dense output (f, Z, Y, X).

    Voxel i of a fragment goes to ``at + stride * i``. After pools p1, p2, ... with offsets o1,
    o2, ... that is ``o1 + p1 (o2 + p2 (... + i))``: the first pool's offset counts least.
    """
    for fragment, start in zip(fragments, at, strict=True):
        dense[:, start.z :: stride.z, start.y :: stride.y, start.x :: stride.x] = fragment
