"""Write fragments to their positions in the dense output, on the host.

``plans/fragments.py`` gives the positions. The primitives of pooling make the fragments.
"""

from __future__ import annotations

from collections.abc import Sequence

from znni.core.shapes import Vec3
from znni.network.weights import Float32


def recombine(fragments: Float32, at: Sequence[Vec3], stride: Vec3, dense: Float32) -> None:
    """Write fragments (n, f, z, y, x) to their positions in the dense output (f, Z, Y, X).

    Voxel i of a fragment goes to ``at + stride * i``. After pools p1, p2, ... with offsets o1, o2,
    ... that is ``o1 + p1 (o2 + p2 (... + i))``: the first pool's offset counts least.
    """
    size = Vec3(*fragments.shape[2:])
    for fragment, start in zip(fragments, at, strict=True):
        stop = start + stride * size
        z, y, x = (slice(*axis) for axis in zip(start, stop, stride, strict=True))
        dense[:, z, y, x] = fragment
