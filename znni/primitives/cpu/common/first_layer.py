"""First layers, whose convolutions are pooled as they are computed: what all primitives ask."""

from __future__ import annotations

from znni.core.shapes import Shape5
from znni.network.network import Operation, PooledConv
from znni.plans.primitive import convolved_and_pooled

# Input maps, at most. With more, the output is no longer much larger than the input, and the
# products take most of the time and want to be made in batches.
MOST_FEATURES = 4


def pooled_first_layer(layer: Operation, shape: Shape5) -> tuple[PooledConv, Shape5] | None:
    """A convolution of few maps with its pooling, and the shape of its output.

    Returns:
        None for another operation, other maps or too small a size; and with softmax, which does
        not keep the order of a map's values, so that they cannot be pooled before it.
    """
    out = convolved_and_pooled(layer, shape)
    if out is None or not isinstance(layer, PooledConv):
        return None
    if shape.f > MOST_FEATURES or layer.conv.activation == "softmax":
        return None
    return layer, out
