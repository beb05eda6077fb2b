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

from dataclasses import replace
from functools import lru_cache

from znni.core.errors import InvalidInput
from znni.core.shapes import ZERO, Box, Shape5, Vec3, extent, resized
from znni.network.frames import BlockGeometry, frames_of_block, whole_sizes
from znni.network.layers import Model, Pool
from znni.network.network import Network
from znni.network.node import INPUT
from znni.network.order import order_of_lowest_peak
from znni.network.window import Window

# The longest period of a network's lattices, far beyond any that is trained.
LONGEST_PERIOD = 1024

# Volumes of so many periods are large enough for every value to have samples.
MANY_PERIODS = 4096


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
    sizes = {name: frame.computed.size for name, frame in frames.items()}
    if network.is_swept:
        sizes[INPUT] = input_box(network, patch).size  # for all passes
    maps = network.maps
    return {name: Shape5.of(network.together, maps[name], size) for name, size in sizes.items()}


def input_box(network: Network, patch: Vec3) -> Box:
    """Return the voxels of the input for a patch, or for one of its windows.

    Its first output voxel is 0. In a sweep, some planes come before those that it depends on.
    """
    if network.is_tiled:
        alone = _alone(network, patch)
        stop = block_geometry(network, patch).frames[INPUT].stored.stop
        return Box(alone.start - planes_before(network, patch), stop)
    return Box(ZERO - planes_before(network, patch), patch + network.field_of_view - 1)


def planes_before(network: Network, patch: Vec3) -> Vec3:
    """Return the planes of a sweep's input before those that a patch depends on, for each axis.

    If no block comes before the patch, its first pass needs planes there. Their values do not
    matter.
    """
    axis = network.swept_along
    if axis is None:
        return ZERO
    if not network.is_tiled:
        return resized(ZERO, axis, extent(patch, axis) - 1)
    geometry, new = block_geometry(network, patch), extent(patch, axis)
    first_passes = -(-max(geometry.behind.values()) // new) * new
    start = extent(geometry.frames[INPUT].stored.start, axis) - first_passes
    return resized(ZERO, axis, extent(_alone(network, patch).start, axis) - start)


def _alone(network: Network, patch: Vec3) -> Box:
    """Return the voxels of the input for a tiled network's block that no other precedes."""
    extents, axis = block_extents(network, patch), network.swept_along
    return frames_of_block(network, extents, axis, alone=True).frames[INPUT].stored


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
    return _alone(larger, patch)


def block_geometry(network: Network, patch: Vec3) -> BlockGeometry:
    """Return the samples of all values for a block of output.

    Args:
        network: a tiled network for a volume.
        patch: the output voxels of the block. An axis as long as the whole output is not cut. If
            the network is computed in windows, the block is a window, whatever this is.

    Raises:
        ValueError: the network is for no volume.
    """
    return frames_of_block(network, block_extents(network, patch), network.swept_along)


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
