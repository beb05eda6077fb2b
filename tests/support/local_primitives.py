"""GPU primitives of tiled networks' layers, compared with the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from devices import poison, to_gpu
from layers import Case

from znni.core.shapes import Box
from znni.machine.arena import output_into
from znni.machine.cuda import cupy
from znni.machine.device_arena import ALIGNMENT, DeviceArena
from znni.machine.machine import Device
from znni.network.weights import ConvWeights, Weights
from znni.plans.primitive import Primitive
from znni.primitives import tiled_reference
from znni.primitives.gpu.affine import primitive as affine
from znni.primitives.gpu.arranged import primitive as arranged
from znni.primitives.gpu.depthwise import primitive as depthwise
from znni.primitives.gpu.direct import primitive as direct
from znni.primitives.gpu.direct_tensor import primitive as direct_tensor
from znni.primitives.gpu.edge_filling import primitive as edge_filling
from znni.primitives.gpu.global_pooling import primitive as global_pooling
from znni.primitives.gpu.joins import primitive as joins
from znni.primitives.gpu.max_pooling import primitive as max_pooling
from znni.primitives.gpu.normalization import primitive as normalization
from znni.primitives.gpu.upsampling import primitive as upsampling
from znni.primitives.gpu.voxel_norm import primitive as voxel_norm
from znni.primitives.gpu.window_pooling import primitive as window_pooling

MODULES = (
    affine, arranged, depthwise, edge_filling, global_pooling, joins, normalization, upsampling,
    voxel_norm, window_pooling,
)  # fmt: skip

# Those whose outputs may have gaps in tiled networks, though sliding networks have them too.
DENSE = (direct, direct_tensor, max_pooling)


def primitives(device: Device, modules: tuple[Any, ...] = MODULES) -> list[Primitive]:
    """Those of layers that only tiled networks have, or of other modules."""
    return [primitive for module in modules for primitive in module.primitives(device)]


def check(case: Case, *inside: Box, device: Device, modules: tuple[Any, ...] = MODULES) -> None:
    """Compare all primitives with the reference.

    Errors are relative to the largest output, or to the largest sum of magnitudes: a sum of few
    numbers may be much smaller than each of them.
    """
    layer, layers = case.layer, {} if case.weights is None else {case.layer.name: case.weights}
    right = tiled_reference.local(layer, Weights(layers, "test"), case.inputs, *inside)
    magnitudes = [np.abs(right).max(initial=1, where=np.isfinite(right))]
    if case.weights is not None:
        sums = replace(layer, activation="identity")
        positive = ConvWeights(np.abs(case.weights.weight), np.abs(case.weights.bias))
        given_weights = Weights({layer.name: positive}, "test")
        magnitudes.append(
            tiled_reference.local(sums, given_weights, tuple(map(np.abs, case.inputs))).max()
        )
    for primitive in primitives(device, modules):
        out = primitive.out_shape(layer, case.shape)
        if out is None:
            continue
        cost = primitive.cost(layer, case.shape)
        memory = cost.memory
        run = primitive.build(layer, case.shape, case.weights)
        arena = DeviceArena(memory.workspace, 32 * ALIGNMENT)
        gaps = int(cost.writes_views)
        beside = (out.n, out.f + 2 * gaps, out.z + gaps, out.y + gaps, out.x + 2 * gaps)
        whole = cupy().full(beside, np.nan, np.float32)
        view = whole[:, gaps : gaps + out.f, gaps:, gaps:, gaps : gaps + out.x]
        given_inputs = [to_gpu(x) for x in case.inputs]
        with arena.in_use():
            poison(arena)
        with arena.step((0, arena.capacity)), output_into(view):
            run(*given_inputs, *inside)
        allowed = max(primitive.accuracy, 1e-6) * max(magnitudes)
        np.testing.assert_allclose(view.get(), right, rtol=0, atol=allowed)
        view.fill(np.nan)
        assert bool(cupy().isnan(whole).all())
        for there, here in zip(given_inputs, case.inputs, strict=True):
            np.testing.assert_array_equal(there.get(), here)
