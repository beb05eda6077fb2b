"""Comparing an imported network with the original.

The original runs on random input, in its own library.

A network that is slid over every voxel is compared at two offsets. The original has strides, so it
gives every P-th voxel of the dense output per axis, for strides of P in total. It runs twice: on
the input, and on the input shifted by P - 1 voxels. Both outputs must agree with the dense output
that znni computes.

A tiled network is evaluated once over the whole input: by the plain definition in float64 if that
takes seconds, and otherwise as it will run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

import numpy as np

from znni.core.errors import InvalidInput, RunFailed, first_line
from znni.core.memory_errors import DoesNotFit
from znni.core.shapes import ONE, ZERO, Box, Vec3
from znni.core.text import in_units
from znni.importing.folding import Folded
from znni.importing.steps import Original, Sample
from znni.machine.detect import detect_host
from znni.network.frames import whole_sizes
from znni.network.geometry import context, whole_input, with_window
from znni.network.input_scaling import AS_STORED
from znni.network.layers import Affine, Conv, ConvTranspose, Normalize
from znni.network.network import Network
from znni.network.weights import Float32, Weights
from znni.network.window import Window
from znni.primitives.tiled_reference import output_at_once

MOST_ERROR = 1e-4  # largest allowed difference, relative to the largest output
SEED = 0
TINY = float(np.finfo(np.float32).tiny)
Compute: TypeAlias = "Callable[[Network, Weights, Float32], Float32]"
COPIES = 3  # copies of a layer's input and output that a library may hold
EXTENTS = (1, 12, 24, 36, 48)  # of inputs of tiled networks, before they are made to suit
MOST_SAMPLE_ERROR = 1e-3  # as in bioimage.io's own tests: other versions of libraries made them
MOST_APART = 1e-3  # largest allowed share of values on the other side of a threshold
EXACT_FLOPS = 1e10  # operations that the plain definition does in seconds


@dataclass(frozen=True)
class Parity:
    """The difference between two computations of a network.

    Attributes:
        runtime: library that ran the original, or the name of an example of input and output.
        error: largest difference, relative to the largest output; if there is a threshold, the
            share of values on its other side.
        size: extents of the original's input.
        allowed: the largest error that rounding can explain.
        threshold: the threshold that was applied to the output.
    """

    runtime: str
    error: float
    size: Vec3
    allowed: float = MOST_ERROR
    threshold: float | None = None

    @property
    def is_small(self) -> bool:
        """True if rounding can explain it; False for NaN."""
        return self.error <= self.allowed

    def __str__(self) -> str:
        on = " on random input" if self.allowed == MOST_ERROR else ""
        differs = f"differs by {self.error:.1e} of the largest output"
        if self.threshold is not None:
            differs = f"{self.error:.1e} of all values lie on the other side of {self.threshold:g}"
        return (
            f"compared with {self.runtime}{on} of {self.size}: {differs} (up to {self.allowed:g} "
            f"is allowed)"
        )


def compare_sample(
    folded: Folded, sample: Sample, original: Original | str, compute: Compute
) -> Parity | str:
    """Run a network on an example of its source, in one window if it depends on windows.

    Args:
        folded: network as imported.
        sample: the example.
        original: network in its own library, or why it is unknown.
        compute: function that runs the imported network.

    Returns:
        The difference, or the reason why it is unknown.

    Raises:
        RunFailed: the outputs differ by more than rounding can explain.
    """
    network, size = folded.network, Vec3(*sample.given.shape[1:])
    if network.window_layer:
        network = with_window(network, Window(size, overlap=0, blend="constant"))
    try:
        ours = compute(network, folded.weights, sample.given)
    except (DoesNotFit, InvalidInput) as error:
        return f"{sample.name} cannot be computed here: {error}"
    if _slides(folded):
        extents = Vec3(*sample.output.shape[1:])
        ours = _strided(ours, ZERO, _stride(folded), extents)
    elif isinstance(original, Original):
        ours = _without_margin(ours, sample.output, original, size)
    if ours.shape != sample.output.shape:
        raise RunFailed(
            f"as imported, the network gives an output of shape {ours.shape}, and {sample.name} "
            f"have {sample.output.shape}; nothing is written: report this"
        )
    if sample.threshold is None:
        parity = Parity(sample.name, _difference(ours, sample.output), size, MOST_SAMPLE_ERROR)
    else:
        apart = float(np.mean((ours > sample.threshold) != (sample.output > 0)))
        parity = Parity(sample.name, apart, size, MOST_APART, sample.threshold)
    if not parity.is_small:
        raise RunFailed(f"as imported, the network is another one: {parity}; nothing is written")
    return parity


def compare(folded: Folded, original: Original, compute: Compute) -> Parity | str:
    """Run a network and its original on random input.

    Args:
        folded: network as imported.
        original: network in its own library.
        compute: function that runs the imported network, unless the plain definition is quick.

    Returns:
        The difference, or the reason why it is unknown.

    Raises:
        RunFailed: the outputs differ by more than rounding can explain.
    """
    size, slides = original.size or _size(folded), _slides(folded)
    if obstacle := _obstacle(folded, original, size):
        return obstacle
    network, stride = folded.network, _stride(folded) if slides else ONE
    if not slides:
        network = replace(network, window=None, scaling=AS_STORED)
    x = _random(network, size + stride - 1)
    starts = list(dict.fromkeys((ZERO, stride - 1)))
    try:
        parts = (x[:, *Box(start, start + size).slices] for start in starts)
        theirs = [original.run(np.ascontiguousarray(part)) for part in parts]
    except Exception as error:  # the original's library may raise any kind
        return f"{original.runtime} could not run the original: {first_line(error)}"
    try:
        dense = _computed(network, folded.weights, x, compute)
    except DoesNotFit as error:
        return f"a patch to compare does not fit into memory: {error}"
    if slides:
        extents = (size - _view(network)) // stride + 1
        ours = [_strided(dense, start, stride, extents) for start in starts]
    else:
        ours = [_without_margin(dense, theirs[0], original, size)]
    return _judged(original, ours, theirs, size)


def _computed(network: Network, weights: Weights, x: Float32, compute: Compute) -> Float32:
    """Return a network's output for a whole input: by the plain definition if that takes seconds.

    A network that is slid by fragments has no such definition that is quick.
    """
    size = Vec3(*x.shape[1:])
    if network.is_tiled and _work(network, size)[1] <= EXACT_FLOPS:
        return output_at_once(network, weights, x).astype(np.float32)
    if network.window_layer:
        network = with_window(network, Window(size, overlap=0, blend="constant"))
    return compute(network, weights, x)


def _slides(folded: Folded) -> bool:
    """Return whether the network gives every voxel, and the original one of each stride."""
    return not folded.network.is_tiled or folded.stride != ONE


def _stride(folded: Folded) -> Vec3:
    """Return the voxels between outputs of the original of a network that slides."""
    return folded.network.total_pooling * folded.stride


def _view(network: Network) -> Vec3:
    """Return the field of view of a network that slides."""
    return context(network) + 1 if network.is_tiled else network.field_of_view


def _random(network: Network, size: Vec3) -> Float32:
    """Return random input."""
    generator = np.random.default_rng(SEED)
    return generator.standard_normal((network.in_features, *size), dtype=np.float32)


def _size(folded: Folded) -> Vec3:
    """Return the extents of an input to compare on.

    A tiled network gets the largest of several that both libraries compute in seconds, so that
    some voxels are far from the edges. It gets the least if even that takes longer.
    """
    network = folded.network
    if _slides(folded):
        return _view(network) + _stride(folded)
    sizes = [whole_input(network, Vec3.of(extent)) for extent in EXTENTS]
    # Libraries refuse to normalize a single value.
    able = [size for size in sizes if _normalized_values(network, size) > 1]
    quick = [size for size in able if _work(network, size)[1] <= EXACT_FLOPS]
    return max(quick, default=able[0] if able else whole_input(network, network.alignment * 2))


def _normalized_values(network: Network, size: Vec3) -> float:
    """Return the fewest samples by which a layer normalizes."""
    sizes = whole_sizes(network, size)
    normalizing = (node.name for node in network.nodes if isinstance(node.layer, Normalize))
    return min((sizes[name].volume for name in normalizing), default=inf)


def _judged(
    original: Original, ours: Sequence[Float32], theirs: Sequence[Float32], size: Vec3
) -> Parity | str:
    """Return how close the outputs are, or why they show nothing."""
    for own, other in zip(ours, theirs, strict=True):
        if own.shape != other.shape:
            raise RunFailed(
                f"as imported, the network gives an output of shape {own.shape}, and "
                f"{original.runtime} gives {other.shape}; nothing is written: report this"
            )
    own, other = (np.concatenate([y.ravel() for y in outputs]) for outputs in (ours, theirs))
    if not np.isfinite(other).all():
        return "its output is not finite on random input, which would show nothing"
    if other.size > 1 and np.ptp(other) == 0:
        return "its output is the same everywhere on random input, which would show nothing"
    parity = Parity(original.runtime, _difference(own, other), size)
    if not parity.is_small:
        raise RunFailed(
            f"as imported, the network differs from what {original.runtime} computes by "
            f"{parity.error:.1e} of the largest output, and {MOST_ERROR:g} is allowed; nothing is "
            f"written: report this"
        )
    return parity


def _difference(ours: Float32, theirs: Float32) -> float:
    """Return the largest difference, relative to the largest output."""
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), TINY))


def _without_margin(ours: Float32, theirs: Float32, original: Original, size: Vec3) -> Float32:
    """Return the part of an imported network's output that the original gives, too."""
    if ours.shape == theirs.shape:
        return ours  # there is no margin, and to find it reads the whole source again
    margin = original.margin(size)
    sides = zip(margin.before, margin.after, ours.shape[1:], strict=True)
    return ours[:, *(slice(before, extent - after) for before, after, extent in sides)]


def _strided(dense: Float32, start: Vec3, stride: Vec3, extents: Vec3) -> Float32:
    """Return voxels of a dense output, one stride apart."""
    kept = (slice(a, a + s * n, s) for a, s, n in zip(start, stride, extents, strict=True))
    return dense[:, *kept]


def _obstacle(folded: Folded, original: Original, size: Vec3) -> str:
    """Return the reason not to compare, or an empty text."""
    network = folded.network
    view = _view(network) if _slides(folded) else ONE
    if not view.within(size):
        return f"it was exported for an input of {size}, less than its field of view of {view}"
    if network.is_tiled and whole_input(network, size) != size:
        return (
            f"it was exported for an input of {size}, which does not suit its poolings; export it "
            f"for one of {whole_input(network, size)}"
        )
    values, flops = _work(network, size)
    copies = COPIES
    if network.is_tiled and flops <= EXACT_FLOPS:  # in float64, with the samples around each sample
        copies = COPIES * 2 * max(_samples_of_group(layer) for layer in network.convolutions)
    needed, allowed = 4 * copies * values, detect_host().host.memory
    if needed > allowed:
        return (
            f"{original.runtime} would take some {in_units(needed)} for an input of {size}, and "
            f"{in_units(allowed)} are available"
        )
    if flops > original.most_flops:
        return (
            f"{original.runtime} alone would take minutes for an input of {size}; install "
            f"onnxruntime to have it compared"
        )
    return ""


def _samples_of_group(conv: Conv) -> int:
    """Return the samples around each sample for one group of maps, as a share of all maps."""
    return -(-conv.kernel.volume // conv.groups)


def _work(network: Network, size: Vec3) -> tuple[int, float]:
    """Return the values of the largest layer's input and output, and all layers' operations."""
    sizes, largest, flops = whole_sizes(network, size), 0, 0.0
    weighted = {layer.name: layer for layer in network.weighted}
    for node in network.nodes:
        if (layer := weighted.get(node.name)) and not isinstance(layer, Affine):
            places = sizes[node.inputs[0] if isinstance(layer, ConvTranspose) else node.name]
            flops += 2.0 * places.volume * layer.parameters
        names = {*node.inputs, node.name}
        values = sum(network.maps[name] * sizes[name].volume for name in names)
        largest = max(largest, values)
    return largest, flops
