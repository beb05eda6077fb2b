"""The cost of an output's ledger, and the outputs of runs that were killed and run again."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch as replaced

import h5py
import typer

import znni.inference.api
import znni.inference.open_run
import znni.inference.resuming
from bench import session
from bench.many_patches import OUTPUTS, ZNNI, ManyPatches, blocks_in, many_patches
from bench.record import Row
from bench.rounds import Effort, run_rounds, stopwatch
from bench.same_output import difference
from znni.core.errors import RunFailed
from znni.core.shapes import Box
from znni.core.volume import NewOutput, Sink
from znni.inference.request import OpenRequest
from znni.network.weights import Weights
from znni.volumes import block_checks, partial_output
from znni.volumes.checksums import checksum_of
from znni.volumes.formats.hdf5 import output as hdf5_output
from znni.volumes.formats.zarr import output as zarr_output
from znni.volumes.ledger_entries import Ledger, Note, block_entry
from znni.volumes.ledger_file import LedgerFile, MemoryLedger, ledger_name
from znni.volumes.locate import read_ledger
from znni.volumes.partial_file import partial_name


def ledger_command(
    net: session.Nets,
    output: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(OUTPUTS)}; repeatable. Default: all."),
    ] = None,
    kills: Annotated[
        int | None,
        typer.Option(min=1, help="Kill so many runs of each kind of output at random moments."),
    ] = None,
    patch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most output voxels per axis of a patch. Default: 32, with --kills 16."
        ),
    ] = None,
    patches: Annotated[
        int | None,
        typer.Option(min=1, help="Patches per axis. Default: 3, with --kills 4."),
    ] = None,
    repeats: session.Repeats = 7,
    budget: session.Budget = 60.0,
    out: session.Out = None,
) -> None:
    """Time runs with a ledger and without, or kill them.

    Killed runs are run again, and their outputs compared with one that was left alone.
    """
    session.check_known("output", output or [], OUTPUTS)
    extent, count = (16, 4) if kills else (32, 3)
    cases = _cases(net, output or list(OUTPUTS), patch or extent, patches or count)
    if kills:
        rows = ([compare_kills(case, kills)] for case in cases)
        session.report_all("kills", rows, [], out)
    else:
        effort = Effort(repeats, budget)
        rows = ([compare_ledger(case, effort)] for case in cases)
        session.report_all("ledger", rows, [], out)


def _cases(nets: list[Path], outputs: list[str], patch: int, patches: int) -> Iterator[ManyPatches]:
    """Yield every network with every kind of output; each exists until the next one is made."""
    for net, output in product(nets, outputs):
        with many_patches(net, output, patch, patches) as case:
            yield case


class NoLedger(MemoryLedger):
    """A ledger without a file."""

    resumed = False

    def __init__(self, *_given: object) -> None:
        super().__init__({})

    def note_changes(self, _changes: Any) -> None:
        """Do nothing."""


def write_without_checksum(box: Box, values: Any, store: Sink, note: Note) -> None:
    """Write a block, and count it."""
    store.write(box, values)
    note(block_entry(box, ""))


def compare_ledger(
    case: ManyPatches,
    effort: Effort,
) -> Row:
    """Run with a ledger and without, in turn, and time what runs spend in its code.

    Args:
        case: volume, plan and output of the runs.
        effort: how long to measure; the budget is per contestant.
    """
    spent: list[float] = []

    def run() -> None:
        znni.inference.api.infer(
            case.volume,
            case.net,
            case.place("out"),
            random_seed=case.random_seed,
            plan=case.plan,
            costs="built-in",
            overwrite=True,
            **case.kind.options,
        )

    def with_it() -> None:
        with timed(spent):
            run()

    def without_it() -> None:
        with ExitStack() as stack:
            for module in (hdf5_output, zarr_output):
                stack.enter_context(replaced.object(module, "LedgerFile", NoLedger))
            without = replaced.object(partial_output, "write_block", write_without_checksum)
            stack.enter_context(without)
            stack.enter_context(replaced.object(znni.inference.open_run, "identified", _as_wanted))
            run()

    contestants = {"with": stopwatch(with_it), "without": stopwatch(without_it)}
    results = run_rounds(contestants, effort, progress=session.progress)
    with_seconds, without = results["with"].timing, results["without"].timing
    ledger = sorted(spent[1:])[len(spent[1:]) // 2]
    return case.row() | {
        "voxels_per_s": case.size.volume / with_seconds.median,
        "with_seconds": with_seconds.median,
        "without_seconds": without.median,
        "spread": max(with_seconds.spread or 0.0, without.spread or 0.0),
        "rounds": len(with_seconds.seconds),
        "slower": with_seconds.median / without.median - 1,
        "fastest_slower": min(with_seconds.seconds) / min(without.seconds) - 1,
        "ledger_seconds": ledger,
        "share": ledger / with_seconds.median,
        "all_with_seconds": with_seconds.seconds,
        "all_without_seconds": without.seconds,
        "all_ledger_seconds": spent[1:],
    }


@contextmanager
def timed(spent: list[float]) -> Iterator[None]:
    """Add the seconds that a run spends in what the ledger needs, whichever thread that is.

    A checksum is computed beside the writing of its block, so its seconds are those of the
    processor. All others are those that pass.
    """
    parts: list[float] = []
    inside = threading.local()

    def clocked(
        function: Callable[..., Any], clock: Callable[[], float] = time.perf_counter
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if getattr(inside, "one", False):
                return function(*arguments, **options)
            inside.one, start = True, clock()
            try:
                return function(*arguments, **options)
            finally:
                parts.append(clock() - start)
                inside.one = False

        return call

    with ExitStack() as stack:
        for name in ("__init__", "append", "note_changes", "discard"):
            method = clocked(getattr(LedgerFile, name))
            stack.enter_context(replaced.object(LedgerFile, name, method))
        checksum = clocked(checksum_of, time.thread_time)
        stack.enter_context(replaced.object(block_checks, "checksum_of", checksum))
        known = clocked(znni.inference.resuming.identified)
        stack.enter_context(replaced.object(znni.inference.open_run, "identified", known))
        yield
    spent.append(sum(parts))


def _as_wanted(asked: OpenRequest, _weights: Weights) -> NewOutput:
    return asked.wanted


def compare_kills(
    case: ManyPatches,
    times: int,
) -> Row:
    """Kill runs at random moments, from before their first block to their end, and run them again.

    Args:
        case: volume, plan and output of the runs.
        times: number of kills.

    Returns:
        A row. It says how many outputs were identical to one whose run was left alone, and how
        many ledgers listed a block that was not as it was written.

    Raises:
        RunFailed: a run failed though it was not killed.
    """
    moments = random.Random(case.output)
    out, alone = case.place("out"), case.place("alone")
    command = [*ZNNI, *case.command(out)]
    seconds = _finish(command, out)
    out.rename(alone)
    at: list[int] = []
    identical = wrong = 0
    while len(at) < times:
        session.progress(f"{case.output}, kill {len(at) + 1} of {times}")
        moment = moments.randint(0, case.blocks), moments.uniform(0, seconds / case.blocks)
        if _kill(command, out, *moment):
            ledger = _ledger(out)
            at.append(len(ledger.checksums))
            wrong += not _holds(ledger, out)
            _finish(command, out)
            identical += not difference(alone, out)
        _take_away(out)
    return case.row() | {
        "seconds": seconds,
        "kills": times,
        "identical": identical,
        "wrong_ledgers": wrong,
        "before_first_block": at.count(0),
        "blocks_at_kills": sorted(at),
    }


def _started(command: list[str], out: Path) -> subprocess.Popen[str]:
    """Start a run, and wait until there is a file of its output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not partial_name(out).exists():
        time.sleep(0.001)
    return process


def _finish(command: list[str], out: Path) -> float:
    """Run to the end, and return the seconds since there was a file of its output."""
    process = _started(command, out)
    start = time.perf_counter()
    _, said = process.communicate()
    if process.returncode:
        raise RunFailed(f"a run that was not killed failed: {said}")
    return time.perf_counter() - start


def _kill(command: list[str], out: Path, blocks: int, after: float) -> bool:
    """Kill a run so many seconds after so many blocks; return False if it had ended before."""
    process, ledger = _started(command, out), ledger_name(partial_name(out))
    while process.poll() is None and blocks_in(ledger) < blocks:
        time.sleep(0.001)
    time.sleep(after)
    process.kill()
    process.communicate()
    return process.returncode < 0 and not out.exists()


def _ledger(out: Path) -> Ledger:
    text = ledger_name(partial_name(out))
    return read_ledger(str(partial_name(out))) if text.exists() else Ledger()


def _holds(ledger: Ledger, out: Path) -> bool:
    """Return True if all blocks of a ledger are as they were written."""
    import zarr

    if not ledger.checksums:
        return True
    partial = partial_name(out)
    file = h5py.File(partial, "r", locking=False) if partial.is_file() else None
    values = file["main"] if file else zarr.open_array(f"{partial}/0", mode="r")
    held = all(
        checksum_of(values[(slice(None), *box.slices)]) == known
        for box, known in ledger.checksums.items()
    )
    if file:
        file.close()
    return held


def _take_away(out: Path) -> None:
    for path in (out, partial_name(out), ledger_name(partial_name(out))):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
