"""The least time that each layer of a network can take, whatever the plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from math import inf
from typing import Protocol

from planner.layers import Options
from planner.shape_samples import sample_steps
from znni.core.shapes import Shape5
from znni.network.network import Layer, Network, Node, Operation, Pool, PooledConv
from znni.plans.primitive import Primitive, UsesGpu
from znni.plans.segments import Step

# The bound on a layer's speed comes from a sample of shapes; a shape outside it may be a little
# faster per voxel, so the bound is relaxed by this much before it rules a patch out. In the
# sample's largest extent tiles of any size leave little over.
BOUND_SLACK = 0.9


class LeastSeconds(Protocol):
    """The least time that layers can take."""

    def of_layers(self, shapes: Mapping[str, Shape5]) -> dict[str, float]:
        """Return the seconds of each layer for one patch, by the network's ``shapes`` for it."""

    def of_step(self, step: Step) -> float:
        """Seconds of one call that does what a step asks."""


class BoundsUsingGpu:
    """The least time of layers on the host that may compute on the GPU, a part of each at a time.

    What the GPU computes takes no less than the larger of a layer's input and output does on its
    way there or back, and no less than the GPU's primitives do at their fastest; the rest takes
    what the host needs for it alone.

    Args:
        network: whose layers.
        alone: the least time that the host takes.
        on_gpu: the least time that computing takes on the GPU.
        link: bytes per second, each way.
    """

    def __init__(
        self,
        network: Network,
        alone: Callable[[], LeastSeconds],
        on_gpu: Callable[[], LeastSeconds],
        link: float,
    ) -> None:
        self._network = network
        self._alone = alone
        self._on_gpu = on_gpu
        self._link = link

    def of_layers(self, shapes: Mapping[str, Shape5]) -> dict[str, float]:
        """Return the seconds of each layer for one patch, by the network's ``shapes`` for it."""
        alone, on_gpu = self._alone().of_layers(shapes), self._on_gpu().of_layers(shapes)
        return {
            node.name: self._shared(
                alone[node.name], on_gpu[node.name], _taken(node, shapes), shapes[node.name].nbytes
            )
            for node in self._network.nodes
        }

    def of_step(self, step: Step) -> float:
        """Seconds of one call that does what a step asks."""
        alone, on_gpu = self._alone().of_step(step), self._on_gpu().of_step(step)
        return self._shared(alone, on_gpu, step.shape_in.nbytes, step.shape_out.nbytes)

    def _shared(self, alone: float, on_gpu: float, given: int, made: int) -> float:
        if not alone:  # of a pooling, where a convolution takes no longer with it
            return 0.0
        on_the_way = max(given, made) / self._link
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
        asked: list[tuple[Operation, int]] = [
            *_features_in(network),
            *((pair, pair.conv.in_features) for pair in fusible),
        ]
        self._rates = {
            operation: _least_seconds_per_voxel(operation, features, options)
            for operation, features in asked
        }

    def of_layers(self, shapes: Mapping[str, Shape5]) -> dict[str, float]:
        """Return the seconds of each layer for one patch, by the network's ``shapes`` for it.

        No steps for a part of the network take less than its layers' seconds together. Where a
        convolution and its pooling may be faster as one, what that saves is taken off the
        pooling's seconds, and off the convolution's once the pooling's are none.
        """
        bounds: dict[str, float] = {}
        for node in self._network.nodes:
            layer, out = node.layer, shapes[node.name]
            voxels = out.n * out.size.volume
            bounds[node.name] = voxels * self._rates[layer]
            if isinstance(layer, Pool) and layer in self._fused:
                pair = self._fused[layer]
                both = voxels * self._rates[pair]
                conv = min(bounds[pair.conv.name], both)
                bounds[pair.conv.name] = conv
                bounds[node.name] = min(bounds[node.name], both - conv)
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
    """Yield each layer with its input maps."""
    for node in network.nodes:
        yield node.layer, network.maps[node.inputs[0]]


def _taken(node: Node, shapes: Mapping[str, Shape5]) -> int:
    """Return the bytes of all that a node takes."""
    return sum(shapes[name].nbytes for name in node.inputs)
