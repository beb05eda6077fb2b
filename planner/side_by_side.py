"""Batches shared out between the host's processors and a GPU, so that both end at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.micro_batches import Offer
from znni.core.shapes import Shape5
from znni.network.network import Operation
from znni.plans.primitive import Primitive
from znni.plans.side_by_side import Share, SideBySide

# The price of a primitive for some items, or None where it does not apply.
Priced = Callable[[Primitive, int], Offer | None]


def shared_offer(
    operation: Operation,
    shape: Shape5,
    on_host: Sequence[Offer],
    on_gpu: Sequence[Offer],
    priced: Priced,
) -> Offer | None:
    """The fastest of each side together, each with items in proportion to its speed.

    None where one of them alone does as well, which its share of the batch is too small for.

    Args:
        operation: what is computed.
        shape: of the input.
        on_host: offers for the whole batch, by the host's processors.
        on_gpu: offers for it by primitives of the host that compute on a GPU.
        priced: prices fewer items.
    """
    if not (on_host and on_gpu):
        return None
    own, using = (min(offers, key=lambda offer: offer.seconds) for offers in (on_host, on_gpu))
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
