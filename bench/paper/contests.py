"""Contests of a few functions on one case, for the figures of papers that compare such."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from bench import session
from bench.accuracy import normal
from bench.layers import Layer, able, weights_of
from bench.record import Row
from bench.rounds import Effort, rounds_on_gpu, run_rounds, stopwatch
from znni.core.processors import DeviceKind
from znni.core.shapes import Shape5
from znni.machine.arena import Arena
from znni.machine.cuda import cupy
from znni.machine.device_arena import DeviceArena
from znni.machine.machine import Machine
from znni.network.layers import Pool
from znni.plans.primitive import Primitive


def contest(
    about: Row,
    contestants: Mapping[str, Callable[[], object]],
    effort: Effort,
    device: DeviceKind,
    baseline: str,
) -> list[Row]:
    """Return a row for each contestant, with its gain over one of them.

    On the CPU they take turns. On a GPU they run one after the other, by the GPU's clock.

    Args:
        about: the columns that all rows have.
        contestants: functions by the names of the rows.
        effort: how long to measure.
        device: where they compute.
        baseline: the name of the one that others are compared with.
    """
    session.progress(", ".join(map(str, about.values())))
    if device == "gpu":
        results = {name: rounds_on_gpu(work, effort) for name, work in contestants.items()}
    else:
        results = run_rounds({name: stopwatch(it) for name, it in contestants.items()}, effort)
    ran = {name: result for name, result in results.items() if result.ran}
    least = ran[baseline].timing.median if baseline in ran else None
    return [
        {
            **about,
            "name": name,
            **result.record(),
            "gain": least and least / result.timing.median,
        }
        for name, result in ran.items()
    ]


def contest_of_primitives(
    machine: Machine,
    device: DeviceKind,
    layer: Layer,
    shape: Shape5,
    names: Iterable[str],
    effort: Effort,
    about: Row,
    baseline: str,
) -> list[Row]:
    """Return a row for each primitive that computes a layer on random input."""
    primitives = able(device, machine, list(names), layer, shape)
    weights = weights_of(layer)
    working = max(primitive.cost(layer, shape).memory.working for primitive in primitives)
    x = random_input(shape, device)
    runs = {it.name: partial(it.build(layer, shape, weights), x) for it in primitives}
    with arena_of(device, working, shape).in_use():
        return contest(about, runs, effort, device, baseline)


def seconds_of_primitive(
    primitive: Primitive, layer: Layer | Pool, shape: Shape5, effort: Effort, device: DeviceKind
) -> float:
    """Return the median time of one primitive on random input."""
    weights = None if isinstance(layer, Pool) else weights_of(layer)
    x, working = random_input(shape, device), primitive.cost(layer, shape).memory.working
    run = partial(primitive.build(layer, shape, weights), x)
    with arena_of(device, working, shape).in_use():
        (row,) = contest({"case": str(shape)}, {primitive.name: run}, effort, device, "")
    return float(row["seconds"])


def random_input(shape: Shape5, device: DeviceKind) -> Any:
    """Return standard normal values on a device."""
    if device == "gpu":
        return cupy().random.default_rng(0).standard_normal(shape, dtype="float32")
    return normal(shape)


def arena_of(device: DeviceKind, working: int, shape: Shape5) -> Arena | DeviceArena:
    """Return the memory of primitives that take so many bytes with their input."""
    return DeviceArena(working - shape.nbytes) if device == "gpu" else Arena(working)
