"""Batches shared out between the host's processors and a GPU, so that both end at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.divisions import Offer
from znni.network import Operation
from znni.primitive import Primitive, UsesGpu
from znni.shapes import Shape5
from znni.side_by_side import Share, SideBySide

# The price of a primitive for some items, or None where it does not apply.
Priced = Callable[[Primitive, int], Offer | None]


def shared_offer(
    operation: Operation, shape: Shape5, offers: Sequence[Offer], priced: Priced
) -> Offer | None:
    """The fastest of each side together, each with items in proportion to its speed.

    None where one of them alone does as well, which its share of the batch is too small for.

    Args:
        operation: what is computed.
        shape: of the input.
        offers: for the whole batch.
        priced: prices fewer items.
    """
    fastest = sorted(offers, key=lambda offer: offer.seconds)
    own = next((o for o in fastest if not isinstance(o.primitive, UsesGpu)), None)
    using = next((o for o in fastest if isinstance(o.primitive, UsesGpu)), None)
    if own is None or using is None:
        return None
    items = int(shape.n * using.seconds / (own.seconds + using.seconds))
    if not 0 < items < shape.n:
        return None
    parts = priced(own.primitive, items), priced(using.primitive, shape.n - items)
    first, second = parts
    if first is None or second is None:
        return None
    both = SideBySide(Share(items, first.primitive), Share(shape.n - items, second.primitive))
    cost = both.cost(operation, shape)
    moving = cost.bytes_moved / both.device.bandwidth
    seconds = max(first.seconds, second.seconds, moving)
    return Offer(both, shape.n, cost, seconds, max(first.error, second.error))
