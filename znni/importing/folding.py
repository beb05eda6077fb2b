"""Layers from steps. Steps between layers are folded into them, without error.

A factor and a shift of each map go into the convolution before, if nothing else reads its value.
Otherwise they go into the convolution after, if that pads no zeros. Activations go into the layer
before, if nothing else reads its value. Max-pooling commutes with increasing functions, and nearest
upsampling with all, so steps may pass these. If no layer can take a step in, it becomes an affine
layer. In a network that is slid over every voxel, it becomes a convolution of kernel 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from znni.core.errors import InvalidInput
from znni.importing.checks import refuse
from znni.importing.steps import (
    Affine,
    Convolution,
    Cropping,
    Float64,
    GlobalPooling,
    Graph,
    Joining,
    Layered,
    Nonlinearity,
    Normalization,
    Pooling,
    Step,
    TransposedConvolution,
    Upsampling,
    ZeroPadding,
)
from znni.network.geometry import context
from znni.network.input_scaling import InputScaling
from znni.network.layer_geometry import ZERO
from znni.network.layers import Concat, GlobalPool, Layer, Model, Padding, Pool, Upsample
from znni.network.network import Network
from znni.network.network_as_text import OUTPUTS, kind_of
from znni.network.node import INPUT, Node
from znni.network.weights import ConvWeights, Float32, Weights, checked_weights


@dataclass(frozen=True)
class Folded:
    """A network, its weights, and the parts of the source that each layer stands for."""

    network: Network
    weights: Weights
    origins: tuple[str, ...]


@dataclass
class _Made:
    """A layer that may still take in the steps after it.

    Attributes:
        operation: the layer without its activation.
        inputs: the layers that it reads; None is the network's input.
        maps: its output maps.
        origins: the parts of the source that it stands for.
        activation: its activation, if it has one.
    """

    operation: Layered
    inputs: tuple[_Made | None, ...]
    maps: int
    origins: list[str]
    activation: Nonlinearity | None = None

    @property
    def takes_affine(self) -> bool:
        """True if it can take a factor and a shift in."""
        return self.activation is None and isinstance(
            self.operation, Convolution | TransposedConvolution | Affine | Normalization
        )

    def takes(self, function: Nonlinearity) -> bool:
        """Return whether it can take an activation in."""
        if isinstance(self.operation, Joining):
            joins = self.operation.how == "concat" or function.kind == "prelu"
            return self.activation is None and not joins
        return self.takes_affine


@dataclass(frozen=True)
class _Value:
    """A value of the source: that of a layer, with what is still to be done to it.

    Attributes:
        made: the layer; None is the network's input.
        maps: its maps.
        chain: the layers that lead to the value, of which no other step reads a value.
        pending: a factor and a shift. Only one step reads a value that has them.
        crop: what is to be cut off.
        padding: the zeros to be put around it.
    """

    made: _Made | None
    maps: int
    chain: tuple[_Made, ...] = ()
    pending: Affine | None = None
    crop: Cropping | None = None
    padding: ZeroPadding | None = None


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
    layers: list[_Made] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """Take in the next step."""
        taken = [self._taken(name) for name in step.reads]
        first = taken[0]
        match step.operation:
            case Convolution() as operation:
                value = self._convolution(operation, first)
            case TransposedConvolution() as operation:
                value = self._transposed(operation, first)
            case Pooling() as operation:
                value = self._pooling(operation, first)
            case Upsampling() as operation:
                before = self._done(_whole(operation.origin, first))
                value = self._appended(operation, before, chain=before.chain)
            case Joining() as operation:
                value = self._joined(operation, taken)
            case Affine() as operation:
                value = self._affine(operation, first)
            case Normalization() | GlobalPooling() as operation:
                value = self._appended(operation, self._done(_whole(operation.origin, first)))
            case Nonlinearity() as operation:
                value = self._nonlinearity(operation, first)
            case Cropping() as operation:
                value = self._cropped(operation, first)
            case ZeroPadding() as operation:
                value = self._padded(operation, first)
        if value.pending and self.readers[step.value] != 1:
            value = self._done(value)
        self.values[step.value] = value

    def output(self, name: str) -> _Made:
        """Return the layer that gives an output."""
        value = self._done(_whole("the output", self._taken(name)))
        if value.made is None:
            raise InvalidInput("gives its input as an output; export the network without it")
        return value.made

    def _taken(self, name: str) -> _Value:
        """Return a value for a step that reads it."""
        value = self.values[name]
        return value if self.readers[name] == 1 else replace(value, chain=())

    def _appended(self, operation: Layered, *read: _Value, chain: tuple[_Made, ...] = ()) -> _Value:
        """Return the value of a new layer."""
        maps = operation.layer(operation.origin).maps_from(*(value.maps for value in read))
        made = _Made(operation, tuple(value.made for value in read), maps, [operation.origin])
        self.layers.append(made)
        return _Value(made, maps, (*chain, made))

    def _done(self, value: _Value) -> _Value:
        """Return a value whose factor and shift are applied, by a layer of their own."""
        if value.pending is None:
            return value
        done = self._appended(value.pending, replace(value, pending=None))
        return replace(done, crop=value.crop, padding=value.padding)

    def _convolution(self, step: Convolution, before: _Value) -> _Value:
        _check_uncropped(step.origin, before)
        padding, origins = step.padding, [step.origin]
        if before.padding:
            extra = before.padding.padding
            padding = Padding(padding.before + extra.before, padding.after + extra.after)
            origins.insert(0, before.padding.origin)
        step = replace(step, padding=padding)
        pending = before.pending
        if pending and (padding.total == ZERO or not pending.shift.any()):
            origins.insert(0, pending.origin)
            step = _after_affine(step, pending)
            before = replace(before, pending=None)
        value = self._appended(step, self._done(before))
        self.layers[-1].origins = origins
        return value

    def _transposed(self, step: TransposedConvolution, before: _Value) -> _Value:
        before, origins = _whole(step.origin, before), [step.origin]
        pending = before.pending
        if pending and not pending.shift.any():
            origins.insert(0, pending.origin)
            step = replace(step, weight=step.weight * _shaped(pending.scale, 0))
            before = replace(before, pending=None)
        value = self._appended(step, self._done(before))
        self.layers[-1].origins = origins
        return value

    def _pooling(self, step: Pooling, before: _Value) -> _Value:
        _check_uncropped(step.origin, before)
        if before.padding and step.reduce == "average":
            own, extra = step.padding, before.padding.padding
            padding = Padding(own.before + extra.before, own.after + extra.after)
            step, before = replace(step, padding=padding), replace(before, padding=None)
        before, pending = _whole(step.origin, before), before.pending
        if pending and not _passes(step, pending):
            before, pending = self._done(before), None
        value = self._appended(step, replace(before, pending=None), chain=before.chain)
        return replace(value, pending=pending)

    def _joined(self, step: Joining, taken: list[_Value]) -> _Value:
        """Return the value of a join. Its inputs are cropped as joins crop by themselves."""
        inputs = [self._done(_whole(step.origin, replace(value, crop=None))) for value in taken]
        return self._appended(step, *inputs)

    def _affine(self, step: Affine, before: _Value) -> _Value:
        step.layer(step.origin).maps_from(before.maps)
        if (step.scale == 1).all() and (step.shift == 0).all():
            return before
        _check_unpadded(step.origin, before)
        if step.name:  # a layer of its own, because the network file has it
            return self._done(replace(self._done(before), pending=step))
        if pending := before.pending:
            both = Affine(
                f"{pending.origin}, {step.origin}",
                pending.scale * step.scale,
                pending.shift * step.scale + step.shift,
            )
            return replace(before, pending=both)
        made = _open(before, lambda made: made.takes_affine, lambda part: _passes(part, step))
        if made is None:
            return replace(before, pending=step)
        made.origins.append(step.origin)
        made.operation = _before_affine(made.operation, step)
        return before

    def _nonlinearity(self, step: Nonlinearity, before: _Value) -> _Value:
        if step.kind == "identity":
            return before
        _check_unpadded(step.origin, before)
        made = None
        if before.pending is None:
            made = _open(before, lambda made: made.takes(step), lambda part: _lets(part, step))
        if made:
            made.origins.append(step.origin)
            made.activation = step
            return before
        own = before.pending or Affine(step.origin, np.ones(before.maps), np.zeros(before.maps))
        value = self._appended(own, replace(before, pending=None))
        self.layers[-1].activation = step
        if before.pending:
            self.layers[-1].origins.append(step.origin)
        return replace(value, crop=before.crop)

    def _cropped(self, step: Cropping, before: _Value) -> _Value:
        _check_unpadded(step.origin, before)
        if earlier := before.crop:
            step = Cropping(step.origin, earlier.before + step.before, earlier.after + step.after)
        return replace(before, crop=step)

    def _padded(self, step: ZeroPadding, before: _Value) -> _Value:
        _check_uncropped(step.origin, before)
        _check_unpadded(step.origin, before)
        if before.pending and before.pending.shift.any():
            before = self._done(before)
        return replace(before, padding=step)


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
    if not any(isinstance(step.operation, Convolution) for step in steps):
        raise InvalidInput("there is no 3D convolution in it; give a network that has one")
    readers = Counter(name for step in steps for name in step.reads) + Counter(graph.outputs)
    folding = _Folding(readers, {INPUT: _Value(None, graph.maps)})
    for step in steps:
        folding.add(step)
    outputs = [folding.output(name) for name in graph.outputs]
    if len(outputs) > 1:
        joined = Joining("the outputs", "concat", name=OUTPUTS)
        maps = sum(made.maps for made in outputs)
        folding.layers.append(_Made(joined, tuple(outputs), maps, [joined.origin]))
    return _named(name, graph.maps, folding.layers, source, scaling)


def _whole(origin: str, value: _Value) -> _Value:
    """Return a value after checking that it is neither cropped nor padded."""
    _check_uncropped(origin, value)
    _check_unpadded(origin, value)
    return value


def _check_uncropped(origin: str, value: _Value) -> None:
    if value.crop:
        refuse(
            value.crop.origin,
            f"crops what {origin} reads; only what is joined with other values is cropped here: "
            f"leave the crop out, and crop the result",
        )


def _check_unpadded(origin: str, value: _Value) -> None:
    if value.padding:
        refuse(
            value.padding.origin,
            f"puts zeros around what {origin} reads; only convolutions and average poolings pad "
            f"here: give it to these as their padding",
        )


def _needed(graph: Graph) -> list[Step]:
    """Return the steps on which the outputs depend."""
    wanted, kept = set(graph.outputs), list[Step]()
    for step in reversed(graph.steps):
        if step.value in wanted:
            kept.append(step)
            wanted.update(step.reads)
    return kept[::-1]


def _open(
    value: _Value, takes: Callable[[_Made], bool], passes: Callable[[Layered], bool]
) -> _Made | None:
    """Return the layer that can take in what is done to a value next, or None."""
    for made in reversed(value.chain):
        if takes(made):
            return made
        if made.activation or not passes(made.operation):
            return None
    return None


def _passes(part: Layered, step: Affine) -> bool:
    """Return whether a factor and a shift may be applied before a part as well as after it."""
    match part:
        case Upsampling():
            return True
        case Pooling(reduce="max"):
            return bool(step.scale.min() >= 0)
        case Pooling():
            return part.padding.total == ZERO
    return False


def _lets(part: Layered, step: Nonlinearity) -> bool:
    """Return whether an activation may be applied before a part as well as after it."""
    match part:
        case Upsampling():
            return part.mode == "nearest"  # which a shift is, too
        case Pooling(reduce="max"):
            return step.is_increasing
    return False


def _before_affine(operation: Layered, step: Affine) -> Layered:
    """Return an operation with a factor and a shift after it as one operation."""
    match operation:
        case Convolution():
            weight = operation.weight * _shaped(step.scale, 0)
            return replace(operation, weight=weight, bias=operation.bias * step.scale + step.shift)
        case TransposedConvolution():
            weight = operation.weight * _shaped(step.scale, 1)
            return replace(operation, weight=weight, bias=operation.bias * step.scale + step.shift)
        case Affine() | Normalization():
            scale, shift = operation.scale * step.scale, operation.shift * step.scale + step.shift
            return replace(operation, scale=scale, shift=shift)
    raise ValueError(f"{operation.origin} takes nothing in")


def _after_affine(step: Convolution, before: Affine) -> Convolution:
    """Return a convolution with a factor and a shift before it as one convolution."""
    out, taken = step.weight.shape[:2]

    def of_groups(values: Float64) -> Float64:
        """Return the values for the inputs of each output map."""
        return np.repeat(values.reshape(step.groups, taken), out // step.groups, axis=0)

    bias = step.bias + (step.weight.sum(axis=(2, 3, 4)) * of_groups(before.shift)).sum(axis=1)
    weight = step.weight * of_groups(before.scale)[:, :, None, None, None]
    return replace(step, weight=weight, bias=bias)


def _shaped(values: Float64, axis: int) -> Float64:
    """Return values of maps along one axis of a convolution's weights."""
    return values.reshape([-1 if index == axis else 1 for index in range(5)])


def _named(
    name: str, in_features: int, folded: list[_Made], source: str, scaling: InputScaling
) -> Folded:
    """Return the folded layers with names, in float32."""
    dense = all(_is_dense(made.operation) for made in folded)
    nodes: list[Node] = []
    called: dict[int, str] = {}
    arrays: dict[str, ConvWeights] = {}
    count = Counter[str]()
    for made in folded:
        if dense and isinstance(made.operation, Affine):
            made.operation = _pointwise(made.operation)
        layer: Layer = made.operation.layer("")
        kind = kind_of(layer)
        count[kind] += 1
        called[id(made)] = made.operation.name or f"{kind}{count[kind]}"
        layer = _activated(replace(layer, name=called[id(made)]), made.activation)
        inputs = tuple(INPUT if read is None else called[id(read)] for read in made.inputs)
        nodes.append(Node(layer, inputs))
        if own := _weights(made):
            arrays[layer.name] = own
    network = Network(name, in_features, tuple(nodes), nodes[-1].name, scaling)
    origins = {
        node.name: ", ".join(dict.fromkeys(made.origins))
        for node, made in zip(nodes, folded, strict=True)
    }
    if network.is_exact:
        lost = context(network)  # raises an error if its layers do not fit together
        if network.window_layer and lost != ZERO:
            raise InvalidInput(
                f"layer {origins[network.window_layer]} depends on whole windows, and the network "
                f"gives {lost} fewer voxels than a window has; only windows that keep their size "
                f"are blended: pad all convolutions, and train again"
            )
    weights = checked_weights(Weights(arrays, source), network)
    return Folded(network, weights, tuple(origins.values()))


def _is_dense(operation: Layered) -> bool:
    """Return whether a layer may be slid over every voxel, alone or as a convolution."""
    return isinstance(operation, Affine) or operation.layer(operation.origin).is_dense


def _pointwise(step: Affine) -> Convolution:
    """Return a convolution of kernel 1 for a factor and a shift."""
    kernels = np.diag(step.scale)[:, :, None, None, None]
    return Convolution(step.origin, kernels, step.shift, step.name)


def _activated(layer: Layer, activation: Nonlinearity | None) -> Layer:
    if activation is None or isinstance(layer, Pool | GlobalPool | Upsample | Concat | Model):
        return layer
    return replace(layer, activation=activation.kind, slope=activation.slope)


def _weights(made: _Made) -> ConvWeights | None:
    """Return the arrays of a layer, in float32; None if it has none."""
    slope = None
    if made.activation and made.activation.slopes is not None:
        slope = _float32(np.broadcast_to(made.activation.slopes, made.maps))
    match made.operation:
        case Convolution() | TransposedConvolution() as step:
            return ConvWeights(_float32(step.weight), _float32(step.bias), slope)
        case Affine() | Normalization() as step:
            return ConvWeights(_float32(step.scale), _float32(step.shift), slope)
    return None


def _float32(array: Float64) -> Float32:
    with np.errstate(over="ignore"):  # checked_weights reports values that become infinite
        return np.ascontiguousarray(array, dtype=np.float32)
