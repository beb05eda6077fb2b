"""The change from one grid of voxels to another, and the source voxels that each target needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from math import prod

from znni.core.shapes import Box, Vec3
from znni.core.spline_weights import ORDERS, AxisTaps, axis_taps

X = 2  # the number of the axis along which values are contiguous


@dataclass(frozen=True)
class Resampling:
    """A change of the number of voxels. The volume keeps its place in space.

    Attributes:
        source: the voxels of the source, per axis.
        target: the voxels of the target, per axis.
        orders: the order of the spline along each axis: 0, 1 or 3.
        separate: the axis whose slices are first resampled and clipped, one by one. Then the
            result is resampled along this axis. None: all axes are resampled together.
        steps: the distance between target voxels along each axis, in source voxels. None: source
            and target have the same extent.
        starts: the centre of the first target voxel, in source voxels from the first one. It counts
            with steps.

    Raises:
        ValueError: an axis is empty or does not exist, an order is not known, or a step is not
            above 0.
    """

    source: Vec3
    target: Vec3
    orders: tuple[int, int, int]
    separate: int | None = None
    steps: tuple[float, float, float] | None = None
    starts: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        if min(*self.source, *self.target) < 1:
            raise ValueError(f"volumes of {self.source} and {self.target} voxels: one is empty")
        if unknown := set(self.orders) - set(ORDERS):
            raise ValueError(f"splines of order {unknown.pop()} are not known; choose 0, 1 or 3")
        if self.separate not in {None, 0, 1, 2}:
            raise ValueError(f"there is no axis {self.separate}; choose 0, 1 or 2")
        if self.steps and not min(self.steps) > 0:
            raise ValueError(f"steps of {self.steps} voxels; give numbers above 0")

    @property
    def changes(self) -> bool:
        """True if there is anything to do."""
        moves = self.steps not in {None, (1.0, 1.0, 1.0)} or any(self.starts)
        return self.source != self.target or moves

    @cached_property
    def taps(self) -> tuple[AxisTaps, AxisTaps, AxisTaps]:
        """The sums along each axis."""
        steps = self.steps or [None] * 3
        z, y, x = map(axis_taps, self.source, self.target, self.orders, steps, self.starts)
        return z, y, x

    @cached_property
    def passes(self) -> tuple[int, ...]:
        """The axes in the order in which they are resampled.

        This order takes the fewest operations among the orders that do not begin with x. It is the
        same for every box, so a voxel has the same value in every box.
        """
        orders = [
            order
            for order in permutations(range(3))
            if self.separate in {None, order[-1]} and order[0] != X
        ]
        return min(orders, key=lambda order: (self._operations(order), order.index(X)))

    def _operations(self, order: tuple[int, ...]) -> int:
        size, total = list(self.source), 0
        for axis in order:
            size[axis] = self.target[axis]
            total += Vec3(*size).volume * self.taps[axis].taps
        return total

    def source_box(self, target: Box) -> Box:
        """Return the source voxels from which a box of the target is computed."""
        ends = [
            (int(taps.first[start]), int(taps.first[stop - 1]) + taps.taps)
            for taps, start, stop in zip(self.taps, *target, strict=True)
        ]
        return Box(Vec3(*(start for start, _ in ends)), Vec3(*(stop for _, stop in ends)))

    def most_needed(self, extents: Vec3) -> Vec3:
        """Return the most source voxels, per axis, that a box of the target needs."""
        pairs = zip(self.taps, extents, strict=True)
        return Vec3(*(taps.most_needed(extent) for taps, extent in pairs))

    def shares(self, voxel: Vec3) -> list[tuple[Vec3, float]]:
        """Return the source voxels and weights whose sum is a target voxel."""
        along = [taps.shares(at) for taps, at in zip(self.taps, voxel, strict=True)]
        return [
            (Vec3(*(at for at, _ in some)), prod(weight for _, weight in some))
            for some in product(*along)
        ]

    def __str__(self) -> str:
        steps = self.steps and f", by steps of {_text(self.steps)} from {_text(self.starts)}"
        return f"resampled from {self.source} to {self.target} voxels{steps or ''}"


def _text(numbers: tuple[float, ...]) -> str:
    return ", ".join(f"{number:.9g}" for number in numbers)
