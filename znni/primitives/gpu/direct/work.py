"""The work of a direct convolution, and its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from znni.primitives.gpu.common.base import ConvolutionWork
from znni.primitives.gpu.common.hardware import LANES, SCHEDULERS
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.direct.geometry import Tile

# Operations of the multiply-adds that a multiprocessor's schedulers issue in a cycle; and the share
# of their turns in which they issue or wait as counted, measured on an H200.
FLOPS_TOGETHER = 2 * SCHEDULERS * LANES
ISSUED = 0.83


@dataclass(frozen=True)
class DirectWork(ConvolutionWork):
    """A direct convolution, pooled at once or not.

    It makes a multiply-add for each tap of each voxel, at the rate of the instructions around them.

    Attributes:
        tile: what a block computes at a time.
    """

    tile: Tile
    writes_views: ClassVar[bool] = True

    @property
    def flops(self) -> float:
        """Operations for all maps of whole groups, before pooling."""
        voxels = self.out.n * self.out.size.volume * self.tile.window.volume
        maps = self.tile.groups(self.conv.out_features) * self.tile.maps
        return 2.0 * voxels * maps * self.conv.in_features * self.conv.kernel.volume

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that these sustain."""
        return ISSUED * self.flops / (FLOPS_TOGETHER * self.tile.instructions(self.conv, self.out))

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights and biases, in whole groups of maps."""
        of_group = self.conv.in_features * self.conv.kernel.volume * self.tile.maps_pitch
        groups = self.tile.groups(self.conv.out_features)
        return FLOAT_BYTES * groups * (of_group + self.tile.maps)
