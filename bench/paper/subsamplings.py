"""All subsamplings of a network, one after the other, beside max-pooling fragments (ZNNi, VIII).

The paper's baseline calls cuDNN for convolutions and plain poolings, once for each offset of the
pooling windows. Here both ways use the same primitives for convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from bench import session
from bench.paper.contests import seconds_of_primitive
from bench.paper.published import published
from bench.record import Row
from bench.rounds import Effort
from znni.core.processors import DeviceKind
from znni.core.shapes import Shape5, Vec3
from znni.network.layers import Pool, SlidingLayer
from znni.network.network import Network
from znni.network.network_file import load_network
from znni.primitives.catalogue import catalogue

# Convolutions of both ways, and their poolings: plain, and all fragments.
CONVOLUTIONS: dict[DeviceKind, str] = {"cpu": "direct", "gpu": "gpu_cudnn_float32"}
POOLINGS: dict[DeviceKind, tuple[str, str]] = {
    "cpu": ("max_pooling", "max_pooling_fragments"),
    "gpu": ("gpu_max_pooling", "gpu_max_pooling_fragments"),
}


def subsamplings_command(
    net: session.Nets,
    device: session.Device = "cpu",
    output: Annotated[
        int, typer.Option(min=1, help="Output voxels per axis, of each subsampling.")
    ] = 4,
    convolution: Annotated[str | None, typer.Option(help="Primitive of the convolutions.")] = None,
    threads: session.Threads = None,
    repeats: session.Repeats = 3,
    budget: session.Budget = 5.0,
    out: session.Out = None,
) -> None:
    """Compare all subsamplings with fragments, as sums of the times of their layers."""
    machine, effort = session.machine_with(device, threads), Effort(repeats, budget)
    primitives = catalogue(machine)
    conv = primitives[convolution or CONVOLUTIONS[device]]
    plain, fragments = (primitives[name] for name in POOLINGS[device])

    def of_network(path: Path) -> list[Row]:
        network = load_network(path)
        pooling = network.total_pooling
        voxels = (pooling * output).volume
        rows: list[Row] = []
        for name, pool, size, runs in (
            ("all subsamplings", plain, network.field_of_view + pooling * (output - 1), pooling),
            ("fragments", fragments, network.field_of_view + pooling * output - 1, Vec3(1, 1, 1)),
        ):
            seconds = 0.0
            for layer, shape in _inputs(network, size, fragments=pool is fragments):
                primitive = pool if isinstance(layer, Pool) else conv
                seconds += seconds_of_primitive(primitive, layer, shape, effort, device)
            rate = voxels / (seconds * runs.volume)
            rows.append(
                {
                    "figure": "ZNNi, Table V",
                    "case": f"{network.name}, {conv.name}, input {size}",
                    "name": name,
                    "seconds": seconds * runs.volume,
                    "voxels_per_s": rate,
                    "gain": rate / rows[0]["voxels_per_s"] if rows else 1.0,
                }
            )
        rows[0]["published_voxels_per_s"] = published(network.name, "cuDNN, all subsamplings")
        rows[1]["published_voxels_per_s"] = published(network.name, "ELEKTRONN")
        return rows

    session.report_all("evaluations", map(of_network, net), [], out)


def _inputs(
    network: Network, size: Vec3, *, fragments: bool
) -> Iterator[tuple[SlidingLayer, Shape5]]:
    """Yield the layers of a chain with the shapes of their inputs, for an input of that size."""
    shape = Shape5.of(1, network.in_features, size)
    for layer in network.sliding_layers:
        yield layer, shape
        if not isinstance(layer, Pool):
            shape = Shape5.of(shape.n, layer.out_features, shape.size - layer.kernel + 1)
        else:
            images = shape.n * (layer.window.volume if fragments else 1)
            shape = Shape5.of(images, shape.f, shape.size // layer.window)
