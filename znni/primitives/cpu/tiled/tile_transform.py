"""Three-dimensional Fourier transforms of tiles, 16 maps at a time.

One kernel per length, direction and axis; a tile of any three lengths is transformed by the
kernels of its axes, which a driver (``tile_drivers``) calls. Between passes a number is two
vectors, the real and the imaginary parts of 16 maps:

- image rows: (y, x) of 16 maps, turned in registers into vectors across the maps;
- plane: (y, fx, part, lane), with fx < x // 2 + 1;
- tile scratch: (z, y, fx, part, lane), planes ``plane_stride`` apart;
- spectrum: (fy, fx, fz, ...), frequencies ``frequency_stride`` apart: fz runs fastest, so that
  the numbers one pass along z writes lie close together.
"""

from __future__ import annotations

from functools import cache, partial

from znni.primitives.cpu.common.machine_code import Kernel
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.tiled.dft_codelets import complex_dft, inverse_real_dft, real_dft
from znni.shapes import Vec3

FLOATS, INDEX = Argument.FLOATS, Argument.INDEX

# Real and imaginary parts of 16 maps.
NUMBER = 2 * LANES


def half(length: int) -> int:
    """Frequencies along x: the others are conjugates."""
    return length // 2 + 1


def frequencies(tile: Vec3) -> int:
    """Frequencies of a tile's spectrum."""
    return tile.z * tile.y * half(tile.x)


def plane_stride(tile: Vec3) -> int:
    """Floats from one plane of the scratch to the next.

    An odd multiple of 128 bytes, lest the planes meet in a few sets of the cache.
    """
    return (tile.y * half(tile.x) | 1) * NUMBER


def scratch_floats(tile: Vec3) -> int:
    """Floats of scratch that the transform of a tile needs."""
    return tile.z * plane_stride(tile) + LANES * tile.x


def transform_flops(tile: Vec3, inner: Vec3, inverse: bool) -> int:
    """Operations of one tile's transform, 16 maps at once.

    Args:
        tile: extents.
        inner: extents of what is read (forward) or written (inverse).
        inverse: which of the two.
    """
    row = (inverse_real_dft if inverse else real_dft)(tile.x).flops
    rows = inner.z * inner.y * row
    columns_y = inner.z * half(tile.x) * complex_dft(tile.y, 1).flops
    columns_z = tile.y * half(tile.x) * complex_dft(tile.z, 1).flops
    return LANES * (rows + columns_y + columns_z)


@cache
def forward_rows(length: int) -> Kernel:
    """Rows of an image of 16 maps to a plane of their spectra along x.

    Where rows or voxels are missing (``inner`` less than the tile), zeros take their place.
    Lanes beyond the last map repeat it.
    """
    emit = Emitter(
        f"forward_rows_{length}",
        image=FLOATS,
        map_stride=INDEX,
        y_stride=INDEX,
        maps=INDEX,
        inner_y=INDEX,
        inner_x=INDEX,
        tile_y=INDEX,
        plane=FLOATS,
        staging=FLOATS,
    )
    last = emit.minus(emit["maps"], 1)
    offsets = [emit.times(emit.smaller(i, last), emit["map_stride"]) for i in range(LANES)]
    with emit.loop(emit["inner_y"]) as y:
        row = emit.at(emit["image"], emit.times(y, emit["y_stride"]))
        lanes = [emit.at(row, offset) for offset in offsets]
        partial = emit["inner_x"], "<", emit.index(length)
        with emit.when(*partial):
            for lane, source in enumerate(lanes):
                _stage(emit, source, emit.at(emit["staging"], lane * length), length)
        lanes = [
            emit.chosen(*partial, emit.at(emit["staging"], lane * length), source)
            for lane, source in enumerate(lanes)
        ]
        voxels = _load_transposed(emit, lanes, length)
        target = emit.at(emit["plane"], emit.times(y, half(length) * NUMBER))
        real_dft(length).evaluate(
            emit,
            read=lambda i: voxels[i],
            write=lambda i, value: emit.store(value, emit.at(target, i * LANES)),
        )
    row_floats = half(length) * NUMBER
    rest = emit.at(emit["plane"], emit.times(emit["inner_y"], row_floats))
    missing = emit.minus(emit["tile_y"], emit["inner_y"])
    zero(emit, rest, emit.times(missing, row_floats))
    return emit.compile()


@cache
def inverse_rows(length: int) -> Kernel:
    """A plane of spectra along x to rows of an image of 16 maps, with bias and activation.

    Args of the kernel: ``bias`` and ``floor`` are 16 numbers each; a voxel becomes
    max(value + bias, floor).
    """
    emit = Emitter(
        f"inverse_rows_{length}",
        plane=FLOATS,
        image=FLOATS,
        map_stride=INDEX,
        y_stride=INDEX,
        maps=INDEX,
        skip_y=INDEX,
        skip_x=INDEX,
        inner_y=INDEX,
        inner_x=INDEX,
        bias=FLOATS,
        floor=FLOATS,
    )
    bias, floor = emit.load(emit["bias"]), emit.load(emit["floor"])
    with emit.loop(emit["inner_y"], emit["skip_y"]) as y:
        source = emit.at(emit["plane"], emit.times(y, half(length) * NUMBER))
        voxels: dict[int, Value] = {}

        def write(x: int, value: Value, voxels: dict[int, Value] = voxels) -> None:
            voxels[x] = emit.at_least(emit.add(value, bias), floor)

        inverse_real_dft(length).evaluate(
            emit, read=lambda i: emit.load(emit.at(source, i * LANES)), write=write
        )
        row = emit.at(emit["image"], emit.times(y, emit["y_stride"]))
        _store_transposed(emit, voxels, row, length)
    return emit.compile()


@cache
def columns(length: int, sign: int, streaming: bool, ahead: bool) -> Kernel:
    """Complex transforms along one axis, of many columns side by side.

    Args:
        length: of the axis.
        sign: -1 forward, 1 inverse.
        streaming: store past the caches.
        ahead: ask for the next column while at work on this one.
    """
    direction = "forward" if sign < 0 else "inverse"
    kind = "_streaming" * streaming + "_ahead" * ahead
    emit = Emitter(
        f"{direction}_columns_{length}{kind}",
        source=FLOATS,
        source_stride=INDEX,
        target=FLOATS,
        target_stride=INDEX,
        count=INDEX,
        step=INDEX,
    )
    step = emit["step"]
    # The side with the scratch or the plane has its columns next to each other.
    source_step = step if ahead else emit.index(NUMBER)
    target_step = step if streaming else emit.index(NUMBER)
    with emit.loop(emit["count"]) as i:
        source = emit.at(emit["source"], emit.times(i, source_step))
        target = emit.at(emit["target"], emit.times(i, target_step))
        sources = [emit.at(source, emit.times(emit["source_stride"], j)) for j in range(length)]
        targets = [emit.at(target, emit.times(emit["target_stride"], j)) for j in range(length)]
        read = partial(_read_part, emit, sources, step if ahead else None)
        write = partial(_write_part, emit, targets, streaming)
        complex_dft(length, -1 if sign < 0 else 1).evaluate(emit, read, write)
    return emit.compile()


def _read_part(emit: Emitter, numbers: list[Value], ahead: Value | None, part: int) -> Value:
    """A real or imaginary part; with ``ahead`` floats, what lies so far ahead is asked for."""
    address = emit.at(numbers[part // 2], part % 2 * LANES)
    if ahead is not None:
        emit.prefetch(emit.at(address, ahead), near=True)
    return emit.load(address)


def _write_part(
    emit: Emitter, numbers: list[Value], streaming: bool, part: int, value: Value
) -> None:
    put = emit.stream if streaming else emit.store
    put(value, emit.at(numbers[part // 2], part % 2 * LANES))


def _load_transposed(emit: Emitter, lanes: list[Value], length: int) -> list[Value]:
    """The voxels of a row as vectors across 16 maps, from the rows of the maps."""
    voxels: list[Value] = []
    for x in range(0, length, 4):
        addresses = [emit.at(lane, x) for lane in lanes]
        rows = [emit.gather_quads(addresses[i::4]) for i in range(4)]
        # Quarter q of row i holds map i + 4q: the transpose puts the maps in order.
        voxels += emit.transpose_within_quads(rows)
    return voxels


def _store_transposed(emit: Emitter, voxels: dict[int, Value], row: Value, length: int) -> None:
    """Voxels ``skip_x`` to ``inner_x`` of a row, from vectors across maps, to rows of the maps."""
    last = emit.minus(emit["maps"], 1)
    zero = emit.constant(0.0)
    for x in range(0, length, LANES):
        block = [voxels.get(i, zero) for i in range(x, x + LANES)]
        start, stop = emit.minus(emit["skip_x"], x), emit.minus(emit["inner_x"], x)
        for lane, values in enumerate(emit.transpose(block)):
            end = emit.chosen(emit["maps"], ">", emit.index(lane), stop, emit.index(0))
            offset = emit.times(emit.smaller(lane, last), emit["map_stride"])
            emit.store_lanes(values, emit.at(row, emit.plus(offset, x)), start, end)


def _stage(emit: Emitter, source: Value, target: Value, length: int) -> None:
    """A row of ``inner_x`` voxels, lengthened by zeros."""
    with emit.loop(emit["inner_x"]) as x:
        emit.copy_float(emit.at(source, x), emit.at(target, x))
    with emit.loop(length, emit["inner_x"]) as x:
        emit.zero_float(emit.at(target, x))


def zero(emit: Emitter, target: Value, floats: Value) -> None:
    """Set a number of floats, a multiple of 16."""
    with emit.loop(floats, step=LANES) as i:
        emit.store(emit.constant(0.0), emit.at(target, i))
