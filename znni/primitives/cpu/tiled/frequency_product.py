"""At every frequency, a (tiles x input maps) by (input x output maps) complex matrix product.

A complex product is made from three real ones (Gauss, as in Knuth, TAOCP 4.6.4):

    re = (a + b) c - b (c + d),   im = (a + b) c + a (d - c)   for (a + ib)(c + id)

with the sums of a and b, and of c and d, formed once per row and per kernel. That is a quarter
fewer multiply-adds; the error stays of the order of float32's, relative to the layer's output.
"""

from __future__ import annotations

from functools import cache

from znni.primitives.cpu.common.machine_code import Kernel, has_wide_registers
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.tiled.tile_transform import NUMBER

FLOATS, INDEX = Argument.FLOATS, Argument.INDEX

# The three real products of a complex one.
PRODUCTS = 3

# Rows of a block by its groups of 16 output maps: as many sums as the registers hold.
WIDE_BLOCKS = {1: 8, 2: 4}
NARROW_BLOCKS = {1: 2}

# Fewer rows than this are few: the time is that of reading the kernels.
FEW_ROWS = 12


def whole_vectors(count: int) -> int:
    """A number of maps or floats, rounded up to whole vectors."""
    return -(-count // LANES) * LANES


def scratch_floats(rows: int, in_features: int) -> int:
    """Floats of scratch of one worker."""
    panel = max(_blocks()) * in_features * PRODUCTS * LANES
    return rows * PRODUCTS * whole_vectors(in_features) + panel


def product_flops(rows: int, in_features: int, out_features: int) -> int:
    """Operations at one frequency: 8 for a complex multiply-add, padded maps included."""
    return 8 * rows * in_features * whole_vectors(out_features)


def _blocks() -> dict[int, int]:
    return WIDE_BLOCKS if has_wide_registers() else NARROW_BLOCKS


@cache
def frequency_product(groups: int, few_rows: bool) -> Kernel:
    """Replace spectra of input maps by spectra of output maps, for a range of frequencies.

    Args:
        groups: of 16 output maps.
        few_rows: ask for the next frequency's kernels at twice the pace. With many rows, that
            would be more loads than there is time for.
    """
    emit = Emitter(
        f"frequency_product_{groups}" + "_few_rows" * few_rows,
        spectra=FLOATS,
        frequency_stride=INDEX,
        rows=INDEX,
        row_stride=INDEX,
        kernels=FLOATS,
        in_features=INDEX,
        first=INDEX,
        stop=INDEX,
        scratch=FLOATS,
    )
    blocks = _blocks()
    most = max(blocks)
    in_features, rows = emit["in_features"], emit["rows"]
    in_groups = emit.quotient(emit.plus(in_features, LANES - 1), LANES)
    part = emit.times(in_groups, LANES)
    panel = emit.at(emit["scratch"], emit.times(rows, emit.times(part, PRODUCTS)))
    kernel_stride = emit.times(in_features, NUMBER)
    with emit.loop(emit["stop"], emit["first"]) as frequency:
        spectra = emit.at(emit["spectra"], emit.times(frequency, emit["frequency_stride"]))
        kernels = emit.at(emit["kernels"], emit.times(frequency, emit.times(kernel_stride, groups)))
        kernel_floats = emit.times(kernel_stride, groups)
        ahead = _Ahead(
            emit,
            (emit.at(spectra, emit["frequency_stride"]), emit.times(rows, emit["row_stride"])),
            *_pieces(emit, emit.at(kernels, kernel_floats), kernel_floats, 2 if few_rows else 1),
        )
        _split_rows(emit, spectra, in_groups, part)
        for group in range(0, groups, most):
            width = min(most, groups - group)
            height = blocks[width]
            starts = [emit.at(kernels, emit.times(kernel_stride, group + i)) for i in range(width)]
            _split_kernels(emit, starts, panel)
            target = emit.at(spectra, group * NUMBER)
            with emit.when(rows, ">=", height), emit.loop(rows, step=height) as row:
                # The last block is shifted back: its first rows are computed twice.
                start = emit.smaller(row, emit.minus(rows, height))
                _block_product(emit, start, height, panel, width, target, part, ahead)
            with emit.when(rows, "<", height), emit.loop(rows) as row:
                _block_product(emit, row, 1, panel, width, target, part, ahead)
    return emit.compile()


class _Ahead:
    """Asks for the next frequency's numbers, one line of each array at a time."""

    def __init__(self, emit: Emitter, *arrays: tuple[Value, Value]) -> None:
        self._emit = emit
        self._arrays = arrays
        self._position = emit.variable(emit.index(0))

    def ask(self) -> None:
        """Ask for the next line of each array, or for its last one again."""
        emit, position = self._emit, self._position.get()
        for start, floats in self._arrays:
            emit.prefetch(emit.at(start, emit.smaller(position, floats)), near=False)
        self._position.set(emit.plus(position, LANES))


def _pieces(emit: Emitter, start: Value, floats: Value, pieces: int) -> list[tuple[Value, Value]]:
    """An array as several equal ones."""
    piece = emit.quotient(floats, pieces)
    return [(emit.at(start, emit.times(piece, i)), piece) for i in range(pieces)]


def _split_rows(emit: Emitter, spectra: Value, in_groups: Value, part: Value) -> None:
    """Rows of a frequency to scratch: (row; real, imaginary, their sum; map)."""
    row_floats = emit.times(part, PRODUCTS)
    with emit.loop(emit["rows"]) as row, emit.loop(in_groups) as group:
        source = emit.at(spectra, emit.times(row, emit["row_stride"]))
        source = emit.at(source, emit.times(group, NUMBER))
        target = emit.at(emit["scratch"], emit.times(row, row_floats))
        target = emit.at(target, emit.times(group, LANES))
        real, imaginary = emit.load(source), emit.load(emit.at(source, LANES))
        emit.store(real, target)
        emit.store(imaginary, emit.at(target, part))
        emit.store(emit.add(real, imaginary), emit.at(target, emit.times(part, 2)))


def _split_kernels(emit: Emitter, starts: list[Value], panel: Value) -> None:
    """Kernels of a frequency to scratch: (input map; group; d - c, c + d, c; lane)."""
    width = len(starts)
    with emit.loop(emit["in_features"]) as c:
        target = emit.at(panel, emit.times(c, width * PRODUCTS * LANES))
        for i, start in enumerate(starts):
            source = emit.at(start, emit.times(c, NUMBER))
            real, imaginary = emit.load(source), emit.load(emit.at(source, LANES))
            parts = emit.subtract(imaginary, real), emit.add(real, imaginary), real
            for j, value in enumerate(parts):
                emit.store(value, emit.at(target, (i * PRODUCTS + j) * LANES))


def _block_product(
    emit: Emitter,
    start: Value,
    height: int,
    panel: Value,
    width: int,
    target: Value,
    part: Value,
    ahead: _Ahead,
) -> None:
    """The product of a few rows with the kernels of a panel."""
    row_floats = emit.times(part, PRODUCTS)
    rows = [
        emit.at(emit["scratch"], emit.times(emit.plus(start, row), row_floats))
        for row in range(height)
    ]
    sums = {
        (row, i, j): emit.variable(emit.constant(0.0))
        for row in range(height)
        for i in range(width)
        for j in range(PRODUCTS)
    }
    with emit.loop(emit["in_features"]) as c:
        ahead.ask()
        kernels = emit.at(panel, emit.times(c, width * PRODUCTS * LANES))
        for j in range(PRODUCTS):
            values = [
                emit.broadcast(emit.at(row, emit.plus(emit.times(part, j), c))) for row in rows
            ]
            for i in range(width):
                kernel = emit.load(emit.at(kernels, (i * PRODUCTS + j) * LANES))
                for row, value in enumerate(values):
                    total = sums[row, i, j]
                    total.set(emit.multiply_add(value, kernel, total.get()))
    for row in range(height):
        target_row = emit.at(target, emit.times(emit.plus(start, row), emit["row_stride"]))
        for i in range(width):
            with_d_minus_c, with_c_plus_d, common = (sums[row, i, j].get() for j in range(PRODUCTS))
            number = emit.at(target_row, i * NUMBER)
            emit.store(emit.subtract(common, with_c_plus_d), number)
            emit.store(emit.add(common, with_d_minus_c), emit.at(number, LANES))
