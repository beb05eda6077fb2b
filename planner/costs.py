"""How long a primitive takes: a model of flops and bytes."""

from __future__ import annotations

from znni.cost import Cost
from znni.primitive import Primitive

CALL_SECONDS = 1e-4  # handing tasks to the workers, whatever the size

# How much of the shorter of arithmetic and traffic is not hidden behind the longer.
NOT_HIDDEN = 0.5


def model_seconds(primitive: Primitive, cost: Cost) -> float:
    """Predicted seconds of one call: arithmetic and memory traffic, which overlap in part.

    A roofline would be the longer of the two. The weights come from measurements of the tiled
    Fourier convolution, whose passes are bound now by one and now by the other.
    """
    device = primitive.device
    arithmetic = cost.flops / (cost.efficiency * device.flops)
    traffic = cost.bytes_moved / device.bandwidth
    return CALL_SECONDS + max(arithmetic, traffic) + NOT_HIDDEN * min(arithmetic, traffic)
