"""Inputs that every process makes alike, and errors against float64 of what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from bench.reference import convolution, pooling
from znni.core.shapes import ZERO, Box, Shape5, Vec3
from znni.network.layers import Conv, Pool, PooledConv
from znni.network.network import Network
from znni.network.weights import ConvWeights, Float32, Weights
from znni.primitives.reference import activation

SAMPLES = 64  # voxels of a layer's output that are judged
UNPOOLED = Pool("none", Vec3(1, 1, 1))
CORNER = 2  # voxels per axis of a network's output that are judged in a corner

# A function from an image (f, z, y, x) to the output (f', z, y, x), by plain pooling in float64.
Pooled: TypeAlias = Callable[[Float32], NDArray[np.floating]]


def normal(shape: Shape5) -> Float32:
    """Return standard normal numbers; a smaller batch is the start of a larger one."""
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def patch_input(network: Network, patch: Vec3, start: Vec3 = ZERO) -> Float32:
    """Return noise in 0..1 for one patch, (f, z, y, x), of one endless volume.

    Where patches overlap, their output voxels are the same numbers.

    Args:
        network: its field of view is added to the patch.
        patch: output voxels per axis.
        start: its first output voxel.
    """
    size = patch + network.field_of_view - 1
    x = np.zeros((network.in_features, *size), np.float32)
    for axis, (first, extent) in enumerate(zip((0, *start), x.shape, strict=True)):
        along = np.random.default_rng(axis).random(first + extent, dtype=np.float32)[first:]
        x += along.reshape([extent if other == axis else 1 for other in range(4)])
    return np.asarray(np.mod(x, 1, out=x))


def gaps_of_labels(
    ours: NDArray[np.integer[Any]], theirs: NDArray[np.integer[Any]], values: NDArray[Any]
) -> NDArray[Any]:
    """Return the gaps between the maps of two labels, for all voxels whose labels differ.

    Args:
        ours: the labels (z, y, x).
        theirs: the other labels.
        values: the maps (f, z, y, x) of either.

    Returns:
        A gap for each such voxel, relative to the largest value of all.
    """
    differ = ours != theirs
    maps = values[:, differ]
    voxels = np.arange(maps.shape[1])
    gaps = np.abs(maps[ours[differ], voxels] - maps[theirs[differ], voxels])
    return np.asarray(gaps / np.abs(values).max())


class Elsewhere(Protocol):
    """An array, wherever it is, whose parts are NumPy arrays."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""

    def __getitem__(self, index: Any, /) -> Any:
        """Return a part."""


class OnDevice:
    """An array of CuPy or PyTorch, of which only the parts asked for come to the host.

    Args:
        array: wherever it is.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = tuple(array.shape)

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        part = self._array[index]
        found = part.get() if hasattr(part, "get") else part.float().cpu().numpy()
        return np.asarray(found)


def sampled_error(
    x: Elsewhere, y: Elsewhere, layer: Conv | PooledConv, weights: ConvWeights
) -> float:
    """Return the largest error at random voxels, relative to the largest value there.

    Args:
        x: input (n, f, z, y, x).
        y: the layer's output to judge.
        layer: the convolution, with its pooling or without.
        weights: its parameters.
    """
    generator = np.random.default_rng(1)
    shape = Shape5(*y.shape)
    conv, pool = (layer.conv, layer.pool) if isinstance(layer, PooledConv) else (layer, UNPOOLED)
    view, stride = conv.kernel + pool.window - 1, pool.window
    worst = scale = 0.0
    for _ in range(SAMPLES):
        n, *place = (int(generator.integers(extent)) for extent in (shape.n, *shape.size))
        at = Vec3(*place)
        corner = at * stride
        seen = x[n : n + 1, :, *Box(corner, corner + view).slices]
        expected = pooling(convolution(seen, conv, weights), pool)[0, :, 0, 0, 0]
        worst = max(worst, float(np.abs(y[n, :, at.z, at.y, at.x] - expected).max()))
        scale = max(scale, float(np.abs(expected).max()))
    return worst / scale


class Corners(NamedTuple):
    """The voxels of a patch's output that ``CornerReference`` judges.

    They are total pooling apart, so that plain pooling gives them too. The first and the last
    belong to different fragments and, if a patch is computed in tiles, to different tiles.

    Attributes:
        patch: output voxels per axis.
        first: (f', z, y, x) from the first voxel on.
        last: the same up to the last voxel; None if that is not computed.
    """

    patch: Vec3
    first: Float32
    last: Float32 | None


def corners(network: Network, y: Elsewhere) -> Corners:
    """Return both corners of a patch's output (f', Z, Y, X)."""
    patch, p = Vec3(*y.shape[1:]), network.total_pooling
    count = patch.ceil_div(p).minimum(Vec3.of(CORNER))
    first, last = (
        samples(network, y, start, count) for start in (ZERO, patch - 1 - p * (count - 1))
    )
    return Corners(patch, first, last)


def samples(network: Network, y: Elsewhere, start: Vec3, count: Vec3) -> Float32:
    """Return ``count`` voxels (f', z, y, x) of a patch's output, total pooling apart."""
    p = network.total_pooling
    stop = start + p * (count - 1) + 1
    part = y[:, start.z : stop.z : p.z, start.y : stop.y : p.y, start.x : stop.x : p.x]
    return np.array(part, np.float32)


class CornerReference:
    """A network's output in patches of ``patch_input``, in float64, at voxels total pooling apart.

    Patches share the first corner; each has a last one of its own.

    Args:
        network: what to compute.
        pooled: the network by plain pooling, in float64.
    """

    def __init__(self, network: Network, pooled: Pooled) -> None:
        self._network, self._pooled = network, pooled
        self._known: dict[tuple[Vec3, Vec3], NDArray[np.floating]] = {}

    def error(self, found: Corners) -> float:
        """Return the largest error in the corners, relative to the largest value in them."""
        judged = [(ZERO, found.first)]
        if found.last is not None:
            count = Vec3(*found.last.shape[1:])
            judged.append((found.patch - 1 - self._network.total_pooling * (count - 1), found.last))
        return self.error_of(judged)

    def error_of(self, judged: Iterable[tuple[Vec3, Float32]]) -> float:
        """Return the same for ``samples`` that start anywhere."""
        pairs = [(y, self._output(start, Vec3(*y.shape[1:]))) for start, y in judged]
        worst = max(float(np.abs(y - expected).max()) for y, expected in pairs)
        return worst / max(float(np.abs(expected).max()) for _, expected in pairs)

    def _output(self, start: Vec3, count: Vec3) -> NDArray[np.floating]:
        """Compute ``count`` voxels, total pooling apart; each only once."""
        if (start, count) not in self._known:
            span = self._network.total_pooling * (count - 1) + 1
            self._known[start, count] = self._pooled(patch_input(self._network, span, start))
        return self._known[start, count]


def pooled_by_fft(network: Network, weights: Weights, threads: int) -> Pooled:
    """Return a network by FFT over whole images.

    The largest networks take a minute for a corner.

    Args:
        network: what to compute.
        weights: its parameters.
        threads: for the transforms.
    """

    def pooled(x: Float32) -> NDArray[np.floating]:
        value = x[np.newaxis].astype(np.float64)
        for layer in network.sliding_layers:
            if isinstance(layer, Conv):
                value = _convolution(value, layer, weights[layer.name], threads)
            else:
                value = pooling(value, layer)
        return np.asarray(value[0])

    return pooled


def _convolution(
    x: NDArray[np.float64], layer: Conv, weights: ConvWeights, threads: int
) -> NDArray[np.float64]:
    """Convolve one item as ``reference.convolution`` does, by circular correlation in float64."""
    axes = (-3, -2, -1)
    valid = Vec3(*x.shape[2:]) - layer.kernel + 1
    size = [fft.next_fast_len(extent, real=True) for extent in x.shape[2:]]
    y = np.empty((1, layer.out_features, *valid))
    with fft.set_workers(threads):
        spectra = fft.rfftn(x[0], size, axes)
        for index, kernel in enumerate(weights.weight.astype(np.float64)):
            product = np.conj(fft.rfftn(kernel, size, axes))
            product *= spectra
            whole = fft.irfftn(product.sum(axis=0), size, axes)
            y[0, index] = whole[: valid.z, : valid.y, : valid.x] + weights.bias[index]
    return activation(y, layer.activation)
