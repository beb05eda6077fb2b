"""Blocks of a run that needed no work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Lock
from typing import NamedTuple

import numpy as np

from znni.core.errors import InvalidInput, UnusableValues
from znni.core.shapes import Box, Vec3
from znni.core.text import counted
from znni.core.volume import Volume
from znni.engine.tiles import Job, Tile, read_input
from znni.network.network import Network
from znni.network.weights import Float32, Weights
from znni.primitives.reference import activation


@dataclass(frozen=True)
class Skipped:
    """How many blocks were not computed, and why.

    Attributes:
        outside_mask: blocks that no voxel of the mask is in.
        constant: blocks that see one value per map.
    """

    outside_mask: int = 0
    constant: int = 0

    def __str__(self) -> str:
        """In words; empty where there were none."""
        reasons = {"outside the mask": self.outside_mask, "of constant input": self.constant}
        said = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        total = counted(self.outside_mask + self.constant, "block")
        return f"{total} not computed: {', '.join(said)}" * bool(said)


MASK_BYTES = 2**20  # of a mask, read at a time: promised as part of what a process takes
MOST_CONSTANTS = 256  # that are kept


class Block(NamedTuple):
    """What is known of a tile's block once it is read.

    Attributes:
        values: what the network sees (f, z, y, x), or what it gives (f', Z, Y, X).
        finished: whether it is the latter.
    """

    values: Float32
    finished: bool


class Blocks:
    """Reads blocks, in any thread, and finds those of a job that need no work.

    Args:
        volume: the input.
        job: which output is wanted.
        network: what is computed.
        weights: of it.
        mask: over the input volume; voxels that are 0 need no output. None: all do.

    Attributes:
        skipped: the blocks found so far.
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

    def read(self, tile: Tile, into: Float32 | None = None) -> Block:
        """What the network sees for a tile, or what it gives where that is known.

        Args:
            tile: a patch of the job.
            into: an array that takes what the network sees, if there is one.

        Raises:
            UnusableValues: as ``read_input``.
        """
        if self.is_outside(tile.written):
            with self._noting:
                self.skipped = replace(self.skipped, outside_mask=self.skipped.outside_mask + 1)
            nothing = np.zeros(self._network.out_features, np.float32)
            return _finished(nothing, tile)
        view, scaling = self._network.field_of_view, self._network.scaling
        try:
            seen = read_input(self._volume, self._job, tile, view, scaling, into)
        except UnusableValues as error:
            if self._mask and not self._mask.read(Box(error.voxel, error.voxel + 1)).any():
                error.add_note("the mask is 0 there, but this voxel is seen by others")
            raise
        if not is_constant(seen):
            return Block(seen, finished=False)
        with self._noting:
            self.skipped = replace(self.skipped, constant=self.skipped.constant + 1)
            given = self._of_constant(seen[:, 0, 0, 0])
        return _finished(given, tile)

    def unmasked(self) -> Blocks:
        """The same blocks, all of which need output."""
        return Blocks(self._volume, self._job, self._network, self._weights)

    def is_outside(self, box: Box) -> bool:
        """Whether no output is needed of any voxel of a box of the output.

        Raises:
            UnusableValues: the mask holds NaN, as far as it was read to tell.
        """
        if self._mask is None:
            return False
        within = box.shifted(self._job.center)
        pieces = mask_pieces(within, self._mask.itemsize)
        return not any(_needed(self._mask, piece) for piece in pieces)

    def _of_constant(self, values: Float32) -> Float32:
        key = values.tobytes()
        if key not in self._constants:
            if len(self._constants) == MOST_CONSTANTS:
                self._constants.clear()
            self._constants[key] = of_constant(self._network, self._weights, values)
        return self._constants[key]


def is_constant(block: Float32) -> bool:
    """Whether each map of (f, z, y, x) has one value."""
    last = block[:, -1, -1, -1]
    if (block[:, 0, 0, 0] != last).any():
        return False  # most blocks, at once
    return bool((block.min(axis=(1, 2, 3)) == block.max(axis=(1, 2, 3))).all())


def of_constant(network: Network, weights: Weights, values: Float32) -> Float32:
    """What a network gives (f',) where all that it sees are these values (f,)."""
    maps = values.astype(np.float64)
    for conv in network.convolutions:
        layer = weights[conv.name]
        sums = layer.weight.sum(axis=(2, 3, 4), dtype=np.float64) @ maps + layer.bias
        maps = activation(sums[np.newaxis, :, None, None, None], conv.activation)[0, :, 0, 0, 0]
    return maps.astype(np.float32)


def check_mask(mask: Volume, volume: Volume) -> None:
    """Refuse a mask that does not lie over the volume voxel by voxel.

    Raises:
        InvalidInput: it has other extents, or several maps.
    """
    if mask.size != volume.size or mask.features != 1:
        raise InvalidInput(
            f"the mask has {counted(mask.features, 'map')} of {mask.size} voxels and the volume is "
            f"{volume.size}; give a mask of one map and the volume's extents"
        )


def _needed(mask: Volume, piece: Box) -> bool:
    """Whether output is needed of any voxel of a piece of a mask."""
    values = mask.read(piece)
    if values.dtype.kind == "f" and np.isnan(values.min()):
        found = np.argwhere(np.isnan(values[0]))[0]
        z, y, x = voxel = piece.start + Vec3(*map(int, found))
        raise UnusableValues(
            f"the mask holds nan at voxel z={z}, y={y}, x={x}; give 0 where no output is needed, "
            f"and another number where it is",
            voxel,
        )
    return bool(values.any())


def mask_pieces(box: Box, itemsize: int) -> Iterator[Box]:
    """A box in pieces of ``MASK_BYTES`` or less, but of a whole row or more.

    Args:
        box: of voxels.
        itemsize: bytes of one.
    """
    size, most = box.size, MASK_BYTES // itemsize
    height = max(1, min(size.y, most // size.x))
    depth = max(1, most // (height * size.x))
    return box.cut(Vec3(depth, height, box.stop.x))


def _finished(values: Float32, tile: Tile) -> Block:
    """A block that has the same values (f',) everywhere, and takes no memory for it."""
    everywhere = np.broadcast_to(values[:, None, None, None], (len(values), *tile.computed.size))
    return Block(everywhere, finished=True)
