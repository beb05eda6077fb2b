"""Layers from steps. Steps between layers are folded into them, without error.

A factor and a shift of each map go into the convolution before, if nothing else reads its value.
Otherwise they go into the convolution after, if that pads no zeros. Activations go into the layer
before, if nothing else reads its value. Max-pooling commutes with increasing functions, and nearest
upsampling with all, so steps may pass these. If no layer can take a step in, it becomes an affine
layer. In a network that is slid over every voxel, it becomes a convolution of kernel 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.shapes import ONE, ZERO, Vec3
from znni.importing.open_layers import (
    OpenLayer,
    after_affine,
    changed,
    is_dense,
    passes_affine,
    pointwise,
    then_affine,
)
from znni.importing.steps import Graph, GraphStep, Layered, Nonlinearity, affine
from znni.network.geometry import context
from znni.network.input_scaling import InputScaling
from znni.network.layers import Affine, Concat, Conv, Pool, Upsample
from znni.network.network import Network
from znni.network.network_as_text import OUTPUTS, kind_of
from znni.network.node import INPUT, Node
from znni.network.strides_to_dilations import slid
from znni.network.weights import ConvWeights, Weights, checked_weights


@dataclass(frozen=True)
class Folded:
    """A network and its weights.

    Attributes:
        origins: the parts of the source that each layer stands for.
        stride: the voxels between outputs of the source, if the network slides by dilation.
    """

    network: Network
    weights: Weights
    origins: tuple[str, ...]
    stride: Vec3 = ONE


@dataclass(frozen=True)
class _Value:
    """A value of the source: that of a layer, with what is still to be done to it.

    Attributes:
        made: the layer; None is the network's input.
        chain: the layers that lead to the value, of which no other step reads a value.
        pending: a factor and a shift. Only one step reads a value that has them.
    """

    made: OpenLayer | None
    maps: int
    chain: tuple[OpenLayer, ...] = ()
    pending: Layered | None = None


@dataclass
class _Folding:
    """The layers so far, and the values of the source.

    Attributes:
        readers: the number of steps that read each value. An output counts as a step.
        values: the values by name.
        layers: the layers in order.
    """

    readers: Mapping[str, int]
    values: dict[str, _Value]
    layers: list[OpenLayer] = field(default_factory=list)

    def add(self, step: GraphStep) -> None:
        """Take in the next step."""
        taken = [self._taken(name) for name in step.reads]
        first = taken[0]
        match step.operation:
            case Layered(layer=Pool()) as operation:
                value = self._pooling(operation, first)
            case Layered(layer=Affine()) as operation:
                value = self._affine(operation, first)
            case Layered() as operation:
                value = self._layer(operation, taken)
            case Nonlinearity() as operation:
                value = self._nonlinearity(operation, first)
        if value.pending and self.readers[step.value] != 1:
            value = self._done(value)
        self.values[step.value] = value

    def output(self, name: str) -> OpenLayer:
        """Return the layer that gives an output."""
        value = self._done(self._taken(name))
        if value.made is None:
            raise InvalidInput("gives its input as an output; export the network without it")
        return value.made

    def _taken(self, name: str) -> _Value:
        """Return a value for a step that reads it."""
        value = self.values[name]
        return value if self.readers[name] == 1 else replace(value, chain=())

    def _appended(
        self,
        operation: Layered,
        *read: _Value,
        chain: tuple[OpenLayer, ...] = (),
        before: tuple[str, ...] = (),
    ) -> _Value:
        """Return the value of a new layer, which also stands for parts of the source before it."""
        maps = operation.layer.maps_from(*(value.maps for value in read))
        origins = [*before, operation.origin]
        layer = OpenLayer(operation, tuple(value.made for value in read), maps, origins)
        self.layers.append(layer)
        return _Value(layer, maps, (*chain, layer))

    def _done(self, value: _Value) -> _Value:
        """Return a value whose factor and shift are applied, by a layer of their own."""
        if value.pending is None:
            return value
        return self._appended(value.pending, replace(value, pending=None))

    def _pooling(self, step: Layered, before: _Value) -> _Value:
        pending = before.pending
        if pending and not passes_affine(step, pending):
            before, pending = self._done(before), None
        value = self._appended(step, replace(before, pending=None), chain=before.chain)
        return replace(value, pending=pending)

    def _layer(self, step: Layered, taken: list[_Value]) -> _Value:
        """Return the value of another layer. Convolutions may take in what is done before them."""
        first, pending = taken[0], taken[0].pending
        if pending and (both := after_affine(step, pending)):
            return self._appended(both, replace(first, pending=None), before=(pending.origin,))
        inputs = [self._done(value) for value in taken]
        chain = inputs[0].chain if isinstance(step.layer, Upsample) else ()
        return self._appended(step, *inputs, chain=chain)

    def _affine(self, step: Layered, before: _Value) -> _Value:
        step.layer.maps_from(before.maps)
        if (step.weight == 1).all() and (step.bias == 0).all():
            return before
        if step.name:  # a layer of its own, because the network file has it
            return self._done(replace(self._done(before), pending=step))
        if pending := before.pending:
            both = changed(pending, name=f"{pending.origin}, {step.origin}")
            return replace(before, pending=then_affine(both, step))
        return before if _take_in(before, step) else replace(before, pending=step)

    def _nonlinearity(self, step: Nonlinearity, before: _Value) -> _Value:
        if step.kind == "identity":
            return before
        if before.pending is None and _take_in(before, step):
            return before
        own = before.pending or affine(step.origin, np.ones(before.maps), np.zeros(before.maps))
        value = self._appended(own, replace(before, pending=None))
        self.layers[-1].activation = step
        if before.pending:
            self.layers[-1].origins.append(step.origin)
        return value


def fold(name: str, graph: Graph, source: str, scaling: InputScaling) -> Folded:
    """Fold the steps of a graph into the layers of a network.

    Args:
        name: name of the network.
        graph: the steps.
        source: name of the weights in errors.
        scaling: scaling of the network's input.

    Raises:
        InvalidInput: there is no convolution, numbers of maps do not match, or weights exceed
            float32. Or a step cannot be represented; the message names it.
    """
    steps = _needed(graph)
    if not any(_is_convolution(step) for step in steps):
        raise InvalidInput("there is no 3D convolution in it; give a network that has one")
    readers = Counter(name for step in steps for name in step.reads) + Counter(graph.outputs)
    folding = _Folding(readers, {INPUT: _Value(None, graph.maps)})
    for step in steps:
        folding.add(step)
    outputs = [folding.output(name) for name in graph.outputs]
    if len(outputs) > 1:
        joined = Layered(Concat("the outputs"), name=OUTPUTS)
        maps = sum(output.maps for output in outputs)
        folding.layers.append(OpenLayer(joined, tuple(outputs), maps, [joined.origin]))
    return _named(name, graph.maps, folding.layers, source, scaling)


def _needed(graph: Graph) -> list[GraphStep]:
    """Return the steps on which the outputs depend."""
    wanted, kept = set(graph.outputs), list[GraphStep]()
    for step in reversed(graph.steps):
        if step.value in wanted:
            kept.append(step)
            wanted.update(step.reads)
    return kept[::-1]


def _take_in(value: _Value, step: Layered | Nonlinearity) -> bool:
    """Let a layer before a value take in what is done to it next, and return whether one does."""
    for earlier in reversed(value.chain):
        if earlier.takes(step):
            earlier.take(step)
            return True
        if not earlier.passes(step):
            return False
    return False


def _is_convolution(step: GraphStep) -> bool:
    return isinstance(step.operation, Layered) and isinstance(step.operation.layer, Conv)


def _named(
    name: str, in_features: int, folded: list[OpenLayer], source: str, scaling: InputScaling
) -> Folded:
    """Return the folded layers with names, in float32."""
    dense = all(is_dense(open_layer.operation) for open_layer in folded)
    nodes: list[Node] = []
    called: dict[int, str] = {}
    arrays: dict[str, ConvWeights] = {}
    count = Counter[str]()
    for open_layer in folded:
        if dense and isinstance(open_layer.operation.layer, Affine):
            open_layer.operation = pointwise(open_layer.operation)
        kind = kind_of(open_layer.operation.layer)
        count[kind] += 1
        called[id(open_layer)] = open_layer.operation.name or f"{kind}{count[kind]}"
        changes: dict[str, Any] = {"name": called[id(open_layer)]}
        if act := open_layer.activation:
            changes |= {"activation": act.kind, "slope": act.slope}
        layer = changed(open_layer.operation, **changes).layer
        inputs = tuple(INPUT if read is None else called[id(read)] for read in open_layer.inputs)
        nodes.append(Node(layer, inputs))
        if own := open_layer.weights:
            arrays[layer.name] = own
    sliding = slid(nodes, nodes[-1].name)
    network = Network(name, in_features, sliding.nodes, nodes[-1].name, scaling)
    origins = {
        node.name: ", ".join(dict.fromkeys(open_layer.origins))
        for node, open_layer in zip(nodes, folded, strict=True)
    }
    if network.is_tiled:
        lost = context(network)  # raises an error if its layers do not fit together
        if network.window_layer and lost != ZERO:
            raise InvalidInput(
                f"layer {origins[network.window_layer]} depends on whole windows, and the network "
                f"gives {lost} fewer voxels than a window has; only windows that keep their size "
                f"are blended: pad all convolutions, and train again"
            )
    weights = checked_weights(Weights(arrays, source), network)
    return Folded(network, weights, tuple(origins.values()), sliding.stride)
