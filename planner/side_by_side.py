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
    return offer_of_both(operation, shape, items_on_host(own, using), own, using, priced)


def items_on_host(own: Offer, using: Offer) -> int:
    """Return the items of a batch for the host's processors, in proportion to speed.

    Args:
        own: the offer of the host's processors for the whole batch.
        using: the offer for it of a host primitive that computes on a GPU.
    """
    return int(own.items * using.seconds / (own.seconds + using.seconds))


def offer_of_both(
    operation: Operation, shape: Shape5, items: int, own: Offer, using: Offer, priced: Priced
) -> Offer | None:
    """Return two primitives as one.

    The result is None if one computes nothing, or does not apply.

    Args:
        operation: the operation to compute.
        shape: the shape of the input.
        items: the items for the host's processors.
        own: their offer for the whole batch.
        using: the offer for it of a host primitive that computes on a GPU.
        priced: the function that prices fewer items.
    """
    if not 0 < items < shape.n:
        return None
    first, second = priced(own.primitive, items), priced(using.primitive, shape.n - items)
    if first is None or second is None:
        return None
    both = SideBySide(Piece(1, items, first.primitive), Piece(1, shape.n - items, second.primitive))
    cost = both.cost(operation, shape)
    moving = cost.bytes_moved / both.device.bandwidth
    seconds = max(first.seconds, second.seconds, moving)
    return Offer(both, shape.n, cost, seconds, max(first.error, second.error))
