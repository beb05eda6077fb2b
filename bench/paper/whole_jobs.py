"""The strategies of the paper as whole runs of ``znni infer``, and the order of their times."""

from __future__ import annotations

import subprocess
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from bench import session
from bench.many_patches import ZNNI
from bench.record import Row
from znni.network.geometry import input_box
from znni.network.network_as_text import network_text
from znni.plans.plan import Plan

# The entry of a row that holds a plan, as JSON.
PLAN = "plan"


def run_whole(rows: Sequence[Row], seconds: float) -> Iterator[Row]:
    """Yield rows with the seconds of `znni infer` with their plans, from start to end of a process.

    Equal computations run once.

    Args:
        rows: from ``compare_strategies``.
        seconds: time after which no more jobs are begun.
    """
    until, known = perf_counter() + seconds, dict[Hashable, Row]()
    for planned in rows:
        row = {name: value for name, value in planned.items() if name != PLAN}
        if PLAN in planned:
            plan = Plan.from_json(planned[PLAN])
            key = plan.network.name, plan.output, plan.computation
            if key not in known:
                session.progress(f"{row['network']}, {row['strategy']}")
                late = perf_counter() > until
                known[key] = {"skipped": "no time was left"} if late else _infer(plan)
            row |= {"predicted_seconds": plan.seconds} | known[key]
        yield row


def _infer(plan: Plan) -> Row:
    """Return the row of a whole job in a process of its own."""
    with TemporaryDirectory() as place:
        volume, chosen = Path(place) / "in.npy", Path(place) / "plan.json"
        size = input_box(plan.network, plan.output).size
        # Blocks of one value would be skipped.
        np.save(volume, np.random.default_rng(0).random(size, np.float32))
        chosen.write_text(plan.to_json())
        net = Path(place) / "net.yaml"
        net.write_text(network_text(plan.network))
        begun = perf_counter()
        ran = subprocess.run(
            [
                *(*ZNNI, "infer", str(volume), "--net", str(net), "--plan", str(chosen)),
                *("--out", str(Path(place) / "out.npy"), "--random-weights", "0"),
                *("--theta", str(plan.layers_on_host)),
                *(("--gpu-memory", str(plan.gpu.memory)) if plan.gpu_memory else ()),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            return {"skipped": ran.stderr[-300:]}
        return {"job_seconds": perf_counter() - begun}


def with_places(rows: Sequence[Row]) -> list[Row]:
    """Return rows with the place of each strategy by predicted and by measured time.

    Strategies are compared for the same network, volume and limit of the GPU.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        key = row["network"], row["volume"], row["gpu_limit_gib"]
        groups.setdefault(key, []).append(row)
    for group in groups.values():
        for name, place in (("predicted_seconds", "place_predicted"), ("job_seconds", "place")):
            timed = sorted((it for it in group if name in it), key=lambda it: it[name])
            for index, row in enumerate(timed):
                row[place] = index + 1
    return list(rows)
