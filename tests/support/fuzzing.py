"""Feed znni thousands of slightly changed files.

Each file must be read correctly or refused with one line.

    python tests/support/fuzzing.py --count 10000 --out record.json

This runs the inputs in processes of their own, each with a memory limit. A process that dies or
hangs is found and reported. The kind of file and the number of the input determine the change. So
``--kind KIND --only NUMBER`` repeats one input, and another ``--first`` gives other inputs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from command_line import Outcome
from fakes import fake_catalogue
from fuzz_kinds import KINDS, Kind, restore

from bench.record import circumstances

SECONDS = 20  # processor seconds that an input may take; this process may be paused for long
DEADLY = 60  # processor seconds until the system ends the process
SILENCE = 1200  # seconds of silence until a process is ended
MEMORY = 6 << 30  # bytes of address space, most of it libraries
WHOLE = 10_000  # total that the kinds' shares refer to
CANARY = Path("CANARY")  # made by programs in hostile files
RUNNING_CODE = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")
CODES_OF_REFUSALS = (1, 2, 3, 4, 5)


class Hangs(BaseException):
    """Signal that an input took too long."""


@dataclass(frozen=True)
class Found:
    """Result of an input.

    Attributes:
        kind: kind of file.
        number: number of the input.
        verdict: ``taken``, ``refused``, or a description of the fault.
        said: text that the command printed.
    """

    kind: str
    number: int
    verdict: str
    said: str

    @property
    def wrong(self) -> bool:
        """Return whether znni is at fault."""
        return self.verdict not in ("taken", "refused")


def fuzzed(name: str, numbers: Iterator[int] | range, folder: Path) -> Iterator[Found]:
    """Run inputs of a kind one by one in a folder; no other process uses this folder."""
    kind = KINDS[name]
    good, here = folder / "good", folder / "here"
    good.mkdir()
    here.mkdir()
    with patch("znni.inference.planning.catalogue", lambda _machine: fake_catalogue()):
        os.chdir(good)
        kind.make()
        os.chdir(here)
        restore(good, here)
        outcome = kind.run()  # the good case, which also loads all libraries
        assert _verdict(kind, outcome) == "taken", outcome
        for number in numbers:
            restore(good, here)
            yield _one(name, kind, number)


def _one(name: str, kind: Kind, number: int) -> Found:
    rng = Random(f"{name} {number}")
    path = Path(rng.choice(kind.files))
    path.write_bytes(kind.mutate(rng, path.read_bytes()))
    ran: list[str] = []
    WATCHING.append(ran)
    try:
        with _within(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = kind.run()
            verdict = _verdict(kind, outcome)
    except Hangs:
        outcome, verdict = Outcome(-1, "", ""), "hangs"
    finally:
        WATCHING.pop()
    if CANARY.exists() or ran:
        verdict = f"runs code {ran}"
    return Found(name, number, verdict, outcome.err.strip() or outcome.out[:200])


def _verdict(kind: Kind, outcome: Outcome) -> str:
    if outcome.code:
        *notes, last = outcome.err.splitlines() or [""]
        clear = last.startswith("znni: error: ") and len(last) < 2000
        if outcome.code not in CODES_OF_REFUSALS or not clear:
            return f"exits with {outcome.code}"
        if any(not note.startswith("znni: warning: ") for note in notes):
            return "says more than an error"
        return "memory ran out" if "memory ran out" in last else "refused"
    try:
        right = kind.right(outcome)
    except Exception as error:
        return f"taken, and a second reader has {type(error).__name__}: {error}"
    return "taken" if right else "taken for something else"


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    def stop(_number: int, _frame: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


WATCHING: list[list[str]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCHING and event in RUNNING_CODE:
        WATCHING[-1].append(f"{event} {arguments}")


def watch_for_code() -> None:
    """Notice all commands that this process runs from now on."""
    sys.addaudithook(_watch)


def available() -> list[str]:
    """Return the kinds whose libraries are installed."""
    return [name for name, kind in KINDS.items() if all(map(importlib.util.find_spec, kind.needs))]


def share_of(name: str, count: int) -> int:
    """Return the number of inputs of a kind, given the number of all inputs."""
    return max(1, round(count * KINDS[name].share / WHOLE))


def _work(name: str, start: int, stop: int) -> None:
    """Run inputs as a process of its own; print a line of JSON for each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    watch_for_code()
    with tempfile.TemporaryDirectory() as folder:
        for found in fuzzed(name, range(start, stop), Path(folder)):
            print(json.dumps(found.__dict__), flush=True)
            _die_after(DEADLY)
        os.chdir("/")


def _die_after(seconds: int) -> None:
    """Have the system end this process after this many more processor seconds."""
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, resource.RLIM_INFINITY))


def _run_kind(name: str, first: int, count: int) -> Iterator[Found]:
    """Run a kind's inputs in processes, from a number on; start a new process if one dies."""
    done, stop = first, first + count
    while done < stop:
        command = [sys.executable, __file__, "--kind", name, "--work", str(done), str(stop)]
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            assert process.stdout
            signal.signal(signal.SIGALRM, lambda *_: process.kill())
            signal.alarm(SILENCE)
            for line in process.stdout:
                signal.alarm(SILENCE)
                yield Found(**json.loads(line))
                done += 1
            signal.alarm(0)
            code = process.wait()
            errors.seek(0)
            said = errors.read()
        if code and done < stop:
            yield Found(name, done, f"dies with {code}", said[-1000:])
            done += 1
        elif code:
            raise RuntimeError(f"{name}: {said}")


def main() -> None:
    """Run inputs of all kinds and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=WHOLE, help="inputs in all")
    parser.add_argument("--first", type=int, default=0, help="number of each kind's first input")
    parser.add_argument("--kind", choices=KINDS, action="append", help="this kind; repeatable")
    parser.add_argument("--only", type=int, help="the input of this number alone")
    parser.add_argument("--out", type=Path, help="record to write, in JSON")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        _work(given.kind[0], *given.work)
        return
    if given.only is not None:
        _work(given.kind[0], given.only, given.only + 1)
        return
    about = circumstances("tests/support/fuzzing.py")
    begun, rows, faults = time.monotonic(), [], []
    for name in given.kind or available():
        verdicts = Counter[str]()
        for found in _run_kind(name, given.first, share_of(name, given.count)):
            verdicts[found.verdict if not found.wrong else "wrong"] += 1
            if found.wrong:
                faults.append(found)
                print(f"{name} {found.number}: {found.verdict}: {found.said}", flush=True)
        rows.append({"kind": name, "inputs": verdicts.total(), **verdicts})
        print(f"{name}: {dict(verdicts)}", flush=True)
    record = {
        **about,
        "inputs": sum(row["inputs"] for row in rows),
        "wrong": len(faults),
        "seconds": round(time.monotonic() - begun),
        "kinds": rows,
        "faults": [fault.__dict__ for fault in faults],
    }
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
