"""The best plan of each strategy of the paper, predicted and run, beside what ZNNi reached."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from bench import session
from bench.accuracy import patch_input
from bench.paper.published import GPU_LAYERS, published
from bench.paper.whole_jobs import PLAN, run_whole, with_places
from bench.patches import release_gpu_memory
from bench.record import Row, load
from planner.partition import CutPoint
from planner.search import Search
from znni.core.errors import InvalidInput, ZnniError
from znni.core.memory_errors import DoesNotFit
from znni.core.option_types import Accuracy, Costs
from znni.core.plan_options import memory_size
from znni.core.processors import Processors
from znni.core.shapes import Vec3
from znni.engine.block import Block, alone
from znni.engine.patch_runner import PatchRunner
from znni.engine.stage_chain import passing_items, run_stages
from znni.engine.stopwatch import Stopwatch
from znni.inference.planning import fastest, search
from znni.machine.arrays import peak_memory
from znni.machine.machine import Machine
from znni.machine.machine_choice import machine_for
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import random_weights
from znni.plans.plan import Plan
from znni.primitives.catalogue import FAMILIES, catalogue, families

HOST_RAM = "GPU + host RAM"

# True for the cut points of a strategy, in a network of so many layers.
STRATEGIES: dict[str, Callable[[CutPoint, int], bool]] = {
    "CPU-only": lambda place, layers: not place.host_uses_gpu and place.layers_on_host == layers,
    "GPU-only": lambda place, _: place.layers_on_host == 0,
    HOST_RAM: lambda place, _: place.host_uses_gpu,
    "CPU-GPU": lambda place, layers: not place.host_uses_gpu and 0 < place.layers_on_host < layers,
}

# Patches that are run. The first is not counted. Two are always run.
PATCHES = 4
LEAST_PATCHES = 2

# The strategies whose layers are on these devices.
DEVICES: dict[Processors, str] = {"cpu": "CPU-only", "gpu": "GPU-only", "cpu+gpu": "CPU-GPU"}


def machine_plans_command(
    net: session.Nets,
    machine: Annotated[
        list[Path] | None, typer.Option(help="A machine's file; repeatable. Default: this one.")
    ] = None,
    family: session.Families = None,
    device: Annotated[
        list[str] | None,
        typer.Option(help="cpu, gpu or cpu+gpu; repeatable. Default: all that the machine has."),
    ] = None,
    accuracy: session.AccuracyClass = "float32",
    size: session.Volume = 2048,
    costs: session.CostsChoice = "built-in",
    out: session.Out = None,
) -> None:
    """Plan for machines and their devices.

    Rows have what ZNNi reached on the paper's machine, too.
    """
    among = session.known_families(family)
    session.check_known("device", device or [], DEVICES)
    networks = [load_network(path) for path in net]

    def planned(file: Path | None) -> list[Row]:
        has_gpu = bool(machine_for(file, None, None).gpus)
        there: list[Processors] = list(DEVICES) if has_gpu else ["cpu"]
        kinds = [kind for kind in there if not device or kind in device]
        session.progress(f"planning for {file or 'this machine'}")
        return [
            plan_on(each, size, file, kind, costs, among, accuracy)
            for kind, each in product(kinds, networks)
        ]

    files: list[Path | None] = [*machine] if machine else [None]
    session.report_all("machine-plans", map(planned, files), [], out)


def strategies_command(
    net: session.Nets,
    machine: Annotated[
        Path | None, typer.Option(help="A machine's file. Default: this one.")
    ] = None,
    ram: Annotated[
        int | None, typer.Option(parser=memory_size, metavar="SIZE", help="Limit of the host.")
    ] = None,
    gpu_memory: Annotated[
        list[int] | None,
        typer.Option(parser=memory_size, metavar="SIZE", help="Limit of the GPU; repeatable."),
    ] = None,
    size: session.Volume = 1024,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(STRATEGIES)}; repeatable. Default: all."),
    ] = None,
    costs: session.CostsChoice = "built-in",
    out: session.Out = None,
) -> None:
    """Find the best plan of each strategy.

    These are the strategies of Table V of the paper. Rows have what ZNNi reached, too.
    """
    session.check_known("only", only or [], STRATEGIES)

    def compared(limit: int | None, path: Path) -> list[Row]:
        network = load_network(path)
        session.progress(f"planning {network.name}")
        wanted = only or list(STRATEGIES)
        return compare_strategies(network, size, machine, ram, limit, costs, wanted)

    limits: list[int | None] = [*gpu_memory] if gpu_memory else [None]
    session.report_all("strategies", (compared(*one) for one in product(limits, net)), [], out)


def run_strategies_command(
    planned: Annotated[
        list[Path], typer.Argument(help="JSON files of python -m bench paper strategies.")
    ],
    each: Annotated[
        float, typer.Option(min=0, help="Seconds of a plan; two patches are always run.")
    ] = 10.0,
    seconds: Annotated[
        float, typer.Option(min=0, help="No plan is begun after so many seconds.")
    ] = 3600.0,
    whole: Annotated[
        bool, typer.Option("--whole", help="Run whole jobs by znni infer, not some patches.")
    ] = False,
    out: session.Out = None,
) -> None:
    """Run patches of plans that ``strategies`` made, or whole jobs.

    Rows name the command and revision that made the plans, so that they can be made again. Those of
    whole jobs have the places of the strategies by predicted and by measured time.
    """
    rows = [
        row | {"planned_by": made.about["command"], "planned_at": made.about["revision"]}
        for made in (load(path, "strategies") for path in planned)
        for row in made.rows
    ]
    if whole:
        session.report_all("strategies", [with_places(list(run_whole(rows, seconds)))], [], out)
        return
    found = ([row] for row in run_planned(rows, each, seconds))
    session.report_all("strategies", found, [], out)


def compare_strategies(
    network: Network,
    size: int,
    machine: Path | None,
    ram: int | None,
    gpu_memory: int | None,
    costs: Costs,
    only: Sequence[str] = tuple(STRATEGIES),
) -> list[Row]:
    """Return a row for each strategy, which holds its plan.

    Args:
        network: to plan for.
        size: voxels per axis of the volume.
        machine: a machine's file; by default this one.
        ram: bytes of the host that a plan may take; by default all.
        gpu_memory: bytes of the GPU that a plan may take; by default all.
        costs: costs of the model that predicts times.
        only: the strategies wanted.

    Raises:
        InvalidInput: there is no GPU, neither here nor in the machine's file.
    """
    found = search(
        network,
        (size,) * 3,
        machine=machine,
        ram=ram,
        gpu_memory=gpu_memory,
        costs=costs,
    )
    if not found.machine.gpus:
        raise InvalidInput("strategies needs a GPU, here or in a machine's file (--machine)")
    layers = len(network.layers)
    rows = []
    for strategy in only:
        passes = STRATEGIES[strategy]
        row: Row = {
            "network": network.name,
            "strategy": strategy,
            "volume": str(Vec3.of(size)),
            "gpu_limit_gib": found.machine.gpus[0].memory / 2**30,
            "published_voxels_per_s": published(network.name, f"ZNNi {strategy}"),
        }
        wanted = [place for place in found.cut_points if passes(place, layers)]
        try:
            among = without_convolutions_of_host(found) if strategy == HOST_RAM else found
            rows.append(row | _predicted(_fastest(among, wanted)))
        except DoesNotFit as error:
            rows.append(row | {"skipped": str(error)})
    return rows


def _fastest(found: Search, places: Sequence[CutPoint]) -> Plan:
    """Return the fastest plan with one of these cut points.

    Each is searched alone, so that the limit of prices ends no search before all were tried.
    """
    best: Plan | None = None
    failed: DoesNotFit | None = None
    for place in reversed(places):
        try:
            best = found.through([place]).fastest(known=best)[0]
        except DoesNotFit as error:
            failed = failed or error
    if best is None:
        raise failed or InvalidInput("no layers may be there")
    return best


def run_planned(rows: Sequence[Row], each: float, seconds: float) -> Iterator[Row]:
    """Yield rows with what some patches of their plans took, without the plans.

    Args:
        rows: from ``compare_strategies``.
        each: seconds after which no more patches of a plan are begun, except the first two.
        seconds: time after which no more plans are begun.
    """
    until = perf_counter() + seconds
    for planned in rows:
        row = {name: value for name, value in planned.items() if name != PLAN}
        if PLAN in planned:
            session.progress(f"{row['network']}, {row['strategy']}")
            row |= _measured(Plan.from_json(planned[PLAN]), each, until)
        yield row


def _measured(plan: Plan, seconds: float, until: float) -> Row:
    if perf_counter() > until:
        return {"skipped": "no time was left"}
    try:
        return _run(plan, seconds)
    except (ZnniError, MemoryError) as error:
        return {"skipped": str(error)}


def without_convolutions_of_host(found: Search) -> Search:
    """Search among plans whose layers on the host are computed on the GPU, except poolings."""
    of_host = tuple(chain(*FAMILIES.values()))
    return found.among([name for name in found.catalogue if not name.startswith(of_host)])


def _predicted(plan: Plan) -> Row:
    row: Row = {
        "theta": plan.layers_on_host,
        "patch": str(plan.patch),
        "predicted_voxels_per_s": plan.voxels_per_second,
        "declared_gib": plan.memory.total / 2**30,
        PLAN: plan.to_json(),
        "on_gpu": ", ".join(s.operation.name for s in plan.steps if s.uses_gpu) or "none",
    }
    if plan.gpu_memory:
        row["gpu_declared_gib"] = plan.gpu_memory.total / 2**30
    return row


def _run(plan: Plan, enough: float) -> Row:
    """Time a patch while all stages are at work, with the peak memory of host and GPU."""
    gc.collect()  # what the last plan's runner held
    free = release_gpu_memory() if plan.gpu_memory else 0
    with peak_memory() as peak:
        building = perf_counter()
        runner = PatchRunner(plan, catalogue(plan.machine), random_weights(plan.network, 0))
        block, done = alone(patch_input(plan.network, plan.patch)), list[float]()
        layers = map(passing_items, runner.stages(Stopwatch()))
        stages = [*layers, lambda _: done.append(perf_counter())]
        begun = perf_counter()

        def blocks() -> Iterator[Block]:
            for index in range(PATCHES):
                if index < LEAST_PATCHES or perf_counter() - begun < enough:
                    yield block

        run_stages(blocks(), stages, here=0)
    seconds = (done[-1] - done[0]) / (len(done) - 1)
    row: Row = {
        "building_seconds": begun - building,
        "patches": len(done),
        "seconds": seconds,
        "voxels_per_s": plan.patch.volume / seconds,
        "peak_gib": peak.highest / 2**30,
    }
    if plan.gpu_memory:
        row["gpu_peak_gib"] = (free - release_gpu_memory()) / 2**30
    return row


def plan_on(
    network: Network,
    size: int,
    machine: Path | None,
    device: Processors,
    costs: Costs,
    among: Sequence[str] = (),
    accuracy: Accuracy = "float32",
) -> Row:
    """Return a row for the fastest plan on a device, with the primitive of each layer.

    Args:
        network: to plan for.
        size: voxels per axis of the volume.
        machine: a machine's file; by default this one.
        device: where the layers run.
        costs: costs of the model that predicts times.
        among: families of primitives to choose from; none for all.
        accuracy: class of the primitives.
    """
    started = search(
        network, (size,) * 3, machine=machine, device=device, costs=costs, accuracy=accuracy
    )
    row: Row = {
        "network": network.name,
        "processor": _name(started.machine, device),
        "primitives": " + ".join(among) or "all",
        "class": accuracy,
        "published_voxels_per_s": published(network.name, f"ZNNi {DEVICES[device]}"),
    }
    try:
        plan = fastest(of_families(started, among))[0]
    except DoesNotFit as error:
        return row | {"skipped": str(error)}
    return row | {
        "predicted_voxels_per_s": plan.voxels_per_second,
        "layers_voxels_per_s": plan.patch.volume
        / sum(runs * step.seconds for segment, runs in plan.runs() for step in segment.steps),
        "patch": str(plan.patch),
        "declared_gib": plan.device_memory.total / 2**30,
        "layers": ", ".join(f"{step.operation.name} {step.primitive}" for step in plan.steps),
        "published_layers": GPU_LAYERS.get(network.name) if device == "gpu" else None,
    }


def of_families(started: Search, names: Sequence[str]) -> Search:
    """Return the search among some families of primitives, with those for pooling; none for all."""
    if not names:
        return started
    known = families(started.catalogue)
    return started.among(set[str]().union(*(known.get(name, ()) for name in names)))


def _name(machine: Machine, device: Processors) -> str:
    gpu = [machine.gpus[0].name] if device != "cpu" else []
    return " + ".join([machine.host.name, *gpu] if device != "gpu" else gpu)
