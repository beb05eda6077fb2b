"""Throughput over memory and over the size of patches (ZNNi, Figures 4, 5 and 7)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import log2
from pathlib import Path
from typing import Annotated

import typer

from bench import session
from bench.paper.strategies import STRATEGIES
from bench.record import Row
from znni.core.plan_options import memory_size
from znni.core.shapes import Vec3
from znni.core.text import counted, in_units
from znni.inference.planning import search
from znni.network.network_file import load_network

# The networks of Figure 4: kernels and pooling windows in their order, 80 maps in hidden layers.
FIGURE_4 = {
    "one pooling": (("conv", 3), ("pool", 2), ("conv", 3), ("conv", 3), ("conv", 3)),
    "two poolings": (("conv", 3), ("pool", 2), ("conv", 3), ("pool", 2), ("conv", 3), ("conv", 3)),
}
MAPS = 80
FFT_CONSTANT = 5.0  # operations of a transform: 5 N log2 N
GIB = 2**30


def fft_speedups_command(
    batch: session.Batches = [1, 2, 4, 8, 16],  # noqa: B006
    memory: Annotated[
        list[int] | None,
        typer.Option(
            parser=memory_size,
            metavar="SIZE",
            help="Limit of a layer; repeatable. Default: 1GiB, 4GiB and 12GiB.",
        ),
    ] = None,
    out: session.Out = None,
) -> None:
    """Count operations for an output voxel with fragments, beside one field of view each.

    As in the paper, these are operations of FFT-based layers (Table I), over the memory that the
    largest layer takes (Table II). The largest patch within each limit counts.
    """

    def counted_rows() -> Iterator[list[Row]]:
        for (name, layers), limit in product(FIGURE_4.items(), memory or (GIB, 4 * GIB, 12 * GIB)):
            naive, _ = fft_operations(layers, 1, 1, fragments=False)
            rows = list[Row]()
            for images in batch:
                extent = 1
                while fft_operations(layers, images, extent + 1, fragments=True)[1] <= limit:
                    extent += 1
                operations, taken = fft_operations(layers, images, extent, fragments=True)
                if taken <= limit:
                    rows.append(
                        {
                            "figure": "ZNNi, 4",
                            "case": f"{name}, within {in_units(limit)}",
                            "name": f"{counted(images, 'input')}, fragments of {extent}^3",
                            "inputs": images,
                            "memory_gib": taken / GIB,
                            "gain": naive / operations,
                        }
                    )
            yield rows

    session.report_all("evaluations", counted_rows(), [], out)


def fft_operations(
    layers: tuple[tuple[str, int], ...], images: int, extent: int, *, fragments: bool
) -> tuple[float, float]:
    """Return the operations for an output voxel, and the bytes of the largest layer.

    Args:
        layers: kinds and extents of the layers.
        images: inputs at once.
        extent: output voxels per axis, of each fragment or of the only subsampling.
        fragments: whether poolings give all fragments.
    """
    sizes = [extent]
    for kind, window in reversed(layers):
        more = window - 1 if fragments else 0
        sizes.append(sizes[-1] + window - 1 if kind == "conv" else sizes[-1] * window + more)
    sizes.reverse()
    operations = memory = 0.0
    taken, count = 1, images
    for (kind, window), size in zip(layers, sizes, strict=False):
        if kind == "pool":
            count *= window**3 if fragments else 1
            continue
        line = FFT_CONSTANT * size * log2(max(size, 2))
        whole, pruned = 3 * size * size, window * window + window * size + size * size
        operations += count * (taken + MAPS) * whole * line
        operations += taken * MAPS * pruned * line
        operations += 4 * count * taken * MAPS * size**3
        spectrum, made = 4.0 * size**3, 4.0 * (size - window + 1) ** 3
        beside = count * MAPS * made + (count * taken + 1) * spectrum
        memory = max(memory, count * taken * 2 * spectrum, beside)
        taken = MAPS
    return operations / (count * extent**3), memory


def sizes_command(
    net: session.Nets,
    machine: Annotated[
        Path | None, typer.Option(help="A machine's file. Default: this one.")
    ] = None,
    output: Annotated[
        list[int], typer.Option(min=1, help="Output voxels per axis of a patch; repeatable.")
    ] = [64, 128, 192, 256, 384],  # noqa: B006
    size: session.Volume = 1024,
    costs: session.CostsChoice = "built-in",
    out: session.Out = None,
) -> None:
    """Predict the best plan of each strategy for sizes of patches, with the memory it takes."""

    def predicted(path: Path) -> list[Row]:
        network = load_network(path)
        session.progress(f"planning {network.name}")
        found = search(network, (size,) * 3, machine=machine, costs=costs)
        layers, rows = len(network.layers), list[Row]()
        for strategy, passes in STRATEGIES.items():
            places = [place for place in found.cut_points if passes(place, layers)]
            for extent in output if places else ():
                patch = Vec3.of(extent).ceil_div(network.granularity) * network.granularity
                plan = found.through(places).fastest_for(patch)
                if plan is None:
                    continue
                slowest = max(part.seconds for part in plan.parts)  # the others work meanwhile
                on_gpu = plan.gpu_memory.total if plan.gpu_memory else 0
                rows.append(
                    {
                        "figure": "ZNNi, 5 and 7",
                        "case": f"{network.name}, {strategy}, output {extent}^3",
                        "memory_gib": max(plan.memory.total, on_gpu) / GIB,
                        "predicted_voxels_per_s": plan.patch.volume / slowest,
                    }
                )
        return rows

    session.report_all("evaluations", map(predicted, net), [], out)
