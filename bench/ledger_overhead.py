"""What the ledger of an output and its checksums cost a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch as replaced

import znni.inference.api
import znni.inference.resuming
from bench.many_patches import ManyPatches
from bench.record import Row
from bench.rounds import Effort, run_rounds, stopwatch
from znni.core.shapes import Box
from znni.core.volume import NewOutput, Sink
from znni.inference.request import Request
from znni.network.weights import Weights
from znni.volumes import block_checks
from znni.volumes.hdf5 import output as hdf5_output
from znni.volumes.ledger import checksum_of
from znni.volumes.ledger_file import LedgerFile, MemoryLedger
from znni.volumes.zarr import output as zarr_output


class NoLedger(MemoryLedger):
    """A ledger without a file."""

    resumed = False

    def __init__(self, _partial: Path, _wanted: NewOutput) -> None:
        super().__init__({})

    def note_changes(self, _changes: Any) -> None:
        """Nothing."""


def write_without_checksum(box: Box, values: Any, store: Sink, ledger: NoLedger) -> None:
    """Write a block, and count it."""
    store.write(box, values)
    ledger.content.checksums[box] = ""


def compare_ledger(
    case: ManyPatches,
    effort: Effort,
    progress: Callable[[str], None] = lambda _: None,
) -> Row:
    """Runs with a ledger and without, in turn, and what those with it spend in its code.

    Args:
        case: of the runs.
        effort: of which the budget is per contestant.
        progress: told the name of each run.
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
                without = replaced.object(module, "write_block", write_without_checksum)
                stack.enter_context(without)
            stack.enter_context(replaced.object(znni.inference.api, "identified", _as_wanted))
            run()

    contestants = {"with": stopwatch(with_it), "without": stopwatch(without_it)}
    results = run_rounds(
        contestants, repeats=effort.repeats, budget=effort.budget, progress=progress
    )
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

    Of a checksum, which is computed beside the writing of its block, those of the processor count,
    and of all else those that pass.
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
        stack.enter_context(replaced.object(znni.inference.api, "identified", known))
        yield
    spent.append(sum(parts))


def _as_wanted(asked: Request, _weights: Weights) -> NewOutput:
    return asked.wanted
