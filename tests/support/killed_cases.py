"""Whole cases whose commands are killed outright, and then given again.

Run this as ``python tests/support/killed_cases.py --folder FOLDER --kills 50 --out record.json``.
It kills ``znni infer --case`` and ``znni nnunet predict``, each at so many steps of the file system
(``killed_runs.py``), and as often at random times within each step of a case. Commands are killed
several times in a row. The labels are compared with those of undisturbed commands, byte for byte,
and no folder of a case may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from case_scans import NET, scan, weights_file, write
from killed_runs import NEVER, run

import znni.cases.results_folder
from bench.record import circumstances
from znni.cases import input_slabs
from znni.network.network_file import load_network

POLL = 5e-4  # seconds between two looks at a command
IN_A_ROW = 3  # kills at random times before a command may end
SCANS = ("a", "b")
MASKED = {
    "input: {normalize: [{mean: 20, std: 50, clip: [-100, 150]}], crop: nonzero}": (
        "input: {normalize: zscore, within: nonzero, crop: nonzero}"
    )
}
LIMITS = ["--device", "cpu", "--ram", "700MiB"]
COMMANDS = {
    "infer": [
        "infer", "scans/a_0000.nii.gz", "--net", "organs.yaml", "--case", "--out", "out/a.nii.gz",
        "--overwrite", "--costs", "built-in", *LIMITS,
    ],
    "predict": [
        "nnunet", "predict", "-i", "scans", "-o", "out", "-m", "results", "-pp_pkl_file",
        "rules.json", "-device", "cpu", "--ram", "830MiB",
    ],
}  # fmt: skip
RULE = "remove_all_but_largest_component_from_segmentation"


def write_files(extents: tuple[int, int, int]) -> None:
    """Write scans, a network and a rule for components into this folder."""
    text = NET.replace("name: organs", "name: organs\nweights: w.npz")
    for old, new in MASKED.items():
        assert old in text
        text = text.replace(old, new)
    Path("organs.yaml").write_text(text)
    weights_file(Path("w.npz"), load_network(Path("organs.yaml")))
    Path("scans").mkdir()
    for seed, name in enumerate(SCANS):
        values = scan(extents, seed)
        values[5:9, 8:13, 7:12] = 0  # a hole
        write(Path("scans") / f"{name}_0000.nii.gz", values)
    Path("rules.json").write_text(
        json.dumps(
            {
                "postprocessing_fns": [RULE],
                "postprocessing_kwargs": [{"labels_or_regions": [1, 2]}],
            }
        )
    )
    Path("results").mkdir()
    for name in ("plans.json", "dataset.json"):  # they are copied beside the labels
        (Path("results") / name).write_text("{}")
    znni.cases.results_folder.network_of_results = (  # type: ignore[assignment]
        lambda _: load_network(Path("organs.yaml"))
    )


def in_slabs(size: int) -> None:
    """Have scans prepared in many slabs."""
    input_slabs.SLAB_BYTES = size


def labels_in(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.nii.gz"))}


def step_of(folder: Path) -> str:
    """Return how far a command has come, by what lies in the folder of its labels."""
    names = {path.name for case in folder.glob("*.case") for path in _entries(case)}
    if any(path.suffix == ".partial" for path in _entries(folder)):
        return "writing"
    order = {
        "without-components.npy": "components",
        "labels.h5": "components",
        "labels.h5.partial": "network",
        "input.npy": "network",
        "input.npy.partial": "resampling",
        "mask.npy": "reading",
        "channel-0.nii": "reading",
        "channel-0.nii.partial": "decompressing",
        "case": "decompressing",
    }
    return next((step for name, step in order.items() if name in names), "before or after")


def _entries(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return list(folder.iterdir())
    return []


class Watch(threading.Thread):
    """Measures how long each step takes, or kills a command some time after a step begins.

    Args:
        folder: the folder of labels.
        step: the step; empty: nothing is killed.
        delay: the seconds.
    """

    def __init__(self, folder: Path, step: str = "", delay: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.seconds: Counter[str] = Counter()
        self._folder, self._step, self._delay = folder, step, delay
        self._ended = threading.Event()

    def run(self) -> None:
        last = time.perf_counter()
        while not self._ended.wait(POLL):
            step, now = step_of(self._folder), time.perf_counter()
            self.seconds[step] += now - last
            last = now
            if step == self._step:
                self._ended.wait(self._delay)
                _kill_children()
                return

    def end(self) -> None:
        self._ended.set()
        self.join()


def watched(command: list[str], watch: Watch) -> bool:
    """Run a command in a child while somebody watches, and return whether it was killed."""
    watch.start()
    try:
        return not run([command], NEVER)
    finally:
        watch.end()


def _kill_children() -> None:
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in listed.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)


class Judge:
    """Compares the labels of commands that were killed with those of undisturbed ones."""

    def __init__(self, kind: str) -> None:
        self.command, self.out = COMMANDS[kind], Path("out")
        self.wrong: list[dict[str, Any]] = []
        self.killed: Counter[str] = Counter()
        self.start_again()
        run([self.command], NEVER)  # this one imports, and keeps its plan
        self.start_again()
        self.steps = run([self.command], NEVER)
        self.start_again()
        watch = Watch(self.out)
        watched(self.command, watch)
        self.seconds = watch.seconds
        self.expected = labels_in(self.out)
        assert self.expected

    def start_again(self) -> None:
        """Remove all labels."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()

    def note_kill(self) -> None:
        """Count a kill by the step that it met."""
        self.killed[step_of(self.out)] += 1

    def finish(self, about: dict[str, Any]) -> None:
        """Give the command again, and compare its labels."""
        run([self.command], NEVER)
        found = labels_in(self.out)
        known = {*found, "plans.json", "dataset.json"}
        left = sorted(path.name for path in self.out.iterdir() if path.name not in known)
        differ = sorted(
            name for name in {*found, *self.expected} if found.get(name) != self.expected.get(name)
        )
        if differ or left:
            self.wrong.append({**about, "differ": differ, "left": left})

    @property
    def account(self) -> dict[str, Any]:
        """The account of all kills."""
        return {
            "steps": self.steps,
            "seconds": {step: round(taken, 3) for step, taken in self.seconds.items()},
            "killed": sum(self.killed.values()),
            "killed_at": dict(self.killed),
            "wrong": self.wrong,
        }


def one_kind(kind: str, kills: int, seed: int = 0) -> dict[str, Any]:
    """Kill a command at so many steps, and as often at random times."""
    judge, generator = Judge(kind), random.Random(seed)
    for number in range(kills):
        judge.start_again()
        step = 1 + number * judge.steps // kills
        if not run([judge.command], step):
            judge.note_kill()
            judge.finish({"step": step})
    done, steps = 0, [step for step in judge.seconds if step != "before or after"]
    while done < kills:
        judge.start_again()
        times = []
        while len(times) < IN_A_ROW and done < kills:
            step = steps[done % len(steps)]
            times.append((step, generator.uniform(0, judge.seconds[step])))
            if not watched(judge.command, Watch(judge.out, *times[-1])):
                done += 1  # it had passed that step, or ended before
                break
            judge.note_kill()
            done += 1
        judge.finish({"times": times})
    return judge.account


def main() -> None:
    """Prepare the files, kill and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for the files; empty")
    parser.add_argument("--kills", type=int, default=25, help="of each kind, twice")
    parser.add_argument("--kind", action="append", choices=COMMANDS, help="by default both")
    parser.add_argument("--out", type=Path, help="record to write, in JSON")
    asked = parser.parse_args()
    out = asked.out and asked.out.absolute()
    os.chdir(asked.folder)
    in_slabs(2**19)
    write_files((48, 64, 56))
    found = {}
    for kind in asked.kind or COMMANDS:
        found[kind] = one_kind(kind, asked.kills)
        print(kind, json.dumps(found[kind]), flush=True)
    if out:
        record = {**circumstances("tests/support/killed_cases.py"), **found}
        out.write_text(json.dumps(record, indent=1))
    sys.exit(any(each["wrong"] for each in found.values()))


if __name__ == "__main__":
    main()
