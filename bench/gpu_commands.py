"""``python -m bench gpu-layers``: measurements on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated

import typer

from bench import options
from bench.gpu_ceilings import measure_gpu_ceilings
from bench.gpu_exercise import exercise, recombined
from bench.gpu_layers import compare_gpu_layer, nanoseconds
from bench.gpu_memory import kept_beside
from bench.gpu_networks import Settings, compare_gpu_network
from bench.gpu_profile import profile_on_gpu
from bench.gpu_torch import NAMES, PROPOSALS
from bench.layers import check_primitives
from bench.networks import volume_for
from bench.record import Row
from bench.rounds import Effort
from bench.session import layers_of, progress, report_all, save_to
from bench.table import table
from bench.torch_settings import LAYOUTS, has_torch
from znni.core.errors import InvalidInput, RunFailed
from znni.core.options import Accuracy, Costs, OutputType, memory_size
from znni.inference import planning
from znni.machine.detect import detect_machine
from znni.machine.gpus import why_no_gpu
from znni.machine.machine import Machine
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.plans.plan import Plan
from znni.plans.primitive import Primitive, on_device
from znni.primitives.catalogue import catalogue

Proposals = Annotated[
    int, typer.Option(min=1, help="Of cuDNN's engines, among which PyTorch is autotuned.")
]
GpuMemory = Annotated[
    int | None,
    typer.Option(parser=memory_size, metavar="SIZE", help="Of the GPU, for our plan."),
]


def machine_with_gpu() -> Machine:
    """This machine.

    Raises:
        InvalidInput: it has no GPU that can be used.
    """
    machine = detect_machine()
    if not machine.gpus:
        raise InvalidInput(f"this needs a GPU: {why_no_gpu()}")
    return machine


def primitives_here(only: list[str]) -> list[Primitive]:
    """Those for the GPU, or some of them.

    Raises:
        InvalidInput: there is no GPU, or no primitive of such a name.
    """
    machine = machine_with_gpu()
    check_primitives(only, machine)
    found = on_device(catalogue(machine), "gpu").values()
    return [primitive for primitive in found if primitive.name in (only or [primitive.name])]


def gpu_layers_command(
    kernel: options.Kernels,
    batch: options.Batches = [64],  # noqa: B006
    size: options.Sizes = [34],  # noqa: B006
    features: options.Features = 80,
    out_features: options.OutFeatures = 80,
    pool: Annotated[
        int | None, typer.Option(min=1, help="Pool by so many voxels per axis.")
    ] = None,
    only: options.Only = None,
    peers: Annotated[bool, typer.Option(help="PyTorch, too.")] = True,
    peer: Annotated[
        list[str] | None, typer.Option(help="PyTorch's of these only; repeatable.")
    ] = None,
    proposals: Proposals = PROPOSALS,
    repeats: options.Repeats = 5,
    budget: options.Budget = 3.0,
    out: options.Out = None,
) -> None:
    """Every primitive for GPUs on one convolution, beside PyTorch's; the fastest first."""
    primitives = primitives_here(only or [])
    check_known("peer", peer or [], NAMES)
    rivals = tuple(peer or NAMES) if peers else ()
    ceilings = measure_gpu_ceilings()
    typer.echo(ceilings)
    effort = Effort(repeats, budget)

    rows: list[Row] = []
    for operation, shape in layers_of(kernel, batch, size, features, out_features, pool):
        before = list(rows)
        for row in compare_gpu_layer(
            primitives, operation, shape, effort, ceilings, rivals, proposals
        ):
            progress(f"{row['name']}: {nanoseconds(row):.3f} ns/voxel")
            rows = before + sorted([*rows[len(before) :], row], key=nanoseconds)
            save_to(out, "gpu-layers", rows, [ceilings])
        typer.echo(table("gpu-layers", rows[len(before) :]))


def gpu_exercise_command(
    only: options.Only = None,
    poison: Annotated[bool, typer.Option(help="Fill the memory with NaN before each run.")] = True,
    out: options.Out = None,
) -> None:
    """Every primitive for GPUs on small layers, held to the reference; for compute-sanitizer."""
    rows = exercise(primitives_here(only or []), poison=poison) + recombined()
    report_all("gpu-exercise", [rows], [], out)
    failed = [row["name"] for row in rows if not row["passed"]]
    if failed:
        raise RunFailed(f"not as the reference: {', '.join(failed)}; see the rows above")


def gpu_memory_command(only: options.Only = None, out: options.Out = None) -> None:
    """Memory of the GPU that code and libraries of each primitive keep beside what it declares."""
    rows = list(kept_beside(primitives_here(only or [])))
    report_all("gpu-memory", [rows], [], out)


def gpu_plan(
    network: Network,
    size: int,
    patch: int | None,
    gpu_memory: int | None,
    costs: Costs,
    accuracy: Accuracy,
    dtype: OutputType,
) -> Plan:
    """The best plan of all layers on the GPU, for a volume as ``volume_for`` has it."""
    progress(f"planning {network.name}")
    return planning.plan(
        network,
        volume_for(network, size, patch),
        dtype=dtype,
        device="gpu",
        gpu_memory=gpu_memory,
        costs=costs,
        accuracy=accuracy,
    )


def gpu_networks_command(
    net: options.Nets,
    size: options.Volume = 2048,
    patch: options.Patch = None,
    gpu_memory: GpuMemory = None,
    costs: options.CostsChoice = "auto",
    accuracy: options.AccuracyClass = "float32",
    dtype: options.Written = "float32",
    ours: Annotated[bool, typer.Option(help="Our own patches, too.")] = True,
    peer: Annotated[list[str] | None, typer.Option(help="Repeatable. Default: all.")] = None,
    layout: Annotated[
        list[str] | None, typer.Option(help="Of PyTorch's arrays; repeatable. Default: both.")
    ] = None,
    extent: Annotated[
        list[int], typer.Option(min=1, help="Of PyTorch's patches, likeliest first; repeatable.")
    ] = [384, 512, 256],  # noqa: B006
    proposals: Proposals = PROPOSALS,
    repeats: options.Repeats = 3,
    budget: options.Budget = 60.0,
    out: options.Out = None,
) -> None:
    """The best plan's patches for whole networks, beside PyTorch's at their best, on one GPU."""
    machine_with_gpu()
    settings = checked_settings(peer or [], layout or [], extent, proposals)
    ceilings = measure_gpu_ceilings()
    typer.echo(ceilings)
    effort = Effort(repeats, budget)

    def compared(path: Path) -> Iterator[Row]:
        network = load_network(path)
        if not ours:
            return compare_gpu_network(network, None, settings, effort, dtype, progress)
        plan = gpu_plan(network, size, patch, gpu_memory, costs, accuracy, dtype)
        return compare_gpu_network(network, plan, settings, effort, dtype, progress)

    rows = ([row] for path in net for row in compared(path))
    report_all("gpu-networks", rows, [ceilings], out)


def gpu_profile_command(
    net: options.Nets,
    size: options.Volume = 2048,
    patch: options.Patch = None,
    gpu_memory: GpuMemory = None,
    costs: options.CostsChoice = "auto",
    accuracy: options.AccuracyClass = "float32",
    dtype: options.Written = "float32",
    repeats: options.Repeats = 3,
    out: options.Out = None,
) -> None:
    """Where the best plan's patches on a GPU spend their time, beside what was predicted."""
    machine_with_gpu()
    ceilings = measure_gpu_ceilings()
    typer.echo(ceilings)

    def profiled(path: Path) -> list[Row]:
        network = load_network(path)
        plan = gpu_plan(network, size, patch, gpu_memory, costs, accuracy, dtype)
        progress(f"{network.name}, by times {plan.costs}")
        return profile_on_gpu(plan, ceilings, repeats, dtype)

    report_all("profile", map(profiled, net), [ceilings], out)


def checked_settings(
    names: list[str], layouts: list[str], extents: list[int], proposals: int
) -> Settings:
    """What PyTorch is tried with: what is asked for, or all there are.

    Raises:
        InvalidInput: PyTorch is not installed, or a name is none of its peers or layouts.
    """
    if not has_torch():
        raise InvalidInput("PyTorch is not installed: pip install -e '.[peers]'")
    from bench.gpu_torch_network import NAMES as NETWORK_NAMES

    check_known("peer", names, NETWORK_NAMES)
    check_known("layout", layouts, LAYOUTS)
    names, layouts = names or list(NETWORK_NAMES), layouts or list(LAYOUTS)
    return Settings(tuple(names), tuple(layouts), tuple(extents), proposals)


def check_known(option: str, names: list[str], known: Collection[str]) -> None:
    """Check that an option's values are among its choices.

    Raises:
        InvalidInput: one is not.
    """
    for name in names:
        if name not in known:
            raise InvalidInput(f"--{option} {name} is unknown; choose from {', '.join(known)}")
