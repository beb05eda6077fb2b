"""How long a call takes by what its primitive declares and its device's nominal rates."""

from __future__ import annotations

from znni.cost import Cost
from znni.primitive import Primitive

# How much of the shorter of arithmetic and traffic is not hidden behind the longer. A roofline
# would be the longer alone. Measurements of the tiled Fourier convolution say so, whose passes are
# bound now by one and now by the other.
NOT_HIDDEN = 0.5


def nominal_time(primitive: Primitive, cost: Cost) -> float:
    """Seconds of a call: those declared, or arithmetic and traffic, which overlap in part."""
    if cost.seconds is not None:
        return cost.seconds
    seconds = nominal_seconds(primitive, cost)
    return max(seconds) + NOT_HIDDEN * min(seconds)


def nominal_seconds(primitive: Primitive, cost: Cost) -> tuple[float, float]:
    """Of arithmetic and of memory traffic, at the device's nominal rates."""
    device = primitive.device
    return cost.flops / (cost.efficiency * device.flops), cost.bytes_moved / device.bandwidth
