"""Steps of a graph while it is read, with the extents of every value.

A source may resize a value to the extents of another, or compute how much it crops. So a graph is
read for one size of its input. All extents are then known numbers, and what is computed from them
becomes a whole factor, or a crop to the centre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing.checks import NotExpressed, refuse
from znni.importing.margins import Joined, Unsuited, margin_after, margin_of_join, unneeded_crop
from znni.importing.steps import Graph, GraphStep, Layered, Nonlinearity, Operation, convolution
from znni.network.layer_geometry import NO_PADDING
from znni.network.layers import Add, Affine, Conv, GlobalPool, Join, Multiply, Padding, Pool
from znni.network.node import INPUT

# A size of which all usual poolings together are divisors. It is never allocated.
EVEN_SIZE = 2**10 * 3**2 * 5 * 7
PHASES = 64  # remainders that are tried

Result = TypeVar("Result")


class Around(NamedTuple):
    """Samples around a value that a layer of the source cuts off, or zeros that it adds."""

    origin: str
    by: Padding


@dataclass(frozen=True)
class Traced:
    """A value.

    Attributes:
        value: the name of the value that a step computes. What follows is then done to it.
        maps: its number of maps.
        size: its samples per axis.
        is_pooled: whether it has one sample for a whole window.
        margin: the samples around it that only the imported network has.
        crop: the samples that are cut off. Layers that join values do so by themselves.
        zeros: the zeros that are added, which convolutions and average poolings add themselves. A
            convolution of one tap adds them for other layers.
    """

    value: str
    maps: int
    size: Vec3
    is_pooled: bool = False
    margin: Padding = NO_PADDING
    crop: Around | None = None
    zeros: Around | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents along (n, f, z, y, x)."""
        return (1, self.maps, *self.size)


class Tracer:
    """The steps so far."""

    def __init__(self, maps: int, size: Vec3) -> None:
        self.values = {INPUT: Traced(INPUT, maps, size)}
        self._steps: dict[str, GraphStep] = {}
        self._problems: list[str] = []  # which another size may not have
        self.widened: dict[tuple[str, int], str] = {}  # a value of one map, repeated

    def graph(self, outputs: Sequence[str]) -> Graph:
        """Return the graph of all steps.

        Raises:
            InvalidInput: outputs have different extents. Or a value is cropped that nothing here
                crops.
        """
        ends = [self.values[self._with_zeros_made("the output", name)] for name in outputs]
        if len({(end.size, end.margin) for end in ends}) > 1:
            listed = " and ".join(f"{name!r} ({self.values[name].size})" for name in outputs)
            raise InvalidInput(
                f"gives outputs {listed}, whose extents differ; export it with the full output "
                f"only, so without deep supervision"
            )
        for end in ends:
            self._check_around("the output", end)
        if self._problems:
            raise NotExpressed(self._problems[0])
        maps = self.values[INPUT].maps
        distinct = tuple(dict.fromkeys(end.value for end in ends))
        margin = ends[0].margin if ends else NO_PADDING
        steps = (
            replace(step, reads=tuple(self.values[name].value for name in step.reads))
            for step in self._steps.values()
        )
        return Graph(maps, tuple(steps), distinct, margin)

    def add(self, operation: Operation, reads: Sequence[str], value: str) -> None:
        """Add a step that reads the named values, and gives its result a name.

        Raises:
            InvalidInput: the operation does not take values of these maps, or the name is taken.
        """
        operation, reads, zeros = self._with_zeros(operation, reads)
        taken = [self.values[name] for name in reads]
        if zeros:  # which lie around the operation's value, or which it adds by itself
            bare = [each.size - zeros.by.total for each in taken]
            taken = [replace(e, size=s, zeros=None) for e, s in zip(taken, bare, strict=True)]
        first = taken[0]
        match operation:
            case Nonlinearity() | Layered(layer=Affine()):
                may_be_cropped, made = True, first
            case Layered(layer=layer):
                may_be_cropped = isinstance(layer, Join)
                made = Traced(
                    value,
                    layer.maps_from(*(each.maps for each in taken)),
                    layer.size_from(*(each.size for each in taken)),
                    isinstance(layer, GlobalPool) or all(each.is_pooled for each in taken),
                )
        for each in taken:
            self._check_around(operation.origin, each, may_be_cropped=may_be_cropped)
        made = replace(made, value=value, margin=self._margin(operation, taken))
        if zeros and len(taken) > 1:
            made = replace(made, size=made.size + zeros.by.total, zeros=zeros)
        self._name(operation.origin, value, made)
        self._steps[value] = GraphStep(operation, tuple(reads), value)

    def _with_zeros(
        self, operation: Operation, reads: Sequence[str]
    ) -> tuple[Operation, Sequence[str], Around | None]:
        """Return an operation, the values that it takes, and the zeros around these.

        It adds these zeros by itself, or leaves them to the layers after it. If it can do neither,
        a convolution of one tap makes values that have them.
        """
        first, *others = (self.values[name].zeros for name in reads)
        match operation:
            case Layered(layer=Conv() | Pool(reduce="average") as layer) if first:
                padding = layer.padding.widened(first.by)
                layer = replace(layer, name=f"{first.origin}, {layer.name}", padding=padding)
                return replace(operation, layer=layer), reads, first
            case Layered(layer=Add()) if first and {it and it.by for it in others} == {first.by}:
                return operation, reads, first
        return operation, [self._with_zeros_made(operation.origin, name) for name in reads], None

    def _with_zeros_made(self, reader: str, name: str) -> str:
        """Return the name of a value that has the zeros around a named one."""
        held, made = self.values[name], f"{name}\0zeros"
        if held.zeros is None:
            return name
        if made not in self.values:
            origin, by = held.zeros
            ones = np.ones((held.maps, 1, 1, 1, 1))
            added = convolution(f"{origin}, {reader}", ones, groups=held.maps, padding=by)
            self._steps[made] = GraphStep(added, (held.value,), made)
            self.values[made] = replace(held, value=made, zeros=None)
        return made

    def same(self, origin: str, read: str, value: str) -> None:
        """Give a value another name."""
        self._name(origin, value, self.values[read])

    def crop(self, origin: str, read: str, value: str, by: Padding) -> None:
        """Cut samples off a value."""
        held = self.values[self._with_zeros_made(origin, read)]
        self._check_around(origin, held, may_be_cropped=True)
        both = held.crop.by.widened(by) if held.crop else by
        cropped = replace(held, size=held.size - by.total, crop=Around(origin, both))
        self._name(origin, value, cropped)

    def pad(self, origin: str, read: str, value: str, by: Padding) -> None:
        """Add zeros around a value."""
        held = self.values[read]
        self._check_around(origin, held)
        if held.margin != NO_PADDING:
            raise unneeded_crop(origin, held.margin)
        size, both = held.size + by.total, held.zeros.by.widened(by) if held.zeros else by
        padded = replace(held, size=size, crop=None, zeros=Around(origin, both))
        self._name(origin, value, padded)

    def _check_around(self, reader: str, held: Traced, *, may_be_cropped: bool = False) -> None:
        """Note it as a problem if a reader takes no value that is cropped."""
        if held.crop and not may_be_cropped:
            self._problems.append(
                f"{held.crop.origin} crops what {reader} reads; only what is joined with other "
                f"values is cropped here: leave the crop out, and crop the result"
            )

    def _name(self, origin: str, name: str, value: Traced) -> None:
        if name in self.values:
            refuse(origin, f"gives {name!r}, which another layer gives; export it again")
        self.values[name] = value

    def maker(self, name: str) -> GraphStep | None:
        """Return the step that gives a value, whatever its name.

        It is None for the input, and for a value that is cropped or padded after its step.
        """
        held = self.values[name]
        return self._steps.get(held.value) if held == self.values[held.value] else None

    def fresh(self) -> str:
        """Return a name that no source gives."""
        return f"\0{len(self.values)}"

    def _margin(self, operation: Operation, taken: Sequence[Traced]) -> Padding:
        """Return the margin of what an operation gives."""
        if not (isinstance(operation, Layered) and isinstance(operation.layer, Join)):
            return margin_after(operation, taken[0].margin)
        spreads = isinstance(operation.layer, Multiply) and operation.layer.spreads
        joined = [
            Joined(each.size, each.margin.widened(by), origin)
            for each in (taken[:1] if spreads else taken)
            for origin, by in [each.crop or Around("", NO_PADDING)]
        ]
        return margin_of_join(operation.origin, joined)


def traced(extents: Sequence[int | None], read: Callable[[Vec3], Result]) -> Result:
    """Read a graph for a size of its input that suits it.

    Args:
        extents: the extents of the input; None for those that are free.
        read: function that reads the graph for a size.

    Raises:
        InvalidInput: the graph cannot be represented.
    """
    errors: list[Unsuited] = []
    for size in _sizes(extents):
        try:
            return read(size)
        except Unsuited as error:
            errors.append(error)
    raise errors[0]


def _sizes(extents: Sequence[int | None]) -> Iterator[Vec3]:
    """Yield sizes of an input: multiples of all usual poolings, and these plus remainders."""
    phases = range(PHASES if None in extents else 1)
    for phase in phases:
        yield Vec3(*(EVEN_SIZE + phase if size is None else size for size in extents))
