"""The protocol of a primitive: one algorithm for one kind of layer on one device.

A primitive declares what a call costs before it runs. ``znni.primitives.catalogue`` lists all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, runtime_checkable

from znni.core.shapes import Shape5, fragments, max_pooling, valid_convolution
from znni.machine.machine import Device, DeviceKind
from znni.network.network import Conv, Operation, Pool, PooledConv
from znni.plans.cost import Cost

if TYPE_CHECKING:
    from znni.network.weights import ConvWeights, Float32

Run: TypeAlias = "Callable[[Float32], Float32]"
Found = TypeVar("Found")
Layer = TypeVar("Layer", Conv, Pool)


class Primitive(Protocol):
    """One algorithm on one device."""

    @property
    def name(self) -> str:
        """Unique in the catalogue."""

    @property
    def device(self) -> Device:
        """Where it runs."""

    @property
    def accuracy(self) -> float:
        """The relative error that it promises against a float64 reference."""

    @property
    def version(self) -> int:
        """Raised by its author when its speed changes: older measurements no longer count."""

    def out_shape(self, layer: Operation, shape: Shape5) -> Shape5 | None:
        """Shape of the output, or None where this primitive does not apply."""

    def cost(self, layer: Operation, shape: Shape5) -> Cost:
        """Exact memory, and operations, of one call on an input of ``shape``."""

    def build(self, layer: Operation, shape: Shape5, weights: ConvWeights | None) -> Run:
        """Prepare all that can be done once.

        Returns:
            ``run(x) -> y``: float32 arrays (n, f, z, y, x) on the primitive's device. ``x`` has
            exactly ``shape``, is left as it is, and may be a view with any strides but a
            contiguous last axis. ``y`` is new and C-contiguous. A ``run`` is not reentrant.
        """


@runtime_checkable
class UsesGpu(Protocol):
    """A primitive of the host that computes on a GPU."""

    @property
    def gpu(self) -> Device:
        """Which."""

    @property
    def base(self) -> Primitive:
        """The GPU's own that computes the pieces."""


Catalogue: TypeAlias = Mapping[str, Primitive]


def on_device(primitives: Catalogue, kind: DeviceKind) -> dict[str, Primitive]:
    """Those that run on the host, or on a GPU."""
    return {name: found for name, found in primitives.items() if found.device.kind == kind}


def without_gpu(primitives: Catalogue) -> dict[str, Primitive]:
    """Those that run on the host alone."""
    on_host = on_device(primitives, "cpu")
    return {name: found for name, found in on_host.items() if not isinstance(found, UsesGpu)}


def applying(found: Found | None, primitive: Primitive, layer: Operation, shape: Shape5) -> Found:
    """What a primitive found of a layer and the shape of its input, which it is asked to do.

    Raises:
        ValueError: it found nothing, as it does not apply to them.
    """
    if found is None:
        raise ValueError(f"{primitive.name} does not apply to {layer} on {shape}")
    return found


def applied_to(
    kind: type[Layer], primitive: Primitive, layer: Operation, shape: Shape5
) -> tuple[Layer, Shape5]:
    """The layer that a primitive for one kind of them is asked to do, and its output's shape.

    Raises:
        ValueError: it is of another kind, or the primitive does not apply to it on that shape.
    """
    out = primitive.out_shape(layer, shape)
    found = (layer, out) if isinstance(layer, kind) and out else None
    return applying(found, primitive, layer, shape)


def convolved(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Output shape of a valid convolution; None for another layer, maps or too small a size."""
    if not isinstance(layer, Conv) or layer.in_features != shape.f:
        return None
    size = valid_convolution(shape.size, layer.kernel)
    return size and Shape5.of(shape.n, layer.out_features, size)


def pooled(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Output shape of max-pooling; None for another layer or too small a size."""
    size = max_pooling(shape.size, layer.window) if isinstance(layer, Pool) else None
    return size and Shape5.of(shape.n, shape.f, size)


def convolved_and_pooled(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Output shape of a convolution that is pooled plainly; None for anything else."""
    if not isinstance(layer, PooledConv):
        return None
    between = convolved(layer.conv, shape)
    return between and pooled(layer.pool, between)


def fragmented(layer: Operation, shape: Shape5) -> Shape5 | None:
    """Output shape of max-pooling fragments; None where they would differ in size."""
    if not isinstance(layer, Pool):
        return None
    size = fragments(shape.size, layer.window)
    return size and Shape5.of(shape.n * layer.window.volume, shape.f, size)
