"""Batches in pieces for cuDNN's own engines, within limits of workspace.

This is µ-cuDNN, Figures 10, 11 and 13. Engines compute in float32 without tensor cores, as in the
paper. Its networks have planes. Here these are volumes of one plane. Layers with a stride are left
out: znni's graphs of cuDNN have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Annotated, NamedTuple

import numpy as np
import typer
from scipy.optimize import Bounds, LinearConstraint, milp

from bench import session
from bench.layers import layer
from bench.record import Row
from znni.core.plan_options import memory_size
from znni.core.shapes import Shape5, Vec3
from znni.machine.cuda import cupy
from znni.network.layers import Conv
from znni.primitives.gpu.cudnn.formats import FORMATS
from znni.primitives.gpu.cudnn.graph import ConvolutionGraph, engine_seconds
from znni.primitives.gpu.cudnn.pieces import Pieces

MIB = 2**20
FLOAT32 = next(number for number in FORMATS if number.name == "float32")

# The numbers of images that pieces may have. Powers of two are µ-cuDNN's powerOfTwo; with every
# thirty-second number beside them, they stand for its "all", which tries each number.
WHOLE, POWERS, MORE = DIVISIONS = ("undivided", "powers of two", "more sizes")
STEP = 32


class Plane(NamedTuple):
    """A layer of planes whose output has the input's extents.

    Attributes:
        maps: the input maps.
        out_maps: the output maps.
        kernel: the kernel's extent.
        extent: the extent of input and output, without the border of zeros.
        times: how often the network has it.
    """

    maps: int
    out_maps: int
    kernel: int
    extent: int
    times: int = 1

    def convolution(self) -> Conv:
        """Return the layer."""
        made = layer(Vec3(1, self.kernel, self.kernel), self.maps, self.out_maps)
        assert isinstance(made, Conv)
        return made

    def piece(self, images: int) -> Pieces:
        """Return the shapes of a piece of a batch, with the border of zeros."""
        seen = self.extent + self.kernel - 1
        out = Shape5(images, self.out_maps, 1, self.extent, self.extent)
        return Pieces(Shape5(images, self.maps, 1, seen, seen), out, out)


# The paper's networks and batches. Each block of DenseNet-40, with 40 maps a layer, has 12 layers:
# its second, sixth and tenth stand for four each.
NETWORKS: dict[str, tuple[int, tuple[Plane, ...]]] = {
    "AlexNet": (
        256,
        (
            Plane(64, 192, 5, 27),
            Plane(192, 384, 3, 13),
            Plane(384, 256, 3, 13),
            Plane(256, 256, 3, 13),
        ),
    ),
    "ResNet-18": (
        128,
        (
            Plane(64, 64, 3, 56, 4),
            Plane(128, 128, 3, 28, 3),
            Plane(256, 256, 3, 14, 3),
            Plane(512, 512, 3, 7, 3),
        ),
    ),
    "DenseNet-40": (
        256,
        tuple(
            Plane(80 + 40 * (12 * block + place), 40, 3, 32 >> block, 4)
            for block, place in product(range(3), (1, 5, 9))
        ),
    ),
}


@dataclass(frozen=True)
class Engine:
    """A measured engine: seconds of a piece, and bytes of workspace."""

    seconds: float
    workspace: int


# The engines by the images of a piece.
Curve = dict[int, list[Engine]]


def engines_command(
    workspace: Annotated[
        list[int],
        typer.Option(parser=memory_size, metavar="SIZE", help="Limit of a layer; repeatable."),
    ] = [8 * MIB, 64 * MIB, 512 * MIB],  # noqa: B006
    net: Annotated[
        list[str] | None, typer.Option(help="AlexNet, ResNet-18 or DenseNet-40; repeatable.")
    ] = None,
    out: session.Out = None,
) -> None:
    """Divide batches among cuDNN's engines, within a workspace for each layer or for all."""
    session.check_known("network", net or (), NETWORKS)
    ceilings = session.ceilings_with("gpu", session.machine_with("gpu", None).host.threads)

    def measured() -> Iterator[list[Row]]:
        for name in net or NETWORKS:
            batch, planes = NETWORKS[name]
            curves = []
            for plane in planes:
                session.progress(f"{name}: {plane}")
                curves.append(curve_of(plane, batch))
            yield list(rows_of(name, batch, planes, curves, workspace))

    session.report_all("evaluations", measured(), [ceilings], out)


def curve_of(plane: Plane, batch: int) -> Curve:
    """Time the engines of a layer for each size of a piece."""
    sizes = sizes_of(batch, MORE)
    return {images: _engines(plane, images) for images in sizes}


def _engines(plane: Plane, images: int) -> list[Engine]:
    conv, piece = plane.convolution(), plane.piece(images)
    graph = ConvolutionGraph(
        conv, piece, FLOAT32, limit=max(1, cupy().cuda.Device().mem_info[0] // 2)
    )
    shapes = (piece.shape, Shape5(*conv.weight_shape), piece.out)
    x, weights, y = (cupy().zeros(shape, np.float32) for shape in shapes)
    found: list[Engine] = []
    for _, workspace, run in graph.engines(x.data.ptr, weights.data.ptr, y.data.ptr):
        best = min((engine.seconds for engine in found), default=inf)
        found.append(Engine(engine_seconds(run, best), workspace))
    return found


def sizes_of(batch: int, division: str) -> list[int]:
    """Return the sizes that pieces of a batch may have."""
    powers = [1 << power for power in range(batch.bit_length()) if 1 << power <= batch]
    if division == WHOLE:
        return [batch]
    return sorted({*powers, *(range(STEP, batch + 1, STEP) if division == MORE else ())})


def least_seconds(curve: Curve, batch: int, limit: int, division: str) -> float:
    """Return the seconds of the fastest division of a batch (µ-cuDNN's workspace reuse).

    It is infinite if no engine stays within the limit.
    """
    least = {
        images: min((it.seconds for it in curve[images] if it.workspace <= limit), default=inf)
        for images in sizes_of(batch, division)
    }
    seconds = [0.0]
    for images in range(1, batch + 1):
        seconds.append(
            min(
                (seconds[images - size] + least[size] for size in least if size <= images),
                default=inf,
            )
        )
    return seconds[batch]


def shared_seconds(
    curves: Sequence[Curve], times: Sequence[int], batch: int, total: int, division: str
) -> float:
    """Return the seconds of all layers if they share out a workspace (workspace division).

    An integer program chooses the limit of each layer (µ-cuDNN, eq. 1). Equal layers have equal
    limits.
    """
    choices = [
        (layer, limit, least_seconds(curve, batch, limit, division))
        for layer, curve in enumerate(curves)
        for limit in sorted({it.workspace for engines in curve.values() for it in engines})
        if limit <= total
    ]
    choices = [choice for choice in choices if choice[2] < inf]
    each = np.array([[layer == place for layer, *_ in choices] for place in range(len(curves))])
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
    name: str, batch: int, planes: Sequence[Plane], curves: Sequence[Curve], limits: Sequence[int]
) -> Iterator[Row]:
    """Yield the seconds of a network for each limit, division and way to give out workspace.

    The gain is over undivided batches with a limit of each layer's own.
    """
    times = [plane.times for plane in planes]
    for limit in limits:
        whole = None
        for division, shared in product(DIVISIONS, (False, True)):
            if shared:
                seconds = shared_seconds(curves, times, batch, limit * sum(times), division)
            else:
                each = (least_seconds(curve, batch, limit, division) for curve in curves)
                seconds = float(np.dot(times, list(each)))
            whole = seconds if whole is None else whole
            yield {
                "figure": "µ-cuDNN, 10, 11 and 13",
                "case": f"{name}, batch {batch}, {limit // MIB} MiB a layer",
                "name": f"{division}, {'shared out' if shared else 'each its own'}",
                "seconds": seconds,
                "gain": whole / seconds,
            }
