"""Steps of a graph while it is read, with the extents of every value.

A source may resize a value to the extents of another, or compute how much it crops. So a graph is
read for one size of its input. All extents are then known numbers, and what is computed from them
becomes a whole factor, or a crop to the centre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.importing.checks import AS_IT_IS, ATTENTION, LAYERS, convolution, per_map, refuse, values
from znni.importing.margins import Joined, Unsuited, margin_after, margin_of_join
from znni.importing.steps import (
    Affine,
    Convolution,
    Cropping,
    Float64,
    GlobalPooling,
    Graph,
    Joining,
    Nonlinearity,
    Operation,
    Step,
    TransposedConvolution,
    Upsampling,
    ZeroPadding,
)
from znni.network.layer_geometry import NO_PADDING, ONE, ZERO
from znni.network.layers import Padding
from znni.network.node import INPUT

# A size of which all usual poolings together are divisors. It is never allocated.
EVEN_SIZE = 2**10 * 3**2 * 5 * 7
PHASES = 64  # remainders that are tried
END = 2**62  # of a slice to the end of its axis
MOST_MAPS = 2**14  # that maps are mixed to

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


class Tracer:
    """The steps so far."""

    def __init__(self, maps: int, size: Vec3) -> None:
        self.values = {INPUT: Traced(maps, size)}
        self._steps: dict[str, Step] = {}
        self._widened: dict[tuple[str, int], str] = {}

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
                made = replace(first, size=first.size - operation.before - operation.after)
            case ZeroPadding():
                made = Traced(first.maps, first.size + operation.padding.total)
            case _:
                layer = operation.layer(operation.origin)
                taken = [self.values[name] for name in reads]
                pooled = isinstance(operation, GlobalPooling)
                made = Traced(
                    layer.maps_from(*(value.maps for value in taken)),
                    layer.size_from(*(value.size for value in taken)),
                    pooled or all(value.is_pooled for value in taken),
                )
        self.values[value] = replace(made, margin=self._margin(operation, reads))
        self._steps[value] = Step(operation, tuple(reads), value)

    def same(self, origin: str, read: str, value: str) -> None:
        """Give a value another name."""
        self.add(Nonlinearity(origin, "identity"), (read,), value)

    def scaled(
        self, origin: str, read: str, value: str, *, scale: object = 1.0, shift: object = 0.0
    ) -> None:
        """Multiply a value by a constant, and add another one."""
        maps = self.values[read].maps
        factors, shifts = per_map(origin, scale, maps), per_map(origin, shift, maps)
        self.add(Affine(origin, factors, shifts), (read,), value)

    def mixed(self, origin: str, read: str, value: str, factors: Float64) -> None:
        """Make each map of a value from those of another, by factors (out, in)."""
        kernels = factors[:, :, None, None, None]
        self.add(Convolution(origin, kernels, np.zeros(len(factors))), (read,), value)

    def repeated(self, origin: str, read: str, value: str, times: int) -> None:
        """Repeat all maps of a value.

        Raises:
            InvalidInput: there are too many.
        """
        if times * self.values[read].maps > MOST_MAPS:
            refuse(origin, f"repeats maps {times} times; give less than {MOST_MAPS} maps")
        self.mixed(origin, read, value, np.tile(np.eye(self.values[read].maps), (times, 1)))

    def concatenated(self, origin: str, reads: Sequence[str], axis: object, value: str) -> None:
        """Join the maps of several values.

        Raises:
            InvalidInput: it is another axis that is joined, or their extents differ.
        """
        if axis not in (1, -4):
            refuse(origin, f"joins values along axis {axis}; here maps are joined: axis 1")
        if len(reads) == 1:
            self.same(origin, reads[0], value)
            return
        self._check_extents(origin, reads)
        self.add(Joining(origin, "concat"), reads, value)

    def added(self, origin: str, reads: Sequence[str], value: str) -> None:
        """Add values. One with a single map is added to all maps of the other.

        Raises:
            InvalidInput: their extents or maps differ.
        """
        self._check_extents(origin, reads)
        total, most = reads[0], max(self.values[name].maps for name in reads)
        for index, name in enumerate(reads[1:]):
            pair = [self._wide(origin, each, most) for each in (total, name)]
            total = value if index == len(reads) - 2 else self.fresh()
            self.add(Joining(origin, "add"), pair, total)
        if len(reads) == 1:
            self.same(origin, total, value)

    def multiplied(self, origin: str, reads: Sequence[str], value: str) -> None:
        """Multiply two values. One with a single map multiplies all maps of the other.

        A globally pooled value multiplies all samples of the other.

        Raises:
            InvalidInput: their extents or maps differ.
        """
        first, second = reads
        spreads = self.values[first].is_pooled != self.values[second].is_pooled
        if not spreads:
            self._check_extents(origin, reads)
        if self.values[first].is_pooled if spreads else self.values[first].maps == 1:
            first, second = second, first
        if spreads:
            first = self._wide(origin, first, self.values[second].maps)
        is_gate = self.values[second].maps == 1 < self.values[first].maps
        self.add(Joining(origin, "multiply", is_gate, spreads), (first, second), value)

    def larger(self, origin: str, reads: Sequence[str], value: str) -> None:
        """Give the larger of two values. One with a single map counts for all maps of the other.

        Raises:
            InvalidInput: their extents or maps differ.
        """
        self._check_extents(origin, reads)
        most = max(self.values[name].maps for name in reads)
        pair = [self._wide(origin, name, most) for name in reads]
        self.add(Joining(origin, "maximum"), pair, value)

    def reshaped(self, origin: str, read: str, axes: Sequence[object], value: str) -> None:
        """Give the same axes to a value, or another number of axes to a globally pooled one.

        Raises:
            InvalidInput: its samples or its maps would not stay in their axes.
        """
        held = self.values[read]
        own = (1, held.maps, *held.size)
        fits = len(axes) == len(own) or (held.is_pooled and len(axes) > 1)
        known = zip(axes, own if len(axes) == len(own) else (*own[:2], *(1,) * 9), strict=False)
        if not fits or any(axis not in (-1, size) for axis, size in known):
            refuse(
                origin,
                f"changes the axes of {own} to {tuple(axes)}; only globally "
                f"pooled values change their axes here, and keep their maps: {LAYERS}",
            )
        self.same(origin, read, value)

    def connected(self, origin: str, read: str, weight: object, bias: object, value: str) -> None:
        """Make each map of a globally pooled value from all maps: a fully connected layer.

        Args:
            origin: the layer.
            read: the value.
            weight: the factors (out, in).
            bias: the shifts (out,), or None.
            value: the name of the result.

        Raises:
            InvalidInput: the value has more samples than one.
        """
        factors = values(origin, "weight", weight)
        if not self.values[read].is_pooled or factors.ndim != 2:
            refuse(
                origin,
                f"multiplies by a matrix what is not globally pooled; {ATTENTION}, {AS_IT_IS}",
            )
        self.add(convolution(origin, factors[:, :, None, None, None], bias), (read,), value)

    def resized(
        self,
        origin: str,
        read: str,
        value: str,
        mode: Literal["nearest", "trilinear"],
        *,
        factors: Sequence[float] | None,
        size: Vec3 | None,
    ) -> None:
        """Resize a value by factors, or to a size.

        Raises:
            InvalidInput: the factors are not whole.
        """
        if factors is None and size is None:
            refuse(origin, "has neither factors nor a size; export it again")
        if factors is not None:
            whole = [round(factor) if np.isfinite(factor) else 0 for factor in factors]
            if len(whole) != 3 or min(whole) < 1 or any(np.subtract(whole, factors)):
                refuse(
                    origin,
                    f"resizes by {list(factors)}; only whole factors are represented: use these, "
                    f"and poolings or strided convolutions to make values smaller",
                )
            by = Vec3(*whole)
        elif size is not None:
            by, shift = self._resizing(origin, read, mode, size)
            if shift != ZERO:
                shifted = value if by == ONE else self.fresh()
                self.add(Upsampling(origin, ONE, shift=shift), (read,), shifted)
                read = shifted
        if by != ONE:
            self.add(Upsampling(origin, by, mode), (read,), value)
        elif read != value:
            self.same(origin, read, value)

    def _resizing(
        self, origin: str, read: str, mode: Literal["nearest", "trilinear"], size: Vec3
    ) -> tuple[Vec3, Vec3]:
        """Return the factors and the shift that resize a value to a size.

        Nearest resizing by one sample repeats the first one. Transposed convolutions that give one
        sample too few are followed by it. If they give a single one, a factor would do so, too.
        """
        have = self.values[read].size
        maker = self.maker(read)
        may_shift = mode == "nearest" and min(have) > 0
        from_one = maker is not None and isinstance(maker.operation, TransposedConvolution)
        shift = Vec3(
            *(
                int(may_shift and wanted == held + 1 and (held > 1 or from_one))
                for held, wanted in zip(have, size, strict=True)
            )
        )
        rest = size - shift
        if min(have) < 1 or min(rest) < 1 or rest % have != ZERO:
            raise Unsuited(
                f"{origin} resizes {have} to {size}, and only whole factors are represented; "
                f"export it for an input whose extents are multiples of all its poolings"
            )
        return rest // have, shift

    def sliced(
        self, origin: str, read: str, axis: int, start: int, stop: int, step: int, value: str
    ) -> None:
        """Take a slice of an array (n, f, z, y, x), as Python slices it.

        Raises:
            InvalidInput: it is another axis, or it steps backwards.
        """
        axis = axis + 5 if axis < 0 else axis
        if not 0 <= axis < 5 or step < 1:
            refuse(origin, f"slices axis {axis} by {step}; give axis 1 to 4, and a step from 1 on")
        held = self.values[read]
        length = (1, held.maps, *held.size)[axis]
        kept = range(*slice(start, stop, step).indices(max(length, 0)))
        if len(kept) == length:
            self.same(origin, read, value)
        elif axis == 0 or not kept:
            refuse(origin, f"takes {len(kept)} of {length} along axis {axis}; give a whole batch")
        elif axis == 1:
            self.mixed(origin, read, value, np.eye(held.maps)[kept.start : kept.stop : kept.step])
        elif step == 1:
            ends = [(0, 0)] * 3
            ends[axis - 2] = (kept.start, length - kept.stop)
            before, after = (Vec3(*side) for side in zip(*ends, strict=True))
            self.add(Cropping(origin, before, after), (read,), value)
        else:
            self._thinned(origin, read, axis - 2, kept, value)

    def padded(
        self, origin: str, read: str, before: Vec3, after: Vec3, value: str, *, zeros: bool
    ) -> None:
        """Put samples around a value; where a number of them is negative, cut off as many.

        Args:
            origin: the layer.
            read: the value.
            before: the samples before the first one.
            after: the samples after the last one.
            value: name of the result.
            zeros: whether the samples are zeros.

        Raises:
            InvalidInput: the samples are not zeros.
        """
        padding = Padding(before.maximum(ZERO), after.maximum(ZERO))
        if padding.total != ZERO and not zeros:
            refuse(
                origin,
                f"puts {padding.before} samples before and {padding.after} after its input that "
                f"are no zeros; pad with zeros, or not at all, and train again",
            )
        cut = Cropping(origin, ZERO - before.minimum(ZERO), ZERO - after.minimum(ZERO))
        if cut.before + cut.after != ZERO:
            cropped = self.fresh()
            self.add(cut, (read,), cropped)
            read = cropped
        if padding.total != ZERO:
            self.add(ZeroPadding(origin, padding), (read,), value)
        else:
            self.same(origin, read, value)

    def _thinned(self, origin: str, read: str, axis: int, kept: range, value: str) -> None:
        """Undo nearest upsampling along an axis by a slice of every so many samples."""
        made = self.maker(read)
        if made and isinstance(made.operation, Upsampling) and made.operation.mode == "nearest":
            factor = list(made.operation.factor)
            length = self.values[read].size[axis]
            if factor[axis] % kept.step == 0 and len(kept) * kept.step == length:
                factor[axis] //= kept.step
                both = f"{made.operation.origin}, {origin}"
                self.add(Upsampling(both, Vec3(*factor)), made.reads, value)
                return
        refuse(
            origin,
            f"takes every {kept.step}th sample along axis {'zyx'[axis]}; give the layer before it "
            f"a stride",
        )

    def maker(self, name: str) -> Step | None:
        """Return the step that gives a value, whatever its name; None for the input."""
        step = self._steps.get(name)
        while step and isinstance(step.operation, Nonlinearity):
            if step.operation.kind != "identity":
                break
            step = self._steps.get(step.reads[0])
        return step

    def _wide(self, origin: str, name: str, maps: int) -> str:
        """Return the name of a value with so many maps, repeated from one map if needed."""
        if self.values[name].maps != 1 or maps == 1:
            return name
        if (name, maps) not in self._widened:
            self._widened[name, maps] = self.fresh()
            self.repeated(origin, name, self._widened[name, maps], maps)
        return self._widened[name, maps]

    def fresh(self) -> str:
        """Return a name that no source gives."""
        return f"\0{len(self.values)}"

    def _check_extents(self, origin: str, reads: Sequence[str]) -> None:
        """Check that values have the same extents in the source."""
        sizes = {self.values[name].size for name in reads}
        if len(sizes) > 1:
            listed = " and ".join(map(str, sorted(sizes)))
            raise Unsuited(f"{origin} joins values of {listed}; give them equal extents")

    def _margin(self, operation: Operation, reads: Sequence[str]) -> Padding:
        """Return the margin of what an operation gives."""
        if not isinstance(operation, Joining):
            return margin_after(operation, self.values[reads[0]].margin)
        names = reads[:1] if operation.spreads else reads
        return margin_of_join(operation.origin, [self._joined(name) for name in names])

    def _joined(self, name: str) -> Joined:
        """Return a value as a join reads it."""
        held, crop = self.values[name], self._crop(name)
        before, after = held.margin
        if not crop:
            return Joined(held.size, held.margin, "")
        return Joined(held.size, Padding(before + crop.before, after + crop.after), crop.origin)

    def _crop(self, name: str) -> Cropping | None:
        """Return all that is cut off a value after the layer that computes it."""
        found: Cropping | None = None
        while step := self._steps.get(name):
            match step.operation:
                case Cropping(origin, before, after) if found:
                    found = Cropping(origin, before + found.before, after + found.after)
                case Cropping() as crop:
                    found = crop
                case Nonlinearity() | Affine():
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
