"""Types of lowering, and batches lowered together (Caffe con Troll, Figures 2, 3 and 8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated

import typer

from bench import session
from bench.layers import layer, weights_of
from bench.paper.contests import arena_of, contest, contest_of_primitives, random_input
from bench.record import Row
from bench.rounds import Effort
from znni.core.shapes import Shape5, Vec3
from znni.core.text import counted
from znni.primitives.catalogue import catalogue

# The three types, which materialize more before a product or after it.
TYPES = ("lowered_expensive_lowering", "lowered_balanced", "lowered_expensive_lifting")

# Input and output maps of Figure 8: one of the two changes.
MAPS = ((8, 64), (64, 64), (256, 64), (64, 8), (64, 256))


@dataclass(frozen=True)
class Plane:
    """A convolution of CaffeNet (Figure 7), as one of a single plane."""

    name: str
    extent: int
    kernel: int
    maps: int
    out_maps: int


# The first layer is left out, because its stride would take other primitives; the fourth is like
# the third.
CAFFENET = (
    Plane("conv2", 27, 5, 96, 256),
    Plane("conv3", 13, 3, 256, 384),
    Plane("conv5", 13, 3, 384, 256),
)


def lowering_command(
    kernel: session.Kernels = [3, 5],  # noqa: B006
    size: Annotated[int, typer.Option(min=5, help="Input voxels per axis.")] = 24,
    threads: session.Threads = None,
    repeats: session.Repeats = 3,
    budget: session.Budget = 2.0,
    out: session.Out = None,
) -> None:
    """Compare the three types of lowering for ratios of input to output maps."""
    machine, effort = session.machine_with("cpu", threads), Effort(repeats, budget)

    def measured() -> Iterator[list[Row]]:
        for taps in kernel:
            for given, made in MAPS:
                about: Row = {
                    "figure": "Caffe con Troll, 8",
                    "case": f"{given} -> {made} maps of {size}^3, kernel {taps}^3",
                }
                conv, shape = layer(Vec3.of(taps), given, made), Shape5.of(1, given, Vec3.of(size))
                yield contest_of_primitives(
                    machine, "cpu", conv, shape, TYPES, effort, about, TYPES[0]
                )

    session.report_all("evaluations", measured(), [], out)


def batching_command(
    batch: session.Batches = [1, 16, 64],  # noqa: B006
    only: session.Only = None,
    threads: session.Threads = None,
    repeats: session.Repeats = 3,
    budget: session.Budget = 2.0,
    out: session.Out = None,
) -> None:
    """Measure CaffeNet's layers on batches of images of one plane.

    The gain is that of a batch over as many single images.
    """
    machine, effort = session.machine_with("cpu", threads), Effort(repeats, budget)
    names = only or ["lowered_expensive_lowering", "lowered_expensive_lowering_blocked", "direct"]

    def measured() -> Iterator[list[Row]]:
        for plane, name in product(CAFFENET, names):
            about: Row = {"figure": "Caffe con Troll, 2 and 3", "case": f"{plane.name}, {name}"}
            conv = layer(Vec3(1, plane.kernel, plane.kernel), plane.maps, plane.out_maps)
            primitive = catalogue(machine)[name]
            shapes = [Shape5(n, plane.maps, 1, plane.extent, plane.extent) for n in sorted(batch)]
            runs = {
                counted(shape.n, "image"): partial(
                    primitive.build(conv, shape, weights_of(conv)), random_input(shape, "cpu")
                )
                for shape in shapes
            }
            working = max(primitive.cost(conv, shape).memory.working for shape in shapes)
            with arena_of("cpu", working, shapes[0]).in_use():
                rows = contest(about, runs, effort, "cpu", next(iter(runs)))
            images = {counted(n, "image"): n for n in batch}
            for row in rows:
                row["image_seconds"] = row["seconds"] / images[row["name"]]
                row["gain"] *= images[row["name"]] / min(batch)
            yield rows

    session.report_all("evaluations", measured(), [], out)
