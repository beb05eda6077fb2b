"""Tiled networks: the samples of every value, over the whole volume and in one block of it.

The output of a tiled network is that of one evaluation over the whole volume. Every value is an
array of samples, whose sizes follow from the volume's extents as in PyTorch. A block of output
depends on a box of samples of every value. Where that box reaches beyond the value, it holds zeros.

Along an axis, a block either spans the whole volume or is cut from it. A whole axis needs no
samples beyond the values, and their zeros are part of the plan. Blocks of a cut axis begin at
multiples of the network's alignment. So all of them have the same shapes, those at the volume's
faces too, whose zeros are set when they run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from znni.core.errors import InvalidInput
from znni.core.shapes import Box, Shape5, Vec3, extent, resized
from znni.network.layers import GlobalPool, Join, Model, Normalize, PadLayer, Pool
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.order import order_of_lowest_peak
from znni.network.window import Window

ZERO = Vec3(0, 0, 0)

# The longest period of a network's lattices, far beyond any that is trained.
LONGEST_PERIOD = 1024

# Volumes of so many periods are large enough for every value to have samples.
MANY_PERIODS = 4096


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
    """

    frames: Mapping[str, Frame]
    reads: Mapping[str, tuple[Box, ...]]
    sizes: Mapping[str, Vec3]


def whole_sizes(network: Network, whole: Vec3) -> dict[str, Vec3]:
    """Return the samples per axis of every value over the whole volume."""
    sizes = {INPUT: whole}
    for node in network.nodes:
        sizes[node.name] = node.layer.size_from(*(sizes[name] for name in node.inputs))
    return sizes


@lru_cache(maxsize=256)
def phase(network: Network) -> Vec3:
    """Return the remainder of the input's extents, by the alignment, that suits the network.

    With these extents, poolings drop no sample, and joins crop as little as possible.

    Raises:
        InvalidInput: no extents suit: values that are joined differ in size.
    """
    return Vec3(*(_axis_phase(network, axis) for axis in range(3)))


def _axis_phase(network: Network, axis: int) -> int:
    period = network.alignment[axis]
    if period > LONGEST_PERIOD:
        raise InvalidInput(
            f"network {network.name} pools by {period} along {'zyx'[axis]} before it upsamples, "
            f"and {LONGEST_PERIOD} is the most; give smaller windows or strides"
        )
    found = min(range(period), key=lambda rest: (*_misfit(network, axis, rest), rest))
    dropped, _ = _misfit(network, axis, found)
    if dropped:
        raise InvalidInput(
            f"network {network.name} drops samples along {'zyx'[axis]} for every extent of its "
            f"input, so blocks of it cannot be joined; give poolings whose windows tile their input"
        )
    return found


def _misfit(network: Network, axis: int, rest: int) -> tuple[int, int]:
    """Return the samples that poolings drop, and those that joins crop, along an axis."""
    sizes = whole_sizes(network, network.alignment * MANY_PERIODS + rest)
    dropped = cropped = 0
    for node in network.nodes:
        taken = [sizes[name][axis] for name in node.aligned]
        if isinstance(node.layer, Pool):
            dropped += _dropped(node.layer, taken[0], axis)
        cropped += sum(taken) - len(taken) * min(taken)
    return dropped, cropped


def _dropped(pool: Pool, extent: int, axis: int) -> int:
    """Return the samples at the end of an axis that no window has, but would if they were more."""
    stride, window = pool.stride[axis], pool.reach[axis]
    left = (extent + pool.padding.total[axis] - window) % stride
    return max(0, left - pool.padding.after[axis] - max(0, stride - window))


def large_input(network: Network) -> Vec3:
    """Return extents of an input that suits the network and gives every value many samples."""
    return network.alignment * MANY_PERIODS + phase(network)


@lru_cache(maxsize=256)
def context(network: Network) -> Vec3:
    """Return the voxels per axis that the output has fewer than the input.

    Raises:
        InvalidInput: the output has more voxels than the input.
    """
    whole = large_input(network)
    lost = whole - whole_sizes(network, whole)[network.output]
    if min(lost) < 0:
        raise InvalidInput(
            f"network {network.name} gives more voxels than it takes (by {ZERO - lost} per axis); "
            f"correct the padding of its layers"
        )
    return lost


@lru_cache(maxsize=256)
def whole_input(network: Network, volume: Vec3) -> Vec3:
    """Return the least extents of an input that suits the network and holds a volume."""
    period, rest = network.alignment, phase(network)
    whole = rest + (volume - rest).ceil_div(period) * period
    missing = ZERO  # periods until every value has samples
    for name, size in whole_sizes(network, whole).items():
        missing = missing.maximum(((ZERO - size + 1) * network.strides[name]).ceil_div(period))
    return whole + period * missing


def over(network: Network, whole: Vec3) -> Network:
    """Return a tiled network for an input of these extents, from ``whole_input``.

    Its nodes have the order in which blocks need the least memory.
    """
    return replace(network, nodes=order_of_lowest_peak(network), whole=whole)


def with_window(network: Network, window: Window) -> Network:
    """Return a network that is computed in windows.

    Args:
        network: the network, such as ``znni.load_network`` returns.
        window: the windows.

    Raises:
        InvalidInput: the network cannot be computed in windows of this size.
    """
    if not network.is_tiled and network.total_pooling.volume > 1:
        raise InvalidInput(
            f"network {network.name} slides over the volume and gives an output for every voxel, "
            f"so it needs no windows; leave them out"
        )
    nodes = (
        replace(node, layer=replace(node.layer, window=window.size))
        if isinstance(node.layer, Model)
        else node
        for node in network.nodes
    )
    windowed = replace(network, nodes=tuple(nodes), window=window)
    for model in windowed.models:
        if model.fixed not in (None, window.size):
            raise InvalidInput(
                f"{model.given} takes windows of {model.fixed} only, and {window.size} are asked "
                f"for; give windows of {model.fixed}, import it with znni import, if all of its "
                f"layers are known, or export it with free extents (dynamic_axes of "
                f"torch.onnx.export, dynamic_shapes of torch.export)"
            )
    size, suited = window.size, whole_input(windowed, window.size)
    if suited != size:
        below = (size // windowed.alignment * windowed.alignment).maximum(1)
        smaller = f" or {below}" if whole_input(windowed, below) == below else ""
        raise InvalidInput(
            f"network {network.name} cannot be computed in windows of {size}, because its "
            f"poolings or joins do not fit; give {suited}{smaller}"
        )
    given = whole_sizes(windowed, size)[network.output]
    if given != size:
        raise InvalidInput(
            f"network {network.name} gives {given} voxels for a window of {size}, and windows are "
            f"blended only if they keep their size; compute it over the whole volume, without "
            f"windows"
        )
    return windowed


def shapes(network: Network, patch: Vec3) -> dict[str, Shape5]:
    """Return the shape of each value that is computed for a patch, and of the network's input.

    For windows, these are the values of all windows that are computed at once.

    Args:
        network: a sliding network, or a tiled one for a volume.
        patch: the output voxels of the patch, a multiple of the network's granularity.
    """
    if not network.is_tiled:
        return network.shapes(patch)
    frames = block_geometry(network, patch).frames
    return {
        name: Shape5.of(network.together, network.maps[name], frame.computed.size)
        for name, frame in frames.items()
    }


def input_box(network: Network, patch: Vec3) -> Box:
    """Return the voxels of the input for a patch, or for one of its windows.

    Its first output voxel is 0. In a sweep, some planes come before those that it depends on.
    """
    if network.is_tiled:
        return block_geometry(network, patch).frames[INPUT].stored
    return Box(ZERO - planes_before(network, patch), patch + network.field_of_view - 1)


def planes_before(network: Network, patch: Vec3) -> Vec3:
    """Return the planes of a sweep's input before those that a patch depends on, for each axis.

    If no block comes before the patch, its first pass needs planes there. Their values do not
    matter.
    """
    axis = network.swept_along
    return resized(ZERO, axis, extent(patch, axis) - 1) if axis else ZERO


def extents_read(network: Network, patch: Vec3) -> Vec3:
    """Return the most voxels per axis of the volume that are read for a patch."""
    if network.window:
        return network.window.most_around(patch)
    return input_box(network, patch).size


@lru_cache(maxsize=1024)
def reach(network: Network, patch: Vec3) -> Box:
    """Return the voxels on which a tiled network's block would depend in an endless volume.

    The first output voxel of the block is 0. Where these voxels lie beyond the input, the block
    sees zeros, in one layer or another.
    """
    whole = network.whole
    if whole is None:
        raise ValueError(f"network {network.name} is for no volume; call over(network, whole)")
    patch = patch.minimum(whole - context(network))
    larger = replace(network, whole=whole + network.alignment)  # the block cuts every axis
    return block_geometry(larger, patch).frames[INPUT].stored


def block_geometry(network: Network, patch: Vec3) -> BlockGeometry:
    """Return the samples of all values for a block of output.

    Args:
        network: a tiled network for a volume.
        patch: the output voxels of the block. An axis as long as the whole output is not cut. If
            the network is computed in windows, the block is a window, whatever this is.

    Raises:
        ValueError: the network is for no volume.
    """
    return _block_geometry(network, block_extents(network, patch))


def cut_for_gpu(network: Network) -> Shape5:
    """Return the shape of the windows that are copied to a GPU for a group."""
    window = given_window(network)
    return Shape5.of(window.cut_for_gpu, network.in_features, window.size)


def given_window(network: Network) -> Window:
    """Return the windows of a network.

    Raises:
        ValueError: it has none.
    """
    if network.window is None:
        raise ValueError(f"network {network.name} has no windows")
    return network.window


def block_extents(network: Network, patch: Vec3) -> Vec3:
    """Return the extents of a block as layers compute it: those of a patch, or of any window.

    Raises:
        ValueError: the network is for no volume.
    """
    if network.whole is None:
        raise ValueError(f"network {network.name} is for no volume; call over(network, whole)")
    return network.whole if network.window else patch


@lru_cache(maxsize=1024)
def _block_geometry(network: Network, patch: Vec3) -> BlockGeometry:
    """Return the geometry of a block, from three blocks each of which is as long along one axis.

    No axis depends on another one. So of thousands of blocks, few are worked out as a whole.
    """
    z, y, x = (_geometry_along(network, axis, extent) for axis, extent in enumerate(patch))
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
    return BlockGeometry(frames, reads, z.sizes)


def _by_axis(z: Box, y: Box, x: Box) -> Box:
    """Return the box that is like each of three boxes along its own axis."""
    (z_start, _, _), (z_stop, _, _) = z
    (_, y_start, _), (_, y_stop, _) = y
    (_, _, x_start), (_, _, x_stop) = x
    return Box(Vec3(z_start, y_start, x_start), Vec3(z_stop, y_stop, x_stop))


@lru_cache(maxsize=1024)
def _geometry_along(network: Network, axis: int, extent: int) -> BlockGeometry:
    """Return the geometry of a block of an extent along one axis, and any extent along others."""
    assert network.whole is not None
    patch = Vec3(*(extent if axis == it else along for it, along in enumerate(network.granularity)))
    sizes = whole_sizes(network, network.whole)
    out = sizes[network.output]
    uncut = Vec3(*(int(extent >= limit) for extent, limit in zip(patch, out, strict=True)))
    needed = {network.output: Box(ZERO, patch.minimum(out))}
    frames: dict[str, Frame] = {}
    reads: dict[str, tuple[Box, ...]] = {}
    for node in reversed(network.nodes):
        stored = needed[node.name]
        if isinstance(node.layer, Normalize | Model) or _wraps(node):
            stored = stored.hull(Box(ZERO, sizes[node.name]))
        computed = node.layer.rounded(_clipped(stored, sizes[node.name], uncut))
        frames[node.name] = Frame(stored.hull(computed), computed)
        reads[node.name] = reads_of(node, computed, sizes)
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
