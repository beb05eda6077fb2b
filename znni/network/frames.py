"""The samples of every value of a tiled network in one block, worked out axis by axis.

In a sweep, a node computes as many planes of its value as the block has, and no plane twice. The
planes before them are kept from earlier blocks. Each value is as far ahead of the output as its
readers need. So a join may read planes that one of its inputs has long had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from znni.core.shapes import AXES, ZERO, Axis, Box, Vec3, extent, resized
from znni.network.layers import GlobalPool, Join, Model, Normalize, PadLayer, Upsample, WholeWindow
from znni.network.network import Network
from znni.network.node import INPUT, Node


@dataclass(frozen=True)
class Frame:
    """The samples of one value in a block, counted from the first sample of the whole value.

    If the block's first voxel is ``v``, its samples are ``v / stride`` further on.

    Attributes:
        stored: the samples that the block holds. Those beyond the whole value are zero.
        computed: the samples that the value's node computes.
    """

    stored: Box
    computed: Box


@dataclass(frozen=True)
class BlockGeometry:
    """The samples of all values in a block whose first voxel is 0.

    Attributes:
        frames: the samples of each value, by name.
        reads: the samples of each of its inputs that a node reads, by the node's name.
        sizes: the samples of each whole value, by name.
        behind: how many voxels before its new planes the first block of a column needs a value, by
            name; nothing without a sweep.
    """

    frames: Mapping[str, Frame]
    reads: Mapping[str, tuple[Box, ...]]
    sizes: Mapping[str, Vec3]
    behind: Mapping[str, int] = field(default_factory=dict)


def can_be_swept(network: Network) -> bool:
    """Return whether every layer makes new planes from those before and as many ahead as it reads.

    No layer may depend on a whole window or volume. At the first plane of the volume, paddings and
    shifted upsampling repeat planes that lie further ahead.
    """
    if network.window:
        return False
    ahead = (WholeWindow, PadLayer, Model)
    return not any(
        isinstance(it, ahead) or (isinstance(it, Upsample) and it.shift != ZERO)
        for it in network.layers
    )


def whole_sizes(network: Network, whole: Vec3) -> dict[str, Vec3]:
    """Return the samples per axis of every value over the whole volume."""
    sizes = {INPUT: whole}
    for node in network.nodes:
        sizes[node.name] = node.layer.size_from(*(sizes[name] for name in node.inputs))
    return sizes


@lru_cache(maxsize=1024)
def frames_of_block(
    network: Network, patch: Vec3, swept: Axis | None, *, alone: bool = False
) -> BlockGeometry:
    """Return the geometry of a block, from three blocks each of which is as long along one axis.

    No axis depends on another one. So of thousands of blocks, few are worked out as a whole.

    Args:
        network: a tiled network for a volume.
        patch: the extents of the block as layers compute it.
        swept: the axis of a sweep; None: there is none. Networks that differ in it are equal.
        alone: whether no block comes before it in the sweep, so that it depends on no kept planes.
    """
    z, y, x = (
        _swept_along(network, axis, along)
        if axis == swept and not alone
        else _geometry_along(network, AXES.index(axis), along, within=axis != swept)
        for axis, along in zip(AXES, patch, strict=True)
    )
    frames = {
        name: Frame(
            _by_axis(of_z.stored, y.frames[name].stored, x.frames[name].stored),
            _by_axis(of_z.computed, y.frames[name].computed, x.frames[name].computed),
        )
        for name, of_z in z.frames.items()
    }
    reads = {
        name: tuple(map(_by_axis, of_z, y.reads[name], x.reads[name]))
        for name, of_z in z.reads.items()
    }
    return BlockGeometry(frames, reads, z.sizes, {**z.behind, **y.behind, **x.behind})


def _by_axis(z: Box, y: Box, x: Box) -> Box:
    """Return the box that is like each of three boxes along its own axis."""
    (z_start, _, _), (z_stop, _, _) = z
    (_, y_start, _), (_, y_stop, _) = y
    (_, _, x_start), (_, _, x_stop) = x
    return Box(Vec3(z_start, y_start, x_start), Vec3(z_stop, y_stop, x_stop))


@lru_cache(maxsize=1024)
def _geometry_along(
    network: Network, axis: int, extent: int, *, within: bool = True
) -> BlockGeometry:
    """Return the geometry of a block of an extent along one axis, and any extent along others.

    Args:
        network: a tiled network for a volume.
        axis: the axis, 0 for z.
        extent: the extent of the block along it.
        within: whether a block that spans the whole output lies within it. In a sweep, the last
            block of a column reaches beyond the output, and the first may begin anywhere.
    """
    assert network.whole is not None
    patch = Vec3(*(extent if axis == it else along for it, along in enumerate(network.granularity)))
    sizes = whole_sizes(network, network.whole)
    out = sizes[network.output] if within else sizes[network.output].maximum(patch + 1)
    uncut = Vec3(*(int(extent >= limit) for extent, limit in zip(patch, out, strict=True)))

    def frame(node: Node, stored: Box) -> Frame:
        if isinstance(node.layer, Normalize | Model) or _wraps(node):
            stored = stored.hull(Box(ZERO, sizes[node.name]))
        computed = node.layer.rounded(_clipped(stored, sizes[node.name], uncut))
        return Frame(stored.hull(computed), computed)

    return _traced(network, Box(ZERO, patch.minimum(out)), sizes, frame)


@lru_cache(maxsize=1024)
def _swept_along(network: Network, axis: Axis, new: int) -> BlockGeometry:
    """Return the geometry of a sweep's block along its axis, and of any block along others.

    Args:
        network: a tiled network for a volume.
        axis: the axis of the sweep.
        new: the output planes of the block, a multiple of the network's granularity.
    """
    alone = _geometry_along(network, AXES.index(axis), new, within=False)
    out = alone.frames[network.output].stored

    def frame(node: Node, stored: Box) -> Frame:
        stop = extent(node.layer.rounded(stored).stop, axis)
        first = stop - new // extent(network.strides[node.name], axis)
        computed = Box(resized(stored.start, axis, first), resized(stored.stop, axis, stop))
        return Frame(stored.hull(computed), computed)

    wanted = Box(resized(out.start, axis, 0), resized(out.stop, axis, new))
    traced = _traced(network, wanted, alone.sizes, frame)
    behind = {}
    for name, it in traced.frames.items():
        ahead = extent(it.computed.stop, axis) - extent(alone.frames[name].computed.start, axis)
        behind[name] = max(0, ahead * extent(network.strides[name], axis) - new)
    return replace(traced, behind=behind)


def _traced(
    network: Network, wanted: Box, sizes: Mapping[str, Vec3], frame: Callable[[Node, Box], Frame]
) -> BlockGeometry:
    """Return the samples of all values for a box of the output, traced back layer by layer.

    Args:
        wanted: the box of the output.
        sizes: the samples of each whole value, by name.
        frame: the function that returns a node's frame for the samples that readers need.
    """
    needed = {network.output: wanted}
    frames: dict[str, Frame] = {}
    reads: dict[str, tuple[Box, ...]] = {}
    for node in reversed(network.nodes):
        frames[node.name] = frame(node, needed[node.name])
        reads[node.name] = reads_of(node, frames[node.name].computed, sizes)
        for name, box in zip(node.inputs, reads[node.name], strict=True):
            needed[name] = needed[name].hull(box) if name in needed else box
    frames[INPUT] = Frame(needed[INPUT], needed[INPUT])
    return BlockGeometry(frames, reads, sizes)


def _wraps(node: Node) -> bool:
    """Return whether a node's value at one side depends on its input at the other."""
    return isinstance(node.layer, PadLayer) and node.layer.mode == "wrap"


def _clipped(box: Box, size: Vec3, uncut: Vec3) -> Box:
    """Return the part of a box within a whole value, along the axes that are not cut."""
    start, stop = box.start.maximum(ZERO), box.stop.minimum(size)
    return Box(
        Vec3(*(s if u else b for s, b, u in zip(start, box.start, uncut, strict=True))),
        Vec3(*(s if u else b for s, b, u in zip(stop, box.stop, uncut, strict=True))),
    )


def reads_of(node: Node, box: Box, sizes: Mapping[str, Vec3]) -> tuple[Box, ...]:
    """Return the samples of each of its inputs on which a box of a node's samples depends.

    Joins crop to the centre.
    """
    if isinstance(node.layer, GlobalPool):
        return (Box(ZERO, sizes[node.inputs[0]]),)
    taken = node.layer.reads(box)
    if not isinstance(node.layer, Join):
        return (taken,)
    size = node.layer.size_from(*(sizes[name] for name in node.inputs))
    aligned = [taken.shifted((sizes[name] - size) // 2) for name in node.aligned]
    return *aligned, *[Box(ZERO, sizes[name]) for name in node.inputs[len(aligned) :]]
