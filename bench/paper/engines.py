"""Measured times and workspaces of cuDNN's own engines, in a file that others may read.

Engines compute in float32 without tensor cores, as in the paper. Its networks (µ-cuDNN, Figures 10
to 14) have planes. Here these are volumes of one plane. Layers with a stride are left out: znni's
graphs of cuDNN have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from math import inf
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from bench import session
from bench.ceilings import GpuCeilings
from bench.paper.divisions import (
    ALL,
    DIVISIONS,
    MIB,
    WHOLE,
    Curve,
    Engine,
    powers_of_two,
    rows_of,
)
from bench.record import Kind, Record, Row, join, load, made_here, write
from znni.core.shapes import Shape5, Vec3
from znni.machine.cuda import LibraryFailed, cupy
from znni.network.layers import Conv
from znni.primitives.gpu.cudnn.formats import FORMATS
from znni.primitives.gpu.cudnn.graph import ConvolutionGraph, engine_seconds
from znni.primitives.gpu.cudnn.pieces import Pieces

FLOAT32 = next(number for number in FORMATS if number.name == "float32")
KIND: Kind = "engine-curves"


class Call(NamedTuple):
    """A convolution whose batch may be divided, and the voxels of its input."""

    conv: Conv
    size: Vec3

    @property
    def about(self) -> Row:
        """The columns of a row that identify the call."""
        maps = f"{self.conv.in_features}->{self.conv.out_features}"
        return {"kernel": str(self.conv.kernel), "maps": maps, "size": str(self.size)}

    def piece(self, images: int) -> Pieces:
        """Return the shapes of a piece of a batch."""
        out = Shape5.of(images, self.conv.out_features, self.size - self.conv.kernel + 1)
        return Pieces(Shape5.of(images, self.conv.in_features, self.size), out, out)


class Case(NamedTuple):
    """A network, or a layer alone.

    Attributes:
        name: its name.
        batch: images of all layers.
        calls: its layers, and how often it has each.
    """

    name: str
    batch: int
    calls: Mapping[Call, int]


def plane(maps: int, out_maps: int, kernel: int, extent: int) -> Call:
    """Return a layer of planes. Its input has a border of zeros around the output's extent."""
    seen = extent + kernel - 1
    conv = Conv("conv1", maps, out_maps, Vec3(1, kernel, kernel), "relu")
    return Call(conv, Vec3(1, seen, seen))


# The paper's networks and batches. Each block of DenseNet-40, with 40 maps a layer, has 12 layers:
# its second, sixth and tenth stand for four each.
NETWORKS = {
    "AlexNet": Case(
        "AlexNet",
        256,
        {
            plane(64, 192, 5, 27): 1,
            plane(192, 384, 3, 13): 1,
            plane(384, 256, 3, 13): 1,
            plane(256, 256, 3, 13): 1,
        },
    ),
    "ResNet-18": Case(
        "ResNet-18",
        128,
        {
            plane(64, 64, 3, 56): 4,
            plane(128, 128, 3, 28): 3,
            plane(256, 256, 3, 14): 3,
            plane(512, 512, 3, 7): 3,
        },
    ),
    "DenseNet-40": Case(
        "DenseNet-40",
        256,
        {
            plane(80 + 40 * (12 * block + place), 40, 3, 32 >> block): 4
            for block, place in product(range(3), (1, 5, 9))
        },
    ),
}


class Curves:
    """Measured engines, in a file if one is given.

    Args:
        path: the file. If it exists, its measurements count, and new ones are added.

    Attributes:
        ceilings: of the GPUs that measured.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._before = load(path, KIND) if path and path.exists() else None
        self._now: Record | None = None
        known = self._before.about["ceilings"] if self._before else []
        self.ceilings = [GpuCeilings(**each) for each in known]

    def of(self, call: Call) -> Curve:
        """Return the measured engines of a call."""
        return {
            row["images"]: list(map(Engine, row["all_seconds"], row["all_workspaces"]))
            for record in (self._before, self._now)
            if record
            for row in record.rows
            if all(row[name] == value for name, value in call.about.items())
        }

    def begin(self, ceilings: GpuCeilings) -> None:
        """Prepare for measurements of this process.

        Raises:
            InvalidInput: the file has those of another machine, or of other libraries.
        """
        self._now = made_here(KIND, [], [ceilings])
        self._joined()
        self.ceilings.append(ceilings)

    def add(self, call: Call, images: int, engines: Sequence[Engine]) -> None:
        """Add a measurement, and save all."""
        assert self._now, "measurements have begun"
        row: Row = {**call.about, "images": images, "engines": len(engines)}
        if engines:
            fastest = min(engines, key=lambda it: it.seconds)
            row |= {"seconds": fastest.seconds, "workspace_mib": fastest.workspace / MIB}
        row |= {
            "all_seconds": [it.seconds for it in engines],
            "all_workspaces": [it.workspace for it in engines],
        }
        self._now.rows.append(row)
        if self._path:
            write(self._path, self._joined())

    def _joined(self) -> Record:
        """Return the measurements of the file and of this process."""
        return join([record for record in (self._before, self._now) if record])


def rows_within(
    cases: Sequence[Case],
    limits: Sequence[int],
    curves: Curves,
    step: int,
    most: int,
    seconds: float,
) -> Iterator[list[Row]]:
    """Yield the rows of each case, after measurements of what the curves lack.

    Args:
        cases: networks and layers.
        limits: bytes of workspace for each layer.
        curves: measurements so far.
        step: multiples of it are sizes of pieces, beside powers of two.
        most: engines that are tried for each call.
        seconds: time after which no more calls are measured.
    """
    measure(missing(cases, curves, step) if seconds else [], curves, most, seconds)
    for name, batch, calls in cases:
        yield list(rows_of(name, batch, list(map(curves.of, calls)), [*calls.values()], limits))


def missing(cases: Sequence[Case], curves: Curves, step: int) -> list[tuple[Call, int]]:
    """Return the calls and images that are not measured yet, undivided batches first."""
    wanted = dict.fromkeys(
        (call, images)
        for division in DIVISIONS
        for case in cases
        for call in case.calls
        for images in sizes_wanted(case.batch, division, step)
    )
    return [(call, images) for call, images in wanted if images not in curves.of(call)]


def sizes_wanted(batch: int, division: str, step: int) -> list[int]:
    """Return the sizes of pieces that a division needs, large ones first."""
    if division == WHOLE:
        return [batch]
    sizes = range(step, batch + 1, step) if division == ALL else powers_of_two(batch)
    return sorted(sizes, reverse=True)


def measure(wanted: Sequence[tuple[Call, int]], curves: Curves, most: int, seconds: float) -> None:
    """Measure calls, as long as there is time.

    Raises:
        InvalidInput: there is no GPU.
    """
    if not wanted:
        return
    machine, until = session.machine_with("gpu", None), perf_counter() + seconds
    ceilings = session.ceilings_with("gpu", machine.host.threads)
    assert isinstance(ceilings, GpuCeilings)
    curves.begin(ceilings)
    for place, (call, images) in enumerate(wanted):
        session.progress(f"{place} of {len(wanted)}: {call.about}, {images} images")
        engines = engines_of(call, images, most, until)
        if engines is None:
            session.progress("no time was left")
            return
        curves.add(call, images, engines)


def engines_of(call: Call, images: int, most: int, until: float) -> list[Engine] | None:
    """Return measured engines of a call; None if time ran out.

    Args:
        call: the call.
        images: images of a piece.
        most: engines that are tried.
        until: the time at which no more are tried.
    """
    piece, found = call.piece(images), list[Engine]()
    shapes = piece.shape, Shape5(*call.conv.weight_shape), piece.out
    x, weights, y = (cupy().zeros(shape, np.float32) for shape in shapes)
    limit = max(1, cupy().cuda.Device().mem_info[0] // 2)
    try:
        graph = ConvolutionGraph(call.conv, piece, FLOAT32, limit)
        for _, workspace, run in graph.engines(x.data.ptr, weights.data.ptr, y.data.ptr, most):
            if perf_counter() > until:
                return None
            best = min((engine.seconds for engine in found), default=inf)
            with suppress(LibraryFailed):  # cuDNN proposed it, but cannot run it
                found.append(Engine(engine_seconds(run, best), workspace))
    except LibraryFailed as error:
        session.progress(str(error))
    return found
