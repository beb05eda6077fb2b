"""Seconds from Enter to prompt of the commands that users wait for, by phase.

Each command is a process of its own, timed from its start until it has ended. The commands take
turns. Medians are reported. Caches are warm: every command runs once before it is timed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bench import session
from bench.end_to_end import PHASES, time_run
from bench.many_patches import ZNNI
from bench.record import Row
from znni.core.errors import RunFailed
from znni.core.processors import DeviceChoice
from znni.inference.text_cache import FOLDER_VARIABLE
from znni.machine.timing import Timing

DEMO = ("networks/cells.h5", "networks/boundaries.yaml")
LIMIT = 600.0  # seconds of one command

# Programs that only load the libraries that read a command's options, and those that compute.
READING = "import typer; from pydantic import TypeAdapter; TypeAdapter(int)"
COMPUTING = f"{READING}; import h5py, llvmlite.binding, numpy, psutil, ruamel.yaml"

# Variables that would keep Python from storing compiled modules, as it does for users.
NOT_STORED = "PYTHONDONTWRITEBYTECODE"


@dataclass(frozen=True)
class Command:
    """A command that is timed.

    Attributes:
        about: the first columns of its row.
        run: runs it once and returns its seconds, and perhaps those of its phases.
    """

    about: Row
    run: Callable[[], Row]


def phases_command(
    net: session.Nets = [],  # noqa: B006
    volume: Annotated[
        str, typer.Option(metavar="Z,Y,X", help="Extents of the volume to plan for.")
    ] = "2048,2048,2048",
    ram: Annotated[str, typer.Option(help="Memory to plan for.")] = "16GiB",
    device: Annotated[DeviceChoice, typer.Option(help="Where layers run.")] = "cpu",
    demo: Annotated[
        bool, typer.Option("--demo/--no-demo", help="Also time help, and the demo's run.")
    ] = True,
    rounds: Annotated[int, typer.Option(min=1, help="How often each command is timed.")] = 3,
    out: session.Out = None,
) -> None:
    """Time commands from their start to their end: help, the demo, and plans, new and kept.

    Beside them are processes that only start, and that only load the libraries. No command of this
    design can take less.
    """
    with TemporaryDirectory(prefix="bench-phases-") as name:
        folder = Path(name)
        commands = list(_commands(net, volume, ram, device, demo, folder))
        session.report_all("phases", [time_in_turn(commands, rounds)], [], out)


def _commands(
    nets: Sequence[Path], volume: str, ram: str, device: DeviceChoice, demo: bool, folder: Path
) -> Iterator[Command]:
    kept = _environment(folder / "plans")
    options = ("--device", device)
    if demo:
        yield from _floors(device, kept)
        yield Command({"command": "help"}, _again((*ZNNI, "--help"), kept))
        source, network = DEMO
        out = folder / "demo.h5"
        run = (*ZNNI, "infer", source, "--net", network, "--out", str(out), *options)
        about = {"command": "infer", "network": Path(network).stem}
        yield Command(about, lambda: _with_work(lambda: time_run(run, out, LIMIT, kept)))
    for path in nets:
        plan = (*ZNNI, "plan", "--net", str(path), "--volume", volume, "--ram", ram, *options)
        about = {"network": path.stem, "volume": volume, "limit": ram}
        yield Command({"command": "plan, kept"} | about, _again(plan, kept))
        yield Command({"command": "plan, new"} | about, _again((*plan, "--fresh"), kept))


def _floors(device: DeviceChoice, environment: Mapping[str, str]) -> Iterator[Command]:
    """Yield processes that start, and load libraries: first for options, then also for runs."""
    programs = {
        "python": "pass",
        "python, options": READING,
        "python, options, runs": COMPUTING + "; import cupy" * (device == "gpu"),
    }
    for name, program in programs.items():
        yield Command({"command": name}, _again((sys.executable, "-c", program), environment))


def _again(command: Sequence[str], environment: Mapping[str, str]) -> Callable[[], Row]:
    return lambda: _with_work(lambda: timed(command, environment))


def _environment(plans: Path) -> dict[str, str]:
    """Return the environment of the commands, which keep their plans in this folder."""
    theirs = {name: value for name, value in os.environ.items() if name != NOT_STORED}
    return theirs | {FOLDER_VARIABLE: str(plans)}


def timed(command: Sequence[str], environment: Mapping[str, str]) -> Row:
    """Return the seconds of a process.

    Raises:
        RunFailed: it ended with an error.
    """
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        done = subprocess.run(
            command, stdout=said, stderr=subprocess.STDOUT, env=environment, check=False
        )
        seconds = time.perf_counter() - start
        if done.returncode:
            said.seek(0)
            text = said.read().decode(errors="replace")
            raise RunFailed(f"{' '.join(command)} ended with {done.returncode}: {text}")
    return {"seconds": seconds}


def _with_work(run: Callable[[], Row]) -> Row:
    """Return the row of a command with its processor time, which others disturb less."""
    before = _worked()
    return run() | {"processor_seconds": _worked() - before}


def _worked() -> float:
    """Return the processor time of all commands that have ended, in any thread."""
    import resource  # Windows has none

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def time_in_turn(commands: Sequence[Command], rounds: int) -> list[Row]:
    """Return a row for each command, with the medians of its times.

    Raises:
        RunFailed: a command ended with an error.
    """
    found: list[list[Row]] = [[] for _ in commands]
    for number in range(rounds + 1):
        for command, rows in zip(commands, found, strict=True):
            session.progress(f"round {number} of {rounds}: {command.about}")
            row = command.run()
            if "skipped" in row:
                raise RunFailed(f"{command.about}: {row['skipped']}")
            if number:  # the first round warms the caches
                rows.append(row)
    return [command.about | _medians(rows) for command, rows in zip(commands, found, strict=True)]


def _medians(rows: Sequence[Row]) -> Row:
    timing = Timing(tuple(row["seconds"] for row in rows))
    names = [
        "predicted_seconds",
        "processor_seconds",
        *(f"{phase}_seconds" for phase in (*PHASES, "finishing", "exit")),
    ]
    others = {
        name: statistics.median(row[name] for row in rows) for name in names if name in rows[0]
    }
    all_seconds = timing.seconds
    row: Row = {"rounds": len(rows), "seconds": timing.median, "all_seconds": all_seconds}
    return row | ({"spread": timing.spread} if timing.spread is not None else {}) | others
