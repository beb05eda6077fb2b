"""Lower bounds on the time of each layer of a network, whatever the plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.bare_steps import sample_steps
from planner.memory_bounds import most_items
from planner.step_options import StepOptions
from znni.core.shapes import FLOAT_BYTES, ZERO
from znni.network.layers import (
    Concat,
    Conv,
    Layer,
    Operation,
    PackedLayer,
    Pool,
    layers_of,
    unnamed,
)
from znni.network.network import Network
from znni.network.node import Node, readers_of
from znni.plans.primitive import Primitive, UsesGpu
from znni.plans.rewrites.block_steps import Near
from znni.plans.rewrites.fusion import Fusion
from znni.plans.rewrites.packed_rules import RULES
from znni.plans.segments import Step
from znni.plans.totals import Numbers

# For some layers, the patches for which they take their slower way: a concatenation copies its
# inputs, or a pooling makes one fragment at a time.
Slowed: TypeAlias = "Mapping[str, NDArray[np.bool_]]"
NOT_SLOWED: Slowed = {}


class LeastSeconds(Protocol):
    """Lower bounds on the time of layers."""

    def of_layers(
        self, voxels: Mapping[str, Numbers], slowed: Slowed = NOT_SLOWED
    ) -> dict[str, Numbers]:
        """Return a lower bound on each layer's seconds, for each of several patches.

        Args:
            voxels: the voxels of each value's map, of all its fragments together.
            slowed: the patches for which a concatenation copies, or a pooling makes one fragment at
                a time. Otherwise a concatenation takes no time.
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

    def of_layers(
        self, voxels: Mapping[str, Numbers], slowed: Slowed = NOT_SLOWED
    ) -> dict[str, Numbers]:
        """Return bounds as ``LeastSeconds`` has them."""
        alone = self._alone().of_layers(voxels, slowed)
        on_gpu = self._on_gpu().of_layers(voxels, slowed)
        return {
            node.name: self._shared(
                alone[node.name], on_gpu[node.name], self._bytes_of(voxels, node)
            )
            for node in self._network.nodes
        }

    def of_step(self, step: Step) -> float:
        """Return a lower bound on the seconds of one call that computes a bare step."""
        alone, on_gpu = self._alone().of_step(step), self._on_gpu().of_step(step)
        moved = max(step.shape_in.nbytes, step.shape_out.nbytes)
        return float(self._shared(np.array(alone), np.array(on_gpu), np.array(float(moved))))

    def _shared(self, alone: Numbers, on_gpu: Numbers, moved: Numbers) -> Numbers:
        """Return the least seconds of layers that both compute.

        They are 0 for a pooling or a sum that costs its convolution no extra time.
        """
        with np.errstate(divide="ignore"):
            speed = 1 / alone + 1 / np.maximum(moved / self._link, on_gpu)
            return 1 / speed

    def _bytes_of(self, voxels: Mapping[str, Numbers], node: Node) -> Numbers:
        """Return the bytes of all inputs of a node, or of its output if that is larger."""
        maps = self._network.maps
        taken = sum(maps[name] * voxels[name] for name in node.inputs)
        return np.asarray(FLOAT_BYTES * np.maximum(taken, maps[node.name] * voxels[node.name]))


def packed_layers(layer: Layer, parts: int) -> list[PackedLayer]:
    """Return a layer as it may read and write packed values. Only a convolution may do one alone.

    Args:
        layer: the layer.
        parts: the parts of a packed number.
    """
    ways = [(True, True)]
    if isinstance(layer, Conv):
        ways = [(True, False), *ways, (False, True)]
    return [PackedLayer(layer, reads, writes, parts=parts) for reads, writes in ways]


class Bounds:
    """The fastest time of each layer over all primitives, from a sample of shapes.

    Args:
        network: the network.
        options: the steps to choose from.
        fusible: the operations of several layers that may be one step, perhaps on packed values.
        among: the names of the primitives that count; None: all.
        parts: the parts of a packed number; 0 if no values may be packed between the layers.
    """

    def __init__(
        self,
        network: Network,
        options: StepOptions,
        fusible: Collection[Operation],
        among: Collection[str] | None = None,
        *,
        parts: int = 0,
    ) -> None:
        self._network = network
        self._fused: dict[Operation, list[Operation]] = {}
        for operation in fusible:
            self._fused.setdefault(layers_of(operation)[-1], []).append(operation)
        self._packed = dict(_packed(network, parts)) if parts else {}
        # A tiled network's layers take as many items as windows are computed at once.
        most = {} if network.is_tiled else most_items(network)
        operations: list[tuple[Operation, int, int | None]] = [
            *((*given, most.get(name)) for name, given in network.operations.items()),
            *(
                (packed_layer, features, None)
                for layer, features in network.operations.values()
                for packed_layer in self._packed.get(layer, ())
            ),
            *(
                (operation, network.operations[first.name][1], most.get(first.name))
                for operation in fusible
                for first in layers_of(operation)[:1]
            ),
        ]
        self._rates = {
            (operation, each): options.prices.least_seconds_per_voxel(
                operation, features, each, among, items
            )
            for operation, features, items in operations
            for each in {1, _fragments(network, operation)}
        }

    def of_layers(
        self, voxels: Mapping[str, Numbers], slowed: Slowed = NOT_SLOWED
    ) -> dict[str, Numbers]:
        """Return a lower bound on each layer's seconds, for each of several patches.

        The steps of any part of the network take at least the sum of its layers' bounds. Several
        layers may be faster as one step. Then the saving is taken off the last layer's seconds, and
        off those before it only once those are zero.
        """
        bounds: dict[str, Numbers] = {}
        for node in self._network.nodes:
            (layer, _), out = self._network.operations[node.name], voxels[node.name]
            ways = [layer, *self._packed.get(layer, ())]
            slower = faster = min(self._rates[each, 1] for each in ways)
            if isinstance(layer, Concat):
                faster = 0.0
            elif isinstance(layer, Pool):
                faster = min(slower, self._rates[layer, _fragments(self._network, layer)])
            bounds[node.name] = out * faster
            if node.name in slowed:
                bounds[node.name] = np.where(slowed[node.name], out * slower, bounds[node.name])
            for operation in self._fused.get(layer, ()):
                left = out * self._rates[operation, 1]
                for each in layers_of(operation):
                    bounds[each.name] = np.minimum(bounds[each.name], left)
                    left = left - bounds[each.name]
        return bounds

    def of_step(self, step: Step) -> float:
        """Return a lower bound on the seconds of one call that computes a bare step.

        The bound is infinite if the step fuses layers that no primitive fuses.
        """
        out, items = step.shape_out, step.shape_out.n // step.shape_in.n
        operation = step.operation
        if isinstance(operation, PackedLayer):
            operation = replace(operation, left_out=ZERO)  # it costs nothing
        return out.n * out.size.volume * self._rates.get((operation, items), inf)


def _packed(network: Network, parts: int) -> Iterator[tuple[Operation, list[PackedLayer]]]:
    """Yield each layer with the operations on packed values that may take its place."""
    readers = readers_of(network.nodes)
    layers = {node.name: node.layer for node in network.nodes}
    for node in network.nodes:
        layer, _ = network.operations[node.name]
        before = tuple(layers[name] for name in node.inputs if name in layers)
        near = Near(before, tuple(it.layer for it in readers[node.name]))
        operations = packed_layers(layer, parts)
        for rule in RULES:
            operations += [other for it in operations for other in rule.variants(it, near)]
        yield layer, operations


def packed_fusion(network: Network, fusion: Fusion, parts: int) -> list[PackedLayer]:
    """Return the operations on packed values that may compute the layers of a fusion."""
    layers = {node.name: node.layer for node in network.nodes}
    first = fusion.nodes[0]
    near = Near(tuple(layers[name] for name in first.inputs if name in layers), ())
    whole = PackedLayer(fusion.operation, reads=True, writes=True, parts=parts)
    return [whole, *(other for rule in RULES for other in rule.variants(whole, near))]


def _fragments(network: Network, operation: Operation) -> int:
    """Return the most output items that an operation may make of an item of its input."""
    if isinstance(operation, Pool) and not network.is_tiled:
        return operation.window.volume
    return 1


def computing_pieces(network: Network, primitives: Iterable[Primitive]) -> list[Primitive]:
    """Return the GPU primitives by which the host computes pieces of the network's layers."""
    operations = {(unnamed(it), features): None for it, features in network.operations.values()}
    samples = [
        step
        for given in operations
        for step in sample_steps(*given)
        if step.shape_in.n == 1  # what computes several items computes one
    ]
    bases: dict[Primitive, None] = {}
    for using in primitives:
        if (
            isinstance(using, UsesGpu)
            and using.base not in bases
            and any(using.out_shape(step.operation, step.shape_in) for step in samples)
        ):
            bases[using.base] = None
    return list(bases)
