"""A folder of small cases, one of them damaged: seconds of each, and how busy the layers were.

``znni nnunet predict`` calls the same function. The network and the scans are made by this command,
so it needs no nnU-Net.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter, time
from typing import Annotated, Any, NamedTuple

import typer

from bench.case_networks import save_case_network
from bench.child import Child
from bench.record import Row
from bench.session import (
    Device,
    Folder,
    Out,
    Threads,
    ceilings_with,
    machine_with,
    progress,
    report_all,
)
from bench.whole_scan import save_synthetic
from znni.cases.case_folder import Case
from znni.cases.folder import CasesReport, cases_in, predict_cases
from znni.core.plan_options import Choices, memory_size
from znni.core.run_options import Options
from znni.network.network_file import load_network

SAMPLE_MS = 100
STEPS = ("reading", "resampling", "network", "writing")


class Defaults(NamedTuple):
    """The default work on a device: a scan, and windows of a network."""

    size: tuple[int, int, int]
    window: int


DEFAULTS = {"gpu": Defaults((160, 256, 256), 128), "cpu": Defaults((128, 192, 192), 64)}

Cases = Annotated[int, typer.Option(min=3, help="Cases; the one in the middle is damaged.")]
Extents = Annotated[
    list[int] | None,
    typer.Option(
        "--size",
        min=8,
        help="Voxels of a scan: z, y and x. Default: 160 x 256 x 256; on the CPU 128 x 192 x 192.",
    ),
]
Voxels = Annotated[
    list[float], typer.Option("--voxel", help="Millimetres of a voxel; the network has 1.5.")
]
Window = Annotated[
    int | None,
    typer.Option(min=32, help="Voxels of a window per axis. Default: 128; on the CPU 64."),
]
Ram = Annotated[
    int | None, typer.Option(parser=memory_size, metavar="SIZE", help="As for znni nnunet predict.")
]


def case_folder_command(
    *,
    cases: Cases = 100,
    size: Extents = None,
    voxel: Voxels = [1.5, 1.0, 1.0],  # noqa: B006 - typer reads it
    window: Window = None,
    device: Device = "cpu",
    ram: Ram = None,
    threads: Threads = None,
    folder: Folder = None,
    out: Out = None,
) -> None:
    """Time a folder of cases, and report the share of time in which layers are computed.

    On a GPU the network is nnU-Net's, with 32 to 320 maps, and windows are mirrored along all axes,
    as in nnU-Net's default prediction. On the CPU it has three layers, and nothing is mirrored.
    Shares count from the end of the first network to the end of the last one.
    """
    cores = machine_with(device, threads).host.threads
    with nullcontext(folder) if folder else TemporaryDirectory() as place:
        at = Path(place).resolve()
        progress(f"making {cases} scans")
        make_folder(at, cases, size or DEFAULTS[device].size, voxel)
        save_case_network(
            at / "network.yaml",
            window or DEFAULTS[device].window,
            ["organ", "vessel"],
            wide=device == "gpu",
            mirror="zyx" if device == "gpu" else "",
        )
        progress("computing their labels")
        limits = Choices(device=device, ram=ram, threads=threads)
        with Child(FolderRun, at, limits, environment=_environment(at)) as child:
            rows = child.call("run")
            rows[-1]["peak_gib"] = child.peak_memory() / 2**30
    report_all("case-folder", [rows], [ceilings_with(device, cores)], out)


def make_folder(folder: Path, cases: int, size: Sequence[int], voxel: Sequence[float]) -> None:
    """Make scans. The one in the middle is damaged."""
    for name in ("scans", "out"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    scan = folder / "scan.nii.gz"
    save_synthetic(scan, size, voxel)
    for number in range(cases):
        os.link(scan, folder / "scans" / f"case{number:03}_0000.nii.gz")
    damaged = folder / "scans" / f"case{cases // 2:03}_0000.nii.gz"
    damaged.unlink()
    damaged.write_bytes(scan.read_bytes()[: scan.stat().st_size // 2])


def _environment(folder: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(folder / "cache")}


class FolderRun:
    """The cases of a folder that ``make_folder`` made, in a process of their own.

    Args:
        folder: the folder.
        limits: what plans may use.
    """

    def __init__(self, folder: Path, limits: Choices) -> None:
        self._folder, self._limits = folder, limits

    def run(self) -> list[Row]:
        """Compute the labels, and return a row for each case and one for all."""
        network = load_network(self._folder / "network.yaml")
        assert network.case is not None
        cases = cases_in(self._folder / "scans", self._folder / "out", network.case)
        ends: list[float] = []

        def told(_case: Case, step: str, done: int, total: int) -> None:
            if step == "network" and done == total:
                ends.append(perf_counter())

        begun, clock = perf_counter(), time()
        with gpu_samples() as samples:
            report = predict_cases(cases, network, Options(limits=self._limits), progress=told)
        seconds = perf_counter() - begun
        return [
            *_rows_of_cases(cases, report, clock),
            _row_of_all(report, seconds, begun, ends, samples, self._limits.device),
        ]


def _rows_of_cases(cases: list[Case], report: CasesReport, clock: float) -> Iterator[Row]:
    """Yield the seconds of each case, and when its labels were complete.

    Args:
        cases: the cases.
        report: the report on them.
        clock: the time when they began.
    """
    for case in cases:
        if found := report.reports.get(case.out):
            steps = {name: found.seconds.get(name) for name in STEPS}
            network = found.reports[0].time
            yield {
                "name": case.out.name,
                **{f"{name}_seconds": taken for name, taken in steps.items()},
                "opening_seconds": network.around.opening + network.around.planning,
                "layers_seconds": max(network.busy.gpu_layers, network.busy.host_layers),
                "finishing_seconds": network.around.finishing,
                "done_at": case.out.stat().st_mtime - clock,
            }
        else:
            yield {"name": case.out.name, "failed": "yes"}


def _row_of_all(
    report: CasesReport,
    seconds: float,
    begun: float,
    ends: list[float],
    samples: list[tuple[float, float]],
    device: str,
) -> Row:
    """Return the seconds of all cases, and the shares of time with work for layers.

    Args:
        report: the report on the cases.
        seconds: the seconds of all.
        begun: when they began.
        ends: when the network of each case was done.
        samples: times, and the share of the GPU at work that the driver saw at each.
        device: where the layers ran.
    """
    first, last = ends[0], ends[-1]
    busy = [each.time.busy for found in report.reports.values() for each in found.reports]
    layers = [each.gpu_layers if device == "gpu" else each.host_layers for each in busy]
    seen = [share for at, share in samples if first <= at <= last]
    return {
        "name": "all",
        "device": device,
        "cases": len(report.reports) + len(report.failures),
        "failed": str(len(report.failures)),
        "seconds": seconds,
        "first_seconds": first - begun,
        "each_seconds": (last - first) / (len(ends) - 1),
        "layers_busy": sum(layers[1:]) / (last - first),
        "gpu_busy": sum(seen) / len(seen) if seen else None,
    }


@contextmanager
def gpu_samples() -> Iterator[list[tuple[float, float]]]:
    """Yield a list of times, each with the share of the GPU at work as the driver reports it.

    A thread adds to the list during the ``with`` block. The list stays empty if there is no
    ``nvidia-smi``.
    """
    samples: list[tuple[float, float]] = []
    command = [
        "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0",
        "-lms", str(SAMPLE_MS),
    ]  # fmt: skip
    if shutil.which(command[0]) is None:
        yield samples
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        reading = Thread(target=_read, args=(process.stdout, samples), daemon=True)
        reading.start()
        try:
            yield samples
        finally:
            process.terminate()
            reading.join()


def _read(lines: Any, samples: list[tuple[float, float]]) -> None:
    for line in lines:
        with suppress(ValueError):
            samples.append((perf_counter(), float(line) / 100))
