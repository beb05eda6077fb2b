"""Lower bounds on the time of each layer of a network, whatever the plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Protocol

from planner.bare_steps import sample_steps
from planner.step_options import StepOptions
from znni.core.shapes import Shape5
from znni.network.layers import Concat, Operation, PooledConv, SummedConv
from znni.network.network import Network, Node
from znni.plans.primitive import Primitive, UsesGpu
from znni.plans.segments import Step

# The bound on a layer's speed comes from a sample of shapes. A shape outside the sample may be a
# little faster per voxel. So the bound is multiplied by this factor before it rules a patch out.
# Tiles of any size fill the sample's largest extent almost without waste.
BOUND_SLACK = 0.9


class LeastSeconds(Protocol):
    """Lower bounds on the time of layers."""

    def of_layers(self, shapes: Mapping[str, Shape5]) -> dict[str, float]:
        """Return a lower bound on each layer's seconds for one patch.

        Args:
            shapes: the network's ``shapes`` for the patch.
        """

    def of_step(self, step: Step) -> float:
        """Return a lower bound on the seconds of one call that computes a bare step."""


class BoundsUsingGpu:
    """Lower bounds for layers on the host that may compute some of their pieces on the GPU.

    The GPU's part takes no less than the GPU's fastest primitives need. It also takes no less than
    the transfer of the larger of the layer's input and output. The host computes the rest as fast
    as it does alone.

    Args:
        network: the network.
        alone: the bounds for the host alone.
        on_gpu: the bounds for computing on the GPU.
        link: the bytes per second of the link to the GPU, each way.
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
        """Return a lower bound on each layer's seconds for one patch.

        Args:
            shapes: the network's ``shapes`` for the patch.
        """
        alone, on_gpu = self._alone().of_layers(shapes), self._on_gpu().of_layers(shapes)
        return {
            node.name: self._shared(
                alone[node.name], on_gpu[node.name], _taken(node, shapes), shapes[node.name].nbytes
            )
            for node in self._network.nodes
        }

    def of_step(self, step: Step) -> float:
        """Return a lower bound on the seconds of one call that computes a bare step."""
        alone, on_gpu = self._alone().of_step(step), self._on_gpu().of_step(step)
        return self._shared(alone, on_gpu, step.shape_in.nbytes, step.shape_out.nbytes)

    def _shared(self, alone: float, on_gpu: float, given: int, made: int) -> float:
        if not alone:  # a pooling or a sum that costs its convolution no extra time
            return 0.0
        on_the_way = max(given, made) / self._link
        speed = 1 / alone + 1 / max(on_the_way, on_gpu)
        return 1 / speed if speed else inf


class Bounds:
    """The fastest time of each layer over all primitives, from a sample of shapes.

    Args:
        network: the network.
        options: the steps to choose from.
        fusible: the pooled and summed convolutions that may be one step.
    """

    def __init__(
        self, network: Network, options: StepOptions, fusible: Collection[PooledConv | SummedConv]
    ) -> None:
        self._network = network
        self._fused: dict[Operation, PooledConv | SummedConv] = {
            pair.pool if isinstance(pair, PooledConv) else pair.add: pair for pair in fusible
        }
        operations: list[tuple[Operation, int]] = [
            *network.operations.values(),
            *((pair, pair.conv.in_features) for pair in fusible),
        ]
        self._rates = {
            operation: 0.0  # its inputs may be made in their place
            if isinstance(operation, Concat)
            else _least_seconds_per_voxel(operation, features, options)
            for operation, features in operations
        }

    def of_layers(self, shapes: Mapping[str, Shape5]) -> dict[str, float]:
        """Return a lower bound on each layer's seconds for one patch.

        The steps of any part of the network take at least the sum of its layers' bounds. A
        convolution and its pooling or sum may be faster as one step. Then the saving is taken off
        the second layer's seconds, and off the convolution's only once those are zero.

        Args:
            shapes: the network's ``shapes`` for the patch.
        """
        bounds: dict[str, float] = {}
        for node in self._network.nodes:
            (layer, _), out = self._network.operations[node.name], shapes[node.name]
            voxels = out.n * out.size.volume
            bounds[node.name] = voxels * self._rates[layer]
            if layer in self._fused:
                pair = self._fused[layer]
                both = voxels * self._rates[pair]
                conv = min(bounds[pair.conv.name], both)
                bounds[pair.conv.name] = conv
                bounds[node.name] = min(bounds[node.name], both - conv)
        return bounds

    def of_step(self, step: Step) -> float:
        """Return a lower bound on the seconds of one call that computes a bare step.

        The bound is infinite if the step fuses layers that no primitive fuses.
        """
        out = step.shape_out
        return out.n * out.size.volume * self._rates.get(step.operation, inf)


def computing_pieces(network: Network, primitives: Iterable[Primitive]) -> list[Primitive]:
    """Return the GPU primitives by which the host computes pieces of the network's layers.

    Args:
        network: the network.
        primitives: the primitives of the host.
    """
    samples = [step for given in network.operations.values() for step in sample_steps(*given)]
    found = {
        using.base: None
        for using in primitives
        if isinstance(using, UsesGpu)
        and any(using.out_shape(step.operation, step.shape_in) for step in samples)
    }
    return list(found)


def _least_seconds_per_voxel(operation: Operation, features: int, options: StepOptions) -> float:
    """Return the least seconds per output voxel and item; infinite if no primitive applies."""
    rates = []
    for bare in sample_steps(operation, features):
        if found := options.whole(bare):
            out = bare.shape_out
            rates.append(found[0].seconds / (out.n * out.size.volume))
    return BOUND_SLACK * min(rates, default=inf)


def _taken(node: Node, shapes: Mapping[str, Shape5]) -> int:
    """Return the bytes of all inputs of a node."""
    return sum(shapes[name].nbytes for name in node.inputs)
