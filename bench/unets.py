"""U-Nets on one whole window: the plan's block beside PyTorch, ONNX Runtime and OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from bench.ceilings import AnyCeilings
from bench.patches import PatchesOnGpu, release_gpu_memory
from bench.peers.torch_settings import NOT_INSTALLED, free_torch_memory, gpu_peak_bytes, has_torch
from bench.peers.whole_windows import Compute, exact_output, peers
from bench.record import Row
from bench.rooflines import step_rows
from bench.rounds import Effort, Result, rounds_on_gpu, run_rounds, stopwatch
from bench.session import (
    RAM,
    Budget,
    CostsChoice,
    Device,
    GpuMemory,
    Out,
    Peer,
    RamByDevice,
    Repeats,
    Threads,
    ceilings_with,
    check_known,
    machine_with,
    progress,
    refuse,
    report_all,
)
from bench.unet_networks import UNETS, unet_weights
from planner.exhaustive import Search
from znni.core.errors import InvalidInput
from znni.core.options import ACCURACIES, Accuracy
from znni.core.shapes import Box, Vec3
from znni.engine.executor import placed
from znni.engine.patch import room_of
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Room
from znni.engine.windows import WindowedBlock
from znni.inference.planning import fastest, search
from znni.inference.preparing import prepare_alone
from znni.machine.machine import DeviceKind
from znni.network.geometry import input_box, with_window
from znni.network.network import Network
from znni.network.weights import Float32, Weights
from znni.network.window import Window
from znni.plans.plan import Plan

if TYPE_CHECKING:
    from bench.peers.torch_windows import TorchWindows

OURS = "znni"
DOES_NOT_FIT = "no plan for a window in one block fits into the memory"
ZERO = Vec3(0, 0, 0)

# Voxels of a window per axis, unless another number is given. The valid U-Net takes some more, so
# that its poolings divide.
WINDOWS: dict[DeviceKind, int] = {"cpu": 128, "gpu": 192}
VALID_MORE = 12

Names = Annotated[list[str] | None, typer.Option("--net", help="A U-Net; repeatable.")]
Extents = Annotated[
    list[int] | None,
    typer.Option(
        min=1, help="Voxels of a window per axis; repeatable. Default: 128, on a GPU 192."
    ),
]
Classes = Annotated[
    list[str], typer.Option("--accuracy", help="Accuracy class of our plan; repeatable.")
]
MachineFiles = Annotated[
    list[Path] | None,
    typer.Option("--machine", help="A machine's file to predict for, not to measure; repeatable."),
]


def unets_command(
    net: Names = None,
    device: Device = "cpu",
    window: Extents = None,
    ram: RamByDevice = None,
    gpu_memory: GpuMemory = None,
    costs: CostsChoice = "auto",
    accuracy: Classes = ["float32"],  # noqa: B006 - typer reads it
    peer: Peer = None,
    threads: Threads = None,
    repeats: Repeats = 3,
    budget: Budget = 120.0,
    machine: MachineFiles = None,
    out: Out = None,
) -> None:
    """Compare U-Nets with other engines on one whole window.

    On a CPU these are PyTorch, ONNX Runtime and OpenVINO, on a GPU PyTorch. Our plan always takes
    part; ``--peer znni`` leaves out all others.
    """
    check_known("net", net or [], UNETS)
    check_known("accuracy", accuracy, ACCURACIES)
    if device == "cpu":
        refuse(device, gpu_memory=gpu_memory)
    classes: list[Accuracy] = [each for each in ACCURACIES if each in accuracy]
    windows = [
        (_network(name, size), size)
        for name in net or UNETS
        for size in window or [WINDOWS[device] + VALID_MORE * (name == "valid-unet")]
    ]

    def planned(
        network: Network, size: int, allowed: Accuracy, there: Path | None = None
    ) -> Search:
        limit = ram or (RAM if device == "cpu" else None)
        space = search(
            network, Vec3.of(size), ram=limit, threads=threads, device=device, costs=costs,
            accuracy=allowed, gpu_memory=gpu_memory, machine=there,
        )  # fmt: skip
        # A job of many windows transforms kernels once, so that time is left out.
        handling = replace(space.overhead.handling, resident=0.0)
        space.overhead = replace(space.overhead, handling=handling)
        return space

    if machine:
        predicted = (
            [_predicted(planned(*each, allowed, there), device, allowed, each[1])]
            for there in machine
            for each in windows
            for allowed in classes
        )
        report_all("unets", predicted, [], out)
        return
    if device == "gpu" and not has_torch():
        raise InvalidInput(NOT_INSTALLED)
    ceilings = ceilings_with(device, machine_with(device, threads).host.threads)
    effort = Effort(repeats, budget)

    def measured(network: Network, size: int) -> Iterator[list[Row]]:
        spaces = {each: planned(network, size, each) for each in classes}
        if device == "cpu":
            for space in spaces.values():
                yield _compared(network, fastest(space)[0], size, peer, effort)
            return
        for row in _compared_on_gpu(network, spaces, ceilings, size, peer, effort):
            allowed = {"allowed_gib": gpu_memory / 2**30} if gpu_memory else {}
            yield [row | {"window": str(Vec3.of(size))} | allowed]

    report_all("unets", (rows for each in windows for rows in measured(*each)), [ceilings], out)


def _network(name: str, size: int) -> Network:
    """Return a U-Net, computed in windows of that extent if one of its layers needs them."""
    network = UNETS[name]()
    if network.window_layer:
        return with_window(network, Window(Vec3.of(size), overlap=0))
    return network


def _predicted(space: Search, device: DeviceKind, accuracy: Accuracy, size: int) -> Row:
    """Return the row that predicts a window on a machine that is not here."""
    plan, machine = space.fastest_for(space.output), space.machine
    progress(f"{space.network.name}: predicted")
    row: Row = {
        "network": space.network.name,
        "processor": (machine.host if device == "cpu" else machine.gpus[0]).name,
        "window": str(Vec3.of(size)),
        "accuracy": accuracy,
    }
    if plan is None:
        return row | {"skipped": DOES_NOT_FIT}
    return row | {
        "predicted_seconds": plan.patch_seconds,
        "predicted_voxels_per_s": plan.patch.volume / plan.patch_seconds,
        "declared_gib": plan.device_memory.total / 2**30,
    }


def _compared(
    network: Network,
    plan: Plan,
    size: int,
    wanted: list[str] | None,
    effort: Effort,
) -> list[Row]:
    """Return a row for our plan, and for each peer."""
    weights, x = unet_weights(network), _window(network, size)
    progress(f"{network.name}: float64")
    exact = exact_output(network, weights, x)
    with TemporaryDirectory() as folder:
        found = peers(network, weights, x, plan.machine.host.threads, Path(folder))
        makers: dict[str, Callable[[], Compute]] = dict(found)
        ready: dict[str, Compute] = {OURS: _ours(plan, weights)}
        for name in _peers(wanted, makers):
            progress(f"{network.name}: making {name} ready")
            ready[name] = makers[name]()
        errors = {name: _error(compute(x), exact) for name, compute in ready.items()}
        timed = {name: stopwatch(partial(compute, x)) for name, compute in ready.items()}
        results = run_rounds(timed, effort, warm=ready, progress=progress)
    return [
        _row(network, name, result, exact, errors[name], plan if name == OURS else None)
        | {"window": str(Vec3.of(size))}
        for name, result in results.items()
    ]


def _peers(wanted: list[str] | None, makers: Collection[str]) -> list[str]:
    """Return the peers that are measured; by default all."""
    check_known("peer", wanted or [], (OURS, *makers))
    return [name for name in (makers if wanted is None else wanted) if name != OURS]


def _compared_on_gpu(
    network: Network,
    spaces: Mapping[Accuracy, Search],
    ceilings: AnyCeilings,
    size: int,
    wanted: list[str] | None,
    effort: Effort,
) -> Iterator[Row]:
    """Yield rows for our plans on a GPU, and for PyTorch's ways.

    Our windows come from the host's memory and go back to it. PyTorch's stay on the GPU.

    Args:
        network: the network.
        spaces: the plans that there are, by our class of accuracy.
        ceilings: those of the GPU.
        size: voxels of the window per axis.
        wanted: the peers, or ``znni`` for none; by default all.
        effort: how long to measure.
    """
    from bench.peers.torch_windows import torch_ways

    weights, x = unet_weights(network), _window(network, size)
    makers = torch_ways(network, weights)
    rivals = _peers(wanted, makers)
    progress(f"{network.name}: float64")
    exact = exact_output(network, weights, x, "cuda")
    free_torch_memory()
    for accuracy, space in spaces.items():
        progress(f"{network.name}: {OURS}, {accuracy}")
        ours = _our_row_on_gpu(space, ceilings, weights, x, exact, effort)
        yield ours | {"accuracy": accuracy}
    for name in rivals:
        progress(f"{network.name}: {name}")
        yield _row_of_peer(network, name, makers[name], x, exact, effort)
        free_torch_memory()


def _our_row_on_gpu(
    space: Search,
    ceilings: AnyCeilings,
    weights: Weights,
    x: Float32,
    exact: Any,
    effort: Effort,
) -> Row:
    """Return the row of our fastest plan that computes the whole output at once."""
    network = space.network
    plan = space.fastest_for(space.output)
    if plan is None:
        return {"network": network.name, "name": OURS, "skipped": DOES_NOT_FIT}
    blocks = PatchesOnGpu(plan, "float32", weights, reader(plan, x))
    result = Result(blocks.seconds(effort.repeats))
    error = _error(_cropped(plan, blocks.output), exact)
    by_layer = blocks.layer_seconds()
    row = _row(network, OURS, result, exact, error, plan) | {
        "layers_seconds": sum(by_layer.values()),
        "peak_gib": blocks.peak / 2**30,
        "steps": step_rows(plan, ceilings, by_layer),
    }
    del blocks
    release_gpu_memory()
    return row


def _row_of_peer(
    network: Network,
    name: str,
    make: Callable[[], TorchWindows],
    x: Float32,
    exact: Any,
    effort: Effort,
) -> Row:
    """Return the row of one of PyTorch's ways on a GPU, from a tensor there to another."""
    import torch

    try:
        peer = make()
        error = _error(peer.output(x), exact)
        work = partial(peer, peer.taken(torch.from_numpy(x)[None]))
        result = rounds_on_gpu(work, effort)
        return _row(network, name, result, exact, error, None) | {
            "peak_gib": gpu_peak_bytes(work) / 2**30
        }
    except RuntimeError as failure:  # out of memory, or cuDNN cannot
        return {
            "network": network.name, "name": name, "skipped": str(failure).splitlines()[0]
        }  # fmt: skip


def _window(network: Network, size: int) -> Float32:
    """Return noise for one window (f, z, y, x)."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((network.in_features, *Vec3.of(size)), dtype=np.float32)


def _row(
    network: Network, name: str, result: Result, exact: Any, error: float, plan: Plan | None
) -> Row:
    """Return a contestant's row; ``plan`` is ours."""
    voxels = exact[0].size
    return {
        "network": network.name,
        "name": name,
        **result.record(),
        "voxels_per_s": voxels / result.timing.median,
        "predicted_voxels_per_s": voxels / plan.patch_seconds if plan else None,
        "error": error,
        "declared_gib": plan.device_memory.total / 2**30 if plan else None,
    }


def _ours(plan: Plan, weights: Weights) -> Compute:
    """Return our own contestant: the plan's block, whose input is the whole window."""
    runner = prepare_alone(plan, weights)
    (work,) = runner.stages(Stopwatch())
    room = room_of(plan)

    def compute(x: Float32) -> Float32:
        made = work(reader(plan, x)(room))
        return _cropped(plan, made.maps() if plan.network.window else made)

    return compute


def reader(plan: Plan, x: Float32) -> Callable[[Room], Any]:
    """Return a function that reads a window as a run reads a block, with the zeros around it.

    Args:
        plan: the plan, whose first stage takes what the function returns.
        x: the window (f, z, y, x).
    """
    inside = Box(ZERO, Vec3(*x.shape[1:]))
    box = inside if plan.network.window else input_box(plan.network, plan.patch)
    common = inside.intersection(box)
    assert common is not None

    def read(room: Room) -> Any:
        given = room((len(x), *box.size))
        given.fill(0)
        given[:, *common.shifted(ZERO - box.start).slices] = x[:, *common.slices]
        if plan.network.window:
            return WindowedBlock(given, ZERO, Box(ZERO, plan.output), None)
        return placed(given, ZERO)

    return read


def _cropped(plan: Plan, made: Float32) -> Float32:
    """Return the window's output (f', z', y', x') from that of the plan's last stage."""
    return made[:, *Box(ZERO, plan.output).slices]


def _error(found: Any, exact: np.ndarray[Any, Any]) -> float:
    """Return the largest error, as a share of the largest magnitude."""
    return float(np.abs(found - exact).max() / np.abs(exact).max())
