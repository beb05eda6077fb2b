"""Reading blocks, and finding those that need no work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from znni.core.errors import UnusableValues
from znni.core.shapes import ZERO, Box, Vec3
from znni.core.text import counted
from znni.core.volume import Volume
from znni.engine.block import Block
from znni.engine.mask import outside_mask, wanted_voxels
from znni.engine.reading import read_input, read_stored
from znni.engine.scaling import StoredScaling
from znni.engine.tiles import Allocate, Job, Tile, allocate_new
from znni.network.geometry import input_box, planes_before, reach
from znni.network.network import Network
from znni.network.weights import Float32, Weights
from znni.primitives.reference import activation
from znni.primitives.tiled_reference import output_at_once

# Outputs of constant input that are kept.
MOST_CONSTANTS = 256


@dataclass(frozen=True)
class Skipped:
    """The numbers of blocks that were not computed, by reason.

    Attributes:
        outside_mask: blocks without a voxel of the mask.
        constant: blocks that see one value per map.
    """

    outside_mask: int = 0
    constant: int = 0

    @property
    def total(self) -> int:
        """The number of all of them."""
        return self.outside_mask + self.constant

    def __str__(self) -> str:
        """Return this in words; empty if there were none."""
        reasons = {"outside the mask": self.outside_mask, "of constant input": self.constant}
        said = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        total = counted(self.total, "block")
        return f"{total} not computed: {', '.join(said)}" * bool(said)


class _PlanesBefore:
    """The planes of zeros before those of a block, in one array with them.

    Attributes:
        before: the number of these planes, along one axis.
    """

    def __init__(self, allocate: Allocate, before: Vec3) -> None:
        self.before = before
        self._allocate = allocate
        self._array: NDArray[Any]

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32, /) -> NDArray[Any]:
        """Return the part of a new array that a block is read into, as ``Allocate`` does."""
        maps, *extents = shape
        size = self.before + Vec3(*extents)
        self._array = self._allocate((maps, *size), dtype)
        for axis, planes in enumerate(self.before):
            self._array.swapaxes(1, 1 + axis)[:, :planes] = 0
        return self._array[:, *Box(self.before, size).slices]

    def whole(self, block: Block) -> Block:
        """Return a block that was read, with the planes before its own if it is computed."""
        if block.form == "known":
            return block
        scaling = block.scaling and block.scaling.behind(self.before)
        return block._replace(values=self._array, scaling=scaling)


class BlockReader:
    """Reads the blocks of a job's input, in any thread.

    Args:
        volume: the input.
        job: which output is wanted.
        network: what is computed.
        weights: the network's parameters.
        mask: over the input volume; voxels that are 0 need no output. None: all need output.

    Attributes:
        skipped: the blocks found so far that need no work.
    """

    def __init__(
        self,
        volume: Volume,
        job: Job,
        network: Network,
        weights: Weights,
        mask: Volume | None = None,
    ) -> None:
        self.skipped = Skipped()
        self._volume = volume
        self._job = job
        self._network = network
        self._weights = weights
        self._mask = mask
        self._constants: dict[bytes, Float32] = {}
        self._noting = Lock()

    def read(
        self,
        tile: Tile,
        computing: Network,
        allocate: Allocate = allocate_new,
        *,
        as_stored: bool = False,
    ) -> Block:
        """Read what a plan's network sees for a tile, or find its output if no work is needed.

        Args:
            tile: a patch of the job.
            computing: the plan's network. If convolutions are split, it may see a larger box than
                the job's network.
            allocate: gives the array for what the network sees.
            as_stored: whether values stay as they are stored, because a GPU scales them.

        Raises:
            UnusableValues: a value is NaN, or infinite as float32.
        """
        if self.is_outside(tile.written):
            with self._noting:
                self.skipped = replace(self.skipped, outside_mask=self.skipped.outside_mask + 1)
            return Block(tile, None, form="known")
        window = self._network.window
        written = tile.written.shifted(self._job.center)
        if window:
            box = window.around(window.blended(written))
        else:
            box = self._job.seen(tile, input_box(computing, tile.computed.size))
        # A sweep's planes before the first block are zeros, and are not read.
        planes = _PlanesBefore(allocate, planes_before(computing, tile.computed.size))
        box = box._replace(start=box.start + planes.before)
        given = self._volume, self._job, box, self._network.scaling
        if as_stored:
            stored = read_stored(*given, allocate=planes.allocate)
            return planes.whole(self._unless_constant(tile, *stored))
        try:
            seen = read_input(*given, allocate=planes.allocate)
        except UnusableValues as error:
            if self._mask and not self._mask.read(Box(error.voxel, error.voxel + 1)).any():
                error.add_note("the mask is 0 there, but this voxel is seen by others")
            raise
        if window:
            wanted = wanted_voxels(self._mask, written) if self._mask else None
            if wanted is not None and wanted.all():
                wanted = None
            return Block(tile, seen, box.start, written=written, wanted=wanted)
        return planes.whole(self._unless_constant(tile, seen, None))

    def _unless_constant(
        self, tile: Tile, seen: NDArray[Any], scaling: StoredScaling | None
    ) -> Block:
        """Return a block to compute, unless its input is constant. Then its output is known.

        Args:
            tile: its place in the job.
            seen: the values (f, z, y, x) that the network sees.
            scaling: the scaling that they still need; None: none.
        """
        values = constant_input(seen, scaling)
        if values is None or self._sees_zeros(tile):
            start = tile.computed.start + self._job.first if self._network.is_tiled else ZERO
            return Block(tile, seen, start, scaling)
        with self._noting:
            self.skipped = replace(self.skipped, constant=self.skipped.constant + 1)
            return Block(tile, self._of_constant(values), form="known")

    def _sees_zeros(self, tile: Tile) -> bool:
        """Return whether a tile of a tiled network depends on padding, of input or layers."""
        job, network = self._job, self._network
        if job.whole is None:
            return False
        box = job.seen(tile, reach(network, tile.computed.size))
        return not box.within(Box(job.origin, job.origin + job.whole))

    @property
    def maps(self) -> int:
        """The number of output maps."""
        return self._network.out_features

    def unmasked(self) -> BlockReader:
        """Return a reader without the mask, if a mask decides about whole blocks only.

        Voxels outside of the mask are 0 for windows, in every block.
        """
        if self._network.window:
            return self
        return BlockReader(self._volume, self._job, self._network, self._weights)

    def is_outside(self, box: Box) -> bool:
        """Return whether no voxel of a box of the output is needed.

        Raises:
            UnusableValues: the mask holds NaN in the part that was read.
        """
        return self._mask is not None and outside_mask(self._mask, self._job, box)

    def _of_constant(self, values: Float32) -> Float32:
        key = values.tobytes()
        if key not in self._constants:
            if len(self._constants) == MOST_CONSTANTS:
                self._constants.clear()
            self._constants[key] = of_constant(self._network, self._weights, values)
        return self._constants[key]


def repeated(values: NDArray[Any], box: Box) -> NDArray[Any]:
    """Return a box (f', z, y, x) of values that repeat from voxel 0 on, in their type.

    If the values are those of one voxel, the box takes no memory.
    """
    size = values.shape[1:]
    if values[0].size == 1:
        return np.broadcast_to(values, (len(values), *box.size))
    at = (np.arange(*ends) % extent for *ends, extent in zip(*box, size, strict=True))
    return values[:, *np.ix_(*at)]


def constant_input(seen: NDArray[Any], scaling: StoredScaling | None) -> Float32 | None:
    """Return the one value (f,) of each map that a network sees in a block; None if it sees more.

    Args:
        seen: the values (f, z, y, x) of the block.
        scaling: the scaling that they still need; None: none.
    """
    if scaling is None:
        return seen[:, 0, 0, 0] if is_constant(seen) else None
    known = scaling.known
    if not known.size.volume:
        return np.zeros(len(seen), np.float32)
    inside = seen[:, *known.slices]
    if not is_constant(inside, scaling.scaled):
        return None
    values = scaling.scaled(inside[:, :1, :1, :1])[:, 0, 0, 0]
    return values if inside.shape == seen.shape or not values.any() else None


def is_constant(
    block: NDArray[Any], scaled: Callable[[NDArray[Any]], Float32] | None = None
) -> bool:
    """Return whether the network sees one value of each map of (f, z, y, x).

    Args:
        block: the values.
        scaled: scales them, which may make several stored values one. None: they are scaled.
    """
    last = block[:, -1:, -1:, -1:]
    # Most blocks differ in the first planes already.
    planes = (block[:, z : z + 1] for z in range(block.shape[1]))
    return all(
        bool((plane == last).all())
        or (scaled is not None and bool((scaled(plane) == scaled(last)).all()))
        for plane in planes
    )


def of_constant(network: Network, weights: Weights, values: Float32) -> Float32:
    """Return the output of a network whose whole input has the same values (f,) at each voxel.

    Returns:
        The output (f', z, y, x) of one voxel. If the output of a tiled network varies with the
        phase of its lattices, the output of one aligned block.
    """
    x = np.broadcast_to(values[:, None, None, None], (len(values), *network.alignment))
    if network.is_tiled:
        y = output_at_once(network, weights, x, beyond="wrap").astype(np.float32)
        return y[:, :1, :1, :1] if is_constant(y) else y
    maps = values.astype(np.float64)
    for conv in network.convolutions:
        layer = weights[conv.name]
        sums = layer.weight.sum(axis=(2, 3, 4), dtype=np.float64) @ maps + layer.bias
        maps = activation(sums[np.newaxis, :, None, None, None], conv.activation)[0, :, 0, 0, 0]
    return maps[:, None, None, None].astype(np.float32)
