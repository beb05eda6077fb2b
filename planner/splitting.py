"""The convolutions of upsampled values that a GPU computes faster if they are split."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from planner.cost_model import CostModel
from planner.step_options import StepOptions
from planner.tiled_segments import fused, least_seconds, tiled_segment, with_rules
from znni.core.processors import GPU
from znni.core.shapes import Vec3
from znni.network.layers import Normalize, PackedLayer
from znni.network.network import Network
from znni.network.node import SplitConv, readers_of
from znni.plans.block_storage import block_storage
from znni.plans.primitive import Primitive, TakesPacked
from znni.plans.rewrites.block_steps import BlockSteps
from znni.plans.rewrites.fusion_rules import fusions
from znni.plans.rewrites.packed_values import packed_values
from znni.plans.rewrites.split_convolution import split, splittable

# The output voxels per axis of the block for which times are compared, unless there are windows.
# Which way is faster hardly depends on them.
SAMPLE = 128


def split_where_faster(
    network: Network, primitives: Collection[Primitive], model: CostModel
) -> Network:
    """Return a network in which all convolutions are split for which that is faster on a GPU.

    Only packed layers compute transposed convolutions without products by zero. So the times of
    packed layers are compared.

    Args:
        network: a tiled network for a volume.
        primitives: the primitives of the GPU.
        model: the model that predicts their times.
    """
    possible = splittable(network)
    parts = min((it.packed_parts for it in primitives if isinstance(it, TakesPacked)), default=0)
    if not possible or not parts:
        return network
    options = StepOptions(primitives, model, "none", most_items=1)
    readers = readers_of(network.nodes)
    whole = _packed_seconds(network, options, parts)
    parted = _packed_seconds(split(network, possible), options, parts)

    def is_faster(it: SplitConv) -> bool:
        """Return whether the steps in place of a convolution take less time, with a norm's."""
        norms = [node.name for node in readers[it.conv.name] if isinstance(node.layer, Normalize)]
        names = {it.coarse, *(node.name for node in it.nodes), *norms}
        before, after = (sum(steps.get(name, 0.0) for name in names) for steps in (whole, parted))
        return after < before

    faster = tuple(filter(is_faster, possible))
    return split(network, faster) if faster else network


def _packed_seconds(network: Network, options: StepOptions, parts: int) -> dict[str, float]:
    """Return the least seconds of a block's steps by the names of the values that they give.

    As many values as can be are packed. Steps of others count as if they took forever.
    """
    step = network.granularity
    storage = block_storage(network, step * (Vec3.of(SAMPLE) // step).maximum(1))
    steps = BlockSteps.layer_by_layer(network.nodes, storage)
    steps = with_rules(steps.after(packed_values(steps, options.prices.applies, parts)), options)
    steps = with_rules(fused(steps, fusions(network).values(), options), options)
    segment = tiled_segment(steps, GPU)
    return {
        it.gives: least_seconds([it], options) if isinstance(it.operation, PackedLayer) else inf
        for it in segment.steps
    }
