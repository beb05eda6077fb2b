"""Simulated runs: the use that a cluster's schedule makes of unequal workers, and its cost.

The cost of handing out blocks is measured twice. The first time it is that of the schedule alone.
The second time it is that of the whole coordinator, with its ledger on the disk. Its workers are in
the same process and compute nothing.
"""

from __future__ import annotations

import heapq
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import psutil
import typer

from bench import session
from bench.record import Row
from znni.cluster.calls import (
    Answer,
    Answered,
    Call,
    Compute,
    Describe,
    Description,
    GetReady,
    Machinery,
    MakePlan,
    Probe,
    Probed,
)
from znni.cluster.coordinator import Coordinator
from znni.cluster.schedule import Schedule
from znni.core.shapes import Box, Vec3
from znni.engine.tile_grid import TileGrid
from znni.engine.tiles import Job
from znni.volumes.ledger_entries import block_entry, struck_entry
from znni.volumes.shared_files import LocalFiles
from znni.volumes.shared_ledger import SharedLedger

ASK_EVERY = 1.0  # seconds after which workers without a block are asked again
CHECKSUM = "00000000"
SIDE = 2  # voxels of a block without work
EMPTY_SECONDS = 1e-3  # that pass on the simulated clock for each block without work


class Greedy(Schedule):
    """A schedule that gives every worker a block as long as one waits."""

    def _may_take(self, *_: object) -> bool:
        return True


POLICIES: dict[str, tuple[Callable[..., Schedule], bool]] = {
    "schedule": (Schedule, True),
    "schedule, speeds unknown at first": (Schedule, False),
    "greedy": (Greedy, True),
}


def cluster_simulation_command(
    seconds: Annotated[
        list[float],
        typer.Option(min=0.1, help="Seconds a block of a kind of workers; repeatable."),
    ] = [10.0, 30.0, 100.0],  # noqa: B006
    workers: Annotated[int, typer.Option(min=1, help="Workers, of all kinds alike.")] = 1000,
    blocks: Annotated[
        list[int], typer.Option(min=1, help="Mean number of blocks a worker; repeatable.")
    ] = [20, 50],  # noqa: B006
    noise: Annotated[float, typer.Option(min=0, help="Standard deviation, as a share.")] = 0.1,
    empty: Annotated[
        list[int], typer.Option(min=1, help="Blocks without work to hand out; repeatable.")
    ] = [100_000, 1_000_000],  # noqa: B006
    out: session.Out = None,
) -> None:
    """Simulate a cluster of unequal workers, and time the schedule alone."""

    def rows() -> Iterator[list[Row]]:
        paces = [seconds[index % len(seconds)] for index in range(workers)]
        for count, policy in product(blocks, POLICIES):
            session.progress(f"{policy}, {count} blocks a worker")
            yield [simulate(policy, paces, workers * count, noise)]
        for count in empty:
            session.progress(f"{count:,} blocks without work")
            yield [hand_out(count, workers)]
            session.progress(f"{count:,} blocks without work, with messages and ledger")
            yield [coordinate(count, workers)]

    session.report_all("cluster-simulation", rows(), [], out)


def simulate(policy: str, paces: list[float], blocks: int, noise: float) -> Row:
    """Return a row on a run of so many blocks.

    Its efficiency is the time that the workers would take if they all ended together, as a share of
    the time that they take.

    Args:
        policy: one of ``POLICIES``.
        paces: mean seconds a block of each worker.
        blocks: number of blocks.
        noise: standard deviation of the seconds of a block, as a share.
    """
    made, known = POLICIES[policy]
    schedule = made(np.zeros(blocks, bool))
    draw = random.Random(1)
    names = [str(index) for index in range(len(paces))]
    hands: list[list[int]] = [[] for _ in names]
    ends: list[tuple[float, int]] = []
    for name, pace in zip(names, paces, strict=True):
        schedule.join(name, seconds=pace if known else None)

    def begin(index: int, now: float) -> None:
        taken = max(0.1, draw.gauss(1.0, noise)) * paces[index]
        heapq.heappush(ends, (now + taken, index))

    def ask(index: int, now: float) -> None:
        while (block := schedule.next_for(names[index], now)) is not None:
            hands[index].append(block)
            if len(hands[index]) == 1:
                begin(index, now)

    now, asked = 0.0, -inf
    start = time.perf_counter()
    while schedule.left:
        if now - asked >= ASK_EVERY:
            asked = now
            for index, hand in enumerate(hands):
                if not hand:
                    ask(index, now)
        now, index = heapq.heappop(ends)
        schedule.done(names[index], hands[index].pop(0), now)
        if hands[index]:
            begin(index, now)
        ask(index, now)
    ideal = blocks / sum(1 / pace for pace in paces)
    return {
        "name": policy,
        "workers": len(paces),
        "kinds": ", ".join(f"{pace:g} s" for pace in sorted(set(paces))),
        "noise": noise,
        "blocks": blocks,
        "simulated_seconds": now,
        "efficiency": ideal / now,
        "seconds": time.perf_counter() - start,
    }


def hand_out(blocks: int, workers: int) -> Row:
    """Return a row on handing out blocks without work: the time, and the peak of memory."""
    start = time.perf_counter()
    _run_empty(blocks, workers)
    seconds = time.perf_counter() - start
    tracemalloc.start()
    try:
        _run_empty(blocks, workers)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {
        "name": "no work",
        "workers": workers,
        "blocks": blocks,
        "seconds": seconds,
        "blocks_per_s": blocks / seconds,
        "peak_mib": peak / 2**20,
        "bytes_a_block": peak / blocks,
    }


def coordinate(blocks: int, workers: int) -> Row:
    """Return a row on a coordinator whose workers compute nothing: the time, and the memory.

    Args:
        blocks: number of blocks, rounded up to a cube.
        workers: number of workers.
    """
    side = round(blocks ** (1 / 3) + 0.499)
    extents = Vec3.of(side * SIDE)
    job = Job(extents, Vec3(0, 0, 0), extents, Vec3(0, 0, 0), "constant")
    grid = TileGrid(job, Vec3.of(SIDE))
    memory: list[int] = []

    def progress(done: int, total: int, _: str) -> None:
        if done % (total // 10) == 0:
            memory.append(psutil.Process().memory_info().rss)

    with TemporaryDirectory() as folder:
        place = Path(folder) / "out.zarr.partial.ledger"
        place.mkdir()
        output = EmptyOutput(SharedLedger(LocalFiles(place)))
        coordinator = Coordinator(EmptyEngine(workers))
        start = time.perf_counter()
        plan = coordinator.make_plan()
        finished = np.zeros(len(grid), bool)
        coordinator.compute(plan, grid, finished, None, output, progress)
        seconds = time.perf_counter() - start
        output.ledger.close()
        start = time.perf_counter()
        assert len(output.ledger.blocks().finished) == len(grid)
        resumed = time.perf_counter() - start
    return {
        "name": "no work, whole coordinator",
        "workers": workers,
        "blocks": len(grid),
        "seconds": seconds,
        "blocks_per_s": len(grid) / seconds,
        "growth_mib": (memory[-1] - memory[1]) / 2**20,
        "resume_seconds": resumed,
    }


class EmptyEngine:
    """Workers that answer at once, and compute nothing.

    Args:
        workers: how many.
    """

    wanted = 0

    def __init__(self, workers: int) -> None:
        self._names = {f"tcp://worker-{index}": f"worker-{index}" for index in range(workers)}
        self._asked: deque[tuple[str, Call]] = deque()

    def workers(self) -> dict[str, str]:
        """Return the names of the workers, by address."""
        return self._names

    def replace_lost(self) -> None:
        """Do nothing: no worker is lost."""

    def submit(self, worker: str, call: Call) -> None:
        """Hand a call to a worker."""
        self._asked.append((worker, call))

    def completed(self, _timeout: float) -> Iterator[Answered]:
        """Yield the answers to all calls so far."""
        for _ in range(len(self._asked)):
            worker, call = self._asked.popleft()
            yield Answered(worker, call, Answer(_answer(call)))


def _answer(call: Call) -> object:
    """Return what a worker that computes nothing answers."""
    if isinstance(call, Describe):
        return Description("host", Machinery("machine", {"znni": "0"}), None)
    if isinstance(call, MakePlan):
        return "plan"
    if isinstance(call, GetReady):
        return EMPTY_SECONDS
    if isinstance(call, Probe):
        return Probed(same=True, apart=0.0, allowed=0.0)
    assert isinstance(call, Compute)
    return block_entry(call.tile.written, CHECKSUM)


@dataclass
class EmptyOutput:
    """A ledger without an output.

    Attributes:
        ledger: the ledger.
    """

    ledger: SharedLedger

    def note(self, entry: Mapping[str, Any]) -> None:
        """Append an entry to the ledger."""
        self.ledger.append(entry)

    def checksum(self, _box: Box) -> str:
        """Return the checksum that all blocks have."""
        return CHECKSUM

    def strike_off(self, box: Box) -> None:
        """Note that a block is not as it was written."""
        self.ledger.append(struck_entry(box, 1))


def _run_empty(blocks: int, workers: int) -> None:
    """Hand out all blocks; workers finish them in turn."""
    schedule = Schedule(np.zeros(blocks, bool))
    names = [str(index) for index in range(workers)]
    for name in names:
        schedule.join(name)
    now = 0.0
    while schedule.left:
        for name in names:
            block = schedule.next_for(name, now)
            if block is not None:
                now += EMPTY_SECONDS
                schedule.done(name, block, now)
