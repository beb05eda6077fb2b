"""The least time that each layer of a network can take, whatever the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import inf

from planner.layers import Options
from planner.split import bare_step, pooled_convolutions
from znni.network import Conv, Layer, Network, Operation, Pool, PooledConv
from znni.plans import Step
from znni.shapes import Shape5, Vec3

# The bound on a layer's speed comes from a sample of shapes; a shape outside it may be a little
# faster per voxel, so the bound is relaxed by this much before it rules a patch out. In the
# largest extent tiles of any size leave little over.
BOUND_SLACK = 0.9
SAMPLE_EXTENTS = (8, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256, 512, 2048)
SAMPLE_BATCHES = (1, 8, 64, 512)


class Bounds:
    """The fastest that any primitive computes each layer, from a sample of shapes.

    Attributes:
        fusible: the pooled convolutions that some primitive does as one.
    """

    def __init__(self, network: Network, options: Options) -> None:
        self._network = network
        self._options = options
        self._rates = [
            self._least_seconds_per_voxel(layer, features, SAMPLE_BATCHES)
            for layer, features in _features_in(network)
        ]
        fused = {
            pair: self._least_seconds_per_voxel(pair, pair.conv.in_features, (1,))
            for pair in pooled_convolutions(network)
        }
        self._fused_rates = {pair.pool: rate for pair, rate in fused.items() if rate < inf}
        self.fusible = tuple(pair for pair, rate in fused.items() if rate < inf)

    def of_layers(self, patch: Vec3) -> list[float]:
        """Seconds of each layer for one patch of the output.

        No steps for a part of the network take less than its layers' seconds together. Where a
        convolution and its pooling may be faster as one, what that saves is taken off the
        pooling's seconds, and off the convolution's once the pooling's are none.
        """
        bounds: list[float] = []
        size, batch = patch + self._network.field_of_view - 1, 1
        for layer, rate in zip(self._network.layers, self._rates, strict=True):
            if isinstance(layer, Conv):
                size = size - layer.kernel + 1
            else:
                size //= layer.window
                batch *= layer.window.volume
            bounds.append(batch * size.volume * rate)
            if isinstance(layer, Pool) and layer in self._fused_rates:
                conv, pool = bounds[-2:]
                both = batch * size.volume * self._fused_rates[layer]
                conv = min(conv, both)
                bounds[-2:] = conv, min(pool, both - conv)
        return bounds

    def _least_seconds_per_voxel(
        self, layer: Operation, features: int, batches: Iterable[int]
    ) -> float:
        """Of the layer's output, for each item; infinite where no primitive does it."""
        rates = []
        for batch, extent in product(batches, SAMPLE_EXTENTS):
            asked = _sample(layer, features, batch, Vec3.of(extent))
            if options := self._options(asked):
                out = options[0].shape_out
                rates.append(options[0].seconds / (out.n * out.size.volume))
        return BOUND_SLACK * min(rates, default=inf)


def _features_in(network: Network) -> Iterator[tuple[Layer, int]]:
    """Each layer with its input maps."""
    features = network.in_features
    for layer in network.layers:
        yield layer, features
        features = layer.out_features if isinstance(layer, Conv) else features


def _sample(layer: Operation, features: int, batch: int, size: Vec3) -> Step:
    """A step that asks for a layer's output of ``size`` voxels for a batch of inputs."""
    match layer:
        case Conv():
            shape = Shape5.of(batch, features, size + layer.kernel - 1)
            out = Shape5.of(batch, layer.out_features, size)
        case Pool():
            shape = Shape5.of(batch, features, (size + 1) * layer.window - 1)
            out = Shape5.of(batch * layer.window.volume, features, size)
        case PooledConv():
            whole = size * layer.pool.window + layer.conv.kernel - 1
            shape = Shape5.of(batch, features, whole)
            out = Shape5.of(batch, layer.conv.out_features, size)
    return bare_step(layer, shape, out)
