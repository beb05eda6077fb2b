"""Every primitive of the catalogue on one convolution, beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.accuracy import sampled_error
from bench.peers import torch_convolutions
from znni.arena import Arena
from znni.arrays import peak_memory
from znni.machine import Machine
from znni.network import Conv, Network
from znni.primitive import catalogue
from znni.shapes import Shape5, Vec3
from znni.timing import interleaved
from znni.weights import Float32, random_weights

COLUMNS = {
    "kernel": "",
    "maps": "",
    "input": "",
    "name": "",
    "seconds": ".4f",
    "spread": ".0%",
    "kvoxels_per_s": ",.0f",
    "gflops_direct": ",.0f",
    "model_seconds": ".4f",
    "error": ".1e",
    "peak_mib": ",.0f",
    "declared_mib": ",.0f",
}


def compare_layer(
    machine: Machine, conv: Conv, shape: Shape5, only: list[str], repeats: int
) -> list[dict[str, Any]]:
    """A row of measurements for each primitive, or those named in ``only``, and each peer."""
    from planner.costs import model_seconds

    network = Network("layer", conv.in_features, (conv,))
    weights = random_weights(network, 0)[conv.name]
    generator = np.random.default_rng(0)
    x = generator.standard_normal(shape, dtype=np.float32)
    rows: dict[str, dict[str, Any]] = {}
    runs: dict[str, Callable[[], Float32]] = {}
    working = [0]
    for primitive in catalogue(machine).values():
        out = primitive.out_shape(conv, shape)
        if out is not None and (not only or primitive.name in only):
            cost = primitive.cost(conv, shape)
            build = primitive.build(conv, shape, weights)
            runs[primitive.name] = lambda run=build: run(x)  # type: ignore[misc]
            working.append(cost.memory.working)
            rows[primitive.name] = {
                "model_seconds": model_seconds(primitive, cost),
                "declared_mib": cost.memory.working / 2**20,
            }
    for name, peer in torch_convolutions(weights, x, machine.host.threads).items():
        runs[name] = peer
        rows[name] = {}
    arena = Arena(max(working))
    with arena.in_use():
        timings = interleaved(runs, repeats=repeats)
    size = shape.size - conv.kernel + 1
    voxels = shape.n * size.volume
    direct_flops = 2 * conv.in_features * conv.kernel.volume * conv.out_features * voxels
    for name, timing in timings.items():
        with peak_memory() as peak:
            y = runs[name]()
        rows[name] |= {
            "kernel": str(conv.kernel),
            "maps": f"{conv.in_features}->{conv.out_features}",
            "input": str(shape),
            "name": name,
            "seconds": timing.median,
            "spread": timing.spread,
            "kvoxels_per_s": voxels / timing.median / 1e3,
            "gflops_direct": direct_flops / timing.median / 1e9,
            "error": sampled_error(x, y, conv, weights),
            "peak_mib": (peak.added + x.nbytes) / 2**20,
        }
    return sorted(rows.values(), key=lambda row: float(row["seconds"]))


def layer(kernel: Vec3, features: int, out_features: int) -> Conv:
    """The convolution that is compared."""
    return Conv("conv1", features, out_features, kernel, "relu")
