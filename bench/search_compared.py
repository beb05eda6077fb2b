"""Searches of two checkouts: the plans of the later one are as fast or faster, for fewer prices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import session
from bench.record import Row
from znni.core.errors import RunFailed
from znni.core.plan_options import memory_size

HERE = Path(__file__).resolve().parents[1]

# Memory limits, and edges of the volumes, on this machine.
LIMITS = ("1GiB", "4GiB", "16GiB")
EDGES = (512, 2048)

# Machines that are not here, each with a device.
MACHINES = (
    ("laptop", "cpu"),
    ("e7", "cpu"),
    ("r3-8xlarge", "cpu"),
    ("rtx3090", "gpu"),
    ("h200-16-cores", "gpu"),
    ("titanx-e7", "auto"),
)

# The search of one checkout, run as a process of its own. Costs are the built-in ones.
SEARCH = """
import json, os, sys, time
import znni
if os.path.dirname(os.path.dirname(znni.__file__)) != os.getcwd():
    sys.exit(f"{os.getcwd()} is no checkout of znni")
from znni.inference.planning import search
for line in sys.stdin:
    case = json.loads(line)
    edge = case.pop("edge")
    started = search(case.pop("net"), (edge, edge, edge), costs="built-in", **case)
    begun = time.process_time()
    plan = started.fastest()[0]
    seconds = time.process_time() - begun
    print(json.dumps([plan.seconds, str(plan.patch), started.calls, seconds]), flush=True)
"""


def search_compared_command(
    net: session.Nets,
    against: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="The checkout to compare with.")
    ],
    machines: Annotated[
        bool, typer.Option("--machines/--here", help="Also plan for machines that are not here.")
    ] = True,
    out: session.Out = None,
) -> None:
    """Compare the searches of another checkout with those of this one."""
    cases = list(_cases(net, machines=machines))
    session.report_all(
        "search-compared", (compared(cases, against.resolve()) for _ in "1"), [], out
    )


def _cases(nets: Sequence[Path], *, machines: bool) -> Iterator[dict[str, Any]]:
    """Yield what is planned for: the keywords of a search."""
    for path in nets:
        net = str(path.resolve())
        for limit, edge in product(LIMITS, EDGES):
            yield {"net": net, "edge": edge, "ram": memory_size(limit), "device": "cpu"}
        for name, device in MACHINES if machines else ():
            file = str(HERE / "machines" / f"{name}.yaml")
            yield {"net": net, "edge": 1024, "machine": file, "device": device}


def compared(cases: Sequence[dict[str, Any]], against: Path) -> list[Row]:
    """Return a row for each case, with the plans of both checkouts.

    Raises:
        RunFailed: a search ended with an error.
    """
    with _searches(against) as before, _searches(HERE) as after:
        return [_row(case, _answer(before, case), _answer(after, case)) for case in cases]


def _row(case: dict[str, Any], before: list[Any], after: list[Any]) -> Row:
    """Return the row of a case, with the answers of both checkouts."""
    row: Row = {
        "network": Path(case["net"]).stem,
        "volume": case["edge"],
        "planned_for": Path(case.get("machine", "here")).stem,
        "device": case["device"],
        **({"limit_gib": case["ram"] / 2**30} if "ram" in case else {}),
        "slower": after[0] / before[0] - 1,
    }
    for when, answer in (("before", before), ("after", after)):
        for name, value in zip(("predicted", "patch", "prices", "search"), answer, strict=True):
            row[f"{name}_{when}"] = value
    session.progress(f"{row}")
    return row


def _searches(checkout: Path) -> subprocess.Popen[str]:
    """Start a process that answers with the plans of a checkout."""
    return subprocess.Popen(
        [sys.executable, "-c", SEARCH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        text=True,
    )


def _answer(process: subprocess.Popen[str], case: dict[str, Any]) -> list[Any]:
    """Return what a process answers for a case.

    Raises:
        RunFailed: it ended.
    """
    assert process.stdin
    assert process.stdout
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RunFailed(f"the search for {case} ended without a plan")
    answer: list[Any] = json.loads(line)
    return answer
