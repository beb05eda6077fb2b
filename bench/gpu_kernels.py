"""What each kernel of a GPU's primitives moves and computes, by the hardware's own counters.

NVIDIA's profiler ``ncu``, of the CUDA toolkit, runs this module, which makes one call of each
primitive between marks; what it counted of every kernel is held to the ceilings of the GPU.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from shutil import which

import numpy as np

from bench.gpu_ceilings import GpuCeilings
from bench.record import Row
from znni.calibration.measure import NOISE, some_weights
from znni.cuda import compiled, cupy
from znni.errors import InvalidInput, RunFailed
from znni.machine import detect_machine
from znni.network import Conv, Operation, Pool, PooledConv
from znni.primitive import Catalogue, catalogue
from znni.shapes import Shape5, Vec3

MARK = "next_call"
MARKING = f'extern "C" __global__ void {MARK}() {{}}'

SECONDS = "gpu__time_duration.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
SINGLE = "smsp__sass_thread_inst_executed_op_f{}_pred_on.sum"
ADDED, MULTIPLIED, FUSED = (SINGLE.format(name) for name in ("add", "mul", "fma"))
BUSY = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
METRICS = (SECONDS, READ, WRITTEN, ADDED, MULTIPLIED, FUSED, BUSY)


@dataclass(frozen=True)
class Counted:
    """A kernel's launches in one call, added up.

    Attributes:
        kernel: its name.
        launches: how many.
        seconds: that they took.
        read: bytes from memory.
        written: bytes to memory.
        flops: operations on float32, two for a fused multiply-add; none of matrix units.
        busy: the share of what the busiest part of the multiprocessors could do.
    """

    kernel: str
    launches: int
    seconds: float
    read: float
    written: float
    flops: float
    busy: float


def _hidden(kernel: int, extent: int) -> tuple[Conv, Shape5]:
    conv = Conv("hidden", 80, 80, Vec3.of(kernel), "relu")
    return conv, Shape5.of(8, 80, Vec3.of(extent + kernel - 1))


FIRST = Conv("first", 1, 80, Vec3(3, 3, 3), "relu")
LAST = Conv("last", 80, 3, Vec3(3, 3, 3), "relu")
CUBE = Pool("pool", Vec3(2, 2, 2))
IMAGE = Shape5(1, 1, 231, 231, 231)

# One call of each: extents are those of whole tiles.
CALLS: tuple[tuple[str, Operation, Shape5], ...] = (
    ("gpu_fft_tiled_24", *_hidden(3, 88)),
    ("gpu_fft_tiled_28", *_hidden(5, 96)),
    ("gpu_fft_tiled_28", *_hidden(7, 88)),
    ("gpu_fft_tiled_32", *_hidden(9, 96)),
    ("gpu_direct", FIRST, IMAGE),
    ("gpu_direct", LAST, Shape5(8, 80, 98, 98, 98)),
    ("gpu_direct_pooled", PooledConv(FIRST, CUBE), IMAGE._replace(z=230, y=230, x=230)),
    ("gpu_max_pooling", CUBE, Shape5(8, 80, 118, 118, 118)),
    ("gpu_max_pooling_fragments", CUBE, Shape5(8, 80, 119, 119, 119)),
    ("gpu_fft_pruned", *_hidden(5, 60)),
    ("gpu_cudnn_tf32", *_hidden(3, 88)),
    ("gpu_cudnn_float32", *_hidden(3, 88)),
)


def calls_here(known: Catalogue) -> list[tuple[str, Operation, Shape5]]:
    """Those calls whose primitives a machine has."""
    return [call for call in CALLS if call[0] in known]


def compare_kernels(ceilings: GpuCeilings) -> list[Row]:
    """A row for each kernel of each call, with its floor at the ceilings.

    Raises:
        InvalidInput: there is no ``ncu``.
        RunFailed: it fails.
    """
    calls = calls_here(catalogue(detect_machine()))
    rows: list[Row] = []
    for (name, operation, shape), kernels in zip(calls, _profiled(), strict=True):
        about: Row = {"name": name, "layer": _told(operation), "input": str(shape)}
        rows += [about | _held(counted, ceilings) for counted in kernels]
    return rows


def counted_calls(lines: Iterable[Sequence[str]]) -> Iterator[list[Counted]]:
    """The kernels of each call, of the table that ``ncu`` writes: titles, units, launches."""
    titles, _, *launches = lines
    columns = {title: index for index, title in enumerate(titles)}
    kernels = [
        (
            launch[columns["Kernel Name"]].split("(")[0],
            [_number(launch[columns[m]]) for m in METRICS],
        )
        for launch in launches
    ]
    for marked, call in groupby(kernels, lambda kernel: kernel[0] == MARK):
        if marked:
            continue
        by_name: dict[str, list[list[float]]] = {}
        for name, numbers in call:
            by_name.setdefault(name, []).append(numbers)
        yield [_added(name, numbers) for name, numbers in by_name.items()]


def _added(kernel: str, launches: list[list[float]]) -> Counted:
    sums = dict(zip(METRICS, map(sum, zip(*launches, strict=True)), strict=True))
    busy = sum(launch[0] * launch[-1] for launch in launches) / sums[SECONDS]
    flops = sums[ADDED] + sums[MULTIPLIED] + 2 * sums[FUSED]
    seconds = sums[SECONDS] * 1e-9
    return Counted(kernel, len(launches), seconds, sums[READ], sums[WRITTEN], flops, busy / 100)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _held(counted: Counted, ceilings: GpuCeilings) -> Row:
    floor = ceilings.floor(counted.flops, counted.read + counted.written)
    return {
        "kernel": counted.kernel,
        "launches": counted.launches,
        "milliseconds": 1e3 * counted.seconds,
        "read_gb": counted.read / 1e9,
        "written_gb": counted.written / 1e9,
        "gflop": counted.flops / 1e9,
        "floor_milliseconds": 1e3 * floor.seconds,
        "bound": floor.bound,
        "achieved": floor.share(counted.seconds),
        "busy": counted.busy,
    }


def _told(operation: Operation) -> str:
    match operation:
        case Conv():
            return f"{operation.in_features}->{operation.out_features} {operation.kernel}"
        case Pool():
            return f"pool {operation.window}"
        case PooledConv():
            return f"{_told(operation.conv)}, {_told(operation.pool)}"


def _profiled() -> list[list[Counted]]:
    """Run this module under ``ncu``."""
    ncu = which("ncu")
    if ncu is None:
        raise InvalidInput("this needs NVIDIA's profiler ncu, of the CUDA toolkit, on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "kernels.csv"
        done = subprocess.run(
            [
                ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log),
                "--profile-from-start", "off", "--cache-control", "none", "--clock-control", "none",
                "--metrics", ",".join(METRICS), sys.executable, "-m", __name__,
            ],
            capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        said = log.read_text() if log.exists() else ""
    table = [line for line in said.splitlines() if line.startswith('"')]
    if done.returncode or not table:
        raise RunFailed(f"ncu failed: {(done.stderr + said).strip()[-500:]}")
    return list(counted_calls(csv.reader(table)))


def main() -> None:
    """Make each call once, after a mark; the first of each is not watched."""
    known = catalogue(detect_machine())
    few = np.random.default_rng(0).standard_normal(NOISE, np.float32)
    mark = compiled(MARKING).get_function(MARK)
    for name, operation, shape in calls_here(known):
        run = known[name].build(operation, shape, some_weights(operation))
        x = cupy().asarray(np.resize(few, shape))
        run(x)
        cupy().cuda.profiler.start()
        mark((1,), (1,), ())
        run(x)
        cupy().cuda.profiler.stop()
        del run, x
        cupy().get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
