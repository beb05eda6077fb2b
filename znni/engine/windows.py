"""Blocks of output that several windows make together.

Each block is computed by itself, from all windows that overlap it. So memory is bounded, any block
can be computed again, and no array holds the values of the whole volume.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from znni.core.shapes import ONE, ZERO, Box, Shape5, Vec3
from znni.engine.block import Block
from znni.engine.executor import Array, Fragments
from znni.network.geometry import given_window, input_box
from znni.network.network import Network
from znni.network.weights import Float32
from znni.network.window import Copy, Window
from znni.primitives.cpu.common.workers import workers


class Sums(NamedTuple):
    """Sums over some voxels, on the host or a GPU.

    Attributes:
        values: the sums of weighted outputs (f', z, y, x).
        weights: the sums of weights (z, y, x).
    """

    values: Any
    weights: Any


class BoxSums(ABC):
    """Adds up the outputs of windows over a box of voxels, and gives their weighted mean.

    Sums are float32. A voxel's mean depends only on the order in which its windows are added.

    Args:
        window: the windows.
        box: the voxels of the volume over which outputs are added up.
        sums: the sums over the box, which are 0.
        importance: how much each voxel (z, y, x) of a window counts.
    """

    def __init__(self, window: Window, box: Box, sums: Sums, importance: Any) -> None:
        self._box = box
        self._sums = sums
        self._importance = importance
        self._copies = len(window.flips)

    def take(self, carried: Sums) -> None:
        """Take over the sums that were kept for the first voxels along x."""
        for mine, other in zip(self._sums, carried, strict=True):
            length = min(other.shape[-1], mine.shape[-1])
            mine[..., :length] = other[..., :length]

    def add(self, output: Array, start: Vec3, axes: tuple[int, ...]) -> None:
        """Add the part of a window's output that lies in the box.

        All mirrored copies of a window must be added, and the window itself.

        Args:
            output: the output (f', z, y, x) of the whole window, as the network gave it.
            start: the first voxel of the window in the volume.
            axes: the axes (0 for z) along which the network's input was mirrored.
        """
        common = Box(start, start + Vec3(*output.shape[1:])).intersection(self._box)
        if common is None:
            return
        at = common.shifted(ZERO - self._box.start).slices
        seen = common.shifted(ZERO - start).slices
        self._add(
            Sums(self._sums.values[:, *at], self._sums.weights[at]),
            mirrored(output, axes)[:, *seen],
            self._importance[seen],
            0 if axes else self._copies,  # weights once for all copies, which count the same
        )

    @abstractmethod
    def _add(self, sums: Sums, values: Any, weights: Any, copies: int) -> None:
        """Add weighted values to sums, and their weights as often as there are copies."""

    @abstractmethod
    def after(self, x: int) -> Sums:
        """Return a copy of the sums from a voxel of the box on, along x."""

    @abstractmethod
    def mean(self, x: int) -> Array:
        """Return the sums of the first voxels along x, divided by those of the weights.

        The window's activation is applied to the quotient. It is 0 at a voxel that no window has.
        """


class _SumsForNext(NamedTuple):
    """The sums that a block's windows leave for the next block along x.

    Attributes:
        before: the voxels that the block blended.
        start: the first voxel along x of the sums, and of the next block.
    """

    sums: Sums
    before: Box
    start: int

    def next_to(self, blended: Box) -> bool:
        """Return whether a block begins where the sums do, and is as wide."""
        same_rows = blended.start[:2] == self.before.start[:2]
        same_rows &= blended.stop[:2] == self.before.stop[:2]
        return same_rows and blended.start.x == self.start


def on_host(shape: Shape5) -> Float32:
    """Return an array of ordinary memory."""
    return np.empty(shape, np.float32)


class WindowPlace(NamedTuple):
    """The place of a window in what the network sees of it.

    Attributes:
        size: the extents that the network sees. There are zeros around a window, where the first
            layers pad.
        inside: the voxels that lie in the window.
        used: the voxels of the window that are seen. Strides may leave out its last voxels.
    """

    size: Vec3
    inside: tuple[slice, slice, slice]
    used: tuple[slice, slice, slice]


def window_place(network: Network, window: Window, patch: Vec3) -> WindowPlace:
    """Return where a window lies in what a network sees of it.

    Args:
        network: the network.
        window: its windows.
        patch: the extents of a block.
    """
    seen = input_box(network, patch)
    used = Box(ZERO, window.size).intersection(seen)
    assert used is not None
    return WindowPlace(seen.size, used.shifted(ZERO - seen.start).slices, used.slices)


class WindowInputs:
    """Cuts the inputs of a group of windows out of a block. Some of them are mirrored.

    Some windows are computed at once: a group of ``Window.groups``. If a group has fewer, zeros
    stand for the others.

    Args:
        network: the network, with windows over a volume.
        patch: the extents of a block.
        allocate: function that returns the array of an input.
        threads: the number of threads that copy windows.
    """

    def __init__(
        self,
        network: Network,
        patch: Vec3,
        allocate: Callable[[Shape5], Float32] = on_host,
        threads: int = 1,
    ) -> None:
        window = given_window(network)
        self._window, self._threads = window, threads
        self._place = window_place(network, window, patch)
        shape = Shape5.of(network.together, network.in_features, self._place.size)
        self._seen = allocate(shape)
        self._seen.fill(0)

    def __call__(self, block: Block, group: Sequence[Copy]) -> Fragments:
        """Return the inputs of a group, as fragments at the same place.

        The next call overwrites them.
        """
        _, inside, used = self._place

        def copy(_worker: int, number: int) -> None:
            start, axes = group[number]
            values = mirrored(values_of(block, self._window, start), axes)
            self._seen[number][:, *inside] = values[:, *used]

        workers(self._threads).for_each(copy, range(len(group)))
        self._seen[len(group) :] = 0
        return Fragments(self._seen, (ZERO,), ONE)


def mirrored(values: Array, axes: tuple[int, ...]) -> Array:
    """Return a view of values (f, z, y, x) that runs backwards along axes (0 for z)."""
    return values[:, *(slice(None, None, -1 if axis in axes else None) for axis in range(3))]


def values_of(block: Block, window: Window, start: Vec3) -> Float32:
    """Return the values (f, z, y, x) of the window of a block that begins at a voxel."""
    box = Box(start, start + window.size).shifted(ZERO - block.start)
    values: Float32 = block.values[:, *box.slices]
    return values


class BlendedWindows:
    """Computes blocks of output from windows.

    A voxel's windows are added in the same order in every block, so its value does not depend on
    the block. Windows without a voxel that needs output are not computed. A group of
    ``Window.groups`` is computed if any of its windows is.

    The part of a window's output that lies in the next block along x is kept for that block. The
    sums of that block begin with these windows anyway, because windows come in order of x. If
    another block comes instead, as after an interruption, all its windows are computed. The same
    holds if a mask left out windows of the block before.

    Args:
        network: the network, with windows over a volume.
        patch: the extents of a block.
    """

    def __init__(self, network: Network, patch: Vec3) -> None:
        self._window = given_window(network)
        self._most_kept = self._window.tail(patch)
        self._for_next: _SumsForNext | None = None

    def begin_volume(self) -> None:
        """Forget the sums that are kept: the next block is of another volume."""
        self._for_next = None

    def __call__(
        self,
        block: Block,
        compute: Callable[[Block, Sequence[Copy]], Array],
        begin: Callable[[Box], BoxSums],
    ) -> Array:
        """Return the mean (f', z, y, x) of the windows at the voxels that a block needs.

        Args:
            block: the block.
            compute: function that returns the outputs (n, f', z, y, x) of a group of windows of the
                block, and maybe further outputs.
            begin: function that returns sums over a box, in which no window is yet.
        """
        blended = self._window.blended(block.written)
        size = blended.size
        next_start = self._next_start(block)
        end = self._end_of(block, list(self._window.touching(blended)), next_start)
        sums = begin(Box(blended.start, blended.stop._replace(x=max(end, blended.stop.x))))
        carried, self._for_next = self._for_next, None
        done = 0  # the block before had windows that begin earlier
        if carried is not None and carried.next_to(blended):
            sums.take(carried.sums)
            done = carried.before.stop.x
        del carried
        for group in self._window.groups(blended):
            if done and group[0][0].x < done:
                continue
            if not any(self._is_wanted(block, self._box(start)) for start, _ in group):
                continue
            outputs = compute(block, group)
            for output, (start, axes) in zip(outputs, group, strict=False):
                sums.add(output, start, axes)
        if end > next_start:
            self._for_next = _SumsForNext(
                sums.after(next_start - blended.start.x), blended, next_start
            )
        return sums.mean(size.x)

    def _next_start(self, block: Block) -> int:
        """Return the first voxel along x that the next block needs, or the volume's end."""
        first = block.written.start._replace(x=block.written.stop.x)
        if first.x >= self._window.output.x:
            return self._window.covered.stop.x
        return self._window.blended(Box(first, first + 1)).start.x

    def _end_of(self, block: Block, starts: Sequence[Vec3], next_start: int) -> int:
        """Return the voxel along x after the last whose sums are kept for the next block.

        Args:
            block: the block.
            starts: the first voxels of its windows.
            next_start: the first voxel that the next block needs. It is the result if none is kept.
        """
        if block.wanted is not None or not starts:
            return next_start
        end = max(start.x for start in starts) + self._window.size.x
        end = min(end, self._window.covered.stop.x)
        return end if 0 < end - next_start <= self._most_kept else next_start

    def _is_wanted(self, block: Block, window: Box) -> bool:
        """Return whether a window has a voxel of a block that needs output."""
        if block.wanted is None or self._window.resampled:
            return True
        common = window.intersection(block.written)
        return common is not None and bool(
            block.wanted[common.shifted(ZERO - block.written.start).slices].any()
        )

    def _box(self, start: Vec3) -> Box:
        """Return the voxels of a window."""
        return Box(start, start + self._window.size)
