"""CUDA C++ of the transforms of tiles: codelets for their lengths, around the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from znni.core.shapes import Vec3
from znni.network.network import Activation
from znni.primitives.common.dft_codelets import complex_dft, inverse_real_dft, real_dft
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.source import definitions
from znni.primitives.gpu.fft_tiled.codelet_source import device_function
from znni.primitives.gpu.fft_tiled.cuda_text import cuda_text
from znni.primitives.gpu.fft_tiled.number_formats import NumberFormat
from znni.primitives.gpu.fft_tiled.tile_spectrum import columns, half

# Neighbouring tiles whose blocks follow each other.
FORWARD_STRIP = 16
INVERSE_STRIP = 32

# In shared memory numbers are two floats, of which so many lie in different banks.
NUMBER_BYTES = 8
BANKS = 16

# What a multiprocessor of a Hopper GPU has for its blocks, and what each of them takes beside.
SHARED_BYTES = 228 * 1024
BLOCK_SHARED_BYTES = 1024

# Its registers: of each quarter, which has a quarter of the warps, and gives them by eights.
QUARTERS = 4
QUARTER_REGISTERS = 16 * 1024
REGISTERS_TOGETHER = 8
WARP = 32

# Blocks of a multiprocessor: as many as keep it busy while each waits for its slowest threads.
ENOUGH_BLOCKS = 2
MOST_BLOCKS = 8

# Threads of a block, and registers of each beside its line of complex numbers.
MOST_THREADS = 1024
OTHER_REGISTERS = 16

GEOMETRY = ("tile_geometry.cuh", "spectrum_layout.cuh", "cluster.cuh")


@dataclass(frozen=True)
class TransformShape:
    """How a transform of tiles is cut into blocks of threads.

    Attributes:
        numbers: the format of the spectra.
        tile: extents of a tile.
        kernel: extents of the layer's kernels.
        inverse: whether it is the one back.
        maps: that a block takes of a group: all, a half, and so on.
        threads: of a block.
        blocks: that a multiprocessor is to hold.
    """

    numbers: NumberFormat
    tile: Vec3
    kernel: Vec3
    inverse: bool
    maps: int
    threads: int
    blocks: int

    @property
    def valid(self) -> Vec3:
        """Voxels of the output that a tile gives."""
        return self.tile - self.kernel + 1

    @property
    def extents(self) -> Vec3:
        """Voxels along each axis: all of the image, or what there is of the output."""
        return self.valid if self.inverse else self.tile

    @property
    def cluster(self) -> int:
        """Blocks that take a group of maps together."""
        return self.numbers.group // self.maps

    @property
    def strip(self) -> int:
        """Neighbouring tiles whose blocks follow each other."""
        return INVERSE_STRIP if self.inverse else FORWARD_STRIP

    def grid(self, tiles: int, groups: int) -> int:
        """Blocks for some tiles of so many groups of maps: whole strips of tiles."""
        return -(-tiles // self.strip) * self.strip * groups * self.cluster

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.maps * self._strides[2] * NUMBER_BYTES

    @property
    def lines(self) -> tuple[int, int, int]:
        """Of a block, in its passes along z, y and x: a thread each."""
        extents, planes = self.extents, half(self.tile.z)
        lines = extents.y * extents.x, planes * extents.x, columns(self.tile)
        return lines[0] * self.maps, lines[1] * self.maps, lines[2] * self.maps

    @property
    def lines_at_work(self) -> float:
        """On a multiprocessor; turns that have few are as long as others."""
        turns = sum(-(-lines // self.threads) for lines in self.lines)
        return self.blocks * sum(self.lines) / turns

    @property
    def _strides(self) -> tuple[int, int, int]:
        """Numbers from one row, plane and map to the next.

        Lanes at work on neighbouring rows meet in different banks, since a row's distance is odd;
        nor do lanes meet that are at work on the ends of a plane's lines and the next's beginnings,
        or that write two maps at once.
        """
        row = self.tile.x + 1
        plane = _congruent(self.tile.y * row, self.valid.x if self.inverse else self.tile.x)
        return row, plane, _congruent(half(self.tile.z) * plane, BANKS // self.numbers.group)

    @property
    def _definitions(self) -> str:
        row, plane, image = self._strides
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
                "STRIP": self.strip,
                "LINES_Y": self.extents.y,
                "LINES_X": self.extents.x,
                "ROW_STRIDE": row,
                "PLANE_STRIDE": plane,
                "MAP_STRIDE": image,
                **self.numbers.definitions(self.tile),
            }
        )

    def source(self, activation: Activation) -> str:
        """Of ``forward_transform``, or of ``inverse_transform`` with an activation."""
        z, y, x = self.tile
        functions: tuple[str, ...]
        if self.inverse:
            name = "inverse"
            functions = (
                device_function("inverse_real_dft_z", inverse_real_dft(z).first(self.valid.z)),
                device_function("dft_y", complex_dft(y, 1).first(2 * self.valid.y)),
                device_function("inverse_dft_x", complex_dft(x, 1).first(2 * self.valid.x)),
                activation_source(activation),
            )
        else:
            name = "forward"
            functions = (
                device_function("real_dft_z", real_dft(z)),
                device_function("dft_y", complex_dft(y, -1)),
                device_function("dft_x", complex_dft(x, -1)),
            )
        before = *GEOMETRY, f"{self.numbers.name}.cuh"
        after = "along_y.cuh", f"{name}.cuh", f"{name}_{self.numbers.name}.cu"
        texts = *map(cuda_text, before), *functions, *map(cuda_text, after)
        return "\n".join((self._definitions, *texts))

    def kernel_spectra_source(self) -> str:
        """Of ``transform_kernels``."""
        z, y, x = self.kernel
        taps = definitions({"KERNEL_Z": z, "KERNEL_Y": y, "KERNEL_X": x})
        names = ("tile_geometry.cuh", f"{self.numbers.name}.cuh", "kernel_spectra.cu")
        return "\n".join((self._definitions, taps, *map(cuda_text, names)))


def _congruent(least: int, remainder: int) -> int:
    """The smallest number from ``least`` on with that remainder by the number of banks."""
    return least + (remainder - least) % BANKS


def transform_shape(
    tile: Vec3, kernel: Vec3, numbers: NumberFormat, *, inverse: bool
) -> TransformShape:
    """The shape that has most lines at work on a multiprocessor, on average over its turns.

    Of those that are as good, the one with most maps in a block, and then with fewest threads.
    """
    shapes = _shapes(tile, kernel, numbers, inverse)
    several = [shape for shape in shapes if shape.blocks >= ENOUGH_BLOCKS]
    return max(several or shapes, key=lambda shape: shape.lines_at_work)


def _shapes(tile: Vec3, kernel: Vec3, numbers: NumberFormat, inverse: bool) -> list[TransformShape]:
    """All that shared memory and registers have room for."""
    found = []
    maps = numbers.group
    while maps:
        shared = TransformShape(numbers, tile, kernel, inverse, maps, WARP, 1).shared_bytes
        for blocks in range(1, min(MOST_BLOCKS, SHARED_BYTES // (shared + BLOCK_SHARED_BYTES)) + 1):
            found += [
                TransformShape(numbers, tile, kernel, inverse, maps, threads, blocks)
                for threads in range(-(-2 * tile.x // WARP) * WARP, MOST_THREADS + 1, WARP)
                if _registers(threads * blocks) >= 2 * max(tile) + OTHER_REGISTERS
            ]
        maps //= 2
    return found


def _registers(threads: int) -> int:
    """That each of a multiprocessor's threads can have."""
    warps = -(-threads // (WARP * QUARTERS))
    return QUARTER_REGISTERS // (warps * WARP * REGISTERS_TOGETHER) * REGISTERS_TOGETHER
