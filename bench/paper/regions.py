"""The regions of layer sizes in which each family of primitives is fastest (fbfft, Figures 1 to 6).

The paper compares two-dimensional layers with cuDNN's. Here all layers are three-dimensional.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated

import typer

from bench import session
from bench.layers import able, layer
from bench.paper.contests import contest_of_primitives
from bench.record import Row
from bench.rounds import Effort
from planner.cost_model import BUILT_IN
from znni.core.option_types import ACCURACIES
from znni.core.processors import DeviceKind
from znni.core.shapes import Shape5, Vec3
from znni.machine.machine import Machine
from znni.network.layers import Conv
from znni.primitives.catalogue import FAMILIES

# The family that others are compared with: cuDNN's, as in the paper, or direct convolution.
BASELINES: dict[DeviceKind, str] = {"gpu": "cuDNN", "cpu": "direct"}


def regions_command(
    kernel: session.Kernels = [3, 5, 7, 9],  # noqa: B006
    made: Annotated[
        list[int], typer.Option("--output", min=1, help="Output voxels per axis; repeatable.")
    ] = [8, 16, 32],  # noqa: B006
    maps: Annotated[
        list[int], typer.Option(min=1, help="Input and output maps alike; repeatable.")
    ] = [16, 64],  # noqa: B006
    batch: session.Batches = [8],  # noqa: B006
    device: session.Device = "cpu",
    threads: session.Threads = None,
    repeats: session.Repeats = 3,
    budget: session.Budget = 1.0,
    out: session.Out = None,
) -> None:
    """Measure the fastest primitive of each family on a sweep of layer sizes."""
    machine, effort = session.machine_with(device, threads), Effort(repeats, budget)

    def measured() -> Iterator[list[Row]]:
        for taps, count, images, extent in product(kernel, maps, batch, made):
            conv, size = layer(Vec3.of(taps), count, count), Vec3.of(extent + taps - 1)
            assert isinstance(conv, Conv)
            shape = Shape5.of(images, count, size)
            about: Row = {
                "figure": "fbfft, 1 to 6",
                "case": f"kernel {taps}^3, {images} x {count} maps, output {extent}^3",
                "kernel": taps,
                "problem": images * count * count,
                "output": extent,
            }
            yield rows_of_families(machine, device, conv, shape, effort, about)

    session.report_all("evaluations", measured(), [], out)


def rows_of_families(
    machine: Machine, device: DeviceKind, conv: Conv, shape: Shape5, effort: Effort, about: Row
) -> list[Row]:
    """Return the rows of each family's fastest primitive, the fastest first."""
    chosen = fastest_by_family(machine, device, conv, shape)
    baseline = chosen.get(BASELINES[device], "")
    rows = contest_of_primitives(
        machine, device, conv, shape, chosen.values(), effort, about, baseline
    )
    families = {name: family for family, name in chosen.items()}
    rows.sort(key=lambda row: float(row["seconds"]))
    return [{**row, "family": families[row["name"]]} for row in rows]


def fastest_by_family(
    machine: Machine, device: DeviceKind, conv: Conv, shape: Shape5
) -> dict[str, str]:
    """Return the name of each family's fastest primitive of float32's class, by the model."""
    found: dict[str, tuple[float, str]] = {}
    for primitive in able(device, machine, [], conv, shape):
        bare = primitive.name.rpartition("gpu_")[2]
        family = next((it for it, names in FAMILIES.items() if bare.startswith(names)), None)
        if family is None or primitive.accuracy > ACCURACIES["float32"]:
            continue
        cost = primitive.cost(conv, shape)
        seconds = BUILT_IN.estimate(primitive, conv, shape, cost).seconds
        found[family] = min((seconds, primitive.name), found.get(family, (seconds, primitive.name)))
    return {family: name for family, (_, name) in found.items()}
