"""Several processes of one machine beside one: blocks a second, and what handing out costs.

The workers are processes of a local cluster. The coordinator and Dask's scheduler run in this
process, so its processor time is what handing out, noting and looking at the workers take. Rates
count from the moment when each worker has finished its first blocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass, field
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
from znni.core.shapes import Vec3
from znni.inference import planning
from znni.machine.machine import DeviceKind
from znni.network.network_file import load_network
from znni.plans.plan import Plan

FIRST = 2  # blocks of each worker that are not counted
LOOK_EVERY = 2.0  # seconds between looks at the memory of processes
VOLUME = "volume.npy"
MEASURED = ("blocks_per_s", "whole_blocks_per_s", "coordinator_ms_a_block", "dask_mib")


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
    rows: dict[int, list[Row]] = {count: [] for count in workers}
    with TemporaryDirectory() as folder:
        source = np.lib.format.open_memmap(
            Path(folder) / VOLUME, "w+", np.float32, tuple(side + network.field_of_view - 1)
        )
        for plane in source:
            plane[:] = np.random.default_rng(0).random(plane.shape, np.float32)
        net = net.absolute()
        with chdir(folder):
            for repeat in range(repeats):
                for count in workers:
                    session.progress(f"{count} workers, run {repeat + 1} of {repeats}")
                    rows[count].append(run(net, plan, count, ram, device, f"{count}-{repeat}.zarr"))

    def found() -> Iterator[list[Row]]:
        one = median(row["blocks_per_s"] for row in rows[min(workers)]) / min(workers)
        for count, runs in rows.items():
            row = {name: median(each[name] for each in runs) for name in MEASURED}
            rates = [each["blocks_per_s"] for each in runs]
            yield [{
                "network": network.name,
                "device": device,
                "workers": count,
                "patch": str(plan.patch),
                "blocks": blocks,
                "rounds": repeats,
                "spread": (max(rates) - min(rates)) / row["blocks_per_s"],
                "efficiency": row["blocks_per_s"] / one / count,
            } | row]  # fmt: skip

    session.report_all("cluster-scaling", found(), [], out)


@dataclass
class Watch:
    """Notes when blocks were finished, and how much memory Dask's processes take.

    Attributes:
        times: when each block was finished.
        peak: the most bytes that one process of Dask took, beside the process that computes.
    """

    times: list[float] = field(default_factory=list)
    peak: int = 0
    _looked: float = 0.0

    def __call__(self, done: int, _total: int, _workers: str) -> None:
        """Take the progress of a run."""
        now = time.perf_counter()
        if done:
            self.times.append(now)
        if done and now - self._looked > LOOK_EVERY:
            self._looked = now
            for process in psutil.Process().children(recursive=True):
                if child.__name__ not in process.cmdline():
                    self.peak = max(self.peak, process.memory_info().rss)

    def rate(self, first: int) -> float:
        """Return blocks a second, after the first ones."""
        return (len(self.times) - first) / (self.times[-1] - self.times[first - 1])


def run(net: Path, plan: Plan, workers: int, ram: int, device: DeviceKind, out: str) -> Row:
    """Return a row on one run over the volume of the current folder."""
    group = Group("local", workers, cores=1, ram=ram, gpus=int(device == "gpu"))
    watch = Watch()
    before, begun = os.times(), time.perf_counter()
    report = infer_on_cluster(
        VOLUME, str(net), out, cluster=Cluster("local", (group,)), random_seed=1, plan=plan,
        progress=watch, device=device,
    )  # fmt: skip
    after, seconds = os.times(), time.perf_counter() - begun
    spent = after.user + after.system - before.user - before.system
    return {
        "blocks_per_s": watch.rate(FIRST * workers),
        "whole_blocks_per_s": report.finished.blocks / seconds,
        "coordinator_ms_a_block": spent / report.finished.blocks * 1e3,
        "dask_mib": watch.peak / 2**20,
    }
