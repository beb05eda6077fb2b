"""The definition of correct for tiled networks: layers that pad, stretch, join and normalise.

Tests compare primitives with ``local``, and whole outputs with ``output_at_once``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import cpu_count
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from znni.core.shapes import ZERO, Box, Vec3, offsets
from znni.network.frames import whole_sizes
from znni.network.geometry import large_input
from znni.network.layers import (
    NO_PADDING,
    Add,
    Affine,
    Concat,
    Conv,
    ConvTranspose,
    Elementwise,
    GlobalPool,
    Join,
    Layer,
    Maximum,
    Model,
    Multiply,
    Normalize,
    Padding,
    PadLayer,
    Pool,
    Upsample,
    VoxelNorm,
    Weighted,
)
from znni.network.model_files import opened
from znni.network.network import Network
from znni.network.node import INPUT, Node
from znni.network.weights import ConvWeights, Weights, in_one_group
from znni.primitives.reference import Float64, activation


def output_at_once(
    network: Network,
    weights: Weights,
    x: NDArray[np.floating],
    beyond: Literal["zeros", "wrap"] = "zeros",
) -> Float64:
    """Return the output (f', z', y', x') of a tiled network evaluated once on (f, z, y, x).

    Args:
        network: a tiled network.
        x: the whole input.
        beyond: what lies beyond every value: ``zeros``, as padding has it; or ``wrap``, the same
            values again and again. With ``wrap`` no value has another size than its lattice gives
            it, so the extents of ``x`` must be a multiple of the network's alignment.
    """
    extents = Vec3(*x.shape[1:]) if beyond == "zeros" else large_input(network)
    sizes = whole_sizes(network, extents)
    values: dict[str, Float64] = {INPUT: x.astype(np.float64)}
    for node in network.nodes:
        given = [values[name] for name in node.inputs]
        if isinstance(node.layer, Join):
            given = _cropped(node, given, sizes, beyond)
        values[node.name] = _whole(node.layer, weights, given, beyond)
    return values[network.output]


def _whole(
    layer: Layer, weights: Weights, given: list[Float64], beyond: Literal["zeros", "wrap"]
) -> Float64:
    """Return a layer's whole output (f', z', y', x') for its whole inputs."""
    x = given[0]
    match layer:
        case Conv():
            padded = _padded(x, layer.padding, layer.reach, layer.stride, beyond, 0.0)
            return _finished(_strided(padded, layer, weights[layer.name]), layer, weights)
        case ConvTranspose():
            return _finished(_transposed(x, layer, weights[layer.name], beyond), layer, weights)
        case Pool():
            missing = -np.inf if layer.reduce == "max" else 0.0
            padded = _padded(x, layer.padding, layer.reach, layer.stride, beyond, missing)
            seen = sliding_window_view(padded, layer.reach, axis=(1, 2, 3))
            (sz, sy, sx), (dz, dy, dx) = layer.stride, layer.dilation
            seen = seen[:, ::sz, ::sy, ::sx, ::dz, ::dy, ::dx]
            reduced = seen.max if layer.reduce == "max" else seen.mean
            return np.asarray(reduced(axis=(4, 5, 6)))
        case GlobalPool():
            over = x.mean if layer.reduce == "average" else x.max
            return np.asarray(over(axis=(1, 2, 3), keepdims=True))
        case Upsample():
            return _upsampled(x, layer, beyond)
        case PadLayer():
            before, after = layer.padding
            if beyond == "wrap":
                return np.roll(x, before, axis=(1, 2, 3))
            around = [(0, 0), *zip(before, after, strict=True)]
            return np.pad(x, around, mode=layer.mode)
        case Affine():
            scale, shift = weights[layer.name].weight, weights[layer.name].bias
            y = x * scale[:, None, None, None] + shift[:, None, None, None]
            return _finished(y, layer, weights)
        case Normalize() | VoxelNorm():
            scale, shift = weights[layer.name].weight, weights[layer.name].bias
            y = _normalized(x, layer) * scale[:, None, None, None] + shift[:, None, None, None]
            if isinstance(layer, Normalize) and layer.by == "response":
                y += x
            return _finished(y, layer, weights)
        case Concat():
            return np.concatenate(given)
        case Add():
            return _finished(given[0] + given[1], layer, weights)
        case Multiply():
            return _finished(given[0] * given[1], layer, weights)
        case Maximum():
            return _finished(np.maximum(*given), layer, weights)
        case Model():  # no other definition exists than what its library computes, in float32
            made = opened(layer, cpu_count() or 1)(x[None].astype(np.float32))
            return np.asarray(made[0], np.float64)


def local(
    layer: Layer, weights: Weights, given: Sequence[NDArray[np.floating]], inside: Box | None = None
) -> Float64:
    """Return what a primitive computes for a layer of a tiled network (n, f', z', y', x').

    No layer pads: zeros around a value are stored with it. The output is what all of the input
    gives.

    Args:
        weights: the weights of its network.
        given: its inputs (n, f, z, y, x).
        inside: the samples of the input that lie within the volume; None means all.
    """
    return np.stack(
        [
            _local(layer, weights, [part.astype(np.float64) for part in parts], inside)
            for parts in zip(*given, strict=True)
        ]
    )


def _local(layer: Layer, weights: Weights, given: list[Float64], inside: Box | None) -> Float64:
    x = given[0]
    match layer:
        case Conv():
            return _whole(replace(layer, padding=NO_PADDING), weights, given, "zeros")
        case ConvTranspose():
            size, (before, after) = Vec3(*x.shape[1:]), layer.context
            y = _scattered(x, layer, weights[layer.name])
            start = before * layer.stride + layer.padding
            stop = start + (size - before - after) * layer.stride
            short = [(0, max(0, a - b)) for a, b in zip(stop, y.shape[1:], strict=True)]
            y = np.pad(y, [(0, 0), *short])[:, *Box(start, stop).slices]
            return _finished(y + weights[layer.name].bias[:, None, None, None], layer, weights)
        case Pool(padding=padding) if padding != NO_PADDING:
            seen = np.full(x.shape, -np.inf if layer.reduce == "max" else 0.0)
            stored = Box(ZERO, Vec3(*x.shape[1:]))
            if kept := stored.intersection(inside or stored):
                seen[:, *kept.slices] = x[:, *kept.slices]
            return _whole(replace(layer, padding=NO_PADDING), weights, [seen], "zeros")
        case PadLayer():
            stored = Box(ZERO, Vec3(*x.shape[1:]))
            filled_from = stored.intersection(inside or stored)
            if filled_from is None:
                return np.zeros_like(x)
            for axis, (a, b) in enumerate(zip(*filled_from, strict=True), start=1):
                within = x.take(np.arange(a, b), axis)
                around = [(0, 0)] * 4
                around[axis] = a, x.shape[axis] - b
                x = np.pad(within, around, mode=layer.mode)
            return x
        case Upsample() if layer.sees_edges:
            if inside:
                for axis, (a, b) in enumerate(zip(*inside, strict=True), start=1):
                    x = x.take(np.arange(x.shape[axis]).clip(a, b - 1), axis)
            y = _upsampled(x, layer.local, "zeros")
            start = layer.context * layer.factor
            return y[:, *Box(start, Vec3(*y.shape[1:]) - start).slices]
        case _:
            return _whole(layer, weights, given, "zeros")


def _normalized(x: Float64, layer: Normalize | VoxelNorm) -> Float64:
    """Return the values (f, z, y, x) of a norm, before its factors and shifts."""
    grouped = x.reshape(layer.groups, -1, *x.shape[1:])
    if isinstance(layer, Normalize) and layer.by == "response":
        norms = np.sqrt((grouped**2).sum(axis=(2, 3, 4), keepdims=True))
        shares = norms / (norms.mean(axis=1, keepdims=True) + layer.eps)
        return np.asarray(grouped * shares).reshape(x.shape)
    axes = (1,) if isinstance(layer, VoxelNorm) else (1, 2, 3, 4)
    apart = grouped - grouped.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(grouped.var(axis=axes, keepdims=True) + layer.eps)
    return np.asarray(apart / deviation).reshape(x.shape)


def _finished(y: Float64, layer: Weighted | Elementwise, weights: Weights) -> Float64:
    """Return values after a layer's activation."""
    found = weights.layers.get(layer.name)
    slope = layer.slope if found is None or found.slope is None else found.slope
    return np.asarray(activation(y[None], layer.activation, slope)[0])


def _padded(
    x: Float64,
    padding: Padding,
    reach: Vec3,
    stride: Vec3,
    beyond: Literal["zeros", "wrap"],
    missing: float,
) -> Float64:
    """Return values (f, z, y, x) with what a layer of that reach sees around them."""
    if beyond == "zeros":
        around = [(0, 0), *zip(padding.before, padding.after, strict=True)]
        return np.pad(x, around, constant_values=missing)
    for axis, extent in enumerate(x.shape[1:]):
        last = extent - stride[axis] - padding.before[axis] + reach[axis]
        x = x.take(np.arange(-padding.before[axis], last) % extent, axis + 1)
    return x


def _strided(x: Float64, layer: Conv, weights: ConvWeights) -> Float64:
    """Return a convolution's sums (f', z', y', x') for its padded input."""
    (sz, sy, sx), size = layer.stride, Vec3(*x.shape[1:]) - layer.reach
    y = np.zeros((layer.out_features, *(size // layer.stride + 1)))
    groups = (np.split(array, layer.groups) for array in (y, x, weights.weight))
    for sums, some, taps in zip(*groups, strict=True):
        for tap in offsets(layer.kernel):
            start = tap * layer.dilation
            seen = some[:, *Box(start, start + size + 1).slices][:, ::sz, ::sy, ::sx]
            sums[...] += np.tensordot(taps[:, :, *tap], seen, axes=1)
    return y + weights.bias[:, None, None, None]


def _scattered(x: Float64, layer: ConvTranspose, weights: ConvWeights) -> Float64:
    """Return all sums of a transposed convolution: each sample adds its kernel."""
    (sz, sy, sx), (nz, ny, nx) = layer.stride, x.shape[1:]
    full = (Vec3(nz, ny, nx) - 1) * layer.stride + layer.kernel
    y = np.zeros((layer.out_features, *full))
    weight = in_one_group(weights.weight, layer.groups)
    for tap in offsets(layer.kernel):
        part = np.einsum("fzyx,fo->ozyx", x, weight[:, :, tap.z, tap.y, tap.x])
        y[
            :,
            tap.z : tap.z + (nz - 1) * sz + 1 : sz,
            tap.y : tap.y + (ny - 1) * sy + 1 : sy,
            tap.x : tap.x + (nx - 1) * sx + 1 : sx,
        ] += part
    return y


def _transposed(
    x: Float64, layer: ConvTranspose, weights: ConvWeights, beyond: Literal["zeros", "wrap"]
) -> Float64:
    """Return a transposed convolution's whole output before its activation."""
    size, y = Vec3(*x.shape[1:]), _scattered(x, layer, weights)
    if beyond == "wrap":
        for axis, extent in enumerate(size * layer.stride):
            along = np.moveaxis(y, axis + 1, 0)
            whole = np.zeros((extent, *along.shape[1:]))
            np.add.at(whole, (np.arange(len(along)) - layer.padding[axis]) % extent, along)
            y = np.moveaxis(whole, 0, axis + 1)
    else:
        start, stop = layer.padding, layer.padding + layer.size_from(size)
        short = [(0, max(0, a - b)) for a, b in zip(stop, y.shape[1:], strict=True)]
        y = np.pad(y, [(0, 0), *short])[:, *Box(start, stop).slices]
    return y + weights.bias[:, None, None, None]


def _upsampled(x: Float64, layer: Upsample, beyond: Literal["zeros", "wrap"]) -> Float64:
    """Return upsampled values; interpolation sees the outermost samples again beyond the edges."""
    if beyond == "wrap":
        x = np.roll(x, layer.shift, axis=(1, 2, 3))
    else:
        x = np.pad(x, [(0, 0), *((by, 0) for by in layer.shift)], mode="edge")
    for axis, factor in enumerate(layer.factor, start=1):
        if layer.mode == "nearest":
            x = x.repeat(factor, axis)
            continue
        count = x.shape[axis]
        place = (np.arange(count * factor) + 0.5) / factor - 0.5
        low = np.floor(place).astype(int)
        share = (place - low).reshape(-1, *(1,) * (3 - axis))
        below, above = (
            (at % count if beyond == "wrap" else at.clip(0, count - 1)) for at in (low, low + 1)
        )
        x = x.take(below, axis) * (1 - share) + x.take(above, axis) * share
    return x


def _cropped(
    node: Node, given: list[Float64], sizes: Mapping[str, Vec3], beyond: Literal["zeros", "wrap"]
) -> list[Float64]:
    """Return the inputs of a join, cropped around their centres to the smallest of them.

    Args:
        node: the join.
        given: its whole inputs (f, z, y, x).
        sizes: the whole sizes of the values. With ``wrap`` they are those of a large volume.
        beyond: as for ``output_at_once``.
    """
    made = node.layer.size_from(*(sizes[name] for name in node.inputs))
    starts = [(sizes[name] - made) // 2 for name in node.aligned]
    aligned, others = given[: len(starts)], given[len(starts) :]
    if beyond == "wrap":
        cropped = [
            np.roll(value, [-at for at in start], axis=(1, 2, 3))
            for value, start in zip(aligned, starts, strict=True)
        ]
    else:
        cropped = [
            value[:, *Box(start, start + made).slices]
            for value, start in zip(aligned, starts, strict=True)
        ]
    return cropped + others
