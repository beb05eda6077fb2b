"""Runs that are killed at random moments: whether the same command ends with the same bytes."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h5py

from bench.many_patches import ManyPatches
from bench.record import Row
from bench.same_output import difference
from znni.core.errors import RunFailed
from znni.volumes.ledger import Ledger, checksum_of
from znni.volumes.ledger_file import ledger_name
from znni.volumes.locate import read_ledger
from znni.volumes.partial_file import partial_name

ZNNI = (sys.executable, "-c", "from znni.cli import main; main()")


def compare_kills(
    case: ManyPatches,
    times: int,
    progress: Callable[[str], None] = lambda _: None,
) -> Row:
    """Kill runs at random moments, from before their first block to their end, and run them again.

    Args:
        case: of the runs.
        times: how often a run is killed.
        progress: told what is being done.

    Returns:
        Among others how many of the outputs were identical to one whose run was left alone, and
        how many of the ledgers told of a block that was not as it was written.

    Raises:
        RunFailed: a run failed that was not killed.
    """
    moments = random.Random(case.output)
    out, alone = case.place("out"), case.place("alone")
    command = [*ZNNI, *case.command(out)]
    seconds = _finish(command, out)
    out.rename(alone)
    at: list[int] = []
    identical = wrong = 0
    while len(at) < times:
        progress(f"{case.output}, kill {len(at) + 1} of {times}")
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
    """A run, from the moment on that there is a file of its output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not partial_name(out).exists():
        time.sleep(0.001)
    return process


def _finish(command: list[str], out: Path) -> float:
    """A run to its end, and how long that took from its output's first file on."""
    process = _started(command, out)
    start = time.perf_counter()
    _, said = process.communicate()
    if process.returncode:
        raise RunFailed(f"a run that was not killed failed: {said}")
    return time.perf_counter() - start


def _kill(command: list[str], out: Path, blocks: int, after: float) -> bool:
    """Whether a run was killed before its end, so many seconds after so many of its blocks."""
    process, ledger = _started(command, out), ledger_name(partial_name(out))
    while process.poll() is None and _blocks_in(ledger) < blocks:
        time.sleep(0.001)
    time.sleep(after)
    process.kill()
    process.communicate()
    return process.returncode < 0 and not out.exists()


def _ledger(out: Path) -> Ledger:
    text = ledger_name(partial_name(out))
    return read_ledger(str(partial_name(out))) if text.exists() else Ledger()


def _blocks_in(ledger: Path) -> int:
    try:
        return ledger.read_bytes().count(b'{"block"')
    except FileNotFoundError:  # not yet, or no more
        return 0


def _holds(ledger: Ledger, out: Path) -> bool:
    """Whether all blocks of a ledger are as they were written."""
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
