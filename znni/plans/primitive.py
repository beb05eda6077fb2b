"""The protocol of a primitive: one algorithm for one kind of layer on one device.

A primitive declares the cost of a call before it runs. ``znni.primitives.catalogue`` lists all
primitives.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

from znni.core.processors import HOST, DeviceKind
from znni.core.shapes import Shape5, fragments, max_pooling, valid_convolution
from znni.machine.machine import Device
from znni.network.layers import (
    Add,
    Concat,
    Conv,
    ConvPair,
    FusedOperation,
    GlobalPool,
    Maximum,
    Multiply,
    Operation,
    PadLayer,
    Pool,
    PooledConv,
    SummedConv,
    SummedConvPair,
    Upsample,
)
from znni.network.layers import Layer as AnyLayer
from znni.network.pooling import Reduce
from znni.plans.cost import Cost

if TYPE_CHECKING:
    from znni.network.weights import ConvWeights, Float32

# Functions of one array for each input. If the layer sees edges, a ``Box`` comes last.
Run: TypeAlias = "Callable[..., Float32]"
Found = TypeVar("Found")
Layer = TypeVar("Layer", bound=AnyLayer | FusedOperation)


class Primitive(Protocol):
    """One algorithm on one device."""

    @property
    def name(self) -> str:
        """The name, unique in the catalogue."""

    @property
    def device(self) -> Device:
        """The device on which it runs."""

    @property
    def accuracy(self) -> float:
        """The relative error that it promises against a float64 reference."""

    @property
    def version(self) -> int:
        """The version, raised by its author when the speed changes.

        Measurements of older versions do not count.
        """

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Return the shape of the output, or None if this primitive does not apply."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Return the exact memory, and the operations, of one call on an input of ``shape``."""

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None, /) -> Run:
        """Prepare everything that can be done once.

        Returns:
            ``run(x) -> y``, a function of float32 arrays (n, f, z, y, x) on the primitive's device.
            ``x`` has exactly ``shape`` and is not changed. It may be a view with any strides,
            except that its last axis is contiguous. ``y`` is new and C-contiguous, or the array
            given by ``output_into``. On the host that may be a view with any positive strides,
            except that its last axis is contiguous. A ``run`` is not reentrant.

            A join's ``run`` takes one array for each input. Their maps add up to those of
            ``shape``. The output of an ``Add``, ``Multiply``, ``Maximum`` or
            ``Affine`` may be the memory of the first input. If the second value of a ``Multiply``
            has one sample, ``shape`` counts it as if it had those of the first. If the layer sees
            edges, ``run`` takes a ``Box`` after the input: its samples within the volume, counted
            from the first sample of ``x``.

            The ``run`` of a step that adds in place takes the value to add to after the input. The
            output is usually the memory of that value. Else the value is copied there first.

            The weights of several layers are those of the first, with those of the others after it.
        """


@runtime_checkable
class TakesTimePerItem(Primitive, Protocol):
    """A primitive that takes its nominal time item by item.

    Several calls take no less than one call for all of their items, and more items take no less
    than fewer. So a search need not price all of them.
    """

    @property
    def bounded_by(self) -> str:
        """The name of a primitive of this kind that takes no more nominal time; it may be its own.

        It applies to the same layers and shapes.
        """


class BoundedByItself:
    """A primitive that takes time item by item, and that no other one bounds."""

    @property
    def bounded_by(self: Primitive) -> str:
        """Its own name."""
        return self.name


@runtime_checkable
class UsesGpu(Protocol):
    """A primitive of the host that computes on a GPU."""

    @property
    def gpu(self) -> Device:
        """The GPU."""

    @property
    def base(self) -> Primitive:
        """The GPU's own primitive that computes the pieces."""


@runtime_checkable
class TakesPacked(Protocol):
    """A primitive of packed layers, and of nothing else."""

    @property
    def packed_parts(self) -> int:
        """The parts of the packed numbers that it reads or writes."""


Catalogue: TypeAlias = Mapping[str, Primitive]


def by_values(
    primitives: Iterable[Primitive],
) -> tuple[tuple[Primitive, ...], tuple[Primitive, ...]]:
    """Return the primitives of packed layers, and those of all other operations."""
    packed, others = list[Primitive](), list[Primitive]()
    for primitive in primitives:
        (packed if isinstance(primitive, TakesPacked) else others).append(primitive)
    return tuple(packed), tuple(others)


class LazyCatalogue(Mapping[str, Primitive]):
    """A catalogue that finds a primitive when it is looked up, and all of them when it is iterated.

    Attributes:
        cache_key: a text that changes if the same code finds other primitives on this machine.
            It is None if nobody knows.
        devices: the devices that its primitives may run on.
    """

    cache_key: str | None
    devices: tuple[Device, ...]

    @property
    @abstractmethod
    def all_found(self) -> Mapping[str, Primitive]:
        """All primitives by name, in the order of the catalogue."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.all_found)

    def __len__(self) -> int:
        return len(self.all_found)


class Among(LazyCatalogue):
    """The primitives of a catalogue that meet a condition.

    Args:
        catalogue: the catalogue.
        condition: the condition.
        cache_key: a text that differs for other conditions.
        kinds: the kinds of devices that the primitives may run on.
        check: is called with all primitives that meet the condition, when they are found.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        condition: Callable[[Primitive], bool],
        cache_key: str,
        kinds: Collection[DeviceKind] = get_args(DeviceKind),
        check: Callable[[Catalogue], None] | None = None,
    ) -> None:
        self._catalogue, self._condition, self._check = catalogue, condition, check
        known = cache_key_of(catalogue)
        self.cache_key = known and f"{known}, {cache_key}"
        self.devices = tuple(it for it in devices_of(catalogue) if it.kind in kinds)

    @cached_property
    def all_found(self) -> dict[str, Primitive]:
        """All primitives that meet the condition, by name."""
        by_name = {name: it for name, it in self._catalogue.items() if self._condition(it)}
        if self._check:
            self._check(by_name)
        return by_name

    def __getitem__(self, name: str) -> Primitive:
        primitive = self._catalogue[name]
        if not self._condition(primitive):
            raise KeyError(name)
        return primitive


def cache_key_of(catalogue: Catalogue) -> str | None:
    """Return the text of a lazy catalogue that tells it apart; None for another catalogue."""
    return catalogue.cache_key if isinstance(catalogue, LazyCatalogue) else None


def devices_of(catalogue: Catalogue) -> tuple[Device, ...]:
    """Return the devices that primitives run on; those of a lazy one are not looked up."""
    if isinstance(catalogue, LazyCatalogue):
        return catalogue.devices
    return tuple({primitive.device: None for primitive in catalogue.values()})


def on_device(
    primitives: Catalogue, kind: DeviceKind, check: Callable[[Catalogue], None] | None = None
) -> LazyCatalogue:
    """Return the primitives that run on the host, or those that run on a GPU.

    Args:
        primitives: the primitives to choose from.
        kind: the kind of device.
        check: is called with all of them, when they are found.
    """

    def there(found: Primitive) -> bool:
        return found.device.kind == kind

    return Among(primitives, there, f"on {kind}", {kind}, check)


def without_gpu(primitives: Catalogue) -> LazyCatalogue:
    """Return the primitives that run on the host alone."""

    def alone(found: Primitive) -> bool:
        return not found.device.has_own_memory and not isinstance(found, UsesGpu)

    return Among(primitives, alone, "on the host alone", {HOST})


def applying(found: Found | None, primitive: Primitive, layer: Operation, shape: Shape5) -> Found:
    """Return the value that a primitive found for a layer and an input shape.

    Raises:
        ValueError: it found None, because it does not apply to them.
    """
    if found is None:
        raise ValueError(f"{primitive.name} does not apply to {layer} on {shape}")
    return found


def applied_to(
    kind: type[Layer], primitive: Primitive, layer: Operation, shape: Shape5
) -> tuple[Layer, Shape5]:
    """Return the layer that a primitive for one kind of layer computes, and its output shape.

    Raises:
        ValueError: the layer is of another kind, or the primitive does not apply to that shape.
    """
    out = primitive.out_shape(layer, shape)
    applied = (layer, out) if isinstance(layer, kind) and out else None
    return applying(applied, primitive, layer, shape)


def convolved(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Return the output shape of a valid convolution.

    It is None for another layer, for other maps, or if the input is too small. It is also None for
    a convolution with a stride, dilation, groups or padding.
    """
    if not isinstance(layer, Conv) or layer.in_features != shape.f or not layer.is_dense:
        return None
    size = valid_convolution(shape.size, layer.kernel)
    return size and Shape5.of(shape.n, layer.out_features, size)


def convolution_of(layer: Operation) -> Operation:
    """Return the convolutions that a sum adds, with its activation; another operation itself."""
    return layer.activated if isinstance(layer, SummedConv | SummedConvPair) else layer


def convolved_with_gaps(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Return the output shape of a convolution with any stride, dilation and groups.

    It is None for another layer, for other maps, if the input is too small, or if there is padding:
    zeros are stored around the input.
    """
    if not isinstance(layer, Conv) or layer.in_features != shape.f:
        return None
    if layer != layer.local or not layer.reach.within(shape.size):
        return None
    return Shape5.of(shape.n, layer.out_features, layer.local_size(shape.size))


def pooled(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Return the output shape of max-pooling with stride = window, without padding.

    It is None for another layer or too small an input.
    """
    if not isinstance(layer, Pool) or not layer.is_dense or layer.reduce != "max":
        return None
    size = max_pooling(shape.size, layer.window)
    return size and Shape5.of(shape.n, shape.f, size)


def convolved_and_pooled(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Return the output shape of a convolution that is pooled plainly; None for anything else."""
    if not isinstance(layer, PooledConv):
        return None
    between = convolved(layer.conv, shape)
    return between and pooled(layer.pool, between)


def convolved_twice(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Return the output shape of two convolutions as one operation; None for anything else."""
    if not isinstance(layer, ConvPair):
        return None
    between = convolved(layer.conv, shape)
    return between and convolved(layer.after, between)


def fragmented(layer: Operation, shape: Shape5, reduce: Reduce = "max") -> Shape5 | None:
    """Return the output shape of the fragments of a pooling; None if their sizes would differ."""
    if not isinstance(layer, Pool) or not layer.is_dense or layer.reduce != reduce:
        return None
    size = fragments(shape.size, layer.window)
    return size and Shape5.of(shape.n * layer.window.volume, shape.f, size)


def window_pooled(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Return the output shape of any pooling but plain maxima; None if its window does not fit."""
    if not isinstance(layer, Pool) or layer != layer.local:
        return None
    if layer.is_dense and layer.reduce == "max":
        return None
    if not layer.reach.within(shape.size):
        return None
    return Shape5.of(shape.n, shape.f, layer.local_size(shape.size))


def globally_pooled(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Return the output shape of a global pooling: one sample for each map; None for another."""
    return Shape5(shape.n, shape.f, 1, 1, 1) if isinstance(layer, GlobalPool) else None


def edge_filled(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Return the output shape of a block that is padded by its own values: the input's."""
    return shape if isinstance(layer, PadLayer) and layer == layer.local else None


def concatenated(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Return the output shape of a concatenation of inputs that together have ``shape``."""
    return shape if isinstance(layer, Concat) else None


def upsampled(layer: Operation, shape: Shape5, mode: str) -> Shape5 | None:
    """Return the output shape of upsampling of one kind; None if nothing is left of the input."""
    if not isinstance(layer, Upsample) or layer.mode != mode:
        return None
    size = layer.local_size(shape.size)
    return Shape5.of(shape.n, shape.f, size) if min(size) > 0 else None


def joined(
    layer: Operation, shape: Shape5, kind: type[Add] | type[Multiply] | type[Maximum]
) -> Shape5 | None:
    """Return the output shape of a join of two values voxel by voxel.

    Args:
        layer: the join.
        shape: the shape of both inputs together, map after map.
        kind: the only kind of join that counts.

    Returns:
        The shape of the first input; None for another layer, or if the maps cannot be divided so.
    """
    if not isinstance(layer, kind):
        return None
    gate = isinstance(layer, Multiply) and layer.is_gate
    maps, rest = (shape.f - 1, 0) if gate else divmod(shape.f, 2)
    return shape._replace(f=maps) if maps and not rest else None
