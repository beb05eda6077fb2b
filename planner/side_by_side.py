"""Batches shared between the host's processors and a GPU, so that both end at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.micro_batches import Offer
from znni.core.shapes import Shape5
from znni.network.layers import Operation
from znni.plans.composed import Piece
from znni.plans.primitive import Primitive
from znni.plans.side_by_side import SideBySide

# A function that prices a primitive for some items. It returns None if the primitive does not
# apply.
Priced = Callable[[Primitive, int], Offer | None]


def shared_offer(
    operation: Operation,
    shape: Shape5,
    on_host: Sequence[Offer],
    using: Offer,
    priced: Priced,
) -> Offer | None:
    """Return the host's fastest primitive and one that computes on a GPU as one.

    The items are in proportion to speed. The result is None if one primitive alone is as fast,
    because the other's share is too small.

    Args:
        operation: the operation to compute.
        shape: the shape of the input.
        on_host: the offers of the host's processors for the whole batch.
        using: the offer for it of a host primitive that computes on a GPU.
        priced: the function that prices fewer items.
    """
    if not on_host:
        return None
    own = min(on_host, key=lambda offer: offer.seconds)
    items = int(shape.n * using.seconds / (own.seconds + using.seconds))
    if not 0 < items < shape.n:
        return None
    parts = priced(own.primitive, items), priced(using.primitive, shape.n - items)
    first, second = parts
    if first is None or second is None:
        return None
    both = SideBySide(Piece(1, items, first.primitive), Piece(1, shape.n - items, second.primitive))
    cost = both.cost(operation, shape)
    moving = cost.bytes_moved / both.device.bandwidth
    seconds = max(first.seconds, second.seconds, moving)
    return Offer(both, shape.n, cost, seconds, max(first.error, second.error))
