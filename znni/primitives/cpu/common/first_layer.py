"""Selection of first layers, whose convolutions are pooled while they are computed."""

from __future__ import annotations

from znni.core.shapes import Shape5
from znni.network.activations import has_slopes, increases
from znni.network.layers import Conv, Operation, PooledConv
from znni.plans.primitive import convolved_and_pooled

# Largest number of input maps. With more, the output is no longer much larger than the input. The
# products then take most of the time and are better made in batches.
MOST_FEATURES = 4


def keeps_order(conv: Conv) -> bool:
    """Return whether larger sums of a map always give larger outputs, or equal ones."""
    trained = has_slopes(conv.activation)  # then slopes may be negative
    return not trained and increases(conv.activation, conv.slope)


def pooled_first_layer(layer: Operation, shape: Shape5) -> tuple[PooledConv, Shape5] | None:
    """Return a convolution of few maps with its pooling, and the shape of its output.

    Returns:
        None for another operation, too many maps or too small a size. It is also None for an
        activation that does not keep the order of a map's values, so pooling cannot come before it.
    """
    out = convolved_and_pooled(layer, shape)
    if out is None or not isinstance(layer, PooledConv):
        return None
    if shape.f > MOST_FEATURES or not keeps_order(layer.conv):
        return None
    return layer, out
