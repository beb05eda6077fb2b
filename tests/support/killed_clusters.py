"""Runs on a cluster of processes, of which one is killed at a random moment.

    python tests/support/killed_clusters.py --kind worker --kills 50 --out record.json

Each round runs ``znni infer --cluster`` over some 300 blocks, kills one process of it, and gives
the same command again until it succeeds. Then the output must be that of an undisturbed run, byte
for byte, its ledger must name all blocks, and no process may be left. The kinds are ``child`` (the
process that computes), ``worker`` and ``nanny`` (Dask's), ``scheduler`` and ``coordinator``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import psutil
from paths import ROOT

from bench.record import circumstances
from bench.same_output import difference
from znni.network.network_file import load_network
from znni.network.weights import random_weights
from znni.volumes.locate import read_ledger

KINDS = ("child", "worker", "nanny", "scheduler", "coordinator")
NET = """\
name: tiny
weights: tiny.npz
layers:
  - conv: {features: 8, kernel: 3, activation: relu}
  - conv: {features: 8, kernel: 3, activation: relu}
  - conv: {features: 1, kernel: 3, activation: sigmoid}
"""
VOLUME = (150, 110, 135)
WORKERS = 2
RAM = 769  # MiB of a worker: Dask's share, the process, and a few MiB for a patch
ON_CPU = ("--device", "cpu", "--ram", "513MiB", "--threads", "1")
PLAN = "plan.json"
PLANNED = 0.8  # share of the rounds that use a plan made before; else the first worker makes one
CLUSTER = """\
kind: address
address: {address}
groups: [{{name: machine, count: {workers}, cores: 1, ram: {ram}MiB}}]
"""
ON_GPU = """\
kind: local
groups: [{name: machine, count: 1, gpus: 1}]
"""
LOOK_EVERY = 0.2  # seconds, until there is a process to be killed
TRIES = 4  # of one command, until it succeeds
SECONDS = 120  # until a run counts as hanging
GONE_SECONDS = 15  # until a process that is left counts as an orphan
CHILD = "znni.cluster.child"
WHOLE = "whole/out.zarr"


@dataclass(frozen=True)
class Round:
    """What came of one kill.

    Attributes:
        kind: which process was killed.
        after: seconds after the start.
        killed: whether there was such a process then.
        exits: exit codes of the command, until it succeeded.
        said: the last line of the first command; all of it if that one hung.
        wrong: what is wrong; empty if nothing is.
    """

    kind: str
    after: float
    killed: bool
    exits: list[int]
    said: str
    wrong: str


class Processes:
    """A scheduler and workers of Dask, as a user would start them; or none, if znni does that.

    Args:
        folder: where the case lies.
        by_hand: whether they are started here.
        gpu: whether znni starts one worker, with a GPU.
    """

    def __init__(self, folder: Path, *, by_hand: bool, gpu: bool) -> None:
        self._folder = folder
        self._by_hand = by_hand
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * WORKERS
        self.cluster = "gpu.yaml" if gpu else "cluster.yaml" if by_hand else f"local:{WORKERS}"

    def start_missing(self) -> None:
        """Start the scheduler and the workers that are not there."""
        if not self._by_hand:
            return
        file = self._folder / "scheduler.json"
        if self._scheduler is None or self._scheduler.poll() is not None:
            self.end()
            file.unlink(missing_ok=True)
            self._scheduler = self._dask(
                "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                "--scheduler-file", str(file),
            )  # fmt: skip
            end = time.monotonic() + SECONDS
            while not file.exists() and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.1)
            address = json.loads(file.read_text())["address"]
            text = CLUSTER.format(address=address, workers=WORKERS, ram=RAM)
            (self._folder / self.cluster).write_text(text)
        for index, worker in enumerate(self._workers):
            if worker is None or worker.poll() is not None:
                self._workers[index] = self._dask(
                    "worker", "--scheduler-file", str(file), "--name", f"machine-{index}",
                    "--nthreads", "4", "--memory-limit", "0", "--no-dashboard",
                    "--death-timeout", "20", "--local-directory", str(self._folder),
                )  # fmt: skip

    def find(self, kind: str, coordinator: subprocess.Popen[bytes], rng: Random) -> int | None:
        """Return the number of a process of a kind; None if there is none now."""
        if kind == "coordinator":
            return coordinator.pid
        if kind == "scheduler":
            return self._scheduler.pid if self._scheduler else None
        roots = [coordinator.pid, *(worker.pid for worker in self._workers if worker)]
        children: list[psutil.Process] = []
        with suppress(psutil.Error):
            for root in roots:
                children += [
                    process
                    for process in psutil.Process(root).children(recursive=True)
                    if CHILD in process.cmdline()
                ]
        if not children:
            return None
        with suppress(psutil.Error):
            found = rng.choice(children)
            if kind == "child":
                return found.pid
            worker = found.parent()
            assert worker
            nanny = worker.parent()
            assert nanny
            return worker.pid if kind == "worker" else nanny.pid
        return None

    def end(self) -> None:
        """End all."""
        for process in (self._scheduler, *self._workers):
            if process:
                process.terminate()
        for process in (self._scheduler, *self._workers):
            if process:
                try:
                    process.wait(SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._workers = [None] * WORKERS

    def _dask(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments], cwd=self._folder, env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment of all processes."""
    known = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    # A run that hangs is ended by a signal, and says where it was.
    return os.environ | {"PYTHONPATH": os.pathsep.join(known), "PYTHONFAULTHANDLER": "1"}


def write_case(folder: Path, *, gpu: bool) -> None:
    """Write network, weights, volume, and a plan."""
    (folder / "tiny.yaml").write_text(NET)
    network = load_network(folder / "tiny.yaml")
    weights = random_weights(network, 3)
    arrays = {}
    for conv in network.convolutions:
        arrays[f"{conv.name}.weight"] = weights[conv.name].weight
        arrays[f"{conv.name}.bias"] = weights[conv.name].bias
    np.savez(folder / "tiny.npz", **arrays)
    values = np.random.default_rng(4).standard_normal(VOLUME, np.float32)
    np.save(folder / "volume.npy", values)
    # A small volume makes small patches, where memory does not.
    limits = ["26,26,26", "--device", "gpu"] if gpu else [",".join(map(str, VOLUME)), *ON_CPU]
    znni = [sys.executable, "-m", "znni", "plan", "--net", "tiny.yaml", "--costs", "built-in"]
    subprocess.run(
        [*znni, "--out", PLAN, "--volume", *limits],
        cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (folder / "gpu.yaml").write_text(ON_GPU)


def command(out: str, cluster: str, *, planned: bool) -> list[str]:
    """Return the command of a run."""
    ram = f"{WORKERS * RAM}MiB"
    limits = ["--ram", ram, "--threads", str(WORKERS)] if cluster.startswith("local") else []
    device = "gpu" if cluster == "gpu.yaml" else "cpu"
    return [
        sys.executable, "-m", "znni", "infer", "volume.npy", "--net", "tiny.yaml", "--out", out,
        "--costs", "built-in", "--cluster", cluster, "--device", device, *limits,
        *(("--plan", PLAN) if planned or device == "gpu" else ()),
    ]  # fmt: skip


def begin(folder: Path, out: str, cluster: str, *, planned: bool) -> subprocess.Popen[bytes]:
    """Begin a run."""
    log = (folder / f"{out}.log").open("ab")
    return subprocess.Popen(
        command(out, cluster, planned=planned),
        cwd=folder, env=environment(), stdout=log, stderr=log,
    )  # fmt: skip


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a run, and return its exit code."""
    try:
        return process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        return process.wait()


def left_over(folder: Path) -> str:
    """Return the commands of processes that are left in a folder, after waiting for their end."""
    end = time.monotonic() + GONE_SECONDS
    while True:
        left = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if CHILD in line and process.cwd() == str(folder):
                    left.append(line)
        if not left or time.monotonic() > end:
            return "; ".join(left)
        time.sleep(0.1)


def one_round(
    folder: Path, kind: str, number: int, seconds: float, rng: Random, *, gpu: bool
) -> Round:
    """Run, kill, and run again until the output is complete."""
    by_hand = not gpu and (kind in ("nanny", "scheduler") or rng.random() < 0.3)
    processes = Processes(folder, by_hand=by_hand, gpu=gpu)
    (folder / str(number)).mkdir()
    out, exits = f"{number}/out.zarr", []
    planned = rng.random() < PLANNED
    try:
        processes.start_missing()
        begun = time.monotonic()
        run = begin(folder, out, processes.cluster, planned=planned)
        while processes.find(kind, run, rng) is None and run.poll() is None:
            time.sleep(LOOK_EVERY)
        time.sleep(rng.uniform(0.0, max(0.0, seconds - (time.monotonic() - begun))))
        target, after = processes.find(kind, run, rng), time.monotonic() - begun
        killed = target is not None and run.poll() is None
        if target is not None and killed:
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
        exits.append(wait(run))
        log = (folder / f"{out}.log").read_text().strip()
        said = log if exits[0] == -signal.SIGABRT else log.rpartition("\n")[2]
        while not over(folder / out, exits[-1]) and len(exits) < TRIES:
            processes.start_missing()
            exits.append(wait(begin(folder, out, processes.cluster, planned=planned)))
    finally:
        processes.end()
    wrong = judged(folder, out, exits)
    if not wrong:
        shutil.rmtree(folder / out)
    return Round(kind, round(after, 2), killed, exits, said, wrong)


def over(out: Path, code: int) -> bool:
    """Return whether a command has completed an output, or refuses it because it is complete."""
    return code == 0 or (code == 2 and out.exists())


def judged(folder: Path, out: str, exits: list[int]) -> str:
    """Return what is wrong with an output, in words."""
    if not over(folder / out, exits[-1]):
        return f"the command exits with {exits}"
    if apart := difference(folder / WHOLE, folder / out, frozenset({"command"})):
        return apart
    if read_ledger(str(folder / out)).checksums != read_ledger(str(folder / WHOLE)).checksums:
        return "the ledger differs"
    if list((folder / out).parent.glob("*.partial*")):
        return "the unfinished output is left"
    if left := left_over(folder):
        return f"left over: {left}"
    return ""


def gpu_memory_used() -> int:
    """Return the MiB in use on the first GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(query, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Kill processes, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all")
    parser.add_argument("--kills", type=int, default=5, help="of each kind")
    parser.add_argument("--seconds", type=float, default=1e9, help="no round begins after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", action="store_true", help="one worker, with a GPU")
    parser.add_argument("--out", type=Path, help="record to write, in JSON")
    asked = parser.parse_args()
    kinds = asked.kind or ([k for k in KINDS if k != "scheduler"] if asked.gpu else KINDS)
    about, begun = circumstances("tests/support/killed_clusters.py"), time.monotonic()
    shared = set(os.listdir("/dev/shm"))  # noqa: PTH208
    gpu_memory = gpu_memory_used() if asked.gpu else 0
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        write_case(folder, gpu=asked.gpu)
        (folder / WHOLE).parent.mkdir()
        start = time.monotonic()
        cluster = "gpu.yaml" if asked.gpu else f"local:{WORKERS}"
        code = wait(begin(folder, WHOLE, cluster, planned=True))
        seconds = time.monotonic() - start
        if code:
            sys.exit((folder / f"{WHOLE}.log").read_text())
        blocks = len(read_ledger(str(folder / WHOLE)).checksums)
        print(f"{blocks} blocks in {seconds:.1f} s, undisturbed", flush=True)
        for kind in kinds:
            rng = Random(f"{asked.seed} {kind}")
            done = 0
            while done < asked.kills and time.monotonic() - begun < asked.seconds:
                found = one_round(folder, kind, len(rounds), seconds, rng, gpu=asked.gpu)
                rounds.append(found)
                done += found.killed
                print(found, flush=True)
    left = sorted(set(os.listdir("/dev/shm")) - shared)  # noqa: PTH208
    record = {
        **about,
        "blocks": blocks,
        "undisturbed_seconds": round(seconds, 1),
        "killed": {kind: sum(r.killed for r in rounds if r.kind == kind) for kind in KINDS},
        "stopped": [vars(r) for r in rounds if r.exits[0] not in (0, -signal.SIGKILL)],
        "commands": sum(len(r.exits) for r in rounds),
        "shared_memory_left": left,
        "gpu_memory_left": gpu_memory_used() - gpu_memory if asked.gpu else 0,
        "wrong": [vars(r) for r in rounds if r.wrong],
    }
    print(json.dumps({name: record[name] for name in ("killed", "commands", "wrong")}))
    if asked.out:
        asked.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(record["wrong"] or left or record["gpu_memory_left"]))


if __name__ == "__main__":
    main()
