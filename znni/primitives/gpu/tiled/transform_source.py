"""CUDA C++ of the transforms of tiles: codelets for their lengths, around the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from znni.network import Activation
from znni.primitives.common.dft_codelets import complex_dft, inverse_real_dft, real_dft
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.tiled.codelet_source import device_function
from znni.primitives.gpu.tiled.cuda_text import cuda_text, definitions
from znni.primitives.gpu.tiled.tile_spectrum import GROUP, NUMBER_BYTES, half
from znni.shapes import Vec3

# Neighbouring tiles whose blocks follow each other.
FORWARD_STRIP = 16
INVERSE_STRIP = 32

# Banks of shared memory for numbers of 8 bytes.
BANKS = 16

# What a multiprocessor of a Hopper GPU has for its blocks, and what each of them takes beside.
SHARED_BYTES = 228 * 1024
BLOCK_SHARED_BYTES = 1024
REGISTERS = 64 * 1024
WARP = 32

# Blocks of a multiprocessor: as many as keep it busy while each waits for its slowest threads.
ENOUGH_BLOCKS = 2
MOST_BLOCKS = 8

# Registers of a thread beside its line of complex numbers.
OTHER_REGISTERS = 24

GEOMETRY = ("tile_geometry.cuh", "spectrum_layout.cuh", "cluster.cuh")


@dataclass(frozen=True)
class TransformShape:
    """How a transform of tiles is cut into blocks of threads.

    Attributes:
        tile: extents of a tile.
        kernel: extents of the layer's kernels.
        maps: that a block takes of a group: 4, 2 or 1.
        threads: of a block.
        blocks: that a multiprocessor is to hold.
    """

    tile: Vec3
    kernel: Vec3
    maps: int
    threads: int
    blocks: int

    @property
    def valid(self) -> Vec3:
        """Voxels of the output that a tile gives."""
        return self.tile - self.kernel + 1

    @property
    def cluster(self) -> int:
        """Blocks that take a group of maps together."""
        return GROUP // self.maps

    def grid(self, tiles: int, groups: int, inverse: bool) -> int:
        """Blocks for some tiles of so many groups of maps: whole strips of tiles."""
        strip = _strip(inverse)
        return -(-tiles // strip) * strip * groups * self.cluster

    def shared_bytes(self, inverse: bool) -> int:
        """Shared memory of a block."""
        return self.maps * self._strides(inverse)[2] * NUMBER_BYTES

    def _strides(self, inverse: bool) -> tuple[int, int, int]:
        """Numbers from one row, plane and map to the next.

        Lanes at work on neighbouring rows meet in different banks, since a row's distance is odd;
        nor do lanes meet that are at work on the ends of a plane's lines and the next's beginnings,
        or that write two maps at once.
        """
        row = self.tile.x + 1
        plane = _congruent(self.tile.y * row, self.valid.x if inverse else self.tile.x)
        return row, plane, _congruent(half(self.tile.z) * plane, BANKS // GROUP)

    def _definitions(self, inverse: bool) -> str:
        row, plane, image = self._strides(inverse)
        return definitions(
            {
                "TILE_Z": self.tile.z,
                "TILE_Y": self.tile.y,
                "TILE_X": self.tile.x,
                "VALID_Z": self.valid.z,
                "VALID_Y": self.valid.y,
                "VALID_X": self.valid.x,
                "MAPS": self.maps,
                "THREADS": self.threads,
                "BLOCKS": self.blocks,
                "STRIP": _strip(inverse),
                "ROW_STRIDE": row,
                "PLANE_STRIDE": plane,
                "MAP_STRIDE": image,
            }
        )

    def forward_source(self) -> str:
        """Of ``forward_transform``."""
        z, y, x = self.tile
        codelets = (
            device_function("real_dft_z", real_dft(z)),
            device_function("dft_y", complex_dft(y, -1)),
            device_function("dft_x", complex_dft(x, -1)),
        )
        texts = *map(cuda_text, (*GEOMETRY, "halves.cuh")), *codelets
        return "\n".join((self._definitions(inverse=False), *texts, cuda_text("forward.cu")))

    def inverse_source(self, activation: Activation) -> str:
        """Of ``inverse_transform``."""
        z, y, x = self.tile
        codelets = (
            device_function("inverse_real_dft_z", inverse_real_dft(z).first(self.valid.z)),
            device_function("inverse_dft_y", complex_dft(y, 1).first(2 * self.valid.y)),
            device_function("inverse_dft_x", complex_dft(x, 1).first(2 * self.valid.x)),
        )
        texts = *map(cuda_text, GEOMETRY), *codelets, activation_source(activation)
        return "\n".join((self._definitions(inverse=True), *texts, cuda_text("inverse.cu")))

    def kernel_spectra_source(self) -> str:
        """Of ``transform_kernels``."""
        z, y, x = self.kernel
        taps = definitions({"KERNEL_Z": z, "KERNEL_Y": y, "KERNEL_X": x})
        texts = (cuda_text("tile_geometry.cuh"), cuda_text("halves.cuh"))
        return "\n".join(
            (self._definitions(inverse=False), taps, *texts, cuda_text("kernel_spectra.cu"))
        )


def _strip(inverse: bool) -> int:
    return INVERSE_STRIP if inverse else FORWARD_STRIP


def _congruent(least: int, remainder: int) -> int:
    """The smallest number from ``least`` on with that remainder by the number of banks."""
    return least + (remainder - least) % BANKS


def transform_shape(tile: Vec3, kernel: Vec3) -> TransformShape:
    """The most maps of which enough blocks fit a multiprocessor, and the threads for them.

    As many as there are registers for would do; as few as take no more turns at the longest pass.
    """
    for maps in (4, 2, 1):
        shape = TransformShape(tile, kernel, maps, WARP, 1)
        shared = max(shape.shared_bytes(inverse) for inverse in (False, True))
        blocks = min(MOST_BLOCKS, SHARED_BYTES // (shared + BLOCK_SHARED_BYTES))
        if blocks >= ENOUGH_BLOCKS:
            break
    lines = maps * tile.y * tile.x
    turns = -(-lines // (REGISTERS // blocks // (2 * max(tile) + OTHER_REGISTERS) // WARP * WARP))
    return TransformShape(tile, kernel, maps, -(-lines // turns // WARP) * WARP, blocks)
