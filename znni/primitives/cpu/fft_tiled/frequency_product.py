"""A complex matrix product at every frequency: (tiles x input maps) by (input x output maps).

The number format decides which sums make up a complex product (``number_formats``). The parts of
rows and kernels that each sum takes are laid out once per frequency.
"""

from __future__ import annotations

from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.phases import PhaseEmitter, PhaseKernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value, whole_vectors
from znni.primitives.cpu.fft_tiled.number_formats import NumberFormat

FLOATS, INDEX = Argument.FLOATS, Argument.INDEX

# With fewer rows than this, the time is that of reading the kernels.
FEW_ROWS = 12


def scratch_floats(rows: int, in_features: int, numbers: NumberFormat) -> int:
    """Return the floats of one worker's scratch."""
    panel = max(numbers.blocks) * in_features * numbers.products * LANES
    return rows * numbers.parts * whole_vectors(in_features) + panel


def product_flops(rows: int, in_features: int, out_features: int, numbers: NumberFormat) -> int:
    """Return the operations at one frequency: 2 for each multiply-add of float32 or of a pair.

    Operations on padded maps are included.
    """
    return 2 * numbers.products * rows * in_features * whole_vectors(out_features)


@cached_kernel
def frequency_product(groups: int, few_rows: bool, numbers: NumberFormat) -> PhaseKernel:
    """Return a phase that replaces spectra by products in place; a share is some frequencies.

    Args:
        groups: number of groups of 16 output maps.
        few_rows: True to prefetch the next frequency's kernels at twice the pace. With many rows,
            there would be no time for so many loads.
        numbers: format of the spectra.
    """
    emit = PhaseEmitter(
        f"frequency_product_{groups}{numbers.suffix}" + "_few_rows" * few_rows,
        **dict.fromkeys(("spectra", "kernels"), FLOATS),
        **dict.fromkeys(("rows", "row_stride", "in_features"), INDEX),
        **dict.fromkeys(("frequencies", "frequency_stride", "frequencies_per_share"), INDEX),
    )
    blocks = numbers.blocks
    most = max(blocks)
    in_features, rows = emit["in_features"], emit["rows"]
    in_groups = emit.quotient(emit.plus(in_features, LANES - 1), LANES)
    part = emit.times(in_groups, LANES)
    panel = emit.at(emit["scratch"], emit.times(rows, emit.times(part, numbers.parts)))
    kernel_stride = emit.times(in_features, numbers.floats)
    share = emit["share"], emit["frequencies_per_share"], emit["frequencies"]
    with emit.part(*share) as frequency:
        spectra = emit.at(emit["spectra"], emit.times(frequency, emit["frequency_stride"]))
        kernel_floats = emit.times(kernel_stride, groups)
        kernels = emit.at(emit["kernels"], emit.times(frequency, kernel_floats))
        ahead = _Ahead(
            emit,
            (emit.at(spectra, emit["frequency_stride"]), emit.times(rows, emit["row_stride"])),
            *_pieces(emit, emit.at(kernels, kernel_floats), kernel_floats, 2 if few_rows else 1),
        )
        _split_rows(emit, numbers, spectra, in_groups, part)
        for group in range(0, groups, most):
            width = min(most, groups - group)
            height = blocks[width]
            starts = [emit.at(kernels, emit.times(kernel_stride, group + i)) for i in range(width)]
            _split_kernels(emit, numbers, starts, panel)
            target = emit.at(spectra, group * numbers.floats)
            with emit.when(rows, ">=", height), emit.loop(rows, step=height) as row:
                # The last block is shifted back, so that its first rows are computed twice.
                start = emit.smaller(row, emit.minus(rows, height))
                _block_product(emit, numbers, start, height, panel, width, target, part, ahead)
            with emit.when(rows, "<", height), emit.loop(rows) as row:
                _block_product(emit, numbers, row, 1, panel, width, target, part, ahead)
    return emit.compile_phase()


class _Ahead:
    """A prefetcher of the next frequency's numbers, one line of each array at a time."""

    def __init__(self, emit: Emitter, *arrays: tuple[Value, Value]) -> None:
        self._emit = emit
        self._arrays = arrays
        self._position = emit.variable(emit.index(0))

    def ask(self) -> None:
        """Prefetch the next line of each array, or its last one again."""
        emit, position = self._emit, self._position.get()
        for start, floats in self._arrays:
            emit.prefetch(emit.at(start, emit.smaller(position, floats)), near=False)
        self._position.set(emit.plus(position, LANES))


def _pieces(emit: Emitter, start: Value, floats: Value, pieces: int) -> list[tuple[Value, Value]]:
    """Divide an array into several equal pieces."""
    piece = emit.quotient(floats, pieces)
    return [(emit.at(start, emit.times(piece, i)), piece) for i in range(pieces)]


def _split_rows(
    emit: Emitter, numbers: NumberFormat, spectra: Value, in_groups: Value, part: Value
) -> None:
    """Copy rows of a frequency to scratch: (row; part; map)."""
    row_floats = emit.times(part, numbers.parts)
    with emit.loop(emit["rows"]) as row, emit.loop(in_groups) as group:
        source = emit.at(spectra, emit.times(row, emit["row_stride"]))
        source = emit.at(source, emit.times(group, numbers.floats))
        target = emit.at(emit["scratch"], emit.times(row, row_floats))
        target = emit.at(target, emit.times(group, LANES))
        for j, value in enumerate(numbers.row_vectors(emit, source)):
            emit.store(value, emit.at(target, emit.times(part, j)))


def _split_kernels(emit: Emitter, numbers: NumberFormat, starts: list[Value], panel: Value) -> None:
    """Copy kernels of a frequency to scratch: (input map; group; part; lane)."""
    width = len(starts)
    with emit.loop(emit["in_features"]) as c:
        target = emit.at(panel, emit.times(c, width * numbers.products * LANES))
        for i, start in enumerate(starts):
            source = emit.at(start, emit.times(c, numbers.floats))
            for j, value in enumerate(numbers.kernel_vectors(emit, source)):
                emit.store(value, emit.at(target, (i * numbers.products + j) * LANES))


def _block_product(
    emit: Emitter,
    numbers: NumberFormat,
    start: Value,
    height: int,
    panel: Value,
    width: int,
    target: Value,
    part: Value,
    ahead: _Ahead,
) -> None:
    """Compute the product of a few rows with the kernels of a panel."""
    products = numbers.products
    row_floats = emit.times(part, numbers.parts)
    rows = [
        emit.at(emit["scratch"], emit.times(emit.plus(start, row), row_floats))
        for row in range(height)
    ]
    sums = {
        (row, i, j): emit.variable(emit.constant(0.0))
        for row in range(height)
        for i in range(width)
        for j in range(products)
    }
    with emit.loop(emit["in_features"]) as c:
        ahead.ask()
        kernels = emit.at(panel, emit.times(c, width * products * LANES))
        for j, row_part in enumerate(numbers.row_parts):
            values = [
                emit.broadcast(emit.at(row, emit.plus(emit.times(part, row_part), c)))
                for row in rows
            ]
            for i in range(width):
                kernel = emit.load(emit.at(kernels, (i * products + j) * LANES))
                for row, value in enumerate(values):
                    total = sums[row, i, j]
                    total.set(numbers.multiply_add(emit, value, kernel, total.get()))
    for row in range(height):
        target_row = emit.at(target, emit.times(emit.plus(start, row), emit["row_stride"]))
        for i in range(width):
            number_sums = [sums[row, i, j].get() for j in range(products)]
            numbers.put_sums(emit, number_sums, emit.at(target_row, i * numbers.floats))
