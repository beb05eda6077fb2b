"""The commands about whole networks on the host: beside peers, and layer by layer."""

from __future__ import annotations

from typing import Annotated

import typer

from bench import options
from bench.ceilings import Ceilings
from bench.network_peers import check_peers
from bench.networks import Rivals, compare_network
from bench.profile import profile
from bench.record import Row
from bench.rounds import Effort
from bench.session import ceilings_of, plans_of, progress, report_all
from znni.calibration.database import CostDatabase
from znni.calibration.record import record_steps
from znni.core.options import memory_size
from znni.plans.plan import Plan
from znni.plans.segments import Step


def network_command(
    net: options.Nets,
    size: options.Volume = 512,
    ram: options.Ram = 16 << 30,
    patch: options.Patch = None,
    plan: options.PlanFile = None,
    accuracy: options.AccuracyClass = "float32",
    peer: Annotated[list[str] | None, typer.Option(help="Repeatable. Default: all.")] = None,
    peer_ram: Annotated[
        int | None,
        typer.Option(
            parser=memory_size, metavar="SIZE", help="Memory for a peer's patch. Default: --ram."
        ),
    ] = None,
    threads: options.Threads = None,
    repeats: options.Repeats = 3,
    budget: options.Budget = 120.0,
    out: options.Out = None,
) -> None:
    """The best plan's patch for whole networks, beside the peers at their best patches."""
    names = check_peers(peer or [])
    rivals = Rivals(tuple(names), ram if peer_ram is None else peer_ram)
    effort = Effort(repeats, budget)
    ceilings: list[Ceilings] = []

    def compared(chosen: Plan) -> list[Row]:
        ceilings_of(chosen, ceilings)
        return compare_network(chosen, rivals, effort, progress)

    plans = plans_of(net, size, ram, threads, patch, accuracy, plan)
    report_all("network", map(compared, plans), ceilings, out)


def profile_command(
    net: options.Nets,
    size: options.Volume = 512,
    ram: options.Ram = 16 << 30,
    patch: options.Patch = None,
    plan: options.PlanFile = None,
    accuracy: options.AccuracyClass = "float32",
    threads: options.Threads = None,
    repeats: options.Repeats = 1,
    record: Annotated[bool, typer.Option("--record", help="Add to the measured costs.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="Time each layer alone, too, as a calibration does.")
    ] = False,
    out: options.Out = None,
) -> None:
    """Where a plan's patch spends its time, layer by layer."""
    ceilings: list[Ceilings] = []

    def profiled(chosen: Plan) -> list[Row]:
        timings: list[tuple[Step, float]] = []

        def keep(step: Step, seconds: float) -> None:
            timings.append((step, seconds))

        limits = ceilings_of(chosen, ceilings)
        rows = profile(chosen, limits, repeats, progress, keep, alone=alone)
        if record:
            record_steps(timings, chosen.machine.host.threads, CostDatabase())
        return rows

    plans = plans_of(net, size, ram, threads, patch, accuracy, plan)
    report_all("profile", map(profiled, plans), ceilings, out)
