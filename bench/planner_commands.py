"""The commands about the planner: how long it searches, and what its choices gain."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from bench import options
from bench.ceilings import Ceilings
from bench.machine_plans import STRATEGIES, plan_on
from bench.record import Row, load
from bench.rounds import Effort
from bench.searches import compare_shares, time_search
from bench.session import ceilings_of, progress, report_all, top_plans
from bench.strategies import STRATEGIES as PAPERS
from bench.strategies import compare_strategies, run_planned
from bench.top_plans import compare_plans
from znni.core.errors import InvalidInput
from znni.core.options import DeviceChoice, Division, memory_size
from znni.inference.planning import search
from znni.machine.machine import Processors
from znni.machine.machine_file import machine_for
from znni.network.network_file import load_network
from znni.primitives.catalogue import FAMILIES

Families = Annotated[
    list[str] | None,
    typer.Option("--family", help="A family of primitives; repeatable. Default: all."),
]
Limits = Annotated[
    list[int],
    typer.Option("--ram", parser=memory_size, metavar="SIZE", help="Limit; repeatable."),
]


def search_command(
    net: options.Nets,
    ram: Limits = [],  # noqa: B006
    machine: Annotated[
        list[Path] | None,
        typer.Option(help="A machine's file, with the memory that it has; repeatable."),
    ] = None,
    size: options.Volume = 2048,
    micro_batches: Annotated[Division, typer.Option("--micro-batches")] = "power-of-two",
    device: Annotated[DeviceChoice, typer.Option(help="Where layers may run.")] = "cpu",
    costs: options.CostsChoice = "auto",
    out: options.Out = None,
) -> None:
    """How long the search for a plan takes, here and for machines that are not here."""
    networks = [load_network(path) for path in net]
    asked = [*product(ram, [None]), *product([None], machine or [])]

    def timed(limit: int | None, file: Path | None) -> list[Row]:
        rows = []
        for network in networks:
            progress(f"planning {network.name} for {file or 'this machine'}")
            started = search(
                network,
                (size, size, size),
                ram=limit,
                machine=file,
                micro_batches=micro_batches,
                device=device,
                costs=costs,
            )
            rows.append(time_search(started))
        return rows

    report_all("search", (timed(*one) for one in asked), [], out)


def top_plans_command(
    net: options.Nets,
    size: options.Volume = 512,
    ram: options.Ram = 16 << 30,
    patch: options.Patch = None,
    count: Annotated[int, typer.Option(min=1, help="How many plans.")] = 10,
    rank: Annotated[
        list[int] | None,
        typer.Option(min=2, help="Of these plans beside the one chosen; repeatable. Default: all."),
    ] = None,
    costs: options.CostsChoice = "auto",
    accuracy: options.AccuracyClass = "float32",
    threads: options.Threads = None,
    repeats: options.Repeats = 3,
    budget: options.Budget = 120.0,
    out: options.Out = None,
) -> None:
    """The best plans side by side: whether the one chosen is the fastest of them."""
    ceilings: list[Ceilings] = []
    effort = Effort(repeats, budget)

    def compared(path: Path) -> list[Row]:
        found = top_plans(load_network(path), size, ram, threads, patch, costs, accuracy, count)
        plans = dict(enumerate(found, 1))
        if rank:
            if missing := set(rank) - set(plans):
                raise InvalidInput(f"--rank {min(missing)}: there are {len(plans)} plans")
            plans = {number: plans[number] for number in sorted({1, *rank})}
        rows = compare_plans(plans, effort, progress)
        ceilings_of(plans[1], ceilings)
        return rows

    report_all("top-plans", map(compared, net), ceilings, out)


def machine_command(
    net: options.Nets,
    machine: Annotated[
        list[Path] | None, typer.Option(help="A machine's file; repeatable. Default: this one.")
    ] = None,
    family: Families = None,
    size: options.Volume = 2048,
    costs: options.CostsChoice = "built-in",
    out: options.Out = None,
) -> None:
    """What is planned for machines and their devices, beside what ZNNi reached on the paper's."""
    among = known_families(family)
    networks = [load_network(path) for path in net]

    def planned(file: Path | None) -> list[Row]:
        has_gpu = bool(machine_for(file, None, None).gpus)
        kinds: list[Processors] = list(STRATEGIES) if has_gpu else ["cpu"]
        progress(f"planning for {file or 'this machine'}")
        return [
            plan_on(each, size, file, kind, costs, among) for kind, each in product(kinds, networks)
        ]

    files: list[Path | None] = [*machine] if machine else [None]
    report_all("machine-plans", map(planned, files), [], out)


def strategies_command(
    net: options.Nets,
    machine: Annotated[
        Path | None, typer.Option(help="A machine's file. Default: this one.")
    ] = None,
    ram: Annotated[
        int | None, typer.Option(parser=memory_size, metavar="SIZE", help="Of the host.")
    ] = None,
    gpu_memory: Annotated[
        list[int] | None,
        typer.Option(parser=memory_size, metavar="SIZE", help="Limit of the GPU; repeatable."),
    ] = None,
    size: options.Volume = 1024,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"Of {', '.join(PAPERS)}; repeatable. Default: all."),
    ] = None,
    costs: options.CostsChoice = "built-in",
    out: options.Out = None,
) -> None:
    """The best plan of each strategy of the paper (its Table V), beside what ZNNi reached."""
    for name in only or []:
        if name not in PAPERS:
            raise InvalidInput(f"no strategy {name!r}; choose of {', '.join(PAPERS)}")

    def compared(limit: int | None, path: Path) -> list[Row]:
        network = load_network(path)
        progress(f"planning {network.name}")
        wanted = only or list(PAPERS)
        return compare_strategies(network, size, machine, ram, limit, costs, wanted)

    limits: list[int | None] = [*gpu_memory] if gpu_memory else [None]
    report_all("strategies", (compared(*one) for one in product(limits, net)), [], out)


def run_strategies_command(
    planned: Annotated[list[Path], typer.Argument(help="JSON files of bench strategies.")],
    each: Annotated[
        float, typer.Option(min=0, help="Seconds of a plan; two patches are always run.")
    ] = 10.0,
    seconds: Annotated[float, typer.Option(min=0, help="After which no plan is begun.")] = 3600.0,
    out: options.Out = None,
) -> None:
    """Some patches of each plan that bench strategies made, for the machine at hand.

    The rows say which command made the plans, of which revision, to make them again.
    """
    rows = [
        row | {"planned_by": made.about["command"], "planned_at": made.about["revision"]}
        for made in (load(path, "strategies") for path in planned)
        for row in made.rows
    ]
    report_all("strategies", ([row] for row in run_planned(rows, each, seconds, progress)), [], out)


def shares_command(
    net: options.Nets,
    ram: Limits,
    family: Families = None,
    size: options.Volume = 512,
    measure: Annotated[bool, typer.Option(help="Run a patch of each plan, too.")] = True,
    costs: options.CostsChoice = "auto",
    repeats: options.Repeats = 3,
    budget: options.Budget = 60.0,
    out: options.Out = None,
) -> None:
    """What deciding jointly gains, over giving each layer an equal share, or first come."""
    among = known_families(family)
    effort = Effort(repeats, budget) if measure else None
    compared = (
        compare_shares(load_network(path), size, limit, among, costs, effort, progress)
        for path, limit in product(net, ram)
    )
    report_all("shares", compared, [], out)


def known_families(names: list[str] | None) -> list[str]:
    """The families asked for.

    Raises:
        InvalidInput: there is none of a name.
    """
    for name in names or []:
        if name not in FAMILIES:
            raise InvalidInput(f"no family {name!r}; choose of {', '.join(FAMILIES)}")
    return names or []
