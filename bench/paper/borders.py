"""The fastest strategy of the paper for machines of many sizes, by the built-in model."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from bench import session
from bench.paper.strategies import HOST_RAM, STRATEGIES, without_convolutions_of_host
from bench.record import Row
from planner.sensitivity import at_equal_ratios, cubes
from znni.inference.planning import search
from znni.machine.machine import Machine
from znni.machine.machine_choice import machine_for
from znni.network.network_file import load_network
from znni.plans.plan import Plan

LEAST_EDGE = 16  # of the cubes that are tried, up to the volume's
CUBES = 8
# From this share of the threads on, more of them do not make the memory faster.
THREADS_FOR_BANDWIDTH = 1 / 2


def borders_command(
    net: session.Nets,
    machine: Annotated[Path, typer.Option(help="A machine's file, with a GPU.")],
    gpu_gib: Annotated[list[float], typer.Option(help="GiB of the GPU; repeatable.")],
    cores: Annotated[list[int], typer.Option(help="Threads of the host; repeatable.")],
    link: Annotated[list[float], typer.Option(help="GB/s of the link; repeatable.")],
    size: session.Volume = 512,
    out: session.Out = None,
) -> None:
    """Predict which strategy of the paper is fastest, for each memory of a GPU, cores and link.

    Only cubes and whole batches are tried.
    """
    base = machine_for(machine, None, None)
    asked = [
        (path, size, _machine(base, threads, int(gib * 2**30), rate * 1e9))
        for path, threads, gib, rate in product(net, cores, gpu_gib, link)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(_row, asked))
    session.report_all("borders", [rows], [], out)


def _machine(base: Machine, threads: int, memory: int, link: float) -> Machine:
    """Return a machine with other threads, memory of the GPU, and link."""
    host = base.host
    faster = threads / host.threads
    bandwidth = host.bandwidth * min(1.0, faster / THREADS_FOR_BANDWIDTH)
    return replace(
        base,
        host=replace(host, threads=threads, flops=host.flops * faster, bandwidth=bandwidth),
        gpus=(replace(base.gpus[0], memory=memory, link=link),),
    )


def _row(asked: tuple[Path, int, Machine]) -> Row:
    """Return the row of the fastest strategy."""
    path, size, machine = asked
    network, gpu = load_network(path), machine.gpus[0]
    started = search(network, (size,) * 3, machine=machine, costs="built-in").undivided()
    patches = cubes(started, at_equal_ratios(LEAST_EDGE, size, CUBES))
    row: Row = {
        "network": network.name,
        "gpu": gpu.name,
        "volume": size,
        "threads": machine.host.threads,
        "gpu_limit_gib": gpu.memory / 2**30,
        "link_gb_per_s": gpu.link / 1e9,
    }
    best: Plan | None = None
    for strategy, passes in STRATEGIES.items():
        places = [it for it in started.cut_points if passes(it, len(network.nodes))]
        among = without_convolutions_of_host(started) if strategy == HOST_RAM else started
        plan = among.through(places).fastest_of(patches, known=best)
        if plan and plan is not best:
            best = plan
            row |= {
                "strategy": strategy,
                "theta": plan.layers_on_host,
                "patch": str(plan.patch),
                "predicted_seconds": plan.seconds,
            }
    return row
