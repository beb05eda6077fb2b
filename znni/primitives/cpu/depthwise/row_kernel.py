"""The kernel of depthwise layers: rows of output that are sums of shifted rows of input.

A tile of some rows and 16 columns stays in registers. A row of input that is loaded counts for all
rows of the tile that see it. So a kernel of k taps along y loads little more than one vector for k
multiply-adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from znni.primitives.cpu.common.machine_code import Kernel, has_wide_registers
from znni.primitives.cpu.common.simd import LANES, Argument, Emitter, Value
from znni.primitives.cpu.common.vector_activation import Curve, finished

# The most rows of a tile: with these, sums and weights fill the registers.
MOST_ROWS = 8 if has_wide_registers() else 4


class RowTaps(NamedTuple):
    """The taps that rows of output see, which are fixed in the machine code.

    Attributes:
        y: the row of input of each tap along y, counted from the first one of an output's row.
        y_step: the rows of input from one row of output to the next.
        x_phases: the phases of the output along x, which are interleaved: 1 or 2.
        x_step: the samples of input from one position to the next: 1 or 2.
    """

    y: tuple[int, ...]
    y_step: int
    x_phases: int
    x_step: int

    def rows(self, tile: int) -> dict[int, list[tuple[int, int]]]:
        """Return the rows and taps of a tile that see each row of input, by its number."""
        seen: dict[int, list[tuple[int, int]]] = {}
        for row in range(tile):
            for tap, at in enumerate(self.y):
                seen.setdefault(row * self.y_step + at, []).append((row, tap))
        return dict(sorted(seen.items()))


ARGUMENTS = dict.fromkeys(
    ("source", "target", "weights", "bias", "slope", "floor"), Argument.FLOATS
) | {
    "places": Argument.INDICES,  # of the taps along z and x in the input, phase by phase
    **dict.fromkeys(
        (
            "taps", "later_taps",  # along z and x, of the first phase and of the second
            "first", "stop", "planes", "maps", "rows", "width", "repeats",
            "source_item", "source_map", "source_plane", "source_row",
            "target_item", "target_map", "target_plane", "target_row",
        ),
        Argument.INDEX,
    ),
}  # fmt: skip


@cache
def row_kernel(taps: RowTaps, curve: Curve, adds: bool) -> Kernel:
    """Return the kernel that makes some planes of output, counted through maps and items.

    Its arguments ``rows`` and ``width`` are the rows and positions of a plane. Each input map gives
    ``repeats`` output maps. If it ``adds``, it adds to what it finds in the output.
    """
    emit = Emitter("depthwise", **ARGUMENTS)
    with emit.loop(emit["stop"], emit["first"]) as plane:
        above = emit.quotient(plane, emit["planes"])
        z = emit.minus(plane, emit.times(above, emit["planes"]))
        item = emit.quotient(above, emit["maps"])
        f = emit.minus(above, emit.times(item, emit["maps"]))
        read = emit.quotient(f, emit["repeats"])
        source, target = (
            _plane(emit, name, item, of, z) for name, of in (("source", read), ("target", f))
        )
        count = emit.times(emit.plus(emit["taps"], emit["later_taps"]), len(taps.y))
        weights = emit.at(emit["weights"], emit.times(f, count))
        tile = _Tiles(emit, taps, curve, adds, weights, _broadcast(emit, f))
        done = emit.index(0)
        height = MOST_ROWS
        while height:
            tiles = emit.quotient(emit.minus(emit["rows"], done), height)
            stop = emit.plus(done, emit.times(tiles, height))
            with emit.loop(stop, done, height) as y:
                above_tile = emit.times(y, taps.y_step)
                tile.make(
                    emit.at(source, emit.times(above_tile, emit["source_row"])),
                    emit.at(target, emit.times(y, emit["target_row"])),
                    height,
                )
            done, height = stop, height // 2
    return emit.compile()


def _plane(emit: Emitter, name: str, item: Value, f: Value, z: Value) -> Value:
    """Return the address of a plane of the input or output."""
    strides = ((item, "item"), (f, "map"), (z, "plane"))
    address = emit[name]
    for index, axis in strides:
        address = emit.at(address, emit.times(index, emit[f"{name}_{axis}"]))
    return address


def _broadcast(emit: Emitter, f: Value) -> list[Value]:
    """Return bias, slope and floor of a map."""
    bias, slope = (emit.broadcast(emit.at(emit[name], f)) for name in ("bias", "slope"))
    return [bias, slope, emit.load(emit["floor"])]


class _Tiles(NamedTuple):
    """The tiles of a plane."""

    emit: Emitter
    taps: RowTaps
    curve: Curve
    adds: bool
    weights: Value
    finish: Sequence[Value]

    def make(self, source: Value, target: Value, height: int) -> None:
        """Make all tiles of some rows, from the first rows' addresses on."""
        emit, phases = self.emit, self.taps.x_phases
        whole = emit.times(emit.quotient(emit["width"], LANES), LANES)

        def tile(x: Value, count: Value | None) -> None:
            self._tile(
                emit.at(source, emit.times(x, self.taps.x_step)),
                emit.at(target, emit.times(x, phases)),
                height,
                count,
            )

        with emit.loop(whole, 0, LANES) as x:
            tile(x, None)
        with emit.when(whole, "<", emit["width"]):
            tile(whole, emit.minus(emit["width"], whole))

    def _tile(self, source: Value, target: Value, height: int, count: Value | None) -> None:
        """Make a tile, of which only ``count`` columns exist if that is given."""
        emit, taps = self.emit, self.taps
        sums = [
            [emit.variable(emit.constant(0.0)) for _ in range(height)] for _ in range(taps.x_phases)
        ]
        bounds = emit.index(0), emit["taps"], emit.plus(emit["taps"], emit["later_taps"])
        for totals, first, stop in zip(sums, bounds, bounds[1:], strict=False):
            with emit.loop(stop, first) as number:
                seen = emit.at(source, emit.index_at(emit["places"], number))
                weight = emit.at(self.weights, emit.times(number, len(taps.y)))
                of_taps = [emit.broadcast(emit.at(weight, tap)) for tap in range(len(taps.y))]
                for value, (row, tap) in self._seen(seen, height, count):
                    total = totals[row]
                    total.set(emit.multiply_add(value, of_taps[tap], total.get()))
        for row in range(height):
            to = emit.at(target, emit.times(emit["target_row"], row))
            self._store([of_phase[row].get() for of_phase in sums], to, count)

    def _seen(
        self, first: Value, height: int, count: Value | None
    ) -> Iterator[tuple[Value, tuple[int, int]]]:
        """Yield each vector of input with each row and tap of the tile that see it."""
        emit = self.emit
        for row, seen in self.taps.rows(height).items():
            value = self._load(emit.at(first, emit.times(emit["source_row"], row)), count)
            for it in seen:
                yield value, it

    def _load(self, address: Value, count: Value | None) -> Value:
        """Load the samples of 16 positions."""
        emit = self.emit
        if self.taps.x_step == 1:
            return (
                emit.load(address)
                if count is None
                else emit.load_lanes(address, emit.index(0), count)
            )
        after = emit.at(address, LANES - 1)
        if count is None:
            return emit.every_second(emit.load(address), emit.load(after))
        last = emit.minus(emit.times(count, 2), 1)
        later = emit.load_lanes(after, emit.index(0), emit.minus(last, LANES - 1))
        return emit.every_second(emit.load_lanes(address, emit.index(0), last), later)

    def _store(self, sums: list[Value], address: Value, count: Value | None) -> None:
        """Store the sums of all phases, after bias and activation."""
        emit = self.emit
        parts = sums if len(sums) == 1 else emit.interleaved(*sums)
        for number, part in enumerate(parts):
            to, left = emit.at(address, number * LANES), None
            if count is not None:
                left = emit.minus(emit.times(count, len(sums)), number * LANES)
            value = part
            if self.adds:
                old = emit.load(to) if left is None else emit.load_lanes(to, emit.index(0), left)
                value = emit.add(value, old)
            value = finished(emit, value, self.finish, self.curve)
            if left is None:
                emit.store(value, to)
            else:
                emit.store_lanes(value, to, emit.index(0), left)
