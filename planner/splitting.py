"""The convolutions of upsampled values that a GPU computes faster if they are split."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from planner.cost_model import CostModel
from planner.exact_segments import exact_segment, fused, least_seconds, with_rules
from planner.step_options import StepOptions
from znni.core.shapes import Vec3
from znni.network.layers import Normalize, PackedLayer
from znni.network.network import Network
from znni.network.node import SplitConv, readers_of
from znni.plans.block_storage import block_storage
from znni.plans.primitive import Primitive, TakesPacked
from znni.plans.rewrites.block_steps import BlockSteps
from znni.plans.rewrites.fusions import fusions
from znni.plans.rewrites.packed_values import packed_values
from znni.plans.rewrites.split_convolution import split, splittable
from znni.plans.segments import Step

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
        network: an exact network for a volume.
        primitives: the primitives of the GPU.
        model: the model that predicts their times.
    """
    possible = splittable(network)
    if not possible:
        return network
    parts = min((it.packed_parts for it in primitives if isinstance(it, TakesPacked)), default=0)
    if not parts:
        return network
    options = StepOptions(primitives, model, "none", most_items=1)
    readers = readers_of(network.nodes)
    whole = _packed_steps(network, options, parts)
    parted = _packed_steps(split(network, possible), options, parts)

    def seconds(steps: Iterable[Step], names: Collection[str]) -> float:
        """Return the least seconds of some steps of packed values; infinite for others."""
        some = [step for step in steps if step.gives in names]
        if not all(isinstance(step.operation, PackedLayer) for step in some):
            return inf
        return least_seconds(some, options)

    def is_faster(it: SplitConv) -> bool:
        """Return whether the steps in place of a convolution take less time, with a norm's."""
        norms = [node.name for node in readers[it.conv.name] if isinstance(node.layer, Normalize)]
        names = {it.coarse, *(node.name for node in it.nodes), *norms}
        return seconds(parted, names) < seconds(whole, names)

    faster = tuple(filter(is_faster, possible))
    return split(network, faster) if faster else network


def _packed_steps(network: Network, options: StepOptions, parts: int) -> tuple[Step, ...]:
    """Return the bare steps of a block if as many values as can be are packed."""
    step = network.granularity
    storage = block_storage(network, step * (Vec3.of(SAMPLE) // step).maximum(1))
    steps = BlockSteps.layer_by_layer(network.nodes, storage)
    steps = with_rules(steps.after(packed_values(steps, options.applies, parts)), options)
    return exact_segment(fused(steps, fusions(network).values(), options), "gpu").steps
