"""Steps of a graph while it is read, with the extents of every value.

A source may resize a value to the extents of another, or compute how much it crops. So a graph is
read for one size of its input. All extents are then known numbers, and what is computed from them
becomes a whole factor, or a crop to the centre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing.checks import refuse
from znni.importing.margins import Joined, Unsuited, margin_after, margin_of_join
from znni.importing.steps import (
    Cropping,
    Graph,
    Layered,
    Nonlinearity,
    Operation,
    Step,
    ZeroPadding,
)
from znni.network.layer_geometry import NO_PADDING
from znni.network.layers import Affine, GlobalPool, Join, Multiply, Padding
from znni.network.node import INPUT

# A size of which all usual poolings together are divisors. It is never allocated.
EVEN_SIZE = 2**10 * 3**2 * 5 * 7
PHASES = 64  # remainders that are tried

Result = TypeVar("Result")


@dataclass(frozen=True)
class Traced:
    """A value.

    Attributes:
        maps: its number of maps.
        size: its samples per axis.
        is_pooled: whether it has one sample for a whole window.
        margin: the samples around it that only the imported network has.
    """

    maps: int
    size: Vec3
    is_pooled: bool = False
    margin: Padding = NO_PADDING

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents along (n, f, z, y, x)."""
        return (1, self.maps, *self.size)


class Tracer:
    """The steps so far."""

    def __init__(self, maps: int, size: Vec3) -> None:
        self.values = {INPUT: Traced(maps, size)}
        self._steps: dict[str, Step] = {}
        self.widened: dict[tuple[str, int], str] = {}  # a value of one map, repeated

    def graph(self, outputs: Sequence[str]) -> Graph:
        """Return the graph of all steps.

        Raises:
            InvalidInput: outputs have different extents.
        """
        ends = [self.values[name] for name in outputs]
        if len({(end.size, end.margin) for end in ends}) > 1:
            listed = " and ".join(f"{name!r} ({self.values[name].size})" for name in outputs)
            raise InvalidInput(
                f"gives outputs {listed}, whose extents differ; export it with the full output "
                f"only, so without deep supervision"
            )
        maps = self.values[INPUT].maps
        distinct = tuple(dict.fromkeys(outputs))
        margin = ends[0].margin if ends else NO_PADDING
        return Graph(maps, tuple(self._steps.values()), distinct, margin)

    def add(self, operation: Operation, reads: Sequence[str], value: str) -> None:
        """Add a step that reads the named values, and gives its result a name.

        Raises:
            InvalidInput: the operation does not take values of these maps, or the name is taken.
        """
        if value in self.values:
            refuse(operation.origin, f"gives {value!r}, which another layer gives; export it again")
        first = self.values[reads[0]]
        match operation:
            case Nonlinearity():
                made = first
            case Cropping():
                made = replace(first, size=first.size - operation.cut.total)
            case ZeroPadding():
                made = Traced(first.maps, first.size + operation.padding.total)
            case Layered(layer=layer):
                taken = [self.values[name] for name in reads]
                made = Traced(
                    layer.maps_from(*(value.maps for value in taken)),
                    layer.size_from(*(value.size for value in taken)),
                    isinstance(layer, GlobalPool) or all(value.is_pooled for value in taken),
                )
        self.values[value] = replace(made, margin=self._margin(operation, reads))
        self._steps[value] = Step(operation, tuple(reads), value)

    def maker(self, name: str) -> Step | None:
        """Return the step that gives a value, whatever its name; None for the input."""
        step = self._steps.get(name)
        while step and isinstance(step.operation, Nonlinearity):
            if step.operation.kind != "identity":
                break
            step = self._steps.get(step.reads[0])
        return step

    def fresh(self) -> str:
        """Return a name that no source gives."""
        return f"\0{len(self.values)}"

    def _margin(self, operation: Operation, reads: Sequence[str]) -> Padding:
        """Return the margin of what an operation gives."""
        if not (isinstance(operation, Layered) and isinstance(operation.layer, Join)):
            return margin_after(operation, self.values[reads[0]].margin)
        spreads = isinstance(operation.layer, Multiply) and operation.layer.spreads
        names = reads[:1] if spreads else reads
        return margin_of_join(operation.origin, [self._joined(name) for name in names])

    def _joined(self, name: str) -> Joined:
        """Return a value as a join reads it."""
        held, crop = self.values[name], self._crop(name)
        if not crop:
            return Joined(held.size, held.margin, "")
        return Joined(held.size, held.margin.widened(crop.cut), crop.origin)

    def _crop(self, name: str) -> Cropping | None:
        """Return all that is cut off a value after the layer that computes it."""
        found: Cropping | None = None
        while step := self._steps.get(name):
            match step.operation:
                case Cropping(origin, cut):
                    found = Cropping(origin, cut.widened(found.cut) if found else cut)
                case Nonlinearity() | Layered(layer=Affine()):
                    pass
                case _:
                    break
            (name,) = step.reads
        return found


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
