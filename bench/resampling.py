"""Speed of resampling beside scipy and PyTorch: an image by cubic splines, maps, and labels.

All compute the same voxels. scipy has one thread. Others may use the machine at the same time, so
rows also tell the seconds of processors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Annotated, Any, Literal

import numpy as np
import typer
from numpy.typing import NDArray
from scipy import ndimage

from bench import session
from bench.accuracy import normal
from bench.ceilings import Ceilings, measure_ceilings
from bench.record import Row
from bench.rounds import Effort, run_rounds, seconds_of
from znni.core.resampling import Resampling
from znni.core.shapes import ZERO, Box, Shape5, Vec3
from znni.machine.detect import detect_host
from znni.network.weights import Float32
from znni.resampling.box_resampling import resample, resample_bytes
from znni.resampling.labels import label_bytes, label_largest

OURS, SCIPY, TORCH = "znni", "scipy", "torch"


def resampling_command(
    size: Annotated[int, typer.Option(min=8, help="Voxels per axis of the image.")] = 256,
    maps: Annotated[int, typer.Option(min=2, help="Maps of a quarter of these voxels.")] = 117,
    threads: session.Threads = None,
    repeats: session.Repeats = 7,
    budget: session.Budget = 30.0,
    out: session.Out = None,
) -> None:
    """Compare znni with other libraries that resample volumes."""
    ceilings = measure_ceilings(threads or detect_host().host.threads)
    typer.echo(ceilings)
    cases = (
        Case("image", 1, size, 3),
        Case("image", 1, size, 1),
        Case("maps", maps, size // 4, 1),
        Case("labels", maps, size // 4, 1),
    )
    rows = (compared(case, ceilings, Effort(repeats, budget)) for case in cases)
    session.report_all("resampling", rows, [ceilings], out)


@dataclass(frozen=True)
class Case:
    """A volume that gets half as many voxels again along each axis.

    Attributes:
        name: ``image``, ``maps``, or ``labels`` of the largest maps.
        maps: its maps.
        size: its voxels per axis.
        order: the order of the spline.
    """

    name: str
    maps: int
    size: int
    order: Literal[1, 3]

    @property
    def resampling(self) -> Resampling:
        """The change of voxels."""
        target = Vec3.of(self.size * 3 // 2)
        return Resampling(Vec3.of(self.size), target, (self.order,) * 3)

    @property
    def least_bytes(self) -> int:
        """The bytes that are read or written at least."""
        change = self.resampling
        made = change.target.volume * (1 if self.name == "labels" else 4 * self.maps)
        return 4 * self.maps * change.source.volume + made

    def scratch(self, threads: int) -> int:
        """Return the bytes that znni takes beside input and output."""
        declared = label_bytes if self.name == "labels" else resample_bytes
        return declared(self.resampling, Box(ZERO, self.resampling.target), threads)


def compared(case: Case, ceilings: Ceilings, effort: Effort) -> list[Row]:
    """Return a row for each library."""
    made: dict[str, NDArray[Any]] = {}
    spent: dict[str, list[float]] = {}
    works = {
        name: partial(_timed, name, work, made, spent)
        for name, work in _works(case, ceilings.threads)
    }
    found = run_rounds(works, effort, warm=[SCIPY], progress=session.progress)
    return [
        {
            "case": case.name,
            "maps": case.maps,
            "input": str(case.resampling.source),
            "output": str(case.resampling.target),
            "order": case.order,
            "name": name,
            "threads": 1 if name == SCIPY else ceilings.threads,
            **result.record(),
            "processor_seconds": median(spent[name]),
            "floor_seconds": case.least_bytes / ceilings.copy_bandwidth,
            "slower": result.timing.median / found[OURS].timing.median,
            **_difference(case, made[name], made[SCIPY]),
            **({"scratch_mib": case.scratch(ceilings.threads) / 2**20} if name == OURS else {}),
        }
        for name, result in found.items()
    ]


def _timed(
    name: str,
    work: Callable[[], NDArray[Any]],
    made: dict[str, NDArray[Any]],
    spent: dict[str, list[float]],
) -> float:
    """Time a library, and note what it made and the seconds of processors."""

    def run() -> None:
        made[name] = work()

    start = time.process_time()
    seconds = seconds_of(run)
    spent.setdefault(name, []).append(time.process_time() - start)
    return seconds


def _difference(case: Case, found: NDArray[Any], wanted: NDArray[Any]) -> Row:
    """Return how far a result is from scipy's."""
    if case.name == "labels":
        return {"labels_apart": int(np.count_nonzero(found != wanted))}
    return {"difference": float(np.abs(found - wanted).max() / np.abs(wanted).max())}


def _works(case: Case, threads: int) -> Iterator[tuple[str, Callable[[], NDArray[Any]]]]:
    """Yield what each library does."""
    values, change = normal(Shape5.of(1, case.maps, Vec3.of(case.size)))[0], case.resampling
    box, finds_labels = Box(ZERO, change.target), case.name == "labels"
    known = np.arange(case.maps, dtype=np.uint8)

    def ours() -> NDArray[Any]:
        if finds_labels:
            return label_largest(values, ZERO, change, box, known, threads=threads)
        return resample(values, ZERO, change, box, threads=threads)

    def by_scipy() -> NDArray[Any]:
        found = np.stack([_zoomed(image, case) for image in values])
        return found.argmax(axis=0).astype(np.uint8) if finds_labels else found

    yield OURS, ours
    yield SCIPY, by_scipy
    if case.order == 1 and find_spec("torch"):
        yield TORCH, partial(_by_torch, values, change, threads, finds_labels)


def _zoomed(image: Float32, case: Case) -> Float32:
    factors = np.divide(case.resampling.target, case.resampling.source)
    return ndimage.zoom(image, factors, order=case.order, mode="nearest", grid_mode=True)


def _by_torch(
    values: Float32, change: Resampling, threads: int, finds_labels: bool
) -> NDArray[Any]:
    import torch

    torch.set_num_threads(threads)
    images = torch.from_numpy(values)[None]
    found = torch.nn.functional.interpolate(images, tuple(change.target), mode="trilinear")[0]
    made = found.argmax(dim=0).to(torch.uint8) if finds_labels else found
    return np.asarray(made.numpy())
