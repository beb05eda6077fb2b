"""Divisions of batches among engines, from measured times, within limits of workspace.

These are µ-cuDNN's workspace reuse and workspace division (Oyama et al., 2018, section III). Only
workspace counts, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import TypeAlias

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from bench.record import Row

MIB = 2**20

# The numbers of images that pieces may have. Powers of two are µ-cuDNN's powerOfTwo.
WHOLE, POWERS, ALL = DIVISIONS = ("undivided", "powers of two", "all measured sizes")


@dataclass(frozen=True)
class Engine:
    """A measured engine: seconds of a piece, and bytes of workspace."""

    seconds: float
    workspace: int


# The engines of a layer by the images of a piece.
Curve: TypeAlias = Mapping[int, Sequence[Engine]]

# Limits of workspace from which a layer is faster, with its seconds.
Front: TypeAlias = list[tuple[int, float]]


def powers_of_two(batch: int) -> list[int]:
    """Return the powers of two up to a batch."""
    return [1 << power for power in range(batch.bit_length())]


def sizes_of(curve: Curve, batch: int, division: str) -> list[int]:
    """Return the measured sizes that pieces of a batch may have."""
    if division == WHOLE:
        return [batch]
    among = {batch, *(curve if division == ALL else powers_of_two(batch))}
    return sorted(images for images in among & curve.keys() if images <= batch)


def least_seconds(curve: Curve, batch: int, limit: int, division: str) -> float:
    """Return the seconds of the fastest division of a batch (workspace reuse).

    It is infinite if no engine stays within the limit.
    """
    sizes = np.array(sizes_of(curve, batch, division))
    least = np.array(
        [
            min((it.seconds for it in curve[images] if it.workspace <= limit), default=inf)
            for images in sizes
        ]
    )
    seconds = np.zeros(batch + 1)
    for images in range(1, batch + 1):
        fitting = sizes <= images
        seconds[images] = np.min(seconds[images - sizes[fitting]] + least[fitting], initial=inf)
    return float(seconds[batch])


def front_of(curve: Curve, batch: int, division: str) -> Front:
    """Return the limits from which a divided batch is faster, with its seconds, in order."""
    limits = set[int]()
    for images in sizes_of(curve, batch, division):
        best = inf
        for engine in sorted(curve[images], key=lambda it: (it.workspace, it.seconds)):
            if engine.seconds < best:
                limits.add(engine.workspace)
                best = engine.seconds
    found: Front = []
    for limit in sorted(limits):
        seconds = least_seconds(curve, batch, limit, division)
        if seconds < (found[-1][1] if found else inf):
            found.append((limit, seconds))
    return found


def own_seconds(front: Front, limit: int) -> float:
    """Return the seconds of a layer that may take so much workspace."""
    return min((seconds for taken, seconds in front if taken <= limit), default=inf)


def shared_seconds(fronts: Sequence[Front], times: Sequence[int], total: int) -> float:
    """Return the seconds of all layers if they share out a workspace (workspace division).

    An integer program chooses the limit of each layer (µ-cuDNN, eq. 1). Equal layers have equal
    limits.
    """
    choices = [
        (layer, limit, seconds)
        for layer, front in enumerate(fronts)
        for limit, seconds in front
        if limit <= total
    ]
    each = np.array([[layer == place for layer, *_ in choices] for place in range(len(fronts))])
    if not each.any(axis=1).all():
        return inf
    taken = np.array([limit * times[layer] for layer, limit, _ in choices], float)
    cost = np.array([seconds * times[layer] for layer, _, seconds in choices])
    found = milp(
        cost,
        integrality=np.ones(len(choices), np.int64),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(each, 1, 1), LinearConstraint(taken / MIB, 0, total / MIB)],
    )
    return float(found.fun) if found.success else inf


def rows_of(
    name: str, batch: int, curves: Sequence[Curve], times: Sequence[int], limits: Sequence[int]
) -> Iterator[Row]:
    """Yield the seconds of a network for each limit, division and way to give out workspace.

    The gain is over undivided batches with a limit of each layer's own. A division has no rows
    before its sizes were measured.

    Args:
        name: of the network.
        batch: images of all layers.
        curves: measured engines of each layer.
        times: how often the network has each layer.
        limits: bytes of workspace for each layer.
    """
    measured = set(curves[0]).intersection(*curves)
    needed = {WHOLE: {batch}, POWERS: {batch, *powers_of_two(batch)}}
    needed[ALL] = needed[POWERS]
    fronts = {
        division: [front_of(curve, batch, division) for curve in curves]
        for division in DIVISIONS
        if needed[division] <= measured
    }
    for limit in limits:
        whole = None
        for division, shared in product(fronts, (False, True)):
            if shared:
                seconds = shared_seconds(fronts[division], times, limit * sum(times))
            else:
                each = (own_seconds(front, limit) for front in fronts[division])
                seconds = float(np.dot(times, list(each)))
            whole = seconds if whole is None else whole
            row: Row = {
                "figure": "µ-cuDNN, 10, 11 and 13",
                "case": f"{name}, batch {batch}, {limit / MIB:g} MiB a layer",
                "name": f"{division}, {'shared out' if shared else 'each its own'}",
            }
            if seconds == inf:
                yield row | {"skipped": "no engine of some layer stays within the limit"}
            else:
                yield row | {"seconds": seconds, "gain": None if whole == inf else whole / seconds}
