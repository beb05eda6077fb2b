"""Options, progress and ceilings that the commands share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench.ceilings import AnyCeilings, measure_ceilings, measure_gpu_ceilings
from bench.record import Kind, Row, save
from bench.table import table
from znni.core.errors import InvalidInput
from znni.core.option_types import Accuracy, Costs, OutputType
from znni.core.plan_options import memory_size
from znni.core.processors import DeviceKind
from znni.machine.detect import detect_host, detect_machine
from znni.machine.gpus import why_no_gpu
from znni.machine.machine import Machine
from znni.primitives.catalogue import FAMILIES, catalogue

LEAST_BUDGET = 1e-3  # seconds: more than none
RAM = 16 << 30

Device = Annotated[DeviceKind, typer.Option("--device", help="Where layers run.")]
Kernels = Annotated[list[int], typer.Option("--kernel", min=1, help="Kernel extent; repeatable.")]
Batches = Annotated[
    list[int], typer.Option("--batch", min=1, help="Inputs times fragments; repeatable.")
]
Sizes = Annotated[
    list[int], typer.Option("--size", min=1, help="Input voxels per axis; repeatable.")
]
Features = Annotated[int, typer.Option(min=1, help="Input maps.")]
OutFeatures = Annotated[int, typer.Option(min=1, help="Output maps.")]
Only = Annotated[list[str] | None, typer.Option(help="A primitive; repeatable. Default: all.")]
Peer = Annotated[list[str] | None, typer.Option(help="A peer; repeatable. Default: all.")]
Proposals = Annotated[
    int | None,
    typer.Option(
        min=1, help="Engines of cuDNN that PyTorch's autotuning tries on a GPU. Default: 10."
    ),
]
Nets = Annotated[list[Path], typer.Option("--net", help="Network file; repeatable.")]
Volume = Annotated[
    int, typer.Option("--size", min=1, help="Voxels per axis of the volume planned for.")
]
VolumeByDevice = Annotated[
    int | None,
    typer.Option(
        "--size",
        min=1,
        help="Voxels per axis of the volume planned for. Default: 512, on a GPU 2048.",
    ),
]
Ram = Annotated[
    int,
    typer.Option(
        parser=memory_size,
        metavar="SIZE",
        show_default="16GiB",
        help="Memory that a plan may take.",
    ),
]
RamByDevice = Annotated[
    int | None,
    typer.Option(
        parser=memory_size,
        metavar="SIZE",
        help="Memory of the host that a plan may take. Default: 16GiB, on a GPU what there is.",
    ),
]
RamLimits = Annotated[
    list[int],
    typer.Option("--ram", parser=memory_size, metavar="SIZE", help="Limit; repeatable."),
]
GpuMemory = Annotated[
    int | None,
    typer.Option(
        parser=memory_size, metavar="SIZE", help="Memory of the GPU that a plan may take."
    ),
]
Patch = Annotated[
    int | None, typer.Option(min=1, help="Plan for an output of so many voxels per axis.")
]
PlanFile = Annotated[Path | None, typer.Option(help="Run this plan, made by znni plan --out.")]
AccuracyClass = Annotated[
    Accuracy, typer.Option("--accuracy", help="Accuracy class of the primitives.")
]
Written = Annotated[
    OutputType | None, typer.Option("--dtype", help="Type of a GPU's output. Default: float32.")
]
CostsChoice = Annotated[
    Costs, typer.Option("--costs", help="Costs of the model that predicts times.")
]
Families = Annotated[
    list[str] | None,
    typer.Option("--family", help="A family of primitives; repeatable. Default: all."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Worker threads. Default: all cores.")]
ThreadCounts = Annotated[
    list[int], typer.Option("--threads", min=1, help="Worker threads; repeatable.")
]
Repeats = Annotated[int, typer.Option(min=1, help="Counted rounds.")]
Budget = Annotated[
    float, typer.Option(min=LEAST_BUDGET, help="Seconds for the counted rounds of one contestant.")
]
Folder = Annotated[
    Path | None,
    typer.Option(file_okay=False, exists=True, help="Where to write. Default: a temporary folder."),
]
Out = Annotated[Path | None, typer.Option(dir_okay=False, help="Save the JSON here.")]


def refuse(device: DeviceKind, **given: object) -> None:
    """Refuse options that do nothing with a device.

    Args:
        device: what was chosen.
        given: the options that are for other devices, by name.

    Raises:
        InvalidInput: one of them was given.
    """
    for name, value in given.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise InvalidInput(f"{option} does nothing with --device {device}; leave it out")


def check_known(option: str, names: Iterable[str], known: Collection[str]) -> None:
    """Check that an option's values are among its choices.

    Raises:
        InvalidInput: one is not.
    """
    for name in names:
        if name not in known:
            raise InvalidInput(f"--{option} {name} is unknown; choose from {', '.join(known)}")


def check_primitives(names: list[str], machine: Machine) -> None:
    """Check that the catalogue has these.

    Raises:
        InvalidInput: a name that is none of its primitives.
    """
    check_known("only", names, sorted(catalogue(machine)))


def known_families(names: list[str] | None) -> list[str]:
    """Return the families asked for.

    Raises:
        InvalidInput: there is none with one of these names.
    """
    check_known("family", names or [], FAMILIES)
    return names or []


def machine_with(device: DeviceKind, threads: int | None) -> Machine:
    """Return this machine, with its GPUs if layers run there.

    Raises:
        InvalidInput: it has no GPU that can be used, and needs one.
    """
    if device == "cpu":
        return detect_host(threads=threads)
    machine = detect_machine(threads=threads)
    if not machine.gpus:
        raise InvalidInput(f"this needs a GPU: {why_no_gpu()}")
    return machine


def ceilings_with(device: DeviceKind, threads: int) -> AnyCeilings:
    """Measure the ceilings of the CPU with so many threads, or of the GPU, and print them."""
    ceilings = measure_ceilings(threads) if device == "cpu" else measure_gpu_ceilings()
    typer.echo(ceilings)
    return ceilings


def ceilings_of(device: DeviceKind, threads: int, known: list[AnyCeilings]) -> AnyCeilings:
    """Return the ceilings that apply; measure them, and add them, if they are not yet known."""
    for ceilings in known:
        if device == "gpu" or ceilings.about == {"threads": threads}:
            return ceilings
    known.append(ceilings_with(device, threads))
    return known[-1]


def progress(what: str) -> None:
    """Tell what is done next."""
    typer.echo(f"... {what}", err=True)


def report_all(
    kind: Kind, measured: Iterable[list[Row]], ceilings: Sequence[AnyCeilings], out: Path | None
) -> None:
    """Print the table of each measurement, and save it with those before it."""
    rows: list[Row] = []
    for found in measured:
        typer.echo(table(kind, found))
        rows += found
        save_to(out, kind, rows, ceilings)


def save_to(out: Path | None, kind: Kind, rows: list[Row], ceilings: Sequence[AnyCeilings]) -> None:
    """Save rows, if a file was given."""
    if out:
        save(out, kind, rows, ceilings)
