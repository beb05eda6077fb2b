"""The seconds that reading and writing keep several GPUs waiting, measured without GPUs.

Workers on the host stand for the GPUs: they rest for the seconds of a patch, and give its output as
a GPU gives it. So the processors only read, write, start and end.

A run's seconds beyond layers are all but those that one worker rests. Processor seconds are those
of the process that reads and writes. With `--stacks`, a thread looks at all threads of this process
every few milliseconds, and a row for each function says where they were.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from unittest.mock import patch as replaced

import numpy as np
import typer
from numpy.typing import NDArray

import znni
from bench import session
from bench.noise_volumes import Storing, write_noise
from bench.record import Row
from znni.cli.values import three_extents
from znni.core.errors import InvalidInput
from znni.core.shapes import Vec3
from znni.engine.labels import Labels
from znni.engine.stage_chain import Work
from znni.engine.stopwatch import Stopwatch
from znni.engine.workers.fleet import Fleet, Member
from znni.network.layers import Conv
from znni.network.network import Network
from znni.network.weights import Weights
from znni.plans.plan import Plan
from znni.plans.stored_values import Stored

# One image, three maps and a field of view as in large networks.
VIEW = 33
NETWORK = Network.chain("one-layer", 1, (Conv("conv", 1, 3, Vec3.of(VIEW), "sigmoid"),))

RAM = 16 << 30
LOOK_SECONDS = 0.003  # from one look at all threads to the next
SHOWN = 12  # functions

Output = NDArray[np.uint8]


@dataclass
class Resting:
    """A worker that rests instead of computing.

    Attributes:
        plan: its patches.
        seconds: how long it rests for each.
    """

    plan: Plan
    seconds: float

    def stages(self, stopwatch: Stopwatch, _labels: Labels | None = None) -> list[Work]:
        """Return the only stage. It gives the same output for each patch."""
        made: Output = np.ones((self.plan.network.out_features, *self.plan.patch), np.uint8)

        def rest(_block: Any) -> Output:
            with stopwatch.during("gpu_layers"):
                time.sleep(self.seconds)
            return made

        return [rest]


def fleet_command(
    volume: Annotated[
        str, typer.Option(metavar="Z,Y,X", help="Extents of the volume.")
    ] = "992,512,512",
    patch: Annotated[int, typer.Option(min=1, help="Output voxels per axis of a patch.")] = 240,
    workers: Annotated[list[int], typer.Option(min=1, help="How many; repeatable.")] = [2],  # noqa: B006
    patch_seconds: Annotated[float, typer.Option(min=0, help="How long a worker rests.")] = 0.2,
    storing: Annotated[Storing, typer.Option(help="How the volume is stored.")] = Storing.HDF5,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is run, in turns.")] = 3,
    stacks: Annotated[bool, typer.Option("--stacks", help="Also say where threads were.")] = False,
    folder: session.Folder = None,
    out: session.Out = None,
) -> None:
    """Time runs by several workers that only rest."""
    size = three_extents(volume)
    with TemporaryDirectory(dir=folder, prefix="bench-fleet-") as name:
        path = Path(name) / f"volume{storing.ending}"
        write_noise(path, size, storing)
        search = znni.search(NETWORK, size, device="cpu", ram=RAM, costs="built-in", dtype="uint8")
        plan = search.fastest_for(Vec3.of(patch))
        if plan is None:
            raise InvalidInput(f"patch {patch}: no plan has it; give another")
        rows = (
            run_rested(path, plan, count, patch_seconds, stacks=stacks)
            for _ in range(rounds)
            for count in workers
        )
        session.report_all("fleet", rows, [], out)


def run_rested(
    volume: Path, plan: Plan, workers: int, seconds: float, *, stacks: bool = False
) -> list[Row]:
    """Return a row for a run, and rows for the functions that its threads were in.

    Args:
        volume: the input.
        plan: the plan, for the host.
        workers: how many rest.
        seconds: how long they rest for each patch.
        stacks: whether to look where threads are.
    """
    begun: list[float] = []

    def prepare(
        plan: Plan, _weights: Weights, _measured: Any, stored: Stored, _waiting: None
    ) -> Fleet:
        begun.append(time.perf_counter())
        made = partial(Resting, plan, seconds)
        members = [Member(f"worker {number}", made, {}) for number in range(workers)]
        return Fleet(plan, members, stored)

    out, seen = volume.with_name(f"out{volume.suffix}"), Counter[str]()
    before, worked = time.perf_counter(), _worked()
    with replaced("znni.inference.session.prepare", prepare), _looking(seen, stacks=stacks):
        report = znni.infer(
            volume, NETWORK, out, random_seed=0, plan=plan, dtype="uint8", overwrite=True
        )
    wall = time.perf_counter() - begun[0]
    resting = -(-plan.patches // workers) * seconds
    spent = report.time
    row: Row = {
        "workers": workers,
        "volume": str(plan.output),
        "patch": str(plan.patch),
        "patches": plan.patches,
        "patch_seconds": seconds,
        "seconds": wall,
        "before_seconds": begun[0] - before,
        "beyond_seconds": wall - resting,
        "building_seconds": spent.building,
        "running_seconds": spent.running,
        "running_beyond_seconds": spent.running - resting,
        "finishing_seconds": spent.around.finishing,
        "reading_seconds": spent.busy.reading,
        "writing_seconds": spent.busy.writing,
        "processor_seconds": _worked() - worked,
    }
    functions = (
        {"function": name, "function_seconds": LOOK_SECONDS * looks}
        for name, looks in seen.most_common(SHOWN)
    )
    return [row, *functions]


def _worked() -> float:
    """Return the processor seconds of this process, in all threads."""
    import resource  # Windows has none

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def _looking(seen: Counter[str], *, stacks: bool) -> Iterator[None]:
    """Count, within a ``with`` block, in which functions all other threads are."""
    over = threading.Event()

    def look() -> None:
        me = threading.get_ident()
        while not over.wait(LOOK_SECONDS):
            for number, frame in sys._current_frames().items():
                if number != me:
                    seen[_place_of(frame)] += 1

    if not stacks:
        yield
        return
    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _place_of(frame: Any) -> str:
    """Return the innermost function of znni that a thread is in, and the one that it calls."""
    called = ""
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith("znni."):
            return f"{module}.{name}:{frame.f_lineno}{called and f' ({called})'}"
        called = name
        frame = frame.f_back
    return f"elsewhere ({called})"
