"""What a run does beside its layers, measured: memory touched first, and blocks handled.

By the functions that runs use, on files where the system keeps temporary ones. Each is timed on
memory, and on a part of a file, that it has not seen before, as in a run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import DTypeLike

from znni.calibration.conditions import Conditions
from znni.calibration.database import CostDatabase
from znni.core.errors import InvalidInput
from znni.core.options import Costs, OutputType
from znni.core.shapes import Box, Vec3, offsets
from znni.core.text import aligned
from znni.core.volume import NewOutput
from znni.engine.host_layers import place
from znni.engine.pipeline import convert
from znni.engine.tiles import make_job, read_input, tiles
from znni.machine.arena import map_pages
from znni.machine.machine import Machine
from znni.network.network import Conv, Network
from znni.primitives.cpu.common.workers import workers

REPEATS = 3
TOUCHED_BYTES = 2**27

BLOCK = Vec3(128, 128, 128)

# Output that is brought together, so much that its memory is new each time, and the pooling of its
# fragments: the paper's networks pool by 4 or 8 per axis.
MAPS = 8
STRIDE = Vec3(8, 8, 8)

# Types of stored input, by bytes of a value.
READ: dict[int, DTypeLike] = {1: np.uint8, 2: np.uint16, 4: np.float32, 8: np.float64}


class Taken(NamedTuple):
    """What a value of a block takes to read or write.

    Attributes:
        seconds: from beginning to end.
        working: seconds of processors at work, which computing loses.
    """

    seconds: float
    working: float


@dataclass(frozen=True)
class HandlingTimes:
    """How long a run takes beside its layers, by what it handles.

    Attributes:
        touched: seconds per byte, by all threads, that the first touch takes beside the writing.
        placed: seconds per value of a fragment brought to its place in the output.
        read: per value of a block, by the bytes that it has where it is stored.
        written: per value of a block, by the type that it is stored as.
    """

    touched: float
    placed: float
    read: Mapping[int, Taken]
    written: Mapping[OutputType, Taken]

    def rates(self) -> dict[str, float]:
        """All of them by name, for the cost database."""
        named = {"touched": self.touched, "placed": self.placed}
        by_kind = {f"read {size}": it for size, it in self.read.items()}
        by_kind |= {f"written {dtype}": it for dtype, it in self.written.items()}
        for name, taken in by_kind.items():
            named |= {name: taken.seconds, f"{name}, working": taken.working}
        return named

    @classmethod
    def of_rates(cls, named: Mapping[str, float]) -> HandlingTimes:
        """As ``rates`` named them.

        Raises:
            KeyError: one is missing, as of a version that knew less.
        """

        def taken(name: str) -> Taken:
            return Taken(named[name], named[f"{name}, working"])

        dtypes: tuple[OutputType, ...] = get_args(OutputType)
        return cls(
            named["touched"],
            named["placed"],
            {size: taken(f"read {size}") for size in READ},
            {dtype: taken(f"written {dtype}") for dtype in dtypes},
        )

    def __str__(self) -> str:
        values = {"output brought together": self.placed}
        values |= {f"{np.dtype(READ[size])} read": it.seconds for size, it in self.read.items()}
        values |= {f"{dtype} written": it.seconds for dtype, it in self.written.items()}
        rows = [(name, f"{1e-6 / each:,.0f}", "million values/s") for name, each in values.items()]
        touched = ("memory touched first", f"{1e-6 / self.touched:,.0f}", "MB/s")
        return "\n".join(aligned([touched, *rows], left=1))


def handling_times(machine: Machine, costs: Costs) -> HandlingTimes | None:
    """What was measured of a machine, if it is this one and its measured costs are to be used.

    Raises:
        InvalidInput: ``measured`` costs are asked for and cannot be read; of ``auto`` that is told
            where the costs of primitives are read.
    """
    if machine.absent or costs == "built-in":
        return None
    try:
        named = CostDatabase().rates(Conditions.of(machine.host))
    except InvalidInput:
        if costs == "measured":
            raise
        return None
    try:
        return HandlingTimes.of_rates(named)
    except KeyError:
        return None


def calibrate_handling(machine: Machine, *, forget: bool) -> HandlingTimes:
    """Measure a machine, which is this one, and keep that.

    Args:
        machine: with the threads that runs will have.
        forget: first delete what was measured before.

    Returns:
        What is known then.

    Raises:
        InvalidInput: the database cannot be used.
    """
    database, here = CostDatabase(), Conditions.of(machine.host)
    if forget:
        database.forget_rates(here)
    database.add_rates(here, measure_handling(machine.host.threads).rates())
    return HandlingTimes.of_rates(database.rates(here))


def measure_handling(threads: int, block: Vec3 = BLOCK) -> HandlingTimes:
    """Measure, for a second or two.

    Args:
        threads: that compute.
        block: extents of the blocks that are handled; multiples of 8.
    """
    dtypes: tuple[OutputType, ...] = get_args(OutputType)
    with tempfile.TemporaryDirectory(prefix="znni-") as made:
        folder = Path(made)
        return HandlingTimes(
            _touched(threads),
            _placed(block),
            {size: _read(folder / f"{size}.h5", dtype, block) for size, dtype in READ.items()},
            {dtype: _written(folder / f"{dtype}.h5", dtype, block) for dtype in dtypes},
        )


def _touched(threads: int) -> float:
    """Seconds per byte."""
    pool = workers(threads)

    def once() -> float:
        pages = np.frombuffer(map_pages(TOUCHED_BYTES), np.uint8)

        def fill() -> float:
            start = time.perf_counter()
            pool.for_each(lambda _, part: pages[part].fill(1), pool.shares(TOUCHED_BYTES))
            return time.perf_counter() - start

        first, again = fill(), fill()
        return max(first - again, first / 100)  # a disturbed second time says nothing

    return median(once() for _ in range(REPEATS)) / TOUCHED_BYTES


def _placed(block: Vec3) -> float:
    """Seconds per value."""
    starts = tuple(offsets(STRIDE))
    size = block.ceil_div(STRIDE)
    fragments = np.ones((len(starts), MAPS, *size), np.float32)

    def once() -> float:
        start = time.perf_counter()
        place(fragments, starts, STRIDE, np.empty((MAPS, *(size * STRIDE)), np.float32))
        return time.perf_counter() - start

    return median(once() for _ in range(REPEATS)) / fragments.size


def _read(path: Path, dtype: DTypeLike, block: Vec3) -> Taken:
    import h5py

    from znni.volumes.locate import open_volume

    network = Network("one", 1, (Conv("conv", 1, 1, Vec3(1, 1, 1), "identity"),))
    whole = block * Vec3(REPEATS, 1, 1)
    chunks = tuple(block.minimum(Vec3.of(64)))
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("main", whole, dtype, chunks=chunks)
        for first in range(0, whole.z, block.z):
            dataset[first : first + block.z] = 1
    volume, job = open_volume(path), make_job(network, whole, "valid", "reflect", None)

    def read(place: Box) -> None:
        tile = next(tile for tile in tiles(whole, block) if tile.written == place)
        read_input(volume, job, tile, network.field_of_view, network.scaling)

    return _each_block(block, block.volume, read)


def _written(path: Path, dtype: OutputType, block: Vec3) -> Taken:
    from znni.volumes.locate import open_output

    whole = block * Vec3(REPEATS, 1, 1)
    output = open_output(path, "", NewOutput(1, whole, dtype))
    output.describe({}, block)
    values = np.full((1, *block), 0.5, np.float32)
    taken = _each_block(
        block, values.size, lambda place: output.write(place, convert(values, dtype))
    )
    output.finish({})
    return taken


def _each_block(block: Vec3, values: int, handle: Callable[[Box], None]) -> Taken:
    """What a value takes where block after block along z is handled: the medians."""
    found: list[Taken] = []
    for number in range(REPEATS):
        start = Vec3(number * block.z, 0, 0)
        began, worked = time.perf_counter(), time.process_time()
        handle(Box(start, start + block))
        found.append(Taken(time.perf_counter() - began, time.process_time() - worked))
    return Taken(*(median(each) / values for each in zip(*found, strict=True)))
