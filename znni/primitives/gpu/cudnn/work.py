"""The work of a convolution by cuDNN, and its cost."""

from __future__ import annotations

from dataclasses import dataclass

from znni.primitives.gpu.common.base import ConvolutionWork
from znni.primitives.gpu.common.hardware import Chip
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.cudnn.formats import Format, maps_out
from znni.primitives.gpu.cudnn.pieces import Pieces

# Passes over input and output that packing and unpacking add to the convolution's own.
PASSES = 3


@dataclass(frozen=True)
class CudnnWork(ConvolutionWork):
    """A convolution in pieces.

    Attributes:
        numbers: the format of the packed input, output and weights.
        piece: the pieces of the batch.
        limit: bytes of workspace that cuDNN's engine may take.
        chip: the GPU's chip; None if it is older than Ampere.
    """

    numbers: Format
    piece: Pieces
    limit: int
    chip: Chip | None

    @property
    def flops(self) -> float:
        """Operations for as many maps as engines take together: two for each tap of each voxel."""
        conv, out = self.conv, self.out
        together = self.numbers.maps_in(conv.in_features) * maps_out(conv.out_features)
        return 2.0 * out.n * out.size.volume * together * conv.kernel.volume

    @property
    def efficiency(self) -> float:
        """Share of the GPU's nominal float32 rate that these sustain.

        On tensor cores it was measured on Hopper, and is taken to be the same share of their rate.
        """
        if self.chip is None or not self.numbers.channels_last:
            return self.numbers.share
        return self.numbers.share * self.chip.library_share

    @property
    def bytes_moved(self) -> float:
        """Bytes of the passes over input and output."""
        return PASSES * (self.shape.nbytes + self.out.nbytes)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of a piece's packed input and output, and of the engine's workspace."""
        return packed_bytes(self.piece, self.numbers) + self.limit

    @property
    def resident_bytes(self) -> int:
        """Bytes of packed weights and biases."""
        conv = self.conv
        products = conv.in_features * conv.out_features * conv.kernel.volume
        return products * self.numbers.nbytes + FLOAT_BYTES * conv.out_features


def packed_bytes(piece: Pieces, numbers: Format) -> int:
    """Return the bytes of a piece's packed input and output."""
    return (piece.shape.elements + piece.out.elements) * numbers.nbytes
