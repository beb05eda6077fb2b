"""The transforms of tiles: how they are cut into blocks, and their source, made of codelets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from znni.core.shapes import Vec3
from znni.machine.cuda_kernels import source_beside
from znni.network.layers import Activation
from znni.primitives.common.codelets import Codelet
from znni.primitives.common.dft_codelets import complex_dft, inverse_real_dft, real_dft
from znni.primitives.gpu.common.activation import activation_source
from znni.primitives.gpu.common.division import divisors
from znni.primitives.gpu.common.hardware import (
    BANKS,
    LANES,
    MOST_BLOCK_THREADS,
    RESERVED_SHARED,
    Chip,
    thread_registers,
)
from znni.primitives.gpu.common.kernels import definitions, of_axes
from znni.primitives.gpu.common.number_formats import FLOAT_BYTES
from znni.primitives.gpu.fft_tiled.geometry import columns, frequencies, half
from znni.primitives.gpu.fft_tiled.product import spectrum_source
from znni.primitives.gpu.fft_tiled.spectrum_formats import SpectrumFormat

# Neighbouring tiles whose blocks follow each other.
FORWARD_STRIP = 16
INVERSE_STRIP = 32

# Bytes of a number in shared memory: two floats. And how many numbers lie in different banks.
NUMBER_BYTES = 2 * FLOAT_BYTES
NUMBER_BANKS = BANKS // 2

# Blocks of a multiprocessor: several keep it busy while each waits for its slowest threads.
ENOUGH_BLOCKS = 2
MOST_BLOCKS = 8

# Blocks that share no memory wait for their writes. Their speed grows with the share of a sector
# that they write, and with the lines at work to this power, measured with tiles of 16 to 24 voxels.
LINES_EXPONENT = 0.2

# Registers of a thread beside its line of complex numbers, and those of several turns.
OTHER_REGISTERS = 16
TURN_REGISTERS = 24

GEOMETRY = ("tile_geometry.cuh", "spectrum_layout.cuh", "cluster.cuh")


@dataclass(frozen=True)
class TransformShape:
    """The division of a transform of tiles into blocks of threads.

    Attributes:
        chip: the chip that computes it.
        tile: extents of a tile.
        kernel: extents of the layer's kernels.
        inverse: whether it is the inverse transform.
        maps: maps of a group that a block takes at a time: all, half of them, and so on.
        turns: times that it takes so many: more than once only in forward transforms of blocks that
            share no memory.
        threads: threads of a block.
        blocks: blocks that a multiprocessor is to hold.
    """

    chip: Chip
    spectra: SpectrumFormat
    tile: Vec3
    kernel: Vec3
    inverse: bool
    maps: int
    turns: int
    threads: int
    blocks: int

    @property
    def own_maps(self) -> int:
        """Maps of a block in all its turns."""
        return self.maps * self.turns

    @property
    def valid(self) -> Vec3:
        """Voxels of the output that a tile gives."""
        return self.tile - self.kernel + 1

    @property
    def extents(self) -> Vec3:
        """Voxels along each axis: those of the tile, or those of the output that it gives."""
        return self.valid if self.inverse else self.tile

    @property
    def ranks(self) -> int:
        """Blocks that take a group of maps together: a cluster, if the chip has clusters."""
        return self.spectra.group // self.own_maps

    @property
    def exponent_maps(self) -> int:
        """Maps that have an exponent in common: those whose largest number a block can know."""
        return self.spectra.group if self.chip.has_clusters else self.maps

    @property
    def speed(self) -> float:
        """Speed beside blocks that write whole sectors."""
        return self.spectra.lone_speeds[self.own_maps] if self.is_lone else 1.0

    @property
    def is_lone(self) -> bool:
        """True if a block reads or writes its own part of a group's sectors."""
        return not self.chip.has_clusters and self.maps < self.spectra.group

    @property
    def strip(self) -> int:
        """Neighbouring tiles whose blocks follow each other."""
        return INVERSE_STRIP if self.inverse else FORWARD_STRIP

    def grid(self, tiles: int, groups: int) -> int:
        """Return the blocks for some tiles of so many groups of maps, in whole strips."""
        return -(-tiles // self.strip) * self.strip * groups * self.ranks

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: maps of a turn, and the spectra of the turns before."""
        kept = (self.turns - 1) * self.maps * frequencies(self.tile)
        return self.maps * self._strides[2] * NUMBER_BYTES + kept * self.spectra.number_bytes

    @property
    def lines(self) -> tuple[int, int, int]:
        """Lines of a block in its passes along z, y and x. Each has a thread."""
        extents, planes = self.extents, half(self.tile.z)
        lines = extents.y * extents.x, planes * extents.x, columns(self.tile)
        return lines[0] * self.maps, lines[1] * self.maps, lines[2] * self.maps

    @property
    def lines_at_work(self) -> float:
        """Lines at work on a multiprocessor, on average over turns, which are equally long."""
        return self.blocks * sum(self.lines) / _turns(self.lines, self.threads)

    @property
    def _strides(self) -> tuple[int, int, int]:
        """Numbers from one row, plane and map to the next.

        The distance of rows is odd, so lanes at work on neighbouring rows use different banks. The
        distances of planes and maps keep other lanes apart: those at the ends of a plane's lines
        and the beginnings of the next plane's, and those that write two maps at once.
        """
        row = self.tile.x + 1
        plane = _congruent(self.tile.y * row, self.valid.x if self.inverse else self.tile.x)
        image = _congruent(half(self.tile.z) * plane, NUMBER_BANKS // self.spectra.group)
        return row, plane, image

    @property
    def _definitions(self) -> str:
        row, plane, image = self._strides
        return definitions(
            {
                **of_axes("TILE", self.tile),
                **of_axes("VALID", self.valid),
                "MAPS": self.maps,
                "TURNS": self.turns,
                "HAS_CLUSTERS": int(self.chip.has_clusters),
                "IS_LONE": int(self.is_lone),
                "THREADS": self.threads,
                "BLOCKS": self.blocks,
                "STRIP": self.strip,
                "LINES_Y": self.extents.y,
                "LINES_X": self.extents.x,
                "ROW_STRIDE": row,
                "PLANE_STRIDE": plane,
                "MAP_STRIDE": image,
                **self.spectra.definitions(self.tile),
            }
        )

    def source(self, activation: Activation) -> str:
        """Return the CUDA source of ``forward_transform``, or ``inverse_transform``."""
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
        before = *map(_text, GEOMETRY), spectrum_source(self.spectra)
        after = "along_y.cuh", f"{name}.cuh", f"{name}_{self.spectra.numbers.name}.cu"
        return "\n".join((self._definitions, *before, *functions, *map(_text, after)))

    def kernel_spectra_source(self) -> str:
        """Return the CUDA source of ``transform_kernels``."""
        parts = (
            self._definitions,
            definitions(of_axes("KERNEL", self.kernel)),
            _text("tile_geometry.cuh"),
            spectrum_source(self.spectra),
            _text("kernel_spectra.cu"),
        )
        return "\n".join(parts)


def _text(name: str) -> str:
    return source_beside(__file__, name)


def _congruent(least: int, remainder: int) -> int:
    """Return the smallest number from ``least`` on with a remainder by the number of banks."""
    return least + (remainder - least) % NUMBER_BANKS


@cache
def transform_shape(
    tile: Vec3, kernel: Vec3, spectra: SpectrumFormat, chip: Chip, *, inverse: bool
) -> TransformShape | None:
    """Return the shape that has most lines at work on a multiprocessor, on average over its turns.

    Of several, it has most maps in a block, and then fewest threads. Blocks that share no memory
    are the faster, the larger their parts of sectors are.

    Returns:
        None if a multiprocessor has no room for a map of a tile.
    """
    shapes = _shapes(tile, kernel, spectra, chip, inverse)
    if not inverse and not chip.has_clusters:
        return max(shapes, key=lambda it: it.speed * it.lines_at_work**LINES_EXPONENT, default=None)
    several = [shape for shape in shapes if shape.blocks >= ENOUGH_BLOCKS]
    return max(several or shapes, key=lambda shape: shape.lines_at_work, default=None)


def _shapes(
    tile: Vec3, kernel: Vec3, spectra: SpectrumFormat, chip: Chip, inverse: bool
) -> list[TransformShape]:
    """Return the shape with most lines at work for each number of maps, turns and blocks.

    Of several it has the fewest threads. There are shapes for what shared memory and registers have
    room for.
    """
    found = []
    least = -(-2 * tile.x // LANES) * LANES
    for maps, turns in _divisions(spectra.group, inverse or chip.has_clusters):
        smallest = TransformShape(chip, spectra, tile, kernel, inverse, maps, turns, LANES, 1)
        room = chip.shared_bytes // (smallest.shared_bytes + RESERVED_SHARED)
        needed = 2 * max(tile) + OTHER_REGISTERS + (TURN_REGISTERS if turns > 1 else 0)
        lines = smallest.lines
        taken = {it: _turns(lines, it) for it in range(least, MOST_BLOCK_THREADS + 1, LANES)}
        for blocks in range(1, min(MOST_BLOCKS, room) + 1):
            fitting = [it for it in taken if thread_registers(it * blocks) >= needed]
            if fitting:
                threads = min(fitting, key=taken.__getitem__)
                found.append(replace(smallest, threads=threads, blocks=blocks))
    return found


def _turns(lines: tuple[int, int, int], threads: int) -> int:
    """Return how often threads take a line each, until they have taken those of all passes."""
    return sum(-(-each // threads) for each in lines)


def _divisions(group: int, once: bool) -> Iterator[tuple[int, int]]:
    """Yield the maps and turns of a block, most maps first."""
    for maps in divisors(group):
        for turns in divisors(group // maps):
            if turns == 1 or (maps < group and not once):
                yield maps, turns


class _Statements:
    """The arithmetic of a codelet as CUDA C++. Values are names of variables."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def constant(self, value: float) -> str:
        """Return a number."""
        return f"{value!r}f"

    def add(self, left: str, right: str) -> str:
        """Return a sum."""
        return self._named(f"{left} + {right}")

    def subtract(self, left: str, right: str) -> str:
        """Return a difference."""
        return self._named(f"{left} - {right}")

    def scale(self, value: str, factor: float) -> str:
        """Return a product with a number."""
        return self._named(f"{value} * {self.constant(factor)}")

    def negate(self, value: str) -> str:
        """Return a negative."""
        return f"-{value}"

    def read(self, number: int) -> str:
        """Return an input."""
        return self._named(f"in[{number}]")

    def write(self, number: int, value: str) -> None:
        """Store an output."""
        self.lines.append(f"out[{number}] = {value};")

    def _named(self, expression: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"const float {name} = {expression};")
        return name


def device_function(name: str, codelet: Codelet) -> str:
    """Return an inlined function ``name(in, out)`` of arrays of floats, maybe the same array."""
    statements = _Statements()
    codelet.evaluate(statements, statements.read, statements.write)
    body = "\n".join(f"  {line}" for line in statements.lines)
    return f"__device__ __forceinline__ void {name}(const float* in, float* out) {{\n{body}\n}}\n"
