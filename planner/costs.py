"""How long a primitive takes: a model of flops and bytes."""

from __future__ import annotations

from znni.cost import Cost
from znni.primitive import Primitive

CALL_SECONDS = 1e-4  # handing tasks to the workers, whatever the size


def model_seconds(primitive: Primitive, cost: Cost) -> float:
    """Predicted seconds of one call: the slower of arithmetic and memory traffic (a roofline).

    Arithmetic runs at the share of the device's nominal rate that the primitive sustains.
    """
    device = primitive.device
    arithmetic = cost.flops / (primitive.efficiency * device.flops)
    traffic = cost.bytes_moved / device.bandwidth
    return CALL_SECONDS + max(arithmetic, traffic)
