"""Slabs of whole planes in which connected components are found, within the memory for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from znni.components.nonzero import nonzero_bytes
from znni.components.postprocessing import postprocess_bytes
from znni.components.rules import KeepLargest
from znni.components.slabs import MOST_COMPONENTS
from znni.core.shapes import Vec3

SLAB_VOXELS = 2**22  # voxels of a slab, if a plane has not more; larger slabs make nothing faster
LEAST_COMPONENTS = 2**12  # that a step must have room for
LABEL_BYTES = 2  # of a label, at the most
JOINED_BYTES = 7  # of a label beside itself, while those of several networks are joined
ROOM = 2**30  # bytes for a step, if the caller has no limit


class Slab(NamedTuple):
    """A slab in which connected components are found.

    Attributes:
        components: the most components of all slabs together.
        nbytes: the bytes that the step takes.
    """

    planes: int
    components: int
    nbytes: int


def slab_planes(size: Vec3) -> int:
    """Return the planes of a slab, if there is enough memory."""
    return max(1, min(size.z, SLAB_VOXELS // (size.y * size.x)))


def slab_within(room: int, size: Vec3, nbytes: Callable[[int, int], int]) -> Slab:
    """Return the slab for a step that finds components.

    It has fewer planes if there is no room for many components beside them. ``nbytes`` returns the
    bytes of the step, for planes of a slab and for components.
    """
    planes = slab_planes(size)
    each = nbytes(1, 1) - nbytes(1, 0)
    wanted = min(MOST_COMPONENTS * each, max(LEAST_COMPONENTS * each, room // 2))
    while planes > 1 and room - nbytes(planes, 0) < wanted:
        planes = -(-planes // 2)
    components = (room - nbytes(planes, 0)) // each
    components = max(LEAST_COMPONENTS, min(MOST_COMPONENTS, components))
    return Slab(planes, components, nbytes(planes, components))


def mask_slab(size: Vec3, maps: int, itemsize: int, room: int, label_bytes: int = 0) -> Slab:
    """Return the slab in which the mask of voxels that are not 0 is found."""
    each = maps * itemsize + (2 * label_bytes + 2) * bool(label_bytes)

    def nbytes(planes: int, components: int) -> int:
        copied = planes * size.y * size.x * each
        found = nonzero_bytes(size, planes, maps, itemsize, most_components=components)
        return copied + found

    return slab_within(room, size, nbytes)


def components_slab(size: Vec3, rules: Sequence[KeepLargest], room: int) -> Slab:
    """Return the slab in which components of labels are found."""

    def nbytes(planes: int, components: int) -> int:
        found = postprocess_bytes(size, rules, planes, LABEL_BYTES, most_components=components)
        return found + JOINED_BYTES * planes * size.y * size.x

    return slab_within(room, size, nbytes)
