"""Padding inside a network by its own values: reflected, repeated or from the other side."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from znni.core.errors import InvalidInput
from znni.core.shapes import ZERO, Box, Vec3
from znni.network.layer_checks import check_extents
from znni.network.layer_geometry import NO_PADDING, Padding, SameVoxel

Beyond = Literal["reflect", "edge", "wrap"]


@dataclass(frozen=True, repr=False)
class PadLayer(SameVoxel):
    """Samples of a value around it: what a layer reads beyond the volume, instead of zeros.

    A block holds as many samples of the output as of the input. Those beyond the volume are filled
    from those within. So nothing is copied where the output lies in the memory of the input.

    Attributes:
        name: the name, unique within the network.
        padding: the samples that are added on both sides.
        mode: ``reflect`` mirrors at the outermost samples, ``edge`` repeats them, and ``wrap`` goes
            on at the other side. So ``wrap`` depends on a whole window.
    """

    name: str
    padding: Padding
    mode: Beyond
    kind: Literal["pad"] = field(default="pad", repr=False)

    def __post_init__(self) -> None:
        for side in self.padding:
            check_extents(f"layer {self.name}: padding", side, least=0)
        if self.mode not in ("reflect", "edge", "wrap"):
            raise InvalidInput(
                f"layer {self.name}: mode is {self.mode!r}; give reflect, edge or wrap"
            )

    @property
    def sees_edges(self) -> bool:  # type: ignore[override]
        """True: it must know where the volume ends."""
        return True

    @property
    def local(self) -> PadLayer:
        """The layer for a block, whose samples beyond the volume are stored with it."""
        return replace(self, padding=NO_PADDING)

    def size_from(self, *sizes: Vec3) -> Vec3:
        """Return the output's samples per axis for a whole input of that size."""
        return sizes[0] + self.padding.total

    def reads(self, box: Box) -> Box:
        """Return the samples of the input that lie where a box of samples of the output does."""
        return box.shifted(ZERO - self.padding.before)

    def rounded(self, box: Box) -> Box:
        """Return a box around another that has the samples to fill it from, at any face."""
        axes = zip(*box, *self.padding, strict=True)
        return Box(*(Vec3(*side) for side in zip(*(_extended(*one) for one in axes), strict=True)))


def _extended(start: int, stop: int, before: int, after: int) -> tuple[int, int]:
    """Return the first and last sample of a box along an axis, with those to fill it from.

    Blocks are shifted copies of one that begins at the first sample or before. If so, only the
    samples near its ends may be missing. Any other box may lie at either face.
    """
    if start > 0:
        return start - 2 * after, stop + 2 * before
    return min(start, -after), max(stop, 2 * before + 1)
