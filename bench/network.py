"""Patches of whole networks, beside the peers at their best patches.

On a CPU each contestant has a process of its own, and all take turns. On a GPU one process has all
of it. Ours is done, and its memory given back, before PyTorch begins.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from time import perf_counter
from typing import Annotated

import numpy as np
import typer

from bench import session
from bench.accuracy import CornerReference, Corners, patch_input, pooled_by_fft, samples
from bench.child import Child, ChildFailed
from bench.paper.published import published_rows
from bench.patches import Asked, PatchesOnGpu, PlanPatch, release_gpu_memory
from bench.peers import best_patch
from bench.peers.best_patch import (
    EXTENTS,
    GPU_EXTENTS,
    PEERS,
    SWEEP_SHARE,
    BestPatch,
    Rivals,
    Try,
)
from bench.peers.torch_settings import (
    LAYOUTS,
    NOT_INSTALLED,
    PARTS,
    PROPOSALS,
    WHOLE,
    free_torch_memory,
    gpu_peak_bytes,
    has_torch,
)
from bench.record import Kind, Row
from bench.rounds import Effort, Result, run_rounds, speedups
from znni.cli.options import grouped
from znni.core.errors import InvalidInput
from znni.core.option_types import OutputType
from znni.core.plan_options import memory_size
from znni.core.processors import DeviceKind
from znni.core.shapes import Vec3
from znni.machine.detect import detect_host
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.network.weights import Float32, random_weights
from znni.plans.plan import Plan

OURS = "znni"
BASELINE = "torch_fp32"

# Seconds of the budget, unless another number is given.
BUDGETS: dict[DeviceKind, float] = {"cpu": 120.0, "gpu": 60.0}

# A peer that takes the patch that suits another, whose layers it runs.
SAME_PATCH = {"monai_fp32": "dilated_fp32"}

# Places of a patch where our own output is judged on a GPU, beside its corners, and their extent.
PLACES, PLACE = 6, 2


@grouped
def network_command(
    *,
    asked: Asked,
    ours: Annotated[bool, typer.Option(help="Measure our own patches, too (on a GPU).")] = True,
    peers: Annotated[bool, typer.Option(help="Measure the peers, too (on a GPU).")] = True,
    peer: session.Peer = None,
    peer_ram: Annotated[
        int | None,
        typer.Option(
            parser=memory_size,
            metavar="SIZE",
            help="Memory for the patch of a CPU's peer. Default: --ram.",
        ),
    ] = None,
    layout: Annotated[
        list[str] | None, typer.Option(help="Of PyTorch's arrays; repeatable. Default: both.")
    ] = None,
    extent: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Of PyTorch's patches; repeatable. On a GPU the likeliest first. Default: "
            "16 to 512, on a GPU 384, 512 and 256.",
        ),
    ] = None,
    proposals: session.Proposals = None,
    repeats: session.Repeats = 3,
    budget: Annotated[
        float | None,
        typer.Option(
            min=session.LEAST_BUDGET,
            help="Seconds for the counted rounds of one contestant. Default: 120, on a GPU 60.",
        ),
    ] = None,
    out: session.Out = None,
) -> None:
    """Compare whole networks with PyTorch and MONAI.

    Our contestant is a patch of the best plan. Each peer takes the patch that suits it best.
    """
    device, plans = asked.device, asked.plans()
    effort = Effort(repeats, budget or BUDGETS[device])
    rivals = rivals_for(device, peer, layout, extent, peer_ram or asked.limit or 0, proposals)
    if device == "cpu":
        session.refuse(device, proposals=proposals, no_ours=not ours, no_peers=not peers)
    else:
        rivals = rivals if peers else replace(rivals, names=())
        session.refuse(device, peer_ram=peer_ram)
    ceilings = asked.ceilings()

    def compared() -> Iterator[list[Row]]:
        if device == "cpu":
            for chosen in plans:
                session.ceilings_of(device, chosen.machine.host.threads, ceilings)
                yield compare_network(chosen, rivals, effort)
            return
        alone: Iterator[tuple[Network, Plan | None]] = (
            (load_network(it), None) for it in asked.net
        )
        with_ours = ((chosen.network, chosen) for chosen in plans)
        for network, its in with_ours if ours else alone:
            for row in compare_on_gpu(network, its, rivals, effort, asked.written):
                yield [row]

    kind: Kind = "network" if device == "cpu" else "gpu-networks"
    session.report_all(kind, compared(), ceilings, out)


def rivals_for(
    device: DeviceKind,
    names: list[str] | None,
    layouts: list[str] | None,
    extents: list[int] | None,
    ram: int,
    proposals: int | None,
) -> Rivals:
    """Return the peers and settings asked for, or all there are.

    Raises:
        InvalidInput: a name is none of the peers or layouts, or PyTorch is needed and missing.
    """
    known = tuple(PEERS)
    if device == "gpu":
        if not has_torch():
            raise InvalidInput(NOT_INSTALLED)
        from bench.peers.torch_on_gpu import NAMES

        known = tuple(NAMES)
    session.check_known("peer", names or [], known)
    session.check_known("layout", layouts or [], LAYOUTS)
    return Rivals(
        names=tuple(names or known),
        extents=tuple(extents or (EXTENTS if device == "cpu" else GPU_EXTENTS)),
        layouts=tuple(layouts or LAYOUTS),
        ram=ram,
        proposals=proposals or PROPOSALS,
    )


def compare_network(plan: Plan, rivals: Rivals, effort: Effort) -> list[Row]:
    """Return rows for a plan's patch on a CPU, for each peer's best patch, and published figures.

    Peers look for their best patch first. Then all take turns, and warm up in each. A peer that
    cannot run, or is killed, has a row that says so.

    Args:
        plan: ours.
        rivals: the peers.
        effort: how long to measure; the budget is per contestant.
    """
    network, threads = plan.network, plan.machine.host.threads
    failed: dict[str, str] = {}
    best: dict[str, BestPatch] = {}
    for name in rivals.names:
        if reason := best_patch.missing(name, network):
            failed[name] = reason
            continue
        if same := best.get(SAME_PATCH.get(name, "")):
            best[name] = same
            continue
        session.progress(f"{name}, looking for its best patch")
        try:
            best[name] = best_patch.best_patch(
                name, network, threads, rivals, SWEEP_SHARE * effort.budget, max(plan.output)
            )
        except ChildFailed as error:
            failed[name] = str(error)
    limit = effort.budget / effort.repeats
    contestants = {OURS: _Contestant(lambda: Child(PlanPatch, plan.to_json()), None, limit)}
    for name, found in best.items():
        make = partial(best_patch.start, name, network, found.layout, threads, rivals.ram)
        contestants[name] = _Contestant(make, found, limit)
    results = run_rounds(
        {name: contestant.turn for name, contestant in contestants.items()},
        effort,
        warm=contestants,
        progress=session.progress,
    )
    session.progress("errors against float64")
    reference = CornerReference(
        network, pooled_by_fft(network, random_weights(network, 0), threads)
    )
    volumes = {name: found.patch.volume for name, found in best.items()}
    volumes[OURS] = plan.patch.volume
    baseline = [(results[BASELINE], float(volumes[BASELINE]))] if BASELINE in results else []
    rows = []
    for name, contestant in contestants.items():
        if contestant.failure:
            failed[name] = contestant.failure
            continue
        about = _about_plan(plan) if name == OURS else _about_peer(best[name])
        row = {"network": network.name, "name": name, "threads": threads, **about}
        row |= contestant.row(reference) | _speed(results[name], volumes[name])
        rows.append(row | speedups(results[name], volumes[name], baseline))
    rows += [
        {"network": network.name, "name": name, "skipped": reason}
        for name, reason in failed.items()
    ]
    return rows + published_rows(network.name)


def _about_plan(plan: Plan) -> Row:
    return {
        "patch": str(plan.patch),
        "predicted_voxels_per_s": plan.patch.volume / plan.patch_seconds,
        "declared_gib": plan.device_memory.total / 2**30,
        "layers": ", ".join(f"{step.operation.name} {step.primitive}" for step in plan.steps),
    }


def _about_peer(found: BestPatch) -> Row:
    return {"patch": str(found.patch), "layout": found.layout, "tried": found.tried}


def _speed(result: Result, voxels: int) -> Row:
    return {**result.record(), "voxels_per_s": voxels / result.timing.median}


class _Contestant:
    """One of those that take turns on a CPU, and what is known about it.

    Its process lives for a turn only, so that each has the machine's memory to itself.

    Args:
        make: starts the process.
        found: a peer's best patch; None for our own plan.
        limit: seconds that one measurement of a peer may take.
    """

    def __init__(self, make: Callable[[], Child], found: BestPatch | None, limit: float) -> None:
        self._make, self._found, self._limit = make, found, limit
        self._about: Row = {"measured": WHOLE}
        self._first_seconds: list[float] = []
        self._peaks: list[int] = []
        self._corners: Corners | None = None
        self.failure: str | None = None

    def turn(self) -> float | None:
        """Return the seconds of a patch, or None if it failed now or before."""
        if self.failure:
            return None
        try:
            with self._make() as child:
                return self._measured(child)
        except ChildFailed as error:
            self.failure = str(error)
            return None

    def _measured(self, child: Child) -> float:
        if self._found:
            room = detect_host().host.memory
            estimate = self._found.patch, self._found.seconds
            self._about["measured"] = child.call("prepare", *estimate, self._limit, room)
            self._about["least_gib"] = child.call("needed_bytes", self._found.patch) / 2**30
        in_parts = self._about["measured"] == PARTS
        if not in_parts:  # parts are warmed up one by one
            self._first_seconds.append(float(child.call("seconds")))
        seconds = float(child.call("seconds"))
        if not in_parts:  # parts do not take a patch's memory
            self._peaks.append(child.peak_memory())
        self._corners = child.call("corners")
        return seconds

    def row(self, reference: CornerReference) -> Row:
        """Return what was measured: error, peak memory, and the time of a process's first patch."""
        row = {**self._about}
        if self._first_seconds:
            row["first_seconds"] = statistics.median(self._first_seconds)
            row["peak_gib"] = max(self._peaks) / 2**30
        row["error"] = None if self._corners is None else reference.error(self._corners)
        return row


def compare_on_gpu(
    network: Network,
    plan: Plan | None,
    rivals: Rivals,
    effort: Effort,
    dtype: OutputType = "float32",
) -> Iterator[Row]:
    """Yield rows for a plan's patches on a GPU, and for each peer's best patch.

    Args:
        network: what to compute.
        plan: ours, if it takes part.
        rivals: PyTorch's settings.
        effort: how long to measure; the budget is per peer.
        dtype: type of our output, which the plan is for. There is no error of uint8, which holds 0
            to 1 in 255 steps.
    """
    from bench.peers.torch_on_gpu import reference_on_gpu

    reference = CornerReference(network, reference_on_gpu(network))
    ours = None
    if plan is not None:
        session.progress(f"{network.name}, ours")
        ours = _ours_on_gpu(plan, dtype, effort.repeats, reference)
        yield {"network": network.name} | ours
    noise = cache(partial(patch_input, network))
    for name in rivals.names:
        session.progress(f"{network.name}, {name}")
        row = _peer_on_gpu(network, name, rivals, effort, noise)
        corners = row.pop("corners", None)
        if corners is not None:
            row["error"] = reference.error(corners)
        if ours is not None and "voxels_per_s" in row:
            row["gain"] = ours["voxels_per_s"] / row["voxels_per_s"]
        yield {"network": network.name} | row


def places(patch: Vec3, network: Network) -> Iterator[Vec3]:
    """Yield where samples of a patch's output begin: its corners, and random places."""
    generator = np.random.default_rng(3)
    last = patch - 1 - network.total_pooling * (PLACE - 1)
    yield from (Vec3(0, 0, 0), last)
    for _ in range(PLACES):
        yield Vec3(*(int(generator.integers(extent + 1)) for extent in last))


def _ours_on_gpu(plan: Plan, dtype: OutputType, repeats: int, reference: CornerReference) -> Row:
    start = perf_counter()
    patches = PatchesOnGpu(plan, dtype)
    prepared = perf_counter() - start
    result = Result(patches.seconds(repeats))
    y = patches.output
    if y is None:
        raise RuntimeError("no patch was computed")
    count = Vec3.of(PLACE)
    judged = [(at, samples(plan.network, y, at, count)) for at in places(plan.patch, plan.network)]
    layers = sum(patches.layer_seconds().values())
    row = {
        "name": OURS,
        "output": dtype,
        **_about_plan(plan),
        **result.record(),
        # If there are few patches, the time between two may be short, because the first was late.
        "voxels_per_s": plan.patch.volume / max(result.timing.median, layers),
        "layers_seconds": layers,
        "prepare_seconds": prepared,
        "peak_gib": patches.peak / 2**30,
    }
    del patches
    release_gpu_memory()
    return row if dtype == "uint8" else row | {"error": reference.error_of(judged)}


def _peer_on_gpu(
    network: Network,
    name: str,
    rivals: Rivals,
    effort: Effort,
    noise: Callable[[Vec3], Float32],
) -> Row:
    """Return a row for a peer's best patch, with the corners of its output."""
    from bench.peers.torch_on_gpu import NAMES, TorchOnGpu

    kind, operators = NAMES[name]

    def attempt(layout: str, patch: Vec3) -> Try:
        try:
            peer = TorchOnGpu(network, kind, layout, operators, rivals.proposals)
            peer.scaled_from_one_fragment(noise(patch))  # autotunes
            taken: list[float] = []
            peak = gpu_peak_bytes(lambda: taken.append(peer.scaled_from_one_fragment(noise(patch))))
            seconds, part = taken[0], peer.one_fragment
            return Try(layout, patch, seconds, measured=part, peak=peak, corners=peer.corners())
        except RuntimeError as error:  # out of memory, or cuDNN cannot
            return Try(layout, patch, None, str(error).splitlines()[0])
        finally:
            free_torch_memory()

    patches = [best_patch.rounded(network, extent) for extent in rivals.extents]
    tries, spent = best_patch.best_of(rivals.layouts, patches, attempt, effort.budget)
    best = tries[0]
    row: Row = {
        "name": name,
        "tried": {f"{t.layout} {t.patch}": t.voxels_per_second or t.reason for t in tries},
    }
    if best.seconds is None:
        return row | {"skipped": best.reason}
    row |= {"patch": str(best.patch), "layout": best.layout}
    if (effort.repeats + 1) * best.seconds > effort.budget - spent:
        row |= _speed_on_gpu(best.patch, [best.seconds], best.peak)
        return row | {"measured": best.measured, "corners": best.corners}
    peer = TorchOnGpu(network, kind, best.layout, operators, rivals.proposals)
    x = noise(best.patch)
    peer.timed(x)  # takes its memory; the engines are chosen
    taken: list[float] = []
    peak = gpu_peak_bytes(lambda: taken.extend(peer.timed(x) for _ in range(effort.repeats)))
    free_torch_memory()
    row |= _speed_on_gpu(best.patch, taken, peak)
    return row | {"measured": WHOLE, "corners": peer.corners()}


def _speed_on_gpu(patch: Vec3, seconds: Sequence[float], peak: int) -> Row:
    return _speed(Result(tuple(seconds)), patch.volume) | {"peak_gib": peak / 2**30}
