"""The order in which a network's layers need the least memory for values.

A value lives until its last use. So the memory depends on the order, wherever a network has
branches.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush

from znni.network.layers import Join
from znni.network.network import Network
from znni.network.node import INPUT, Node

# Most sets of computed layers that the search looks at. Networks that people train have tens of
# them. A network with more keeps the order of its file.
MOST_SETS = 5_000


@lru_cache(maxsize=64)
def order_of_lowest_peak(network: Network) -> tuple[Node, ...]:
    """Return the nodes in the order in which the largest sum of living values is least.

    A value counts by its maps and by the density of its samples; a globally pooled one does not
    count. A join takes the place of the inputs that end with it. The search is exact. It always
    extends the set of computed nodes with the lowest peak (Dijkstra's algorithm, with maxima for
    sums). If no order is better than the given one, or there are more than ``MOST_SETS`` sets, the
    given one stays.
    """
    nodes = network.nodes
    search = _Search(network)
    given = search.peak_of_given_order
    # Sets with more nodes come first among equals, so a good order is soon complete.
    waiting = [(search.living(0), 0, 0)]
    reached: dict[int, tuple[Fraction, int, int]] = {0: (search.living(0), 0, 0)}
    everything = (1 << len(nodes)) - 1
    while waiting and len(reached) <= MOST_SETS:
        peak, _, done = heappop(waiting)
        if peak >= given:
            return nodes
        if done == everything:
            return _path(nodes, reached)
        if peak > reached[done][0]:
            continue
        for index in search.computable(done):
            after = done | 1 << index
            higher = max(peak, search.during(done, index))
            if after not in reached or higher < reached[after][0]:
                reached[after] = higher, done, index
                heappush(waiting, (higher, -after.bit_count(), after))
    return nodes


def _path(
    nodes: tuple[Node, ...], reached: dict[int, tuple[Fraction, int, int]]
) -> tuple[Node, ...]:
    """Return the nodes in the order in which the full set was reached."""
    order: list[Node] = []
    done = (1 << len(nodes)) - 1
    while done:
        _, done, index = reached[done]
        order.append(nodes[index])
    return tuple(reversed(order))


class _Search:
    """A network's values as bits: bit i of a set says that node i is computed."""

    def __init__(self, network: Network) -> None:
        nodes = network.nodes
        places = {node.name: index for index, node in enumerate(nodes)}
        self._sizes = {
            name: Fraction(maps, network.strides[name].volume) * (name not in network.pooled)
            for name, maps in network.maps.items()
        }
        self._needs = [
            sum(1 << places[name] for name in set(node.inputs) if name != INPUT) for node in nodes
        ]
        readers = dict.fromkeys(self._sizes, 0)
        for index, node in enumerate(nodes):
            for name in node.inputs:
                readers[name] |= 1 << index
        readers[network.output] |= 1 << len(nodes)  # read after the last node
        self._made = [self._sizes[node.name] for node in nodes]
        self._joined = [
            [(self._sizes[name], readers[name]) for name in node.inputs]
            if isinstance(node.layer, Join)
            else []
            for node in nodes
        ]
        self._values = [
            (size, 1 << places[name] if name != INPUT else 0, readers[name])
            for name, size in self._sizes.items()
        ]

    def living(self, done: int) -> Fraction:
        """Return the sum of the values that exist and are still needed."""
        return sum(
            (
                size
                for size, maker, readers in self._values
                if maker & ~done == 0 and readers & ~done
            ),
            Fraction(0),
        )

    def during(self, done: int, index: int) -> Fraction:
        """Return the sum while a node is computed: its output, and all that lived before."""
        after = done | 1 << index
        ending = sum(size for size, readers in self._joined[index] if readers & ~after == 0)
        return self.living(done) + max(Fraction(0), self._made[index] - ending)

    def computable(self, done: int) -> list[int]:
        """Return the nodes that can be computed next."""
        return [
            index
            for index, needs in enumerate(self._needs)
            if not done >> index & 1 and needs & ~done == 0
        ]

    @property
    def peak_of_given_order(self) -> Fraction:
        """The largest sum in the order of the network's nodes."""
        steps = range(len(self._made))
        return max(self.during((1 << index) - 1, index) for index in steps)
