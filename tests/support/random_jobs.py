"""Run random networks over volumes of real sizes; compare with float64 over the whole volume.

    python tests/support/random_jobs.py --seed 1 --seconds 300 --from 24 --to 300 --out record.json

Each job has a random graph, volume, border, region, patch and limit of memory. A process of its own
runs it. The output must be that of one float64 evaluation over the whole volume, and the peak
memory at most the plan's. Some jobs are run once more, interrupted and resumed, or with a mask:
their bytes must be the same. The seed and a job's number determine the job, so ``--only NUMBER``
repeats one. Processes with other seeds may run beside each other.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
from graphs import graphs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from paths import ROOT, SUPPORT
from random_job_run import JOB, OUTPUT, VOLUME, WEIGHTS_SEED, Kind, Ran, RandomJob

from bench.record import circumstances
from znni.core.option_types import Pad
from znni.core.shapes import Box, Vec3
from znni.engine.reading import read_input
from znni.engine.tiles import make_job, seen_by
from znni.network.frames import whole_sizes
from znni.network.geometry import context
from znni.network.layers import Conv, ConvTranspose
from znni.network.network import Network
from znni.network.weights import Float32, random_weights
from znni.primitives.reference import Float64
from znni.primitives.tiled_reference import output_at_once
from znni.volumes.array import ArrayVolume

LARGEST_ERROR = 1e-5  # relative to the output's largest value
LEAST_SCALE = 1e-2  # of the output, which may be all zeros
MEMORY = 4 << 30  # bytes of the float64 values
WORK = 4e10  # multiply-adds of the float64 evaluation
TRIES = 200  # networks drawn until one fits
SECONDS = 1800  # until a run counts as hanging
MOST_MAPS = (20, 12, 8, 4, 2)
DRAWN: list[Network] = []


@dataclass(frozen=True)
class Result:
    """Result of a job.

    Attributes:
        number: number of the job.
        kind: its kind.
        error: the largest difference, relative to the output's largest value.
        wrong: what is wrong; empty if nothing is.
        seconds: how long the job took.
        case: a description of the job.
        ran: what the run measured; None if it failed.
    """

    number: int
    kind: Kind
    error: float
    wrong: str
    seconds: float
    case: dict[str, Any]
    ran: dict[str, Any] | None


@settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(st.integers(0, 3), st.sampled_from(MOST_MAPS), st.data())
def _draw_network(depth: int, most_maps: int, data: st.DataObject) -> None:
    DRAWN.append(data.draw(graphs(depth=depth, most_maps=most_maps)))


def random_network(rng: Random) -> Network | None:
    """Return a random network; None if this one would be illegal."""
    DRAWN.clear()
    getattr(_draw_network, "hypothesis").fuzz_one_input(rng.randbytes(8192))  # noqa: B009 - untyped
    return DRAWN[0] if DRAWN else None


def costs(network: Network, extents: Vec3) -> tuple[int, float]:
    """Return bytes and multiply-adds of the float64 evaluation over a whole input."""
    sizes = whole_sizes(network, extents)
    held, most, work = network.in_features * extents.volume, 0, 0.0
    for node in network.nodes:
        made, taken = sizes[node.name].volume, sizes[node.inputs[0]].volume
        layer, extra = node.layer, 0
        maps = network.maps[node.name]
        if isinstance(layer, Conv):
            taps = layer.in_features // layer.groups * layer.kernel.volume
            work += float(maps * made * taps)
            # PyTorch copies the input for each tap, unless it is added up tap by tap.
            extra = made * (taps if layer.groups > 1 else layer.in_features)
        elif isinstance(layer, ConvTranspose):
            taps = layer.out_features * layer.kernel.volume
            work += float(layer.in_features * taken * taps)
            extra = taken * taps
        held += maps * made
        most = max(most, extra + 2 * maps * made + network.maps[node.inputs[0]] * taken)
    return 8 * (held + most), work


def random_job(
    rng: Random, least: int, most: int, threads: int, reasons: Counter[str]
) -> RandomJob | None:
    """Return a job; None if no network of many is small enough for the volume.

    Args:
        rng: draws everything.
        least: least extent of the volume.
        most: largest extent of the volume.
        threads: number of worker threads of the run.
        reasons: why networks are drawn anew; this is counted there.
    """
    size = Vec3(*(round(least * (most / least) ** rng.random()) for _ in range(3)))
    for _ in range(TRIES):
        network = random_network(rng)
        if network is None:
            reasons["illegal network"] += 1
            continue
        wanted = rng.choice(["valid", "same"])
        border: Any = wanted if (context(network) + 1).within(size) else "same"
        pad: Pad = rng.choice(get_args(Pad)) if border == "same" else "reflect"
        job = make_job(network, size, border, pad, None)
        assert job.whole
        held, work = costs(network, job.whole)
        if held > MEMORY or work > WORK:
            reasons["too large for float64"] += 1
            continue
        roi = _box(rng, Box(job.center, job.center + job.output)) if rng.random() < 0.5 else None
        output = roi.size if roi else job.output
        patch = None
        if rng.random() < 0.6:
            counts = (output + network.alignment).ceil_div(network.alignment)
            drawn = (max(rng.randint(1, n), -(-n // 10)) for n in counts)
            patch = network.alignment * Vec3(*drawn)
        kinds: tuple[Kind, ...] = ("plain", "plain", "interrupted", "masked")
        return RandomJob(
            network, size, border, pad, roi, patch, rng.choice([1.0, 1.05, 1.3, 2.0, 4.0]),
            threads, rng.choice(kinds), rng.random(), _box(rng, Box(Vec3(0, 0, 0), size)),
        )  # fmt: skip
    return None


def _box(rng: Random, within: Box) -> Box:
    """Return a random box within another, of any extents."""
    sides = [
        sorted((rng.randrange(a, b), rng.randrange(a, b))) for a, b in zip(*within, strict=True)
    ]
    return Box(Vec3(*(a for a, _ in sides)), Vec3(*(b + 1 for _, b in sides)))


def whole_output(drawn: RandomJob, x: Float32, *, with_torch: bool) -> Float64:
    """Return the job's output, cut from that of one float64 evaluation over the whole volume."""
    network, job, weights = drawn.network, drawn.job, random_weights(drawn.network, WEIGHTS_SEED)
    seen = read_input(ArrayVolume(x), job, seen_by(network, job), network.scaling)
    if with_torch:
        import torch

        from bench.peers.torch_graph import TorchGraph

        torch.set_num_threads(drawn.threads)
        with torch.inference_mode():
            graph = TorchGraph(network, weights, torch.float64, by_taps=True)
            made: Float64 = graph(torch.from_numpy(seen).double()[None])[0].numpy()
    else:
        made = output_at_once(network, weights, seen)
    return made[:, *Box(job.first, job.first + job.output).slices]


def run_job(number: int, rng: Random, drawn: RandomJob, *, with_torch: bool) -> Result:
    """Run a job in a process of its own, and judge its output."""
    begun, network = time.monotonic(), drawn.network
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        generator = np.random.default_rng(rng.getrandbits(64))
        x = generator.standard_normal((network.in_features, *drawn.size), np.float32)
        np.save(folder / VOLUME, x)
        (folder / JOB).write_bytes(pickle.dumps(drawn))
        program = [sys.executable, str(SUPPORT / "random_job_run.py"), place]
        known = [str(ROOT), str(SUPPORT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        try:
            done = subprocess.run(
                program, capture_output=True, text=True, check=False, timeout=SECONDS,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, known))},
            )  # fmt: skip
            failure = done.stderr[-2000:] if done.returncode else ""
        except subprocess.TimeoutExpired:
            failure = f"hangs for {SECONDS} s"
        if failure:
            seconds = time.monotonic() - begun
            return Result(number, drawn.kind, 0.0, failure, seconds, described(drawn), None)
        ran = Ran(**json.loads(done.stdout.splitlines()[-1]))
        found = np.load(folder / OUTPUT)
    expected = whole_output(drawn, x, with_torch=with_torch)
    scale = max(LEAST_SCALE, float(np.abs(expected).max()))
    error = max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True)) / scale
    wrong = []
    if not error <= LARGEST_ERROR:
        wrong.append(f"error {error:.2e}")
    if ran.peak > ran.promised:
        wrong.append(f"took {ran.peak:,} bytes, and {ran.promised:,} were promised")
    if ran.again not in ("", "same"):
        wrong.append(f"{drawn.kind}: {ran.again}")
    seconds = time.monotonic() - begun
    said = "; ".join(wrong)
    return Result(number, drawn.kind, error, said, seconds, described(drawn), asdict(ran))


def described(drawn: RandomJob) -> dict[str, Any]:
    """Return a job in words and numbers."""
    return {
        "size": list(drawn.size),
        "border": drawn.border,
        "pad": drawn.pad,
        "roi": str(drawn.roi) if drawn.roi else None,
        "patch": list(drawn.patch) if drawn.patch else None,
        "ram": drawn.ram,
        "layers": [
            f"{node.layer!r} of {', '.join(name or 'input' for name in node.inputs)}"
            for node in drawn.network.nodes
        ],
    }


def summary(results: list[Result], skipped: list[str]) -> dict[str, Any]:
    """Return the figures of the results."""
    measured = [each for each in results if each.ran]
    worst = max(measured, key=lambda each: each.error, default=None)
    sides = [side for each in results for side in each.case["size"]]
    return {
        "jobs": len(results),
        "kinds": Counter(each.kind for each in results),
        "planned_by": Counter(each.ran["planned_by"] for each in measured if each.ran),
        "patches": sum(each.ran["patches"] for each in measured if each.ran),
        "interrupted_and_resumed": sum(
            each.kind == "interrupted" and bool(each.ran and each.ran["again"]) for each in results
        ),
        "blocks_skipped_by_masks": sum(each.ran["skipped"] for each in measured if each.ran),
        "sides": [min(sides), max(sides)] if sides else [],
        "largest_memory_share": max(
            (each.ran["peak"] / each.ran["promised"] for each in measured if each.ran), default=0
        ),
        "worst_error": worst.error if worst else None,
        "worst_case": worst and asdict(worst),
        "skipped": skipped,
        "wrong": [asdict(each) for each in results if each.wrong],
    }


def main() -> None:
    """Run jobs until the time is up, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of all jobs")
    parser.add_argument("--seconds", type=float, default=60, help="no job begins after these")
    parser.add_argument("--from", dest="least", type=int, default=24, help="least extent")
    parser.add_argument("--to", dest="most", type=int, default=300, help="largest extent")
    parser.add_argument("--threads", type=int, default=2, help="threads of each run")
    parser.add_argument("--only", type=int, help="the job of this number alone")
    parser.add_argument("--out", type=Path, help="record to write, in JSON")
    given_ = parser.parse_args()
    about = circumstances("tests/support/random_jobs.py")
    with_torch = importlib.util.find_spec("torch") is not None
    begun, number = time.monotonic(), given_.only or 0
    results: list[Result] = []
    skipped: list[str] = []
    reasons = Counter[str]()
    while time.monotonic() - begun < given_.seconds:
        rng = Random(f"{given_.seed} {number}")
        drawn = random_job(rng, given_.least, given_.most, given_.threads, reasons)
        if drawn is None:
            skipped.append(f"{number}: no network of {TRIES} is small enough")
        else:
            results.append(run_job(number, rng, drawn, with_torch=with_torch))
            one = results[-1]
            print(
                f"{number}: {one.kind} {drawn.size}, error {one.error:.1e}, {one.seconds:.1f} s"
                f"{', WRONG: ' * bool(one.wrong)}{one.wrong}",
                flush=True,
            )
        number += 1
        if given_.only is not None:
            break
    oracle = "PyTorch, float64" if with_torch else "znni.primitives.tiled_reference.output_at_once"
    record = {
        **about,
        "oracle": oracle,
        "seconds": round(time.monotonic() - begun),
        "networks_drawn_anew": reasons,
        **summary(results, skipped),
    }
    print(json.dumps({name: record[name] for name in ("jobs", "kinds", "worst_error", "skipped")}))
    if given_.out:
        given_.out.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(bool(record["wrong"]))


if __name__ == "__main__":
    main()
