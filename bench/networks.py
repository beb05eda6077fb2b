"""Whole networks: a plan's patch, measured, beside PyTorch's best patch."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from znni import planning
from znni.arrays import peak_memory
from znni.engine.patch import PatchRunner
from znni.machine import Machine
from znni.network import Conv, Network
from znni.plans import Plan
from znni.primitive import catalogue
from znni.shapes import Vec3
from znni.timing import interleaved
from znni.weights import Float32, Weights, random_weights

COLUMNS = {
    "network": "",
    "name": "",
    "patch": "",
    "seconds": ".2f",
    "spread": ".0%",
    "voxels_per_s": ",.0f",
    "predicted_voxels_per_s": ",.0f",
    "ratio_to_torch_fp32": ".1f",
    "error": ".1e",
    "peak_gib": ".2f",
    "declared_gib": ".2f",
}


def compare_network(
    network: Network, machine: Machine, volume: Vec3, peer_patch: int, repeats: int
) -> list[dict[str, Any]]:
    """Rows for znni's plan for a volume and for PyTorch, one patch each, interleaved.

    Args:
        network: with ReLU activations.
        machine: its host's memory limits the plan.
        volume: extents of the input that is planned for.
        peer_patch: PyTorch's patch, in output voxels per axis and total pooling.
        repeats: counted rounds.
    """
    host = machine.host
    plan = planning.plan(network, volume, ram=host.memory, threads=host.threads)
    weights = random_weights(network, 0)
    generator = np.random.default_rng(0)
    runs: dict[str, Callable[[], Float32]] = {}
    patches = {"znni": plan.patch}
    runner = PatchRunner(plan, catalogue(machine), weights)
    inputs = {"znni": _noise(network, plan.patch, generator)}
    runs["znni"] = lambda: runner(inputs["znni"])
    if find_spec("torch") is not None:
        import torch

        from bench.torch_fragments import TorchFragments

        patch = network.total_pooling * peer_patch
        for name, dtype in (("torch_fp32", torch.float32), ("torch_bf16", torch.bfloat16)):
            peer = TorchFragments(network, weights, dtype, host.threads)
            inputs[name] = _noise(network, patch, generator)
            patches[name] = patch
            runs[name] = lambda peer=peer, name=name: peer(inputs[name])  # type: ignore[misc]
    timings = interleaved(runs, repeats=repeats, budget=300)
    rows = []
    for name, timing in timings.items():
        with peak_memory() as peak:
            y = runs[name]()
        patch = patches[name]
        rows.append(
            {
                "network": network.name,
                "name": name,
                "patch": str(patch),
                "seconds": timing.median,
                "spread": timing.spread,
                "voxels_per_s": patch.volume / timing.median,
                "error": _error(network, weights, inputs[name], y),
                "peak_gib": peak.highest / 2**30,
            }
        )
    _add_ours(rows, plan)
    return rows


def _noise(network: Network, patch: Vec3, generator: np.random.Generator) -> Float32:
    size = patch + network.field_of_view - 1
    return generator.random((network.in_features, *size), dtype=np.float32)


def _error(network: Network, weights: Weights, x: Float32, y: Float32) -> float | None:
    """Relative error at the first output voxel against float64; needs PyTorch for its speed."""
    if find_spec("torch") is None:
        return None
    import torch
    from torch.nn import functional

    view = network.field_of_view
    value = torch.from_numpy(x[np.newaxis, :, : view.z, : view.y, : view.x].astype(np.float64))
    with torch.inference_mode():
        for layer in network.layers:
            if isinstance(layer, Conv):
                parameters = weights[layer.name]
                kernel = torch.from_numpy(parameters.weight.astype(np.float64))
                bias = torch.from_numpy(parameters.bias.astype(np.float64))
                value = torch.relu_(functional.conv3d(value, kernel, bias))
            else:
                value = functional.max_pool3d(value, tuple(layer.window))
    expected = value.numpy()[0, :, 0, 0, 0]
    return float(np.abs(y[:, 0, 0, 0] - expected).max() / np.abs(expected).max())


def _add_ours(rows: list[dict[str, Any]], plan: Plan) -> None:
    ours = rows[0]
    ours["predicted_voxels_per_s"] = plan.patch.volume / plan.patch_seconds
    ours["declared_gib"] = plan.memory.total / 2**30
    for row in rows:
        if row["name"] == "torch_fp32":
            ours["ratio_to_torch_fp32"] = ours["voxels_per_s"] / row["voxels_per_s"]
