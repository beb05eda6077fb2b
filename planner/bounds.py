"""The least time that each layer of a network can take, whatever the plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Protocol

from planner.layers import Options
from planner.shape_samples import sample_steps
from znni.core.shapes import Shape5
from znni.network.network import Conv, Layer, Network, Operation, Pool, PooledConv
from znni.plans.primitive import Primitive, UsesGpu
from znni.plans.segments import Step

# The bound on a layer's speed comes from a sample of shapes; a shape outside it may be a little
# faster per voxel, so the bound is relaxed by this much before it rules a patch out. In the
# sample's largest extent tiles of any size leave little over.
BOUND_SLACK = 0.9


class LeastSeconds(Protocol):
    """The least time that layers can take."""

    def of_layers(self, between: Sequence[Shape5]) -> list[float]:
        """Seconds of each layer for one patch, of which these are the ``tensors``."""

    def of_step(self, step: Step) -> float:
        """Seconds of one call that does what a step asks."""


class BoundsUsingGpu:
    """The least time of layers on the host that may compute on the GPU, a part of each at a time.

    What the GPU computes takes no less than the larger of a layer's input and output does on its
    way there or back, and no less than the GPU's primitives do at their fastest; the rest takes
    what the host needs for it alone.

    Args:
        alone: the least time that the host takes.
        on_gpu: the least time that computing takes on the GPU.
        link: bytes per second, each way.
    """

    def __init__(
        self,
        alone: Callable[[], LeastSeconds],
        on_gpu: Callable[[], LeastSeconds],
        link: float,
    ) -> None:
        self._alone = alone
        self._on_gpu = on_gpu
        self._link = link

    def of_layers(self, between: Sequence[Shape5]) -> list[float]:
        """Seconds of each layer for one patch, of which these are the ``tensors``."""
        alone, on_gpu = self._alone().of_layers(between), self._on_gpu().of_layers(between)
        layers = zip(alone, on_gpu, pairwise(between), strict=True)
        return [self._shared(a, b, given, made) for a, b, (given, made) in layers]

    def of_step(self, step: Step) -> float:
        """Seconds of one call that does what a step asks."""
        alone, on_gpu = self._alone().of_step(step), self._on_gpu().of_step(step)
        return self._shared(alone, on_gpu, step.shape_in, step.shape_out)

    def _shared(self, alone: float, on_gpu: float, given: Shape5, made: Shape5) -> float:
        if not alone:  # of a pooling, where a convolution takes no longer with it
            return 0.0
        on_the_way = max(given.nbytes, made.nbytes) / self._link
        speed = 1 / alone + 1 / max(on_the_way, on_gpu)
        return 1 / speed if speed else inf


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

    def of_layers(self, between: Sequence[Shape5]) -> list[float]:
        """Seconds of each layer for one patch, of which these are the ``tensors``.

        No steps for a part of the network take less than its layers' seconds together. Where a
        convolution and its pooling may be faster as one, what that saves is taken off the
        pooling's seconds, and off the convolution's once the pooling's are none.
        """
        bounds: list[float] = []
        for layer, out in zip(self._network.layers, between[1:], strict=True):
            voxels = out.n * out.size.volume
            bounds.append(voxels * self._rates[layer])
            if isinstance(layer, Pool) and layer in self._fused:
                conv, pool = bounds[-2:]
                both = voxels * self._rates[self._fused[layer]]
                conv = min(conv, both)
                bounds[-2:] = conv, min(pool, both - conv)
        return bounds

    def of_step(self, step: Step) -> float:
        """Seconds of one call that does what a step asks; infinite if it fuses what none fuses."""
        out = step.shape_out
        return out.n * out.size.volume * self._rates.get(step.operation, inf)


def computing_pieces(network: Network, primitives: Iterable[Primitive]) -> list[Primitive]:
    """The GPU's primitives by which some of the host compute pieces of a network's layers.

    Args:
        network: its layers.
        primitives: of the host.
    """
    asked = [step for layer in _features_in(network) for step in sample_steps(*layer)]
    found = {
        using.base: None
        for using in primitives
        if isinstance(using, UsesGpu)
        and any(using.out_shape(step.operation, step.shape_in) for step in asked)
    }
    return list(found)


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
