"""Several processes of one machine beside one: blocks a second, and what handing out costs.

The workers are processes of a local cluster. The coordinator and Dask's scheduler run in this
process, so its processor time is what handing out, noting and looking at the workers take. The same
number of independent processes runs for comparison, each with its part of the blocks. What they
lack of linear scaling is due to the machine. Rates count from the moment when each worker has
finished its first blocks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import psutil
import typer

from bench import session
from bench.record import Row
from znni.cluster import child
from znni.cluster.cluster_file import Cluster, Group
from znni.cluster.run import infer_on_cluster
from znni.core.processors import DeviceKind
from znni.core.shapes import Vec3
from znni.core.text import counted
from znni.inference import planning
from znni.machine.gpus_option import VISIBLE
from znni.network.network_file import load_network
from znni.plans.plan import Plan

FIRST = 2  # blocks of each worker that are not counted
LOOK_EVERY = 2.0  # seconds between looks at the memory of processes
VOLUME = "volume.npy"
PLAN = "plan.json"
POLL_SECONDS = 0.05  # from one look at the parts' logs to the next


def cluster_scaling_command(
    net: Annotated[Path, typer.Option(help="Network file.")],
    workers: Annotated[list[int], typer.Option(min=1, help="How many; repeatable.")] = [1, 2],  # noqa: B006
    blocks: Annotated[int, typer.Option(min=10, help="Blocks of a run.")] = 60,
    patch: Annotated[int, typer.Option(min=1, help="Output voxels per axis of a block.")] = 64,
    ram: session.Ram = 2 << 30,
    device: session.Device = "cpu",
    repeats: session.Repeats = 3,
    out: session.Out = None,
) -> None:
    """Measure several processes of one machine, each with one thread or one GPU."""
    network = load_network(net)
    asked: planning.SearchOptions = {"device": device, "ram": ram, "threads": 1}
    plan = planning.plan(network, network.field_of_view + patch - 1, **asked)
    side = Vec3(plan.patch.z * blocks, plan.patch.y, plan.patch.x)
    contestants = {"cluster": in_cluster, "parts": in_parts}
    rows: dict[tuple[str, int], list[Row]] = {
        (name, count): [] for name in contestants for count in workers
    }
    with TemporaryDirectory() as folder:
        source = np.lib.format.open_memmap(
            Path(folder) / VOLUME, "w+", np.float32, tuple(side + network.field_of_view - 1)
        )
        for plane in source:
            plane[:] = np.random.default_rng(0).random(plane.shape, np.float32)
        runs = Runs(net.absolute(), plan, ram, device)
        with chdir(folder):
            Path(PLAN).write_text(plan.to_json())
            for repeat, (name, count) in product(range(repeats), rows):
                session.progress(f"{name}, {count} workers, run {repeat + 1} of {repeats}")
                place = f"{name}-{count}-{repeat}.zarr"
                rows[name, count].append(contestants[name](runs, count, place))
                shutil.rmtree(place, ignore_errors=True)
                shutil.rmtree(f"{place}.partial.ledger", ignore_errors=True)

    def found() -> Iterator[Row]:
        for (name, count), measured in rows.items():
            rates = [row["blocks_per_s"] for row in measured]
            alone = median(row["blocks_per_s"] for row in rows[name, min(workers)]) / min(workers)
            yield {
                "network": network.name,
                "name": name,
                "device": device,
                "workers": count,
                "patch": str(plan.patch),
                "blocks": blocks,
                "rounds": repeats,
                "spread": (max(rates) - min(rates)) / median(rates),
                "efficiency": median(rates) / alone / count,
            } | {what: median(row[what] for row in measured) for what in measured[0]}  # fmt: skip

    session.report_all("cluster-scaling", [list(found())], [], out)


@dataclass(frozen=True)
class Runs:
    """The choices that all runs share.

    Attributes:
        net: the network's file.
        plan: the plan, whose patches are the blocks.
        ram: bytes of a worker.
        device: what computes.
    """

    net: Path
    plan: Plan
    ram: int
    device: DeviceKind


@dataclass
class Watch:
    """Notes when blocks were finished, and how much memory Dask's processes take.

    Attributes:
        workers: how many compute.
        times: when each block was finished, and the processor time that this process had by then.
        peak: the most bytes that one process of Dask took, beside the process that computes.
    """

    workers: int
    times: list[tuple[float, float]] = field(default_factory=list)
    peak: int = 0
    _looked: float = 0.0
    _before: int = 0

    def __call__(self, done: int, _total: int, state: str) -> None:
        """Take the progress of a run."""
        now = time.perf_counter()
        if done:
            self.times.append((now, time.process_time()))
            if not state.startswith(counted(self.workers, "worker")):
                self.not_all_there()
        if done and now - self._looked > LOOK_EVERY:
            self._looked = now
            for process in psutil.Process().children(recursive=True):
                if child.__name__ not in process.cmdline():
                    self.peak = max(self.peak, process.memory_info().rss)

    def not_all_there(self) -> None:
        """Do not count the blocks so far: some worker has not begun."""
        self._before = len(self.times)

    def rates(self) -> tuple[float, float]:
        """Return blocks a second, and processor seconds a block, after the first ones."""
        first = self._before + FIRST * self.workers
        (begun, spent_then), (ended, spent) = self.times[first - 1], self.times[-1]
        blocks = len(self.times) - first
        return blocks / (ended - begun), (spent - spent_then) / blocks


def in_cluster(runs: Runs, workers: int, out: str) -> Row:
    """Return a row on a run by a local cluster."""
    group = Group(
        name="local", count=workers, cores=1, ram=runs.ram, gpus=int(runs.device == "gpu")
    )
    watch = Watch(workers)
    begun = time.perf_counter()
    report = infer_on_cluster(
        VOLUME, str(runs.net), out, cluster=Cluster(kind="local", groups=(group,)), random_seed=1,
        plan=runs.plan, progress=watch, device=runs.device,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    rate, spent = watch.rates()
    return {
        "blocks_per_s": rate,
        "whole_blocks_per_s": report.finished.blocks / seconds,
        "coordinator_ms_a_block": spent * 1e3,
        "dask_mib": watch.peak / 2**20,
    }


def in_parts(runs: Runs, workers: int, out: str) -> Row:
    """Return a row on a run by processes that know nothing of each other."""
    command = [
        sys.executable, "-m", "znni", "infer", VOLUME, "--net", str(runs.net), "--plan", PLAN,
        "--random-weights", "1", "--device", runs.device, "--threads", "1",
        "--ram", str(runs.ram), "--out", out,
    ]  # fmt: skip
    begun = time.perf_counter()
    processes = [
        subprocess.Popen(
            [*command, "--part", f"{index}/{workers}"], env=_sees(index, runs.device),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for index in range(workers)
    ]  # fmt: skip
    watch = Watch(workers)
    while any(process.poll() is None for process in processes):
        time.sleep(POLL_SECONDS)
        logs = Path(f"{out}.partial.ledger").glob("*.log")
        written = [log.read_text().count('"checksum"') for log in logs]
        now = time.perf_counter(), 0.0
        watch.times += [now] * (sum(written) - len(watch.times))
        if sum(map(bool, written)) < workers:
            watch.not_all_there()
    assert all(process.returncode == 0 for process in processes)
    rate, _ = watch.rates()
    return {
        "blocks_per_s": rate,
        "whole_blocks_per_s": len(watch.times) / (time.perf_counter() - begun),
    }


def _sees(index: int, device: DeviceKind) -> dict[str, str]:
    """Return the environment of a part, which sees one GPU."""
    folders = os.pathsep.join(sys.path)
    return os.environ | {"PYTHONPATH": folders} | ({VISIBLE: str(index)} if device == "gpu" else {})
