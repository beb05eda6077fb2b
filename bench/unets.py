"""U-Nets on one whole window: the plan's block beside PyTorch, ONNX Runtime and OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray

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
from planner.search import Search
from znni.core.errors import InvalidInput
from znni.core.option_types import ACCURACIES, Accuracy
from znni.core.processors import DeviceKind
from znni.core.shapes import ZERO, Box, Vec3
from znni.engine.block import Block, alone
from znni.engine.patch_runner import allocator_for
from znni.engine.stopwatch import Stopwatch
from znni.engine.tiles import Allocate
from znni.inference.build_runner import prepare_alone
from znni.inference.planning import fastest, search
from znni.network.geometry import context, input_box, with_window
from znni.network.network import Network
from znni.network.weights import Float32, Weights
from znni.network.window import Window
from znni.plans.plan import Plan

if TYPE_CHECKING:
    from bench.peers.torch_windows import TorchWindows

OURS = "znni"
DOES_NOT_FIT = "no plan for a window in one block fits into the memory"

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
Batch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Windows side by side, of which each contestant computes at once as many as suit it.",
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
    batch: Batch = None,
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

    With ``--batch`` there are several windows on a GPU. Our planner chooses how many of them are
    computed at once. Peers compute one at a time and all at once, and the faster way counts. A
    network that does not keep the size of a window is always compared on one.
    """
    check_known("net", net or [], UNETS)
    check_known("accuracy", accuracy, ACCURACIES)
    if device == "cpu":
        refuse(device, gpu_memory=gpu_memory, batch=batch)
    classes: list[Accuracy] = [each for each in ACCURACIES if each in accuracy]
    windows = [
        _windows(name, size, batch or 1)
        for name in net or UNETS
        for size in window or [WINDOWS[device] + VALID_MORE * (name == "valid-unet")]
    ]

    def planned(windows: Windows, allowed: Accuracy, there: Path | None = None) -> Search:
        limit = ram or (RAM if device == "cpu" else None)
        space = search(
            windows.network, windows.volume, ram=limit, threads=threads, device=device,
            costs=costs, accuracy=allowed, gpu_memory=gpu_memory, machine=there,
        )  # fmt: skip
        # A job of many windows transforms kernels once, so that time is left out.
        once = replace(space.overhead.once, resident=0.0)
        space.overhead = replace(space.overhead, once=once)
        return space

    if machine:
        predicted = (
            [_predicted(planned(each, allowed, there), device, allowed) | each.columns]
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

    def measured(windows: Windows) -> Iterator[list[Row]]:
        spaces = {each: planned(windows, each) for each in classes}
        if device == "cpu":
            for space in spaces.values():
                rows = _compared(windows, fastest(space)[0], peer, effort)
                yield [row | windows.columns for row in rows]
            return
        for row in _compared_on_gpu(windows, spaces, ceilings, peer, effort):
            allowed = {"allowed_gib": gpu_memory / 2**30} if gpu_memory else {}
            yield [row | windows.columns | allowed]

    report_all("unets", (rows for each in windows for rows in measured(each)), [ceilings], out)


class Windows(NamedTuple):
    """Windows of a U-Net, side by side along z.

    Attributes:
        network: the network. Windows that are side by side are a part of it.
        size: the extents of a window.
        number: the number of windows.
    """

    network: Network
    size: Vec3
    number: int

    @property
    def volume(self) -> Vec3:
        """The extents of all windows."""
        return self.size._replace(z=self.number * self.size.z)

    @property
    def columns(self) -> Row:
        """The columns of a row that say which windows there are."""
        return {"window": str(self.size), "windows": self.number}

    def noise(self) -> Float32:
        """Return noise for all windows (n, f, z, y, x)."""
        shape = self.number, self.network.in_features, *self.size
        return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def _windows(name: str, extent: int, count: int) -> Windows:
    """Return windows of a U-Net: several if it keeps their size, else one.

    A network is computed in windows if there are several, or if one of its layers needs them.
    """
    network, size = UNETS[name](), Vec3.of(extent)
    if context(network) != ZERO:
        count = 1
    if count > 1 or network.window_layer:
        network = with_window(network, Window(size, overlap=0))
    return Windows(network, size, count)


def side_by_side(windows: NDArray[Any]) -> NDArray[Any]:
    """Return windows (n, f, z, y, x) as one array (f, n z, y, x)."""
    return np.concatenate(list(windows), axis=1)


def _predicted(space: Search, device: DeviceKind, accuracy: Accuracy) -> Row:
    """Return the row that predicts windows on a machine that is not here."""
    plan, machine = space.fastest_for(space.output), space.machine
    progress(f"{space.network.name}: predicted")
    row: Row = {
        "network": space.network.name,
        "processor": (machine.host if device == "cpu" else machine.gpus[0]).name,
        "accuracy": accuracy,
    }
    if plan is None:
        return row | {"skipped": DOES_NOT_FIT}
    return row | {
        "batch": plan.network.together,
        "predicted_seconds": predicted_seconds(plan),
        "predicted_voxels_per_s": plan.patch.volume / predicted_seconds(plan),
        "declared_gib": plan.device_memory.total / 2**30,
    }


def predicted_seconds(plan: Plan) -> float:
    """Return the predicted seconds of the layers for all windows of a block."""
    return plan.layer_runs * plan.patch_seconds


def _compared(windows: Windows, plan: Plan, wanted: list[str] | None, effort: Effort) -> list[Row]:
    """Return a row for our plan, and for each peer."""
    network = windows.network
    weights, (x,) = unet_weights(network), windows.noise()
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
        for name, result in results.items()
    ]


def _peers(wanted: list[str] | None, makers: Collection[str]) -> list[str]:
    """Return the peers that are measured; by default all."""
    check_known("peer", wanted or [], (OURS, *makers))
    return [name for name in (makers if wanted is None else wanted) if name != OURS]


def _compared_on_gpu(
    windows: Windows,
    spaces: Mapping[Accuracy, Search],
    ceilings: AnyCeilings,
    wanted: list[str] | None,
    effort: Effort,
) -> Iterator[Row]:
    """Yield rows for our plans on a GPU, and for PyTorch's ways.

    Our windows come from the host's memory and go back to it. PyTorch's stay on the GPU.

    Args:
        windows: the windows.
        spaces: the plans that there are, by our class of accuracy.
        ceilings: those of the GPU.
        wanted: the peers, or ``znni`` for none; by default all.
        effort: how long to measure.
    """
    from bench.peers.torch_windows import torch_ways

    network = windows.network
    weights, x = unet_weights(network), windows.noise()
    makers = torch_ways(network, weights)
    rivals = _peers(wanted, makers)
    progress(f"{network.name}: float64")
    exact = np.stack([exact_output(network, weights, each, "cuda") for each in x])
    free_torch_memory()
    for accuracy, space in spaces.items():
        progress(f"{network.name}: {OURS}, {accuracy}")
        ours = _our_row_on_gpu(
            space, ceilings, weights, side_by_side(x), side_by_side(exact), effort
        )
        yield ours | {"accuracy": accuracy}
    for name in rivals:
        progress(f"{network.name}: {name}")
        rows = [
            _row_of_peer(network, name, makers[name], x[:count], exact[:count], effort)
            for count in sorted({1, windows.number})
        ]
        yield max(rows, key=lambda row: row.get("voxels_per_s", 0.0))


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
        "batch": plan.network.together,
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
    """Return the row of one of PyTorch's ways on a GPU, from a tensor there to another.

    Args:
        network: the network.
        name: the name of the way.
        make: makes it ready.
        x: windows (n, f, z, y, x), which it computes at once.
        exact: their exact output (n, f', z', y', x').
        effort: how long to measure.
    """
    import torch

    try:
        peer = make()
        taken = peer.taken(torch.from_numpy(x))
        error = _error(peer(taken).float().cpu().numpy(), exact)
        work = partial(peer, taken)
        result = rounds_on_gpu(work, effort)
        return _row(network, name, result, side_by_side(exact), error, None) | {
            "batch": len(x),
            "peak_gib": gpu_peak_bytes(work) / 2**30,
        }
    except RuntimeError as failure:  # out of memory, or cuDNN cannot
        return {
            "network": network.name, "name": name, "skipped": str(failure).splitlines()[0]
        }  # fmt: skip
    finally:
        free_torch_memory()


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
        "predicted_voxels_per_s": voxels / predicted_seconds(plan) if plan else None,
        "error": error,
        "declared_gib": plan.device_memory.total / 2**30 if plan else None,
    }


def _ours(plan: Plan, weights: Weights) -> Compute:
    """Return our own contestant: the plan's block, whose input is the whole window."""
    runner = prepare_alone(plan, weights)
    (work,) = runner.stages(Stopwatch())
    allocate = allocator_for(plan)

    def compute(x: Float32) -> Float32:
        made = work(reader(plan, x)(allocate))
        return _cropped(plan, made.maps() if plan.network.window else made)

    return compute


def reader(plan: Plan, x: Float32) -> Callable[[Allocate], Block]:
    """Return a function that reads a window as a run reads a block, with the zeros around it.

    Args:
        plan: the plan, whose first stage takes what the function returns.
        x: the window (f, z, y, x).
    """
    inside = Box(ZERO, Vec3(*x.shape[1:]))
    box = inside if plan.network.window else input_box(plan.network, plan.patch)
    common = inside.intersection(box)
    assert common is not None

    def read(allocate: Allocate) -> Block:
        given = allocate((len(x), *box.size))
        given.fill(0)
        given[:, *common.shifted(ZERO - box.start).slices] = x[:, *common.slices]
        if plan.network.window:
            return alone(given)._replace(written=Box(ZERO, plan.output))
        return alone(given)

    return read


def _cropped(plan: Plan, made: Float32) -> Float32:
    """Return the window's output (f', z', y', x') from that of the plan's last stage."""
    return made[:, *Box(ZERO, plan.output).slices]


def _error(found: Any, exact: np.ndarray[Any, Any]) -> float:
    """Return the largest error, as a share of the largest magnitude."""
    return float(np.abs(found - exact).max() / np.abs(exact).max())
