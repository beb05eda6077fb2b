"""Compare the plans and outputs of two checkouts: a refactoring must change neither.

Run as ``python bench/compare_checkouts.py BEFORE AFTER``. The script uses the command line of both
and never imports them, so their packages may be laid out differently. Both read the same copies of
BEFORE's networks and machines. Each has a cache folder of its own, which is empty at first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import zarr

sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, which has a profile.py

from bench.record import Row, circumstances  # noqa: E402
from bench.same_output import difference  # noqa: E402

PLAN_OPTIONS = "--volume 512,512,512 --costs built-in --threads 16 --json"
# Options of the plans of every network: two machines at three memory limits.
PLANS = (
    "--machine e7.yaml --device cpu --ram 600MiB",
    "--machine e7.yaml --device cpu --ram 8GiB",
    "--machine e7.yaml --device cpu --ram 64GiB",
    "--machine h200-16-cores.yaml --device gpu --ram 2GiB --gpu-memory 2GiB",
    "--machine h200-16-cores.yaml --device gpu --ram 8GiB --gpu-memory 12GiB",
    "--machine h200-16-cores.yaml --device gpu --ram 24GiB --gpu-memory 100GiB",
)
# Options of further plans, of two networks.
FURTHER_PLANS = (
    "--machine titanx-e7.yaml --device cpu+gpu --ram 64GiB",
    "--machine h200-16-cores.yaml --device cpu+gpu --ram 24GiB --accuracy tf32",
    "--machine h200-16-cores.yaml --device gpu --ram 24GiB --accuracy tf32 --dtype float16",
    "--machine h200-16-cores.yaml --device cpu --ram 8GiB --accuracy bfloat16 --border same",
    "--machine h200-node.yaml --device auto --ram 200GiB --gpus 4",
)
FURTHER_NETWORKS = ("n337", "n726")

SMALL = """name: small
in_features: 2
layers:
  - conv: {features: 6, kernel: [2, 4, 4], activation: leaky_relu}
  - pool: {window: [1, 2, 2]}
  - conv: {features: 8, kernel: 3, activation: elu}
  - pool: {window: 2}
  - conv: {features: 8, kernel: [1, 3, 3], activation: tanh}
  - conv: {features: 3, kernel: 3, activation: softmax}
"""
# Both take eight patches or more.
DEMO_RUN = "cells.h5:/raw --net boundaries.yaml --ram 540MiB"
SMALL_RUN = "small.npy --net small.yaml --random-weights 1 --ram 516MiB"
# Outputs, runs and their options. None is in gzip, whose header holds the time.
KILLED_RUNS = (
    ("out.h5", DEMO_RUN, ""),
    ("out.zarr", SMALL_RUN, "--border same --pad reflect"),
    ("out.zarr", SMALL_RUN, "--dtype float16 --sharded"),
)
RUNS = (
    *KILLED_RUNS,
    ("out.zarr", DEMO_RUN, "--border same --pad edge"),
    ("out.h5", DEMO_RUN, "--roi 20:70,30:120,25:110 --dtype float16"),
    ("out.h5", DEMO_RUN, "--mask mask.npy --dtype uint8"),
    ("out.h5", SMALL_RUN, "--border same --pad reflect --dtype float16"),
    ("out.h5", SMALL_RUN, "--border same --pad constant --dtype uint8"),
    ("out.zarr", SMALL_RUN, "--roi 5:40,0:100,10:90 --border same --sharded --compression none"),
    ("out.zarr", SMALL_RUN, "--mask small-mask.npy --dtype uint8"),
)
KILLED_AFTER = 3  # blocks
UNUSABLE = 2  # the exit code of a run that refuses to go on with what another one left
GROUPS = (
    PLANNED := "plans",
    REFUSED := "plans that BEFORE refuses",
    WHOLE := "runs",
    RESUMED := "runs killed and resumed by the same checkout",
    CROSSED := "runs killed in BEFORE, resumed by AFTER",
    UNREADABLE := "refused by AFTER: begun by BEFORE",
)

# The values of a layer's newer fields that say nothing.
DEFAULTS: dict[str, Any] = {
    "stride": [1, 1, 1],
    "dilation": [1, 1, 1],
    "groups": 1,
    "padding": [[0, 0, 0], [0, 0, 0]],
    "slope": 0.01,
    "reduce": "max",
    "step": [0, 0, 0],
}


@dataclass(frozen=True)
class Answer:
    """Exit code, stdout and stderr of a command."""

    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The exit code and the message."""
        return f"exit code {self.code}: {self.err.strip()}"


@dataclass(frozen=True)
class Checkout:
    """A checkout that runs commands in a folder of work.

    Attributes:
        root: of the checkout.
        work: where commands run.
        cache: the user's cache folder for them.
    """

    root: Path
    work: Path
    cache: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start Python with arguments."""
        own = {
            "PYTHONPATH": str(self.root),
            "XDG_CACHE_HOME": str(self.cache),
            "NUMBA_CACHE_DIR": str(self.cache / "numba"),  # else in the checkout, perhaps stale
            "ZNNI_COSTS": str(self.work / "no-costs.sqlite"),
            "ZNNI_PLANS": "none",
        }
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.work,
            env=os.environ | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str) -> Answer:
        """Run a command of ``znni`` to its end."""
        process = self.start("-m", "znni", *shlex.split(command))
        out, err = process.communicate()
        return Answer(process.returncode, out, err)

    def kill(self, command: str, out: str) -> None:
        """Kill a run with SIGKILL after some blocks of its output."""
        process = self.start("-m", "znni", *shlex.split(command))
        ledger = self.work / f"{out}.partial.ledger"
        while process.poll() is None:
            if ledger.exists() and ledger.read_bytes().count(b'"block"') >= KILLED_AFTER:
                process.kill()
            time.sleep(0.001)
        _, err = process.communicate()
        if process.returncode >= 0:
            raise SystemExit(f"{self.root}: no run to kill after {KILLED_AFTER} blocks: {err}")

    def commit(self) -> str:
        """Check that its code is what runs, and return the commit, marked if files differ."""
        out, err = self.start("-c", "import znni; print(znni.__file__)").communicate()
        if not Path(out.strip()).is_relative_to(self.root):
            raise SystemExit(f"{self.root}: is no checkout: its znni is {out or err}")
        commit, changed = (
            subprocess.run(
                ["git", "-C", str(self.root), *arguments],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for arguments in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain"])
        )
        return commit + "-dirty" * bool(changed)


def compare_plans(before: Checkout, after: Checkout, networks: list[str]) -> Iterator[Row]:
    """Yield a row with the differences for each plan."""
    further = [name for name in FURTHER_NETWORKS if name in networks]
    for network, options in (*product(networks, PLANS), *product(further, FURTHER_PLANS)):
        command = f"plan --net {network}.yaml {PLAN_OPTIONS} {options}"
        old, new = before.run(command), after.run(command)
        if old.code or new.code:
            found = list(_different("answer", old.refusal, new.refusal))
        else:
            found = list(_differences(json.loads(old.out), json.loads(new.out)))
        yield _row(REFUSED if old.code else PLANNED, command, found)


def _row(group: str, command: str, differences: list[Row]) -> Row:
    return {"group": group, "command": command, "differences": differences}


def _different(path: str, old: Any, new: Any) -> Iterator[Row]:
    """Yield a difference, with the ratio of numbers, where there is one."""
    if old != new or type(old) is not type(new):
        row = {"path": path, "before": old, "after": new}
        numbers = old and all(isinstance(value, int | float) for value in (old, new))
        yield row | ({"ratio": new / old} if numbers else {})


def _differences(before: Any, after: Any) -> Iterator[Row]:
    """Yield every value that differs between two plans."""
    old, new = dict(_leaves(_alike(before))), dict(_leaves(_alike(after)))
    for path in old | new:
        yield from _different(path, old.get(path, "(absent)"), new.get(path, "(absent)"))


def _alike(plan: Any) -> Any:
    """Return a plan in the form that both checkouts' plans can be given.

    A network is a list of layers in older plans, and nodes with their inputs in newer ones. Pieces
    of a batch are text in older plans, and values in newer ones. Fields that only tiled networks
    need are left out where they have their defaults.
    """
    network = plan["network"]
    network.pop("whole", None)
    network.pop("spacing", None)
    if "nodes" in network:
        network["layers"] = [node["layer"] for node in network.pop("nodes")]
        del network["output"]
    network["layers"] = [_without_defaults(layer) for layer in network["layers"]]
    for segment in plan["segments"]:
        segment.pop("is_exact", None)
        for step in segment["steps"]:
            step.pop("takes", None)
            step["operation"] = _without_defaults(step["operation"])
            step["primitive"] = _chosen(step["primitive"])
    return plan


def _without_defaults(layer: Any) -> Any:
    """Return a layer, or a convolution with its pooling, without the defaults of newer plans."""
    if "conv" in layer:
        return {kind: _without_defaults(part) for kind, part in layer.items()}
    return {
        key: value
        for key, value in layer.items()
        if key != "kind" and DEFAULTS.get(key, ...) != value
    }


def _chosen(primitive: Any) -> str:
    if isinstance(primitive, str):
        return primitive
    if "pieces" in primitive:
        pieces = (f"{it['times']}x{it['items']} {it['primitive']}" for it in primitive["pieces"])
        return " + ".join(pieces)
    shares = (f"{it['items']} {it['primitive']}" for it in primitive.values())
    return " beside ".join(shares)


def _leaves(value: Any, path: str = "plan") -> Iterator[tuple[str, Any]]:
    """Yield the values in a tree of JSON, each with its path."""
    if value and isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from _leaves(part, f"{path}.{key}")
    else:
        yield path, value


def compare_runs(before: Checkout, after: Checkout) -> Iterator[Row]:
    """Yield a row for each run, and for each run that was killed and resumed."""
    for case in RUNS:
        name, run, options = case
        out = before.work / name
        alone = out.with_stem("alone")
        command = f"infer {run} --threads 2 --costs built-in --out {name} {options}".strip()
        done = before.run(command)
        if done.code:
            raise SystemExit(f"{before.root}: {command}: {done.refusal}")
        out.rename(alone)
        yield _row(WHOLE, command, _compared(alone, out, after.run(command)))
        pairs = ((before, before, RESUMED), (after, after, RESUMED), (before, after, CROSSED))
        for begins, ends, group in pairs if case in KILLED_RUNS else ():
            begins.kill(command, name)
            resumed = ends.run(command)
            found = _compared(alone, out, resumed)
            if group == CROSSED and resumed.code == UNUSABLE:
                yield _row(UNREADABLE, f"{command}: {resumed.refusal}", [])
                continue
            if not resumed.code and _voxels(resumed) >= _voxels(done):
                found += _different("voxels computed", "the rest", "all")
            yield _row(group, command, found)
        _remove(alone)


def _compared(alone: Path, out: Path, answer: Answer) -> list[Row]:
    """Return the differences of an output from BEFORE's of a whole run, and delete it."""
    if answer.code:
        found = list(_different("answer", "exit code 0", answer.refusal))
    else:
        same = np.array_equal(_values(alone).view(np.uint8), _values(out).view(np.uint8))
        found = list(_different("array", "these bytes", "these bytes" if same else "others"))
        others = [name for name in difference(alone, out).split(", ") if name not in PLAN_PARTS]
        found += _different("parts that differ", "", ", ".join(others))
    for path in out.parent.glob(f"{out.name}*"):
        _remove(path)
    return found


# Parts of an output that hold its plan, whose form may differ between checkouts.
PLAN_PARTS = ("", "main.plan", "ledger", "0/ledger", "0/zarr.json")


def _values(path: Path) -> Any:
    """Return the array of an output."""
    if path.is_dir():
        return np.asarray(zarr.open_array(path / "0", mode="r")[:])
    with h5py.File(path, "r") as file:
        return file["main"][()]


def _voxels(answer: Answer) -> int:
    """Return the number of voxels that a run says it computed."""
    told = re.search(r"([\d,]+) voxels", answer.out)
    if not told:
        raise SystemExit(f"a run does not say how many voxels it computed: {answer.out}")
    return int(told[1].replace(",", ""))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def prepare(before: Path, work: Path) -> None:
    """Copy networks and machines of BEFORE into a folder, and make volumes and masks there."""
    for path in (*before.glob("networks/*"), *before.glob("machines/*.yaml")):
        if path.is_file():
            shutil.copy2(path, work)
    (work / "small.yaml").write_text(SMALL)
    small = np.random.default_rng(0).random((2, 48, 120, 96), np.float32)
    small[:, :, 55:] = 0.25  # blocks of one value are not computed
    np.save(work / "small.npy", small)
    for name, extents in (("mask", (96, 160, 160)), ("small-mask", small.shape[1:])):
        mask = np.zeros(extents, np.uint8)
        mask[:, :50, :60] = 1
        np.save(work / f"{name}.npy", mask)


def summary(about: Row) -> str:
    """Return the counts as Markdown, and the first differences of each plan and run."""
    lines = [
        f"BEFORE {about['before']}, AFTER {about['after']}; {about['date']}; "
        f"{about['seconds']:.0f} s\n",
        "| compared | cases | identical | differing |",
        "|---|---|---|---|",
    ]
    for group in GROUPS:
        rows = [row for row in about["rows"] if row["group"] == group]
        differing = sum(bool(row["differences"]) for row in rows)
        lines.append(f"| {group} | {len(rows)} | {len(rows) - differing} | {differing} |")
    for row in about["rows"]:
        if row["differences"] or row["group"] == UNREADABLE:
            lines.append(f"\n{row['group']}: `{row['command']}`: {len(row['differences'])} differ")
        for found in row["differences"][:8]:
            ratio = f" (x {found['ratio']:.9g})" if "ratio" in found else ""
            lines.append(f"- {found['path']}: {found['before']} -> {found['after']}{ratio}")
    return "\n".join(lines)


def main() -> None:
    """Compare, print a summary, save it, and exit with 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="A checkout.")
    parser.add_argument("after", type=Path, help="Another checkout.")
    parser.add_argument("--out", type=Path, help="Save all differences as JSON.")
    parser.add_argument("--networks", nargs="+", help="Plan these alone. Default: all.")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--plans-only", action="store_true")
    only.add_argument("--runs-only", action="store_true")
    asked = parser.parse_args()
    start = time.perf_counter()
    roots = asked.before.resolve(), asked.after.resolve()
    networks = asked.networks or sorted(path.stem for path in roots[0].glob("networks/*.yaml"))
    with TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        prepare(roots[0], work)
        before, after = (
            Checkout(root, work, work.parent / cache)
            for root, cache in zip(roots, ("cache-before", "cache-after"), strict=True)
        )
        about: Row = circumstances() | {"before": before.commit(), "after": after.commit()}
        about |= {"command": "python bench/compare_checkouts.py BEFORE AFTER", "rows": []}
        plans = () if asked.runs_only else compare_plans(before, after, networks)
        runs = () if asked.plans_only else compare_runs(before, after)
        for row in chain(plans, runs):
            told = "differs" if row["differences"] else "same"
            print(f"{row['group']}: {row['command']}: {told}", file=sys.stderr)
            about["rows"].append(row)
    about["seconds"] = time.perf_counter() - start
    print(summary(about))
    if asked.out:
        asked.out.write_text(json.dumps(about, indent=1) + "\n")
    sys.exit(any(row["differences"] for row in about["rows"]))


if __name__ == "__main__":
    main()
