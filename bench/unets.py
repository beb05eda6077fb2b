"""U-Nets on one whole window: the plan's block beside PyTorch, ONNX Runtime and OpenVINO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from bench.peers.whole_windows import Compute, exact_output, peers
from bench.record import Row
from bench.rounds import Effort, run_rounds, stopwatch
from bench.session import (
    AccuracyClass,
    Budget,
    CostsChoice,
    Out,
    Peer,
    Ram,
    Repeats,
    Threads,
    ceilings_with,
    check_known,
    machine_with,
    progress,
    report_all,
)
from bench.unet_networks import UNETS, unet_weights
from znni.core.shapes import Box, Vec3
from znni.engine.executor import placed
from znni.engine.stopwatch import Stopwatch
from znni.engine.windows import WindowedBlock
from znni.inference.planning import fastest, prepare_alone, search
from znni.network.geometry import input_box, with_window
from znni.network.network import Network
from znni.network.weights import Float32, Weights
from znni.network.window import Window
from znni.plans.plan import Plan

ZERO = Vec3(0, 0, 0)

Names = Annotated[list[str] | None, typer.Option("--net", help="A U-Net; repeatable.")]
Extent = Annotated[int | None, typer.Option(min=1, help="Voxels of a window per axis.")]


def unets_command(
    net: Names = None,
    window: Extent = None,
    ram: Ram = 16 << 30,
    costs: CostsChoice = "auto",
    accuracy: AccuracyClass = "float32",
    peer: Peer = None,
    threads: Threads = None,
    repeats: Repeats = 3,
    budget: Budget = 120.0,
    out: Out = None,
) -> None:
    """Compare U-Nets with PyTorch, ONNX Runtime and OpenVINO on one whole window."""
    check_known("net", net or [], UNETS)
    machine = machine_with("cpu", threads)
    ceilings = ceilings_with("cpu", machine.host.threads)

    def measured(name: str) -> list[Row]:
        network = UNETS[name]()
        size = window or (140 if name == "valid-unet" else 128)
        if network.window_layer:
            network = with_window(network, Window(Vec3.of(size), overlap=0))
        space = search(
            network, Vec3.of(size), ram=ram, threads=threads, device="cpu", costs=costs,
            accuracy=accuracy,
        )  # fmt: skip
        # A job of many windows transforms kernels once, so that time is left out.
        handling = replace(space.overhead.handling, resident=0.0)
        space.overhead = replace(space.overhead, handling=handling)
        plan = fastest(space)[0]
        return _compared(network, plan, size, peer, Effort(repeats, budget))

    report_all("unets", map(measured, net or UNETS), [ceilings], out)


def _compared(
    network: Network,
    plan: Plan,
    size: int,
    wanted: list[str] | None,
    effort: Effort,
) -> list[Row]:
    """Return a row for our plan, and for each peer."""
    weights = unet_weights(network)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((network.in_features, *Vec3.of(size)), dtype=np.float32)
    progress(f"{network.name}: float64")
    exact = exact_output(network, weights, x)
    with TemporaryDirectory() as folder:
        found = peers(network, weights, x, plan.machine.host.threads, Path(folder))
        makers: dict[str, Callable[[], Compute]] = dict(found)
        check_known("peer", wanted or [], makers)
        ready: dict[str, Compute] = {"znni": _ours(plan, weights)}
        for name in wanted if wanted is not None else makers:
            progress(f"{network.name}: making {name} ready")
            ready[name] = makers[name]()
        errors = {name: _error(compute(x), exact) for name, compute in ready.items()}
        timed = {name: stopwatch(partial(compute, x)) for name, compute in ready.items()}
        results = run_rounds(timed, effort, warm=ready, progress=progress)
    voxels = exact[0].size
    rows: list[Row] = []
    for name, result in results.items():
        rows.append(
            {
                "network": network.name,
                "name": name,
                "window": str(Vec3.of(size)),
                **result.record(),
                "voxels_per_s": voxels / result.timing.median,
                "predicted_voxels_per_s": voxels / plan.patch_seconds if name == "znni" else None,
                "error": errors[name],
                "declared_gib": plan.memory.total / 2**30 if name == "znni" else None,
            }
        )
    return rows


def _ours(plan: Plan, weights: Weights) -> Compute:
    """Return our own contestant: the plan's block, whose input is the whole window."""
    (work,) = prepare_alone(plan, weights).stages(Stopwatch())
    if plan.network.window:
        whole = Box(ZERO, plan.output)

        def window(x: Float32) -> Float32:
            made: Float32 = work(WindowedBlock(x, ZERO, whole, None)).maps()
            return made

        return window

    def compute(x: Float32) -> Float32:
        around = _around(plan, x)
        made: Float32 = work(placed(around, ZERO))
        return made[:, : plan.output.z, : plan.output.y, : plan.output.x]

    return compute


def _around(plan: Plan, x: Float32) -> Float32:
    """Return the window with the zeros that the network sees around it."""
    box = input_box(plan.network, plan.patch)
    sides = zip(box.start, box.stop, x.shape[1:], strict=True)
    return np.pad(x, [(0, 0), *((-low, high - extent) for low, high, extent in sides)])


def _error(found: Any, exact: np.ndarray[Any, Any]) -> float:
    """Return the largest error, as a share of the largest magnitude."""
    return float(np.abs(found - exact).max() / np.abs(exact).max())
