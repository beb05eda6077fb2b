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

Layers = tuple[tuple[str, int], ...]

# The networks of Figure 4: kernels and pooling windows in their order, 80 maps in hidden layers.
FIGURE_4: dict[str, Layers] = {
    "one pooling": (("conv", 3), ("pool", 2), ("conv", 3), ("conv", 3), ("conv", 3)),
    "two poolings": (("conv", 3), ("pool", 2), ("conv", 3), ("pool", 2), ("conv", 3), ("conv", 3)),
}
MAPS = 80
FFT_CONSTANT = 5.0  # operations of a transform: 5 N log2 N
TILE = 16  # extent of a tile, if layers transform tiles
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
    largest layer takes (Table II). The largest patch within each limit counts. Further rows have
    layers that transform tiles, and kernels once for all patches, as znni's tiled FFT does.
    """

    def counted_rows() -> Iterator[list[Row]]:
        for (name, layers), limit in product(FIGURE_4.items(), memory or (GIB, 4 * GIB, 12 * GIB)):
            naive, _ = fft_operations(layers, 1, 1, fragments=False)
            rows = list[Row]()
            for (way, operations_of), images in product(WAYS.items(), batch):
                extent = 1
                while operations_of(layers, images, extent + 1)[1] <= limit:
                    extent += 1
                operations, taken = operations_of(layers, images, extent)
                if taken <= limit:
                    rows.append(
                        {
                            "figure": "ZNNi, 4",
                            "case": f"{name}, within {in_units(limit)}",
                            "name": f"{counted(images, 'input')}, fragments of {extent}^3{way}",
                            "inputs": images,
                            "memory_gib": taken / GIB,
                            "gain": naive / operations,
                        }
                    )
            yield rows

    session.report_all("evaluations", counted_rows(), [], out)


def fft_operations(
    layers: Layers, images: int, extent: int, *, fragments: bool = True
) -> tuple[float, float]:
    """Return the operations for an output voxel, and the bytes of the largest layer.

    Args:
        layers: kinds and extents of the layers.
        images: inputs at once.
        extent: output voxels per axis, of each fragment or of the only subsampling.
        fragments: whether poolings give all fragments.
    """
    operations = memory = 0.0
    for window, size, taken, count in _convolutions(layers, images, extent, fragments=fragments):
        line = FFT_CONSTANT * size * log2(max(size, 2))
        whole, pruned = 3 * size * size, window * window + window * size + size * size
        operations += count * (taken + MAPS) * whole * line
        operations += taken * MAPS * pruned * line
        operations += 4 * count * taken * MAPS * size**3
        spectrum, made = 4.0 * size**3, 4.0 * (size - window + 1) ** 3
        beside = count * MAPS * made + (count * taken + 1) * spectrum
        memory = max(memory, count * taken * 2 * spectrum, beside)
    return operations / (count * extent**3), memory


def tiled_operations(layers: Layers, images: int, extent: int) -> tuple[float, float]:
    """Return the same for layers that transform tiles, and kernels once for all patches.

    All transformed kernels take memory beside the largest layer.
    """
    operations = values = kernels = 0.0
    line = FFT_CONSTANT * TILE * log2(TILE)
    for window, size, taken, count in _convolutions(layers, images, extent, fragments=True):
        made = size - window + 1
        tiles = count * (made / (TILE - window + 1)) ** 3
        operations += tiles * (taken + MAPS) * 3 * TILE**2 * line
        operations += tiles * 4 * taken * MAPS * TILE**3
        values = max(values, 4.0 * count * (taken * size**3 + MAPS * made**3))
        kernels += 4.0 * taken * MAPS * TILE**3
    return operations / (count * extent**3), values + kernels


def _convolutions(
    layers: Layers, images: int, extent: int, *, fragments: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the kernel of each convolution, the extent, maps and number of its images."""
    sizes = [extent]
    for kind, window in reversed(layers):
        more = window - 1 if fragments else 0
        sizes.append(sizes[-1] + window - 1 if kind == "conv" else sizes[-1] * window + more)
    sizes.reverse()
    taken, count = 1, images
    for (kind, window), size in zip(layers, sizes, strict=False):
        if kind == "pool":
            count *= window**3 if fragments else 1
        else:
            yield window, size, taken, count
            taken = MAPS


# Ways to count, by what they add to a row's name.
WAYS = {"": fft_operations, ", tiles": tiled_operations}


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
    """Predict the best plan of each strategy for sizes of patches, with the memory it takes.

    Speeds are those of a long job, whose slowest stage sets the pace.
    """

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
                on_gpu = plan.gpu_memory.total if plan.gpu_memory else 0
                rows.append(
                    {
                        "figure": "ZNNi, 5 and 7",
                        "case": f"{network.name}, {strategy}, output {extent}^3",
                        "memory_gib": max(plan.memory.total, on_gpu) / GIB,
                        "predicted_voxels_per_s": plan.patch.volume / plan.time.between,
                    }
                )
        return rows

    session.report_all("evaluations", map(predicted, net), [], out)
