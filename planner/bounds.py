"""The least time that each layer of a network can take, whatever the plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from math import inf
from typing import Protocol

from planner.layers import Options
from planner.samples import sample_steps
from planner.strategy import tensors
from znni.network import Conv, Layer, Network, Operation, Pool, PooledConv
from znni.segments import Step
from znni.shapes import Shape5, Vec3

# The bound on a layer's speed comes from a sample of shapes; a shape outside it may be a little
# faster per voxel, so the bound is relaxed by this much before it rules a patch out. In the
# sample's largest extent tiles of any size leave little over.
BOUND_SLACK = 0.9


class LeastSeconds(Protocol):
    """The least time that layers can take."""

    def of_layers(self, patch: Vec3) -> list[float]:
        """Seconds of each layer for one patch of the output."""

    def of_step(self, step: Step) -> float:
        """Seconds of one call that does what a step asks."""


class BoundsUsingGpu:
    """The least time of layers on the host that may compute on the GPU, a part of each at a time.

    What the GPU computes takes no less than the larger of a layer's input and output does on its
    way there or back; the rest takes what the host needs for it alone.

    Args:
        network: its layers.
        alone: the least time that the host takes.
        link: bytes per second, each way.
    """

    def __init__(self, network: Network, alone: Callable[[], LeastSeconds], link: float) -> None:
        self._network = network
        self._alone = alone
        self._link = link

    def of_layers(self, patch: Vec3) -> list[float]:
        """Seconds of each layer for one patch of the output."""
        between = pairwise(tensors(self._network, patch))
        alone = self._alone().of_layers(patch)
        return [self._shared(a, *pair) for a, pair in zip(alone, between, strict=True)]

    def of_step(self, step: Step) -> float:
        """Seconds of one call that does what a step asks."""
        return self._shared(self._alone().of_step(step), step.shape_in, step.shape_out)

    def _shared(self, alone: float, given: Shape5, made: Shape5) -> float:
        on_the_way = max(given.nbytes, made.nbytes) / self._link
        return 1 / (1 / alone + 1 / on_the_way)


class Bounds:
    """The fastest that any primitive computes each layer, from a sample of shapes.

    Args:
        network: its layers.
        options: steps to choose from.
        fusible: the pooled convolutions that may be one step.
    """

    def __init__(self, network: Network, options: Options, fusible: Collection[PooledConv]) -> None:
        self._network = network
        self._fused = {pair.pool: pair for pair in fusible}
        asked = [*_features_in(network), *((pair, pair.conv.in_features) for pair in fusible)]
        self._rates = {
            operation: _least_seconds_per_voxel(operation, features, options)
            for operation, features in asked
        }

    def of_layers(self, patch: Vec3) -> list[float]:
        """Seconds of each layer for one patch of the output.

        No steps for a part of the network take less than its layers' seconds together. Where a
        convolution and its pooling may be faster as one, what that saves is taken off the
        pooling's seconds, and off the convolution's once the pooling's are none.
        """
        bounds: list[float] = []
        size, batch = patch + self._network.field_of_view - 1, 1
        for layer in self._network.layers:
            if isinstance(layer, Conv):
                size = size - layer.kernel + 1
            else:
                size //= layer.window
                batch *= layer.window.volume
            bounds.append(batch * size.volume * self._rates[layer])
            if isinstance(layer, Pool) and layer in self._fused:
                conv, pool = bounds[-2:]
                both = batch * size.volume * self._rates[self._fused[layer]]
                conv = min(conv, both)
                bounds[-2:] = conv, min(pool, both - conv)
        return bounds

    def of_step(self, step: Step) -> float:
        """Seconds of one call that does what a step asks."""
        out = step.shape_out
        return out.n * out.size.volume * self._rates[step.operation]


def _least_seconds_per_voxel(operation: Operation, features: int, options: Options) -> float:
    """Of the operation's output, for each item; infinite where no primitive does it."""
    rates = []
    for asked in sample_steps(operation, features):
        if found := options.whole(asked):
            out = asked.shape_out
            rates.append(found[0].seconds / (out.n * out.size.volume))
    return BOUND_SLACK * min(rates, default=inf)


def _features_in(network: Network) -> Iterator[tuple[Layer, int]]:
    """Each layer with its input maps."""
    features = network.in_features
    for layer in network.layers:
        yield layer, features
        features = layer.out_features if isinstance(layer, Conv) else features
