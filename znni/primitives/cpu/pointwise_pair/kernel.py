"""The kernel of two convolutions of one tap: some voxels pass through both at a time.

A worker copies the voxels of a piece, as rows of maps. For a few vectors of these voxels, it makes
some of the maps between, activates them, and adds their products to the sums of the output. So the
maps between stay in the nearest cache. Meanwhile it prefetches the next piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from znni.primitives.cpu.common.kernel_cache import cached_kernel
from znni.primitives.cpu.common.machine_code import has_wide_registers
from znni.primitives.cpu.common.phases import PhaseEmitter, PhaseKernel
from znni.primitives.cpu.common.simd import LANES, Argument, Value, Variable
from znni.primitives.cpu.common.vector_activation import Curve, finished

# Vectors of voxels in a register tile, and its maps. Sums, inputs and weights fill the registers.
VECTORS = 3
WIDTH = VECTORS * LANES
TILE_MAPS = 8 if has_wide_registers() else 2

# The most maps between that are made at a time, and the most maps whose products are added up at a
# time. A register tile's voxels of them stay in the nearest cache.
MOST_MAPS = 128
DEPTH = 128

FINISH = ("bias", "slope", "floor")

ARGUMENTS = dict.fromkeys(
    (
        "source", "target", "weights", "later_weights",
        "factors", "shifts",  # of the input's maps, counted through all items
        *FINISH, *(f"later_{name}" for name in FINISH),
    ),
    Argument.FLOATS,
) | dict.fromkeys(
    (
        "volume", "rows", "width",  # voxels of an item, rows of a plane, voxels of a row
        "voxels", "pieces", "all_pieces", "together",  # of a piece, an item, all items, a share
        "taken", "between", "given", "maps", "part", "pitch",  # as in ``Blocking``; maps: of output
        "fetched",  # maps of the input that are prefetched for each tile of maps between
        *(f"{array}_{axis}" for array in ("source", "target")
          for axis in ("item", "map", "plane", "row")),
    ),
    Argument.INDEX,
)  # fmt: skip


@cached_kernel
def pair_kernel(curve: Curve, later_curve: Curve, adds: bool) -> PhaseKernel:
    """Return the kernel that makes a share of the pieces, which are counted through all items.

    Args:
        curve: the curve of the activation between.
        later_curve: the curve of the last activation.
        adds: whether it adds to what it finds in the output.
    """
    emit = PhaseEmitter("pointwise_pair", **ARGUMENTS)
    with emit.part(emit["share"], emit["together"], emit["all_pieces"]) as index:
        piece = _Piece.of(emit, index)
        piece.load("source", emit["taken"], piece.inputs, scales=True)
        if adds:
            piece.load("target", emit["maps"], piece.sums)
        with emit.loop(emit["between"], 0, emit["part"]) as done:
            _Part(piece, done, curve, adds).make()
        piece.store(later_curve)
    return emit.compile_phase()


@dataclass(frozen=True)
class _Piece:
    """Some voxels of an item.

    Attributes:
        emit: the emitter.
        item: the number of the item.
        count: the number of voxels.
        start: the plane, row and column of the first voxel.
        inputs: the rows of the input's maps.
        sums: the rows of the output's maps.
        tile: the rows of some maps between, for the voxels of a register tile.
    """

    emit: PhaseEmitter
    item: Value
    count: Value
    start: tuple[Value, Value, Value]
    inputs: Value
    sums: Value
    tile: Value

    @classmethod
    def of(cls, emit: PhaseEmitter, index: Value) -> _Piece:
        """Return a piece by its number."""
        item, piece = _divided(emit, index, emit["pieces"])
        first = emit.times(piece, emit["voxels"])
        row, x = _divided(emit, first, emit["width"])
        z, y = _divided(emit, row, emit["rows"])
        inputs = emit["scratch"]
        sums = emit.at(inputs, emit.times(emit["taken"], emit["pitch"]))
        return cls(
            emit, item, emit.smaller(emit["voxels"], emit.minus(emit["volume"], first)), (z, y, x),
            inputs, sums, emit.at(sums, emit.times(emit["given"], emit["pitch"])),
        )  # fmt: skip

    def load(self, array: str, maps: Value, rows: Value, *, scales: bool = False) -> None:
        """Copy the voxels of all maps of an array, perhaps scaled."""
        emit, zero = self.emit, self.emit.index(0)
        with emit.loop(maps) as f:
            at = emit.plus(emit.times(self.item, maps), f)
            names = ("factors", "shifts") if scales else ()
            scaling = [emit.broadcast(emit.at(emit[name], at)) for name in names]
            row = emit.at(rows, emit.times(f, emit["pitch"]))
            for memory, to, left in self._vectors(array, f, row):
                value = emit.load(memory) if left is None else emit.load_lanes(memory, zero, left)
                # What is copied next overwrites the lanes beyond the voxels.
                emit.store(emit.multiply_add(value, *scaling) if scaling else value, to)

    def store(self, curve: Curve) -> None:
        """Store the sums of all maps, activated."""
        emit = self.emit
        with emit.loop(emit["maps"]) as f:
            finish = _finish(emit, "later_", f)
            row = emit.at(self.sums, emit.times(f, emit["pitch"]))
            for memory, sums, left in self._vectors("target", f, row):
                value = finished(emit, emit.load(sums), finish, curve)
                if left is None:
                    emit.store(value, memory)
                else:
                    emit.store_lanes(value, memory, emit.index(0), left)

    def _vectors(self, array: str, f: Value, row: Value) -> Iterator[tuple[Value, ...]]:
        """Yield the places of a vector of voxels in a map of an array and in a row of the piece.

        The third value is None, or the number of voxels in the vector if that may be below 16. The
        code emitted for each yield runs for all such vectors.
        """
        emit, width, zero = self.emit, self.emit["width"], self.emit.index(0)
        z, y, x = self.start
        step, plane = emit[f"{array}_row"], emit[f"{array}_plane"]
        to_plane = emit.minus(plane, emit.times(emit["rows"], step))
        in_map = emit.variable(emit.plus(emit.times(z, plane), emit.times(y, step)))
        number = emit.variable(y)
        reach = emit.plus(x, self.count)
        with emit.loop(reach, 0, width) as before:
            begin = emit.select(before, ">", x, before, x)
            count = emit.minus(emit.smaller(emit.plus(before, width), reach), begin)
            first = emit.plus(in_map.get(), emit.minus(begin, before))
            memory, to = emit.at(self._map(array, f), first), emit.at(row, emit.minus(begin, x))
            whole = emit.times(emit.quotient(count, LANES), LANES)
            with emit.loop(whole, 0, LANES) as i:
                yield emit.at(memory, i), emit.at(to, i), None
            with emit.when(whole, "<", count):
                yield emit.at(memory, whole), emit.at(to, whole), emit.minus(count, whole)
            after, end = emit.plus(number.get(), 1), emit["rows"]
            number.set(emit.select(after, "==", end, zero, after))
            more = emit.select(after, "==", end, to_plane, zero)
            in_map.set(emit.plus(in_map.get(), emit.plus(step, more)))

    def _map(self, array: str, f: Value) -> Value:
        """Return the address of a map of an array."""
        emit = self.emit
        item = emit.at(emit[array], emit.times(self.item, emit[f"{array}_item"]))
        return emit.at(item, emit.times(f, emit[f"{array}_map"]))

    def following(self, array: str, at: Value) -> Value:
        """Return the place in a map of an array of a voxel of the next piece."""
        emit = self.emit
        z, y, x = self.start
        rows, x = _divided(emit, emit.plus(x, emit.plus(emit["voxels"], at)), emit["width"])
        planes, y = _divided(emit, emit.plus(y, rows), emit["rows"])
        row = emit.plus(emit.times(y, emit[f"{array}_row"]), x)
        return emit.plus(emit.times(emit.plus(z, planes), emit[f"{array}_plane"]), row)

    def prefetch(self, array: str, f: Value, place: Value) -> None:
        """Prefetch a register tile's voxels of a map, as if no row ended among them."""
        emit = self.emit
        first = emit.at(self._map(array, f), place)
        for vector in range(VECTORS):
            emit.prefetch(emit.at(first, vector * LANES), near=False)


@dataclass(frozen=True)
class _Part:
    """Some maps between, for the voxels of a piece.

    Attributes:
        piece: the piece.
        done: the maps between that were made before.
        curve: the curve of their activation.
        adds: whether sums begin with what was in the output.
    """

    piece: _Piece
    done: Value
    curve: Curve
    adds: bool

    @property
    def maps(self) -> Value:
        """The number of maps."""
        emit = self.piece.emit
        return emit.smaller(emit["part"], emit.minus(emit["between"], self.done))

    def make(self) -> None:
        """Make the maps for all voxels, and add their products to the sums."""
        emit = self.piece.emit
        vectors = emit.quotient(emit.plus(self.piece.count, LANES - 1), LANES)
        tiles, left = _divided(emit, vectors, emit.index(VECTORS))
        whole = emit.times(tiles, WIDTH)
        with emit.loop(whole, 0, WIDTH) as at:
            self._pass_tile(at, VECTORS)
        for fewer in range(1, VECTORS):
            with emit.when(left, "==", fewer):
                self._pass_tile(whole, fewer)

    def _pass_tile(self, at: Value, vectors: int) -> None:
        """Make the maps for some vectors of voxels, and add their products to the sums."""
        piece, emit, pitch = self.piece, self.piece.emit, self.piece.emit["pitch"]
        maps, apart = self.maps, emit.index(WIDTH)
        with emit.loop(emit["taken"], 0, DEPTH) as seen:
            deep = emit.smaller(emit.index(DEPTH), emit.minus(emit["taken"], seen))
            inputs = emit.at(piece.inputs, emit.plus(emit.times(seen, pitch), at))
            place = piece.following("source", at)
            with emit.loop(maps, 0, TILE_MAPS) as o:
                made = emit.plus(self.done, o)
                with emit.when(seen, "==", 0):
                    tile = emit.quotient(made, TILE_MAPS)
                    with emit.part(tile, emit["fetched"], emit["taken"]) as f:
                        piece.prefetch("source", f, place)
                first = emit.plus(emit.times(made, emit["taken"]), emit.times(seen, TILE_MAPS))
                rows = emit.at(piece.tile, emit.times(o, apart))
                tile = _Tile(emit, vectors, rows, apart)
                tile.add(seen, deep, inputs, pitch, emit.at(emit["weights"], first))
        with emit.loop(maps) as o:
            finish = _finish(emit, "", emit.plus(self.done, o))
            for vector in range(vectors):
                to = emit.at(piece.tile, emit.plus(emit.times(o, apart), vector * LANES))
                emit.store(finished(emit, emit.load(to), finish, self.curve), to)
        place = piece.following("target", at)
        with emit.loop(emit["given"], 0, TILE_MAPS) as o:
            with emit.when(self.done, "==", 0), emit.loop(emit.plus(o, TILE_MAPS), o) as f:
                piece.prefetch("target", f, place)
            first = emit.plus(emit.times(o, emit["between"]), emit.times(self.done, TILE_MAPS))
            rows = emit.at(piece.sums, emit.plus(emit.times(o, pitch), at))
            continued = emit.index(1) if self.adds else self.done
            tile = _Tile(emit, vectors, rows, pitch)
            tile.add(continued, maps, piece.tile, apart, emit.at(emit["later_weights"], first))


@dataclass(frozen=True)
class _Tile:
    """Sums in registers.

    Attributes:
        emit: the emitter.
        vectors: the vectors of voxels.
        rows: the place of the first map's sums.
        pitch: the floats from one map to the next.
    """

    emit: PhaseEmitter
    vectors: int
    rows: Value
    pitch: Value

    def add(
        self, continued: Value, depth: Value, inputs: Value, pitch: Value, weights: Value
    ) -> None:
        """Add the products of some maps.

        Args:
            continued: if it is zero, the sums begin with zeros.
            depth: the number of maps.
            inputs: the place of the first map's voxels.
            pitch: the floats from one of these maps to the next.
            weights: those of the tile's maps, for one map after the other.
        """
        emit, zero = self.emit, self.emit.constant(0.0)
        totals = [[emit.variable(zero) for _ in range(self.vectors)] for _ in range(TILE_MAPS)]
        rows = (emit.at(self.rows, emit.times(self.pitch, o)) for o in range(TILE_MAPS))
        places = [emit.at(row, vector * LANES) for row in rows for vector in range(self.vectors)]
        sums = list(zip(chain(*totals), places, strict=True))
        with emit.when(continued, ">", 0):
            for total, place in sums:
                total.set(emit.load(place))
        with emit.loop(depth) as k:
            row = emit.at(inputs, emit.times(k, pitch))
            taps = emit.at(weights, emit.times(k, TILE_MAPS))
            values = (emit.load(emit.at(row, vector * LANES)) for vector in range(self.vectors))
            factors = (emit.broadcast(emit.at(taps, o)) for o in range(TILE_MAPS))
            if self.vectors < TILE_MAPS:
                pairs = _pairs(factors, tuple(values), totals)
            else:
                pairs = _pairs(values, tuple(factors), zip(*totals, strict=True))
            for one, other, total in pairs:
                total.set(emit.multiply_add(one, other, total.get()))
        for total, place in sums:
            emit.store(total.get(), place)


def _pairs(
    outer: Iterator[Value], inner: tuple[Value, ...], totals: Iterable[Sequence[Variable]]
) -> Iterator[tuple[Value, Value, Variable]]:
    """Yield each of some values with each of others, which stay in registers, and their sum."""
    for one, row in zip(outer, totals, strict=True):
        for other, total in zip(inner, row, strict=True):
            yield one, other, total


def _divided(emit: PhaseEmitter, number: Value, by: Value) -> tuple[Value, Value]:
    """Return the quotient of two indices, and what remains."""
    quotient = emit.quotient(number, by)
    return quotient, emit.minus(number, emit.times(quotient, by))


def _finish(emit: PhaseEmitter, kind: str, f: Value) -> list[Value]:
    """Return bias, slope and floor of a map."""
    bias, slope = (emit.broadcast(emit.at(emit[f"{kind}{name}"], f)) for name in FINISH[:2])
    return [bias, slope, emit.load(emit[f"{kind}floor"])]
