"""Selection of first layers, whose convolutions are pooled while they are computed."""

from __future__ import annotations

from znni.core.shapes import Shape5
from znni.network.layers import Operation, PooledConv
from znni.plans.primitive import convolved_and_pooled

# Largest number of input maps. With more, the output is no longer much larger than the input. The
# products then take most of the time and are better made in batches.
MOST_FEATURES = 4


def pooled_first_layer(layer: Operation, shape: Shape5) -> tuple[PooledConv, Shape5] | None:
    """Return a convolution of few maps with its pooling, and the shape of its output.

    Returns:
        None for another operation, too many maps or too small a size. It is also None with softmax,
        which does not keep the order of a map's values, so pooling cannot come before it.
    """
    out = convolved_and_pooled(layer, shape)
    if out is None or not isinstance(layer, PooledConv):
        return None
    if shape.f > MOST_FEATURES or layer.conv.activation == "softmax":
        return None
    return layer, out
