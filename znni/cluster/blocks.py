"""The extents of the blocks that a cluster's workers are given."""

from __future__ import annotations

from math import prod

from znni.core.shapes import Vec3, round_up

GRAIN = 64  # of the edges of boxes, so that chunks divide them


def box_of(voxels: float, output: Vec3) -> Vec3:
    """Return the extents of a box of about so many voxels, within an output.

    It is nearly a cube where the output is large enough. Boxes of these extents cover the output
    with little beyond it, and long edges are multiples of ``GRAIN``.
    """
    edges, left = list(output), max(1.0, voxels)
    axes = sorted(range(3), key=lambda axis: output[axis])
    for done, axis in enumerate(axes):
        edge = max(1, min(output[axis], round(left ** (1 / (3 - done)))))
        edge = -(-output[axis] // round(output[axis] / edge))
        edges[axis] = min(output[axis], round_up(edge, GRAIN) if edge > GRAIN else edge)
        left /= edges[axis]
    return Vec3(*edges)


def best_block(patch: Vec3, output: Vec3, voxels: float) -> Vec3:
    """Return the extents of a block of whole patches."""
    counts = [1, 1, 1]
    most = output.ceil_div(patch)
    while True:
        axes = [
            axis
            for axis in range(3)
            if counts[axis] < most[axis]
            and prod(counts) // counts[axis] * (counts[axis] + 1) * patch.volume <= voxels
        ]
        if not axes:
            return patch * Vec3(*counts)
        counts[min(axes, key=lambda axis: counts[axis] * patch[axis])] += 1


def patches_in_blocks(output: Vec3, block: Vec3, patch: Vec3) -> float:
    """Return the mean number of patches that cover a block; blocks at the end are smaller."""
    patches = 1
    for whole, edge, step in zip(output, block, patch, strict=True):
        full, rest = divmod(whole, edge)
        patches *= full * -(-edge // step) + -(-rest // step)
    return patches / output.ceil_div(block).volume
