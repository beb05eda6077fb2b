"""Windows in which a network is computed, and how their outputs are blended.

Networks that depend on a whole window, such as those with instance norm, mean something only for
the windows that they were trained on. Where windows lie and how much each counts are the rules of
the framework that trained them: MONAI's ``sliding_window_inference``, or nnU-Net's predictor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, groupby, islice, product, starmap
from math import ceil, gcd
from numbers import Real
from typing import NamedTuple

import numpy as np

from znni.core.errors import InvalidInput
from znni.core.option_types import Blend, BlendedActivation, WindowRules, check_names
from znni.core.resampling import Resampling
from znni.core.shapes import ZERO, Box, Vec3, is_extent
from znni.core.spline_weights import AxisTaps, Places
from znni.network.window_counts import (
    last_without_windows,
    runs_of_block,
    tail_of_block,
    voxels_around_block,
)
from znni.network.window_weights import Floats, importance

NO_AXIS = "none"  # says that no windows are mirrored


class Copy(NamedTuple):
    """A window, or a mirrored copy of one.

    Attributes:
        start: its first voxel in the volume.
        axes: the axes (0 for z) along which it is mirrored.
    """

    start: Vec3
    axes: tuple[int, ...]


class AxisWindows(NamedTuple):
    """The windows along an axis.

    Attributes:
        starts: where they begin, in order.
        size: the extent of a window.
        first: the first voxel that windows cover.
        end: the voxel after the last.
        resampled: how the output along the axis is resampled; None: it is not.
    """

    starts: tuple[int, ...]
    size: int
    first: int
    end: int
    resampled: AxisTaps | None = None

    def around(self, begins: Places, ends: Places) -> tuple[Places, Places]:
        """Return where the windows that each block needs begin, and where they end.

        Both are equal for a block that no window covers.
        """
        if self.resampled:
            begins, ends = self.resampled.needs(begins, ends)
        starts, covered = np.array(self.starts), (begins < self.end) & (ends > self.first)
        begins, ends = begins.clip(self.first, self.end - 1), ends.clip(self.first + 1, self.end)
        low = starts[np.searchsorted(starts, begins - self.size, side="right")]
        high = starts[np.searchsorted(starts, ends, side="left") - 1] + self.size
        return low, np.where(covered, high, low)


@dataclass(frozen=True)
class Window:
    """The windows of a network, which cover a volume and overlap.

    Attributes:
        size: the extents of a window; any three integers (z, y, x) become a ``Vec3``.
        overlap: the share of a window that the next one covers again, from 0 to less than 1.
        blend: ``gaussian``: voxels in the middle of a window count more. ``constant``: all count
            the same.
        mirror: the axes along which windows are also computed mirrored, such as ``zyx``, or
            ``none``. The mean of all copies counts.
        like: the framework whose rules decide where windows lie: ``monai`` has equal steps, and
            shifts the last window back. ``nnunet`` spreads windows evenly.
        volume: the extents of the volume. They are None until it is known.
        inside: the part of the volume over which windows lie, as if it were the whole. Around it
            they see zeros, and the output is 0. None: the whole volume.
        activation: the function that is applied to the blended output, before it is resampled.
        resampled: the resampling of the blended output to other voxels. None: the output has the
            voxels of the volume.
        in_order: whether one process computes all blocks in order. Then it keeps what windows have
            of the next block along x.
        by_default: True if nobody asked for windows: a model's file takes inputs of one size only.
        together: the windows that the layers compute at once, which a planner chooses.

    Raises:
        InvalidInput: a number is out of range, or an axis unknown.
    """

    size: Vec3
    overlap: float = 0.5
    blend: Blend = "gaussian"
    mirror: str = ""
    like: WindowRules = "monai"
    volume: Vec3 | None = None
    inside: Box | None = None
    resampled: Resampling | None = None
    activation: BlendedActivation = "identity"
    in_order: bool = field(default=True, compare=False)
    by_default: bool = field(default=False, compare=False, repr=False)
    together: int = field(default=1, compare=False, repr=False)

    def __post_init__(self) -> None:
        given: object = self.size
        if not (isinstance(given, Sequence) and len(given) == 3 and all(map(is_extent, given))):
            raise InvalidInput(
                f"the size of a window is {given!r}; give three extents of 1 or more, (z, y, x)"
            )
        if not (isinstance(self.overlap, Real) and 0 <= self.overlap < 1):
            raise InvalidInput(
                f"windows overlap by {self.overlap}; give a share from 0 to less than 1, as 0.5"
            )
        if not is_extent(self.together):
            raise InvalidInput(
                f"{self.together!r} windows are computed at once; give an integer of 1 or more"
            )
        mirror = "" if self.mirror == NO_AXIS else self.mirror
        letters = set(mirror) if isinstance(mirror, str) else {""}
        if letters - set("zyx") or len(letters) < len(mirror):
            raise InvalidInput(
                f"windows are mirrored along {mirror!r}; give some of z, y and x, each once, "
                f"or {NO_AXIS}"
            )
        check_names(blend=self.blend, like=self.like, activation=self.activation)
        if self.resampled and self.volume not in (None, self.resampled.source):
            raise InvalidInput(
                f"the output is {self.resampled}, and the volume has {self.volume}; give a volume "
                f"of {self.resampled.source} voxels, or leave resampled out"
            )
        # Equal windows are written alike, because a run goes on only with those it began with.
        object.__setattr__(self, "size", Vec3(*(extent.__index__() for extent in given)))
        object.__setattr__(self, "overlap", float(self.overlap))
        object.__setattr__(self, "mirror", "".join(axis for axis in "zyx" if axis in letters))

    @property
    def step(self) -> Vec3:
        """The voxels from one window to the next; the last may be nearer."""
        return Vec3(*(max(1, int(extent * (1 - self.overlap))) for extent in self.size))

    @property
    def flips(self) -> tuple[tuple[int, ...], ...]:
        """The axes (0 for z) along which each copy of a window is mirrored; first those of none."""
        axes = sorted("zyx".index(axis) for axis in self.mirror)
        return tuple(some for count in range(len(axes) + 1) for some in combinations(axes, count))

    def over(self, volume: Vec3, inside: Box | None = None) -> Window:
        """Return the windows over a volume of these extents, or over a part of it."""
        return replace(self, volume=volume, inside=inside)

    @property
    def output(self) -> Vec3:
        """The extents of the output.

        Raises:
            ValueError: the volume is not known.
        """
        if self.volume is None:
            raise ValueError("the windows lie over no volume")
        return self.resampled.target if self.resampled else self.volume

    def blended(self, box: Box) -> Box:
        """Return the voxels of the volume whose blended values give a box of the output."""
        return self.resampled.source_box(box) if self.resampled else box

    def blended_extents(self, extents: Vec3) -> Vec3:
        """Return the most voxels of the volume, per axis, that a block of output needs blended."""
        return self.resampled.most_needed(extents) if self.resampled else extents

    @property
    def granularity(self) -> Vec3:
        """The output voxels of one step, of which the extents of blocks are multiples."""
        if not self.resampled:
            return self.step
        return Vec3(
            *(
                max(1, round(step * target / source))
                for step, source, target in zip(
                    self.step, self.resampled.source, self.resampled.target, strict=True
                )
            )
        )

    @property
    def covered(self) -> Box:
        """The voxels of the volume that windows cover.

        Raises:
            ValueError: the volume is not known.
        """
        if self.volume is None:
            raise ValueError("the windows lie over no volume")
        return self.inside or Box(ZERO, self.volume)

    @cached_property
    def starts(self) -> tuple[tuple[int, ...], ...]:
        """The first voxels of the windows along each axis.

        The first lies before the voxels that windows cover if these are fewer than a window has:
        then they lie in its middle.

        Raises:
            ValueError: the volume is not known.
        """
        first = self.covered.start
        return tuple(
            tuple(first[axis] + start for start in self._starts(axis)) for axis in range(3)
        )

    def _starts(self, axis: int) -> tuple[int, ...]:
        """Return the first voxels of the windows, counted from the first that they cover."""
        size, volume = self.size[axis], self.covered.size[axis]
        if volume <= size:
            return (-((size - volume) // 2),)
        last = volume - size
        if self.like == "nnunet":
            # The step that nnU-Net was given. Windows of one slice follow each other.
            step = size * round(1 - self.overlap, 12) if size > 1 else 1
            count = ceil(last / step) + 1
            return tuple(round(last / (count - 1) * index) for index in range(count))
        step = self.step[axis]
        return tuple(min(index * step, last) for index in range(-(-last // step) + 1))

    def along(self, axis: int) -> AxisWindows:
        """Return the windows along an axis, 0 for z."""
        covered = self.covered
        return AxisWindows(
            self.starts[axis],
            self.size[axis],
            covered.start[axis],
            covered.stop[axis],
            self.resampled.taps[axis] if self.resampled else None,
        )

    def touching(self, box: Box) -> Iterator[Vec3]:
        """Yield the first voxel of each window that covers voxels of a box, x slowest."""
        part = box.intersection(self.covered)
        if part is None:
            return iter(())
        z, y, x = (
            [start for start in starts if start < stop and start + size > first]
            for starts, size, first, stop in zip(
                self.starts, self.size, part.start, part.stop, strict=True
            )
        )
        return (Vec3(at_z, at_y, at_x) for at_x, at_z, at_y in product(x, z, y))

    def groups(self, box: Box) -> Iterator[tuple[Copy, ...]]:
        """Yield the windows that cover voxels of a box, in groups that are computed at once.

        The windows of a group begin at the same x. So a group is the same for all blocks in a row
        along x, and its output does not depend on where a run began.

        The copies of a window follow each other.
        """
        for _, column in groupby(self.touching(box), key=lambda start: start.x):
            copies = starmap(Copy, product(column, self.flips))
            while group := tuple(islice(copies, self.together)):
                yield group

    @property
    def cut_for_gpu(self) -> int:
        """The number of windows that are copied to a GPU for a group.

        The GPU makes their mirrored copies itself. A group begins at any multiple of its length in
        the list of all copies.
        """
        copies, together = len(self.flips), self.together
        return (together - 1 - gcd(copies, together)) // copies + 2

    @property
    def mirrored_by_gpu(self) -> bool:
        """True if a GPU makes the mirrored copies of windows."""
        return self.cut_for_gpu < self.together

    def around(self, box: Box) -> Box:
        """Return the voxels of all windows that cover voxels of a box.

        If there is no such window, the result is the first voxel of the box.
        """
        starts = list(self.touching(box))
        if not starts:
            return Box(box.start, box.start + 1)
        return Box(starts[0], starts[-1] + self.size)

    def seen(self) -> Box:
        """Return the voxels of all windows."""
        return self.around(Box(ZERO, self.volume or ZERO))

    def most_around(self, extents: Vec3) -> Vec3:
        """Return the most voxels per axis of the windows that a block of output needs."""
        return voxels_around_block(self, self.blended_extents(extents))

    def a_block(self, extents: Vec3) -> float:
        """Return how often the layers run for a block of output, on average, for ``groups``.

        Along x, a block takes what the windows of the block before have of it, if ``tail`` is kept.
        """
        return runs_of_block(self, extents, self.in_order, self.together)

    def last_without_windows(self, extents: Vec3) -> int:
        """Return how many of the last blocks along x find all their windows computed.

        Args:
            extents: the extents of blocks; the first begins where the output does.
        """
        return last_without_windows(self, extents.x) if self.in_order else 0

    def tail(self, extents: Vec3) -> int:
        """Return the most voxels along x whose sums a block keeps for the next one.

        They begin where the next block's voxels do, and end where the block's last window does.

        Args:
            extents: the extents of blocks; the first begins where the output does.
        """
        return tail_of_block(self, extents) if self.in_order else 0

    def importance(self) -> Floats:
        """Return how much each voxel (z, y, x) of a window counts."""
        return importance(self.size, self.blend, self.like)

    def __str__(self) -> str:
        mirrored = f", mirrored along {self.mirror}" * bool(self.mirror)
        resampled = f", {self.resampled}" if self.resampled else ""
        activated = f", through {self.activation}" * (self.activation != "identity")
        return (
            f"computed in windows of {self.size} that overlap by {self.overlap:.17g}, blended by "
            f"{self.blend} weights as in {self.like}{mirrored}{activated}{resampled}"
        )


def missing_window(layer: str, network: str) -> InvalidInput:
    """Return the error of a network that needs a window and has none."""
    return InvalidInput(
        f"network {network}: layer {layer} depends on all voxels of a window; give the extents "
        f"that it was trained on as window: in its file, or by znni.with_window (--window Z,Y,X)"
    )
